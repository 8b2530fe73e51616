package detect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Kinds of findings of IPVSConvergence.
const (
	// FrozenSync: kube-proxy's last sync is too long ago, in its own opinion.
	FrozenSync = "frozen-sync"
	// NetlinkDeadlock: goroutines of kube-proxy wait for the kernel's answer
	// about IPVS, and it does not come.
	NetlinkDeadlock = "netlink-deadlock"
	// MissingVirtualServer: a Service with ready endpoints is not in the
	// table.
	MissingVirtualServer = "missing-virtual-server"
	// MissingRealServer: ready endpoints of a Service get no connection.
	MissingRealServer = "missing-real-server"
	// StaleRealServer: connections go to what is no endpoint of the Service.
	StaleRealServer = "stale-real-server"
)

// DefaultSettle is the time that kube-proxy is given: healthy ones need some
// tens of milliseconds after a change of one Service, and some seconds on a
// node that has a thousand of them or no processor to spare.
const DefaultSettle = 10 * time.Second

// IPVSConvergence compares the IPVS tables that kube-proxies keep with
// Services and EndpointSlices. A difference is a finding, an active one, when
// it has lasted for Settle and kube-proxy has finished no sync in that time,
// or for twice as long whatever kube-proxy does: so neither a rollout nor a
// Service without endpoints is one.
//
// An old sync alone, and goroutines that wait, are latent findings: they hurt
// nobody until a Service changes. They are active on a node that has
// differences.
//
// Nodes whose kube-proxy is known to run in another mode are not looked at.
type IPVSConvergence struct {
	// Settle is how long a difference may last; zero means DefaultSettle.
	Settle time.Duration
}

// Name implements Detector.
func (IPVSConvergence) Name() string { return "ipvs-convergence" }

// Detect implements Detector. Findings are in order of node; those of one
// node begin with what is wrong with kube-proxy itself, and go on in order of
// Service, one for each port and kind. Announcer is the node.
func (d IPVSConvergence) Detect(history []snapshot.Snapshot) []Finding {
	if len(history) == 0 {
		return nil
	}
	var findings []Finding
	for _, p := range history[len(history)-1].Proxies {
		if !inIPVSMode(history, p.Node) || !p.Read {
			continue
		}
		for _, f := range d.node(history, p) {
			f.Detector, f.Announcer = d.Name(), p.Node
			findings = append(findings, f)
		}
	}
	return findings
}

// inIPVSMode tells whether a node's kube-proxy runs in IPVS mode: as it said
// last, for one that hangs or has died says nothing.
func inIPVSMode(history []snapshot.Snapshot, node string) bool {
	for _, s := range slices.Backward(history) {
		if p, ok := proxyOf(s, node); ok && p.Mode != "" {
			return p.Mode == "ipvs"
		}
	}
	return false
}

func proxyOf(s snapshot.Snapshot, node string) (snapshot.Proxy, bool) {
	i := slices.IndexFunc(s.Proxies, func(p snapshot.Proxy) bool { return p.Node == node })
	if i < 0 || !s.Proxies[i].Read {
		return snapshot.Proxy{}, false
	}
	return s.Proxies[i], true
}

func (d IPVSConvergence) node(history []snapshot.Snapshot, p snapshot.Proxy) []Finding {
	settle := cmp.Or(d.Settle, DefaultSettle)
	now := history[len(history)-1].Time
	overdue := lasting(history, p.Node)
	for diff, since := range overdue {
		lasts := now.Sub(since)
		synced := p.Health.Status != 0 && p.Health.Age() < lasts
		if lasts < settle || synced && lasts < 2*settle {
			delete(overdue, diff)
		}
	}
	state := Latent
	if len(overdue) > 0 {
		state = Active
	}
	var findings []Finding
	if p.Health.Late() {
		findings = append(findings, Finding{
			Kind: FrozenSync, State: state, Object: "kube-proxy",
			Says: fmt.Sprintf("kube-proxy on %s finished its last sync %s ago, and says itself that this is too long (healthz: %d).",
				p.Node, seconds(p.Health.Age()), p.Health.Status),
		})
	}
	if stuck, since := waiting(history, p); len(stuck) > 1 && now.Sub(since) >= settle/2 {
		findings = append(findings, Finding{
			Kind: NetlinkDeadlock, State: state, Object: "kube-proxy",
			Says: fmt.Sprintf("goroutines %s of kube-proxy on %s have been waiting for the kernel's answers about IPVS for %s or longer: on one netlink socket, each has thrown away the answer to the other.",
				and(stuck), p.Node, seconds(now.Sub(since))),
		})
	}
	for _, g := range groups(overdue) {
		findings = append(findings, Finding{
			Kind: g.kind, State: Active, Object: g.port.String(), Says: g.says(p, now),
		})
	}
	return findings
}

func seconds(d time.Duration) string { return d.Round(time.Second).String() }

// waiting names the goroutines that wait for IPVS now and have done so in
// every snapshot since.
func waiting(history []snapshot.Snapshot, p snapshot.Proxy) (ids []int, since time.Time) {
	for _, g := range p.Goroutines {
		ids = append(ids, g.ID)
	}
	for _, s := range slices.Backward(history) {
		then, ok := proxyOf(s, p.Node)
		if !ok {
			continue // not read: nothing is known about that moment
		}
		still := slices.DeleteFunc(slices.Clone(ids), func(id int) bool {
			return !slices.ContainsFunc(then.Goroutines, func(g snapshot.Goroutine) bool { return g.ID == id })
		})
		if len(still) < 2 {
			break
		}
		ids, since = still, s.Time
	}
	return ids, since
}

// servicePort is a port of a cluster IP.
type servicePort struct {
	service  string // namespace/name
	protocol string
	address  netip.AddrPort
}

func (p servicePort) String() string {
	return fmt.Sprintf("%s:%d/%s", p.service, p.address.Port(), p.protocol)
}

// difference is one way in which a table is not what it should be.
type difference struct {
	port   servicePort
	kind   string
	server netip.AddrPort // the real server that is missing or too many
}

// lasting returns what is different now, and since when each difference has
// been there without a break.
func lasting(history []snapshot.Snapshot, node string) map[difference]time.Time {
	since := map[difference]time.Time{}
	now := history[len(history)-1]
	open := differences(now, node)
	for d := range open {
		since[d] = now.Time
	}
	for _, s := range slices.Backward(history[:len(history)-1]) {
		if len(open) == 0 {
			break
		}
		if _, read := proxyOf(s, node); !read || !s.Services.Read || !s.EndpointSlices.Read {
			continue // nothing is known about that moment
		}
		then := differences(s, node)
		for d := range open {
			if then[d] {
				since[d] = s.Time
			} else {
				delete(open, d)
			}
		}
	}
	return since
}

// differences compares a node's table with what Kubernetes says. It returns
// none where either is not known.
func differences(s snapshot.Snapshot, node string) map[difference]bool {
	found := map[difference]bool{}
	p, read := proxyOf(s, node)
	if !read || !s.Services.Read || !s.EndpointSlices.Read {
		return found
	}
	for _, service := range s.Services.Items {
		for _, port := range service.Ports {
			ready := readyServers(s, service, port)
			for _, ip := range service.ClusterIPs {
				sp := servicePort{service.String(), port.Protocol, netip.AddrPortFrom(ip, port.Port)}
				compare(found, sp, ready, p.Table)
			}
		}
	}
	return found
}

// readyServers are the endpoints of a port that are to get connections.
func readyServers(s snapshot.Snapshot, service snapshot.Service, port snapshot.ServicePort) map[netip.AddrPort]bool {
	ready := map[netip.AddrPort]bool{}
	for _, slice := range s.EndpointSlices.Items {
		if slice.Namespace != service.Namespace || slice.Service != service.Name {
			continue
		}
		for _, target := range slice.Ports {
			if target.Name != port.Name || target.Protocol != port.Protocol {
				continue
			}
			for _, ip := range slice.Ready {
				ready[netip.AddrPortFrom(ip, target.Port)] = true
			}
		}
	}
	return ready
}

// compare adds the differences of one port of one cluster IP.
func compare(found map[difference]bool, port servicePort, ready map[netip.AddrPort]bool, table []snapshot.VirtualServer) {
	i := slices.IndexFunc(table, func(v snapshot.VirtualServer) bool {
		return v.Protocol == port.protocol && v.Address == port.address
	})
	if i < 0 {
		if len(ready) > 0 { // without endpoints nobody could be served anyway
			found[difference{port: port, kind: MissingVirtualServer}] = true
		}
		return
	}
	serving := map[netip.AddrPort]bool{}
	for _, server := range table[i].Servers {
		if server.Weight == 0 {
			continue // it keeps the connections that it has
		}
		serving[server.Address] = true
		if !ready[server.Address] {
			found[difference{port, StaleRealServer, server.Address}] = true
		}
	}
	for address := range ready {
		// Another family's endpoints are behind the Service's other address.
		if address.Addr().Is4() == port.address.Addr().Is4() && !serving[address] {
			found[difference{port, MissingRealServer, address}] = true
		}
	}
}

// group are the differences of one port and kind.
type group struct {
	port    servicePort
	kind    string
	servers []netip.AddrPort
	since   time.Time // of the oldest
}

// groups brings differences in order.
func groups(differences map[difference]time.Time) []group {
	byKind := map[difference]group{}
	for d, since := range differences {
		key := difference{port: d.port, kind: d.kind}
		g, ok := byKind[key]
		if !ok {
			g = group{port: d.port, kind: d.kind, since: since}
		}
		if since.Before(g.since) {
			g.since = since
		}
		if d.server.IsValid() {
			g.servers = append(g.servers, d.server)
		}
		byKind[key] = g
	}
	all := slices.Collect(maps.Values(byKind))
	slices.SortFunc(all, func(a, b group) int {
		return cmp.Or(cmp.Compare(a.port.service, b.port.service), a.port.address.Compare(b.port.address),
			cmp.Compare(a.port.protocol, b.port.protocol), cmp.Compare(a.kind, b.kind))
	})
	for i := range all {
		slices.SortFunc(all[i].servers, netip.AddrPort.Compare)
	}
	return all
}

// says is one sentence about the differences on a node.
func (g group) says(p snapshot.Proxy, now time.Time) string {
	named := make([]string, 0, maxNamed+1)
	for _, server := range g.servers[:min(len(g.servers), maxNamed)] {
		named = append(named, server.String())
	}
	if more := len(g.servers) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	var what string
	switch g.kind {
	case MissingVirtualServer:
		what = fmt.Sprintf("the IPVS table of %s has no virtual server %s for %s, which has ready endpoints", p.Node, g.port.address, g.port)
	case MissingRealServer:
		what = fmt.Sprintf("%s has %s, but the IPVS table of %s sends no connection there", g.port, endpoints(named, len(g.servers)), p.Node)
	default:
		what = fmt.Sprintf("the IPVS table of %s sends connections for %s to %s, which the EndpointSlices do not have", p.Node, g.port, and(named))
	}
	sync := "kube-proxy does not answer"
	if p.Health.Status != 0 {
		sync = fmt.Sprintf("kube-proxy's last sync was %s ago", seconds(p.Health.Age()))
	}
	return fmt.Sprintf("%s, for %s or longer; %s.", capital(what), seconds(now.Sub(g.since)), sync)
}

func endpoints(named []string, n int) string {
	return plural(n, "endpoint ", "endpoints ") + and(named)
}

// capital begins a sentence. Names of Services stay as they are.
func capital(text string) string {
	if rest, ok := strings.CutPrefix(text, "the "); ok {
		return "The " + rest
	}
	return text
}
