package detect

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// The Service that the cases are about: shop/web, 10.96.0.101:7007, behind it what the cases say.
var (
	webAddress = netip.MustParseAddrPort("10.96.0.101:7007")
	oldPod     = netip.MustParseAddr("10.30.64.3")
	newPod     = netip.MustParseAddr("10.30.64.4")
)

type proxied struct{ snapshot.Snapshot }

// polled is a poll some seconds after the beginning: the Service leads to ready,
// the table to served, and kube-proxy has just finished a sync.
func polled(at int, ready []netip.Addr, served ...snapshot.RealServer) *proxied {
	p := &proxied{}
	p.Time = start.Add(time.Duration(at) * time.Second)
	port := snapshot.ServicePort{Protocol: "TCP", Port: 7007}
	p.Services = snapshot.List[snapshot.Service]{Read: true, Items: []snapshot.Service{{
		Namespace: "shop", Name: "web", ClusterIPs: []netip.Addr{webAddress.Addr()}, Ports: []snapshot.ServicePort{port},
	}}}
	p.EndpointSlices = snapshot.List[snapshot.EndpointSlice]{Read: true, Items: []snapshot.EndpointSlice{{
		Namespace: "shop", Service: "web", Ports: []snapshot.ServicePort{port}, Ready: ready,
	}}}
	p.Proxies = []snapshot.Proxy{{
		Node: "edge", Read: true, Mode: "ipvs",
		Health: snapshot.ProxyHealth{Status: http.StatusOK, LastUpdated: p.Time, CurrentTime: p.Time},
		Table:  []snapshot.VirtualServer{{Protocol: "TCP", Address: webAddress, Scheduler: "rr", Servers: served}},
	}}
	return p
}

func (p *proxied) proxy() *snapshot.Proxy { return &p.Proxies[0] }

func (p *proxied) but(change func(*snapshot.Proxy)) *proxied {
	change(p.proxy())
	return p
}

// frozen has kube-proxy finish no sync since the beginning, and late say that this is too long ago.
func (p *proxied) frozen() *proxied {
	return p.but(func(x *snapshot.Proxy) { x.Health.LastUpdated = start })
}
func (p *proxied) late() *proxied {
	return p.frozen().but(func(x *snapshot.Proxy) { x.Health.Status = http.StatusServiceUnavailable })
}
func (p *proxied) dead() *proxied {
	return p.but(func(x *snapshot.Proxy) { x.Mode, x.Health = "", snapshot.ProxyHealth{} })
}
func (p *proxied) leaving() *proxied {
	return p.but(func(x *snapshot.Proxy) { x.Health.Leaving = true })
}
func (p *proxied) unmeasured() *proxied {
	return p.nft(0).but(func(x *snapshot.Proxy) { x.Syncs = nil })
}
func (p *proxied) version(v string) *proxied { return p.but(func(x *snapshot.Proxy) { x.Version = v }) }
func (p *proxied) mode(mode string) *proxied { return p.but(func(x *snapshot.Proxy) { x.Mode = mode }) }
func (p *proxied) unlisted() *proxied        { return p.but(func(x *snapshot.Proxy) { x.Table = nil }) }

// nft has kube-proxy 1.34.4 run in mode nftables, and count so many failed syncs.
func (p *proxied) nft(failed int, unreadable ...string) *proxied {
	p.proxy().Mode, p.proxy().Version, p.proxy().Unreadable = snapshot.NFTables, "1.34.4", unreadable
	p.proxy().Syncs = map[string]snapshot.ProxySync{"IPv4": {Last: p.proxy().Health.LastUpdated, Failed: failed}, "IPv6": {Last: p.Time}}
	return p
}

// syncs sets the seconds of the last sync of IPv4 (-1: none) and of the reason for one, and how many failed.
func (p *proxied) syncs(last, queued, failed int) *proxied {
	p.nft(0)
	s := snapshot.ProxySync{Queued: start.Add(time.Duration(queued) * time.Second), Failed: failed}
	if last >= 0 {
		s.Last = start.Add(time.Duration(last) * time.Second)
	}
	p.proxy().Syncs["IPv4"] = s
	return p
}

// otherFails has syncs of IPv6 fail; both has syncs fail of a kube-proxy that does not tell the families apart.
func (p *proxied) otherFails(failed int) *proxied {
	return p.nft(0).but(func(x *snapshot.Proxy) { x.Syncs["IPv6"] = snapshot.ProxySync{Failed: failed} })
}
func (p *proxied) both(failed int) *proxied {
	return p.nft(0).but(func(x *snapshot.Proxy) { x.Syncs = map[string]snapshot.ProxySync{"": {Last: p.Time, Failed: failed}} })
}

// waits has goroutines of kube-proxy wait for IPVS, each in the same call in all polls.
func (p *proxied) waits(ids ...int) *proxied {
	for _, id := range ids {
		p.proxy().Goroutines = append(p.proxy().Goroutines, snapshot.Goroutine{ID: id, Call: "all along", Functions: []string{
			"syscall.Syscall6", "k8s.io/kubernetes/vendor/github.com/vishvananda/netlink/nl.(*NetlinkSocket).Receive",
			"k8s.io/kubernetes/vendor/github.com/docker/libnetwork/ipvs.execute",
		}})
	}
	return p
}

// hangs has no sync be finished, and two goroutines wait for IPVS.
func (p *proxied) hangs() *proxied { return p.frozen().waits(7, 42) }

// moves has a goroutine wait for IPVS in a call that no other poll shows.
func (p *proxied) moves(id int) *proxied {
	p.waits(id)
	p.proxy().Goroutines[len(p.proxy().Goroutines)-1].Call = p.Time.String()
	return p
}

func (p *proxied) as(change func(*snapshot.Service, *snapshot.EndpointSlice)) *proxied {
	change(&p.Services.Items[0], &p.EndpointSlices.Items[0])
	return p
}

// well is a poll in which shop/web leads to the old endpoint, which is ready.
func well(at int) *proxied { return polled(at, pods(oldPod), to(oldPod)) }

func to(pod netip.Addr) snapshot.RealServer {
	return snapshot.RealServer{Address: netip.AddrPortFrom(pod, 7007), Weight: 1}
}

func TestProxyConvergence(t *testing.T) {
	overdue := func(ready []netip.Addr, change func(*snapshot.Service, *snapshot.EndpointSlice), served ...snapshot.RealServer) []*proxied {
		return []*proxied{polled(0, ready, served...).frozen().as(change), polled(12, ready, served...).frozen().as(change)}
	}
	local := func(on ...string) func(*snapshot.Service, *snapshot.EndpointSlice) {
		return func(s *snapshot.Service, e *snapshot.EndpointSlice) { s.InternalLocal, e.ReadyOn = true, on }
	}
	hinted := func(_ *snapshot.Service, e *snapshot.EndpointSlice) { e.Hinted = true }
	draining := func(_ *snapshot.Service, e *snapshot.EndpointSlice) { e.Draining = []netip.Addr{oldPod} }
	old, oldAndNew, new := []netip.Addr{oldPod}, []netip.Addr{oldPod, newPod}, []netip.Addr{newPod}
	drained := to(oldPod)
	drained.Weight, drained.Active = 0, 7
	toNew := to(newPod)
	settling := []string{"missing-endpoint settling edge", "stale-endpoint settling edge"}
	active := []string{"missing-endpoint active edge", "stale-endpoint active edge"}
	deadlocked := append([]string{"netlink-deadlock active kube-proxy"}, active...)
	missing, late, hint := active[:1], []string{"frozen-sync latent kube-proxy"}, []string{"unreadable-set hint kube-proxy"}
	for _, c := range []struct {
		name    string
		history []*proxied
		// want is "kind state object" of each finding.
		want []string
	}{
		{"nothing seen", nil, nil},
		{"converged", []*proxied{polled(0, oldAndNew, to(oldPod), to(newPod)), polled(20, oldAndNew, to(newPod), to(oldPod))}, nil},
		{"converged, and kube-proxy has nothing to do", []*proxied{well(0).frozen(), well(28).frozen()}, nil},
		{"a Service that rightly has no endpoints",
			[]*proxied{polled(0, nil).frozen(), polled(12, nil).frozen(), polled(28, nil).frozen().unlisted()}, nil},
		{"a connection that an old endpoint still has",
			[]*proxied{polled(0, new, to(newPod), drained).frozen(), polled(28, new, to(newPod), drained).frozen()}, nil},
		{"a rollout that has just begun", []*proxied{well(0).frozen(), stale(2).frozen(), stale(11).frozen()}, settling},
		{"a rollout that is over", []*proxied{stale(0).frozen(), stale(9).frozen(), polled(12, new, toNew).frozen()}, nil},
		{"one rollout after the other", []*proxied{stale(0).frozen(), polled(9, old, toNew).frozen(), stale(18).frozen()}, settling},
		{"a difference for as long as is too long, while one sync was finished", []*proxied{stale(3), stale(23)}, settling},
		{"an endpoint whose server was drained by mistake",
			[]*proxied{polled(0, old, drained).frozen(), polled(10, old, drained).frozen()}, missing},
		{"a poll that failed in between", []*proxied{polled(0, old).frozen().unlisted(), unreadable(5), polled(10, old).frozen().unlisted()},
			[]string{"missing-service active edge"}},
		{"a poll that failed at the end", []*proxied{polled(0, old).frozen().unlisted(), polled(10, old).frozen().unlisted(), unreadable(12)}, nil},
		{"a kube-proxy that has died", []*proxied{well(0), stale(2).dead(), stale(12).dead()}, active},
		{"another mode",
			[]*proxied{polled(0, old).frozen().unlisted().mode("iptables"), polled(20, old).late().unlisted().mode("iptables")}, nil},
		{"an unknown mode", []*proxied{polled(0, old).dead().unlisted(), polled(20, old).dead().unlisted()}, nil},
		{"no sync for long, and nothing to sync", []*proxied{well(0).late(), well(20).late()}, late},
		{"goroutines that wait in vain", []*proxied{well(0).late().waits(7, 42), well(5).late().waits(7, 42)},
			[]string{"frozen-sync latent kube-proxy", "netlink-deadlock latent kube-proxy"}},
		{"goroutines that wait each for a moment",
			[]*proxied{well(0).late().waits(7, 42), well(5).late().waits(7, 43)}, late},
		{"goroutines that wait in each poll while syncs are finished", []*proxied{well(0).waits(7, 42), well(5).waits(7, 42)}, nil},
		{"an endpoint that was replaced while goroutines wait in vain", []*proxied{well(0).hangs(), stale(3).hangs(), stale(8).hangs()},
			deadlocked},
		{"the same, in the next poll after the one that shows it",
			[]*proxied{well(0).hangs(), stale(3).hangs()}, deadlocked},
		{"the same, in two polls that are too close", []*proxied{well(0).frozen(), stale(3).hangs(), stale(5).hangs()},
			settling},
		{"the same, with a poll in between that failed",
			[]*proxied{stale(0).hangs(), unreadable(3), stale(6).hangs()}, deadlocked},
		{"a node's own endpoint alone, and no other", overdue(oldAndNew, local("edge", "core"), to(oldPod)), nil},
		{"no endpoint of the node's own", overdue(oldAndNew, local("core", "core")), nil},
		{"not the node's own endpoint", overdue(oldAndNew, local("edge", "core"), to(newPod)), active},
		{"own endpoints alone, of a snapshot that does not say where they are", overdue(old, local(), to(oldPod)), nil},
		{"endpoints for another zone", overdue(oldAndNew, hinted, to(oldPod)), nil},
		{"no endpoint of any zone", overdue(oldAndNew, hinted), missing},
		{"endpoints of any zone that are none", overdue(new, hinted, to(newPod), to(oldPod)), []string{"stale-endpoint active edge"}},
		{"a terminating endpoint while none is ready", overdue(nil, draining, to(oldPod)), nil},
		{"a terminating endpoint beside one that is ready", overdue(new, draining, to(newPod), to(oldPod)), []string{"stale-endpoint active edge"}},
		{"another proxy's Service", overdue(new, func(s *snapshot.Service, _ *snapshot.EndpointSlice) { s.OtherProxy = true }, to(oldPod)), nil},
		{"a sync that is slow, and moves", []*proxied{stale(0).frozen().moves(7).moves(42), stale(3).frozen().moves(7).moves(42),
			stale(6).frozen().moves(7).moves(42), stale(9).frozen().moves(7).moves(42)}, settling},
		{"a sync that waits for a tick which is slow, and moves", []*proxied{stale(0).frozen().waits(7).moves(42),
			stale(3).frozen().waits(7).moves(42), stale(6).frozen().waits(7).moves(42), stale(9).frozen().waits(7).moves(42)}, settling},
		{"a sync that was finished between two polls of the same calls",
			[]*proxied{stale(0).waits(7, 42), stale(3).waits(7, 42), stale(6).waits(7, 42)}, settling},
		{"a wait that was missing in one poll of three", []*proxied{stale(0).hangs(), stale(2).frozen().waits(7), stale(4).hangs()},
			settling},
		{"one goroutine that waits", []*proxied{well(0).late().waits(7), well(5).late().waits(7)}, late},
		{"an endpoint that was replaced, and a sync of nftables that failed",
			[]*proxied{well(0).nft(0), stale(2).nft(1), stale(3).nft(1)}, active},
		{"the same a moment ago", []*proxied{well(0).nft(0), stale(2).nft(1)}, settling},
		{"a sync that failed before", []*proxied{well(0).nft(7), stale(2).nft(7), stale(9).nft(7)}, settling},
		{"syncs that failed, and nobody knows when", []*proxied{stale(0).nft(7), stale(9).nft(7)}, settling},
		{"a kube-proxy in mode nftables that has died", []*proxied{well(0).nft(0), stale(2).dead(), stale(12).dead()}, active},
		{"a quiet node that has heard of a change late", []*proxied{stale(1800).syncs(9, 9, 0), stale(1812).syncs(9, 1811, 0)}, settling},
		{"a change that waits for a sync, and others after it",
			[]*proxied{stale(1800).syncs(9, 1800, 0), stale(1812).syncs(9, 1811, 0)}, active},
		{"nothing to do, and a difference", []*proxied{stale(1800).syncs(9, 9, 0), stale(1812).syncs(9, 9, 0)}, active},
		{"a restarted kube-proxy that can finish no sync", []*proxied{stale(1).syncs(-1, 0, 1), stale(12).syncs(-1, 0, 1)}, active},
		{"a restarted kube-proxy", []*proxied{stale(1).syncs(-1, 0, 0), stale(12).syncs(-1, 0, 0)}, settling},
		{"failures of another family", []*proxied{well(0).nft(0), stale(2).otherFails(1), stale(9).otherFails(2)}, settling},
		{"syncs of another family alone", []*proxied{well(0).syncs(0, 0, 0), stale(2).syncs(0, 2, 0), stale(13).syncs(0, 2, 0)}, active},
		{"a version without families", []*proxied{well(0).nft(0), stale(2).both(1), stale(9).both(1)}, active},
		{"metrics that were not read", []*proxied{well(0).unmeasured(), stale(2).unmeasured(), stale(13).unmeasured(),
			stale(23).unmeasured()}, settling},
		{"metrics that were not read before", []*proxied{well(0).unmeasured(), stale(2).nft(7), stale(9).nft(7)}, settling},
		{"metrics that were not read at the end", []*proxied{well(0).nft(0), stale(2).nft(0), stale(13).unmeasured()}, settling},
		{"failures that go on, and nobody knows since when", []*proxied{stale(0).nft(7), stale(9).nft(8)}, active},
		{"a node that is to be deleted", []*proxied{well(0).late().leaving()}, nil},
		{"a set, and another vendor's build", []*proxied{well(0).nft(0, "inet guard interfaces").version("1.34.3-eks-113cf36")}, hint},
		{"a set, and another vendor's build of a later release", []*proxied{well(0).nft(0, "inet guard interfaces").version("1.36.9+k3s1")}, hint},
		{"a set, and an unknown version", []*proxied{well(0).nft(0, "inet guard interfaces").version("")}, hint},
		{"a set, and a release that can read it", []*proxied{well(0).nft(0, "inet guard interfaces").version("1.36.3")}, nil},
		{"a set that crashes the proxy's nft", []*proxied{well(0).nft(0, "inet guard interfaces")}, []string{"unreadable-set latent kube-proxy"}},
		{"all of it", []*proxied{stale(0).late().waits(7, 42), stale(20).late().waits(7, 42)},
			append([]string{"frozen-sync active kube-proxy"}, deadlocked...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			must.Equal(t, "found", c.want, each.Of(detected(t, ProxyConvergence{}, proxies(c.history...)), func(f Finding) string {
				if f.Detector != "proxy-convergence" || f.Announcer != "edge" || !strings.HasSuffix(f.Says, ".") {
					t.Errorf("%+v", f)
				}
				return fmt.Sprintf("%s %s %s", f.Kind, f.State, f.Object)
			}))
		})
	}
}

func unreadable(at int) *proxied {
	p := polled(at, nil)
	p.Proxies = []snapshot.Proxy{{Node: "edge", Error: "no answer within 5s"}}
	return p
}

func TestProxyConvergenceSays(t *testing.T) {
	new := []netip.Addr{newPod}
	for _, c := range []struct {
		name    string
		history []snapshot.Snapshot
		want    []string
	}{
		{"active", proxies(polled(0, new, to(oldPod)).late().waits(7, 42), polled(20, new, to(oldPod)).late().waits(7, 42)), []string{
			"kube-proxy on edge finished its last sync 20s ago, which it reports as too long (healthz: 503).",
			"goroutines 7 and 42 of kube-proxy on edge have been waiting for the kernel's answers about IPVS for 20s or longer: they share a netlink socket, and each has discarded the answer to the other.",
			"The IPVS table of edge sends no connection to ready endpoints: 10.30.64.4:7007 of shop/web:7007/TCP; the oldest difference has lasted for 20s or longer, and kube-proxy's last sync was 20s ago.",
			"The IPVS table of edge sends connections to addresses that are in no EndpointSlice: 10.30.64.3:7007 of shop/web:7007/TCP; the oldest difference has lasted for 20s or longer, and kube-proxy's last sync was 20s ago.",
		}},
		{"settling", proxies(polled(0, pods(oldPod), to(oldPod)), polled(3, new, to(oldPod)), polled(7, new, to(oldPod))), []string{
			"The IPVS table of edge sends no connection to ready endpoints: 10.30.64.4:7007 of shop/web:7007/TCP; the oldest difference has lasted for 4s or longer, and kube-proxy's last sync was 0s ago. Pending: this becomes active after 10s, or after 20s and two syncs while kube-proxy finishes syncs.",
			"The IPVS table of edge sends connections to addresses that are in no EndpointSlice: 10.30.64.3:7007 of shop/web:7007/TCP; the oldest difference has lasted for 4s or longer, and kube-proxy's last sync was 0s ago. Pending: this becomes active after 10s, or after 20s and two syncs while kube-proxy finishes syncs.",
		}},
		{"kube-proxy has restarted in vain", proxies(polled(1, new).late().syncs(-1, 0, 2).unlisted(), polled(12, new).late().syncs(-1, 0, 2).unlisted()), []string{
			"kube-proxy on edge has finished no sync since its start, 12s ago, which it reports as too long (healthz: 503).",
			"The nftables table of edge has nothing for Services with ready endpoints: shop/web:7007/TCP (10.96.0.101:7007); the oldest difference has lasted for 11s or longer, and kube-proxy has finished no sync since its start (2 failed).",
		}},
		{"syncs are not read", proxies(polled(1, new).unmeasured().unlisted()), []string{
			"The nftables table of edge has nothing for Services with ready endpoints: shop/web:7007/TCP (10.96.0.101:7007); the oldest difference has lasted for 0s or longer, and kube-proxy's syncs were not read. Pending: this becomes active after 10s, or after 20s and two syncs while kube-proxy finishes syncs.",
		}},
		{"another vendor's build", proxies(polled(1, new, to(newPod)).nft(0, "inet guard interfaces").version("1.34.3-eks")), []string{
			"Another program than kube-proxy has set inet guard interfaces of nftables on edge, made by nft 1.1.2 or later. The nft of kube-proxy 1.34.3-eks, which is no release of Kubernetes itself, may crash when it reads that: the nft 1.0.6 in images before v1.34.10, v1.35.7 and v1.36.3 does, and which one this build has is not known.",
		}},
		{"goroutines that have only begun to wait", proxies(polled(0, pods(oldPod)).frozen(), polled(10, pods(oldPod)).hangs(), polled(12, pods(oldPod)).hangs()), []string{
			"goroutines 7 and 42 of kube-proxy on edge have been waiting for the kernel's answers about IPVS for 2s or longer; pending: this counts as a deadlock after 2.5s.",
			"The IPVS table of edge sends no connection to ready endpoints: 10.30.64.3:7007 of shop/web:7007/TCP; the oldest difference has lasted for 12s or longer, and kube-proxy's last sync was 12s ago.",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must.Equal(t, "says", c.want, each.Of(detected(t, ProxyConvergence{}, c.history), sentenceOf))
		})
	}
}

// The release from which on the vendor's images have a patched nft.
func TestCrashesAtSets(t *testing.T) {
	for version, want := range map[string]bool{
		"1.31.14": true, "1.33.99": true, "1.34.9": true, "1.34.10": false, "1.35.6": true, "1.35.7": false, "1.36.2": true, "1.36.3": false,
		"1.37.0": false, "1.34.1-eks-113cf36": true, "": false, "custom": false,
	} {
		must.Equal(t, version, want, CrashesAtSets(version))
	}
}

// What is excepted is not looked at, however long it differs; the rest is.
func TestProxyConvergenceExcept(t *testing.T) {
	history := proxies(polled(0, pods(newPod), to(oldPod)).frozen(), polled(20, pods(newPod), to(oldPod)).frozen())
	for service, want := range map[string]int{"shop/web": 0, "shop/other": 2} {
		d := ProxyConvergence{Except: func(s string) bool { return s == service }}
		must.Equal(t, "without "+service, want, len(detected(t, d, history)))
	}
}
