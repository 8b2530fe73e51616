package upgrade

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/must"
)

// at is a poll of a router, some milliseconds after the beginning.
func at(ms int, routes map[netip.Prefix][]netip.Addr, sessions map[netip.Addr]time.Time) history.Poll {
	w := &world{routes: routes, sessions: sessions}
	return history.Poll{Began: time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond), Routers: w.poll().Routers}
}

// Of packets, one a second, two are answered, of two the reply is lost, of one the request, two were sent to an agent
// that did not run, and the last is in flight.
func TestPathKind(t *testing.T) {
	began := time.Unix(0, 0)
	second := func(n float64) time.Time { return began.Add(time.Duration(n * float64(time.Second))) }
	p := probe.Probe{From: "out", To: "one", Interval: time.Second}.WithDefaults()
	stored := probe.Stored{
		Record: probe.Record{
			Probe: p, Started: began, Reported: second(7.1), FarReported: second(7.1),
			FarStill: []probe.StillTime{{From: second(4.9), Until: second(6.5)}},
		},
		Sent: wire.Runs{{0, 7}}, Answered: wire.Runs{{0, 1}}, Seen: wire.Runs{{0, 3}}, Broken: wire.Runs{{3, 3}, {7, 7}},
	}
	line := []probe.Timeline{stored.At(second(7.1))}
	for _, c := range []struct {
		name  string
		kind  PathKind
		phase span
		want  Path
	}{
		{"there and back", PathKind{Name: "a", Probes: []probe.Probe{p}}, span{began, second(8)}, Path{
			Name: "a", Probes: []string{"out->one"}, Due: 8, Sent: 8, Answered: 2, Lost: 3, NotJudged: 3, LongestGapMS: 3000, GapProbe: "out->one", LongestSilenceMS: 6000, SilenceProbe: "out->one", Broken: 2}},
		{"one way", PathKind{Name: "b", Probes: []probe.Probe{p}, OneWay: true}, span{began, second(8)}, Path{
			Name: "b", Probes: []string{"out->one"}, Due: 8, Sent: 8, Answered: 4, Lost: 1, NotJudged: 3, LongestGapMS: 1000, GapProbe: "out->one", LongestSilenceMS: 4000, SilenceProbe: "out->one", Broken: 2}},
		{"a time of it", PathKind{Name: "c", Probes: []probe.Probe{p}}, span{second(1), second(3)}, Path{
			Name: "c", Probes: []string{"out->one"}, Due: 2, Sent: 2, Answered: 1, Lost: 1, LongestGapMS: 3000, GapProbe: "out->one", LongestSilenceMS: 6000, SilenceProbe: "out->one"}},
		{"a probe that was not started", PathKind{Name: "d", Probes: []probe.Probe{{From: "a", To: "b"}}}, span{began, second(8)}, Path{
			Name: "d", Probes: []string{"a->b"}, LongestSilenceMS: 8000, SilenceProbe: "a->b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Each = []ProbeCount{{c.want.Probes[0], c.want.Due, c.want.Answered, c.want.Lost, c.want.NotJudged}}
			must.Equal(t, "", c.want, c.kind.measure(line, c.phase))
		})
	}
}

// The addresses from which packets arrive are counted in each phase, as the pod's, the node's or another one.
func TestSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		out := probe.Probe{From: "one", To: "out"}.WithDefaults()
		w.upgrade.Paths = append(w.upgrade.Paths, PathKind{Name: "source", Probes: []probe.Probe{out}, BySource: true})
		other := netip.MustParseAddr("192.0.2.1")
		// Before the rest some packets have another address.
		w.from = map[string][]probe.Source{out.Name: {{Address: netip.MustParseAddr("192.0.2.9"), First: time.Now()}, {Address: node1, First: time.Now().Add(100 * time.Millisecond)}}}
		since := func(address netip.Addr) {
			w.from[out.Name] = append(w.from[out.Name], probe.Source{Address: address, First: time.Now()})
		}
		w.upgrade.Roll = func(_ context.Context, _ *framework.Run, node, version string) error {
			switch {
			case node == "two" && version == "2":
				since(fakePod)
			case node == "two":
				since(other)
			}
			time.Sleep(time.Second)
			return nil
		}
		m := w.measures(t)
		for _, c := range []struct {
			name  string
			phase Phase
			want  []Source
		}{
			{"at rest", m.Resting, []Source{{Address: node1, Of: OfNode}}},
			{"upgrade", m.Upgrade.During, []Source{{Address: node1, Of: OfNode, Packets: 100}, {Address: fakePod, Of: OfPod, Packets: 100}}},
			{"after it", m.Upgrade.After, []Source{{Address: fakePod, Of: OfPod}}},
			{"rollback", m.Back.During, []Source{{Address: fakePod, Of: OfPod, Packets: 100}, {Address: other, Packets: 100}}},
			{"after the rollback", m.Back.After, []Source{{Address: other}}},
		} {
			got := slices.Clone(pathOf(t, c.phase, "source").Sources)
			for i := range got {
				must.Equal(t, got[i], [...]any{true, out.Name}, [...]any{got[i].Packets > 0, got[i].Probe})
				got[i].Probe = ""
				if i < len(c.want) && c.want[i].Packets == 0 {
					got[i].Packets = 0 // as long as it takes
				}
			}
			must.Equal(t, c.name, c.want, got, cmpopts.EquateComparable(netip.Addr{}))
		}
		must.Equal(t, "of a path that is not about sources", nil, pathOf(t, m.Resting, "in").Sources)
	})
}

// A new prefix that the lab has asked for is no change. A prefix at rest, or without Passing, is a change.
func TestPassing(t *testing.T) {
	for _, c := range []struct {
		name    string
		passing func(netip.Prefix) bool
		rested  bool
		want    int
	}{
		{"of the component", nil, false, 1},
		{"asked for", func(netip.Prefix) bool { return true }, false, 0},
		{"of others", func(p netip.Prefix) bool { return p != range2 }, false, 1},
		{"asked for, and there at rest", func(netip.Prefix) bool { return true }, true, 1},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			w := newWorld()
			w.upgrade.Passing = c.passing
			one := map[netip.Prefix][]netip.Addr{range1: {node1}}
			two := map[netip.Prefix][]netip.Addr{range1: {node1}, range2: {node1, node2}}
			if c.rested {
				w.announced(two)
			}
			w.upgrading("one", func() {
				w.announced(two)
				time.Sleep(time.Second)
				w.announced(one)
				time.Sleep(time.Second)
			})
			got := w.measures(t).Upgrade.During.Routers[0]
			must.Equal(t, got.Withdrawals, c.want, len(got.Withdrawals))
			must.Equal(t, got, false, c.want == 0 && len(got.TwoOrigins)+len(got.Events) > 0)
		})
	}
}

func TestRouters(t *testing.T) {
	since := time.Unix(-100, 0)
	both := map[netip.Addr]time.Time{node1: since, node2: since}
	one, two, shared, none := []netip.Addr{node1}, []netip.Addr{node2}, []netip.Addr{node1, node2}, []netip.Addr(nil)
	by := func(nodes []netip.Addr) map[netip.Prefix][]netip.Addr {
		return map[netip.Prefix][]netip.Addr{range1: nodes}
	}
	unread := at(200, by(none), both)
	unread.Routers[0].Paths.Read = false
	prefix := []string{"10.1.1.0/24"}
	for _, c := range []struct {
		name                                     string
		polls                                    []history.Poll
		seen                                     int
		withdrawals, nextHops, resets, twoOrigin []string
	}{
		{"nothing happens", []history.Poll{at(-100, by(one), both), at(100, by(one), both), at(300, by(one), both)}, 2, nil, nil, nil, nil},
		{"gone for a time", []history.Poll{at(-100, by(one), both), at(100, by(none), both), at(300, by(one), both)}, 2, prefix, nil, nil, nil},
		{"gone twice is one prefix", []history.Poll{at(-100, by(one), both), at(100, by(none), both), at(300, by(one), both), at(500, by(none), both)}, 3, prefix, nil, nil, nil},
		{"gone before is no withdrawal of this time", []history.Poll{at(-100, by(none), both), at(100, by(none), both)}, 1, nil, nil, nil, nil},
		{"gone afterwards neither", []history.Poll{at(100, by(one), both), at(1100, by(none), both)}, 1, nil, nil, nil, nil},
		{"what was not read has not changed", []history.Poll{at(100, by(one), both), unread, at(300, by(one), both)}, 2, nil, nil, nil, nil},
		{"another next hop", []history.Poll{at(-100, by(one), both), at(100, by(two), both)}, 1, nil, prefix, nil, nil},
		{"two origins", []history.Poll{at(-100, by(one), both), at(100, by(shared), both)}, 1, nil, prefix, nil, prefix},
		{"two origins of what had none", []history.Poll{at(-100, by(none), both), at(100, by(shared), both)}, 1, nil, nil, nil, prefix},
		{"two origins as ever", []history.Poll{at(-100, by(shared), both), at(100, by(shared), both)}, 1, nil, nil, nil, nil},
		{"two origins as ever, one of them gone for a time", []history.Poll{at(-100, by(shared), both), at(100, by(one), both), at(300, by(shared), both)}, 2, nil, prefix, nil, nil},
		{"a session goes down", []history.Poll{at(-100, by(one), both), at(100, by(one), map[netip.Addr]time.Time{node1: since})}, 1, nil, nil, []string{"two"}, nil},
		{"a session comes back between two polls", []history.Poll{at(-100, by(one), both), at(100, by(one), map[netip.Addr]time.Time{node1: since.Add(time.Second), node2: since})}, 1, nil, nil, []string{"one"}, nil},
		{"a session comes up", []history.Poll{at(-100, by(one), map[netip.Addr]time.Time{node1: since}), at(100, by(one), both)}, 1, nil, nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := routersOf(newWorld().upgrade.Topology, c.polls, span{time.Unix(0, 0), time.Unix(1, 0)}, func(netip.Prefix) bool { return false })[0]
			want := Router{Name: "tor", Polls: c.seen, Due: 5, Withdrawals: c.withdrawals, NextHops: c.nextHops, Resets: c.resets,
				TwoOrigins: c.twoOrigin}
			must.Equal(t, "", want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Router{}, "Events"))
		})
	}
}

func kernel(t *testing.T, name string) string {
	return string(must.Read(t, "testdata/kernel-"+name+".txt"))
}

func TestDifferences(t *testing.T) {
	u := declared(t, "kube-router", "1.5.1", "2.1.0", Settings{})
	u.Nodes = []string{"one"}
	for _, c := range []struct {
		name, state string
		want        []Difference
	}{
		{"what changes by itself", kernel(t, "later"), []Difference{}},
		{"what is left", kernel(t, "leftovers"), []Difference{
			{"one", "address", "10.9.9.9/32 on veth1", true},
			{"one", "connection", "tcp from 10.9.5.10 to 10.0.0.1:30707, seen as 10.0.0.1, answered by 10.1.2.3:7007", true},
			{"one", "link", "veth1, down", true},
			{"one", "link", "veth1, up", false},
			{"one", "route", "10.1.2.0/24 via 10.0.0.2 dev eth0 proto 17", false},
			{"one", "rule", "ip rule 9: from all lookup 77", true},
			{"one", "rule", "ip6tables -t filter: chain KUBE-ROUTER-INPUT, policy -", true},
			// The same chain name, once more than before.
			{"one", "rule", "iptables -t filter: chain KUBE-POD-FW-, policy -", true},
			{"one", "set", "add KUBE-SRC 10.1.1.3", false},
			{"one", "virtual server", "TCP 10.96.0.1:443 to 10.0.0.1:6443, weight 0", true},
			{"one", "virtual server", "TCP 10.96.0.1:443 to 10.0.0.1:6443, weight 1", false},
		}},
		{"what is left of IPv6", kernel(t, "before") + "\n== ip -6 rule\n9:\tfrom all lookup 77\n== ip route\nfe80::/64 dev eth0 proto kernel metric 256\n" +
			"multicast ff00::/8 dev eth0 table local\nfd5c::a00:0/120 dev eth0 proto kernel metric 256 expires 9sec pref medium\n" +
			"== conntrack\ntcp 6 9 TIME_WAIT src=fd5c::1 dst=fd5c::2 sport=1 dport=7007 src=fd5c::3 dst=fd5c::1 sport=7007 dport=1 [ASSURED] mark=0 use=1\n", []Difference{
			{"one", "connection", "tcp from fd5c::1 to fd5c::2:7007, answered by fd5c::3:7007", true},
			{"one", "route", "fd5c::a00:0/120 dev eth0 proto kernel metric 256 pref medium", true},
			{"one", "rule", "ip -6 rule 9: from all lookup 77", true},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := must.Get(u.differences(map[string]string{"one": kernel(t, "before")}, map[string]string{"one": c.state}))(t)
			must.Equal(t, "", c.want, got)
		})
	}
	must.Fail(t, must.Err(u.differences(map[string]string{"one": "sh: not found\n"}, nil)), "")
}

// Pods of the component are replaced, and have other addresses and interfaces: that is not left behind.
func TestDifferencesWithoutPods(t *testing.T) {
	was := kernel(t, "kube-proxy")
	moved := strings.NewReplacer("10.65.66.3", "10.65.65.4", "veth0efabbb1", "veth5ac8044d", "QTGCCG6IRQ4FK53S", "HX4BA7RV5MEP66KG").Replace(was)
	u := Upgrade{Nodes: []string{"one"}, Normalize: withoutPods("metallb-system/", ":9443")}
	for name, test := range map[string]struct {
		state string
		want  []Difference
	}{
		"as before": {was, []Difference{}},
		"moved":     {moved, []Difference{}},
		"another target": {strings.Replace(moved, "service-B }", "service-C }", 1), []Difference{
			{"one", "rule", "nft map service-ips: 10.96.0.77 . udp . 7007 : goto service-B }", false},
			{"one", "rule", "nft map service-ips: 10.96.0.77 . udp . 7007 : goto service-C }", true},
		}},
	} {
		got := must.Get(u.differences(map[string]string{"one": was}, map[string]string{"one": test.state}))(t)
		must.Equal(t, name, test.want, got)
	}
}
