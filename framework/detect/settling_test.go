package detect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// What a detector gives time to is found in every poll of it: as settling, and
// then as active if it stays, or not at all if it passes. A poll in which
// nothing is found is one in which nothing is pending.
func TestSettling(t *testing.T) {
	for _, c := range []struct {
		name     string
		detector Detector
		history  []snapshot.Snapshot
		// want is "kind state object" of each finding, with the routers if there
		// are any, for each poll.
		want [][]string
	}{
		{"a node loses its session for good", RouteOwnership{}, worlds(incident(false),
			then(1, silentNode1), then(9.9, nothing), then(0.1, nothing)),
			[][]string{nil, node1Settling, node1Settling, {"unannounced active 10.5.112.0/24 tor1,tor2"}}},
		{"a node is removed: its session goes first", RouteOwnership{}, worlds(incident(false), then(1, silentNode1), then(5, removeNode1)),
			[][]string{nil, node1Settling, nil}},
		{"a node joins", RouteOwnership{}, worlds(incident(false), then(1, newcomer),
			then(1, func(w *world) { w.announce("10.4.94.24", "10.5.116.0/24", tors...) })),
			[][]string{nil, {"unannounced settling 10.5.116.0/24 tor1,tor2"}, nil}},
		{"a node with a session withdraws its range", RouteOwnership{}, worlds(incident(false), then(0.2, withdrawn), then(0.2, nothing)),
			[][]string{nil, {"unannounced settling 10.5.115.0/24 tor1,tor2"}, {"unannounced active 10.5.115.0/24 tor1,tor2"}}},
		{"a poll in the middle of a change", RouteOwnership{}, worlds(incident(false), then(0.2, withdrawn),
			then(0.2, func(w *world) { w.announce("10.4.94.21", "10.5.115.0/24", tors...) })),
			[][]string{nil, {"unannounced settling 10.5.115.0/24 tor1,tor2"}, nil}},
		{
			"one router after the other", RouteOwnership{}, worlds(incident(false),
				then(1, func(w *world) { w.silence("10.4.94.23", "tor1") }),
				then(5, func(w *world) { w.silence("10.4.94.23", "tor2") }),
				then(5, nothing),
				then(5, nothing)),
			[][]string{
				nil,
				{"unannounced settling 10.5.112.0/24 tor1"},
				node1Settling,
				{"unannounced active 10.5.112.0/24 tor1", "unannounced settling 10.5.112.0/24 tor2"},
				{"unannounced active 10.5.112.0/24 tor1,tor2"},
			},
		},

		{"sessions of the mesh go for good", NodeAddress{},
			[]snapshot.Snapshot{newMesh().later(0), parted("node2").later(1), parted("node2").later(10), parted("node2").later(11)},
			[][]string{nil, {"session-down settling node2"}, {"session-down settling node2"}, {"session-down active node2"}}},
		{"sessions of the mesh come up", NodeAddress{}, []snapshot.Snapshot{parted("node2").later(0), newMesh().later(5)},
			[][]string{{"session-down settling node2"}, nil}},
		{
			// Of one session alone it is unknown which end is at fault: it is
			// reported for the first. With the others it is seen to be node3.
			"one session of the mesh after the other", NodeAddress{},
			[]snapshot.Snapshot{
				newMesh().later(0), parted("node3", "node1").later(1), parted("node3").later(6), parted("node3").later(11), parted("node3").later(16),
			},
			[][]string{
				nil,
				{"session-down settling node1"},
				{"session-down settling node3"},
				{"session-down active node1", "session-down settling node3"},
				{"session-down active node3"},
			},
		},

		{"an endpoint is replaced while nothing is synced", ProxyConvergence{}, proxies(well(0).frozen(), stale(1).frozen(),
			stale(10).frozen(), stale(11).frozen()), [][]string{nil, webSettling, webSettling, webActive}},
		{"an endpoint is replaced in vain while syncs go on", ProxyConvergence{}, proxies(well(0), stale(1), stale(11), stale(20), stale(21)),
			[][]string{nil, webSettling, webSettling, webSettling, webActive}},
		{"an endpoint is replaced", ProxyConvergence{}, proxies(well(0), stale(1), polled(2, pods(newPod), to(newPod))),
			[][]string{nil, webSettling, nil}},
		{"a Service has no virtual server", ProxyConvergence{},
			proxies(polled(0, pods(oldPod)).frozen().unlisted(), polled(10, pods(oldPod)).frozen().unlisted()),
			[][]string{{"missing-service settling edge"}, {"missing-service active edge"}}},
		{"one endpoint after the other", ProxyConvergence{},
			proxies(polled(0, pods(newPod)).frozen(), polled(5, pods(newPod, oldPod)).frozen(), polled(10, pods(newPod, oldPod)).frozen(), polled(15, pods(newPod, oldPod)).frozen()),
			[][]string{
				{"missing-endpoint settling edge"},
				{"missing-endpoint settling edge"},
				{"missing-endpoint active edge", "missing-endpoint settling edge"},
				{"missing-endpoint active edge"},
			}},
		{"goroutines wait on a node that has differences", ProxyConvergence{}, proxies(
			polled(0, pods(oldPod)).late(), polled(10, pods(oldPod)).late(),
			polled(12, pods(oldPod)).late().waits(7, 42), polled(17, pods(oldPod)).late().waits(7, 42)),
			[][]string{
				{"frozen-sync latent kube-proxy", "missing-endpoint settling edge"},
				{"frozen-sync active kube-proxy", "missing-endpoint active edge"},
				{"frozen-sync active kube-proxy", "netlink-deadlock settling kube-proxy", "missing-endpoint active edge"},
				{"frozen-sync active kube-proxy", "netlink-deadlock active kube-proxy", "missing-endpoint active edge"},
			}},
		{"goroutines wait for a moment on a node that has differences", ProxyConvergence{}, proxies(
			polled(0, pods(oldPod)).frozen(), polled(10, pods(oldPod)).frozen().waits(7, 42), polled(11, pods(oldPod)).frozen()),
			[][]string{
				{"missing-endpoint settling edge"},
				{"netlink-deadlock settling kube-proxy", "missing-endpoint active edge"},
				{"missing-endpoint active edge"},
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before []Finding
			for i := range c.history {
				found := detected(t, c.detector, c.history[:i+1])
				var got []string
				for _, f := range found {
					got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", f.Kind, f.State, f.Object, strings.Join(f.Routers, ","))))
				}
				must.Equal(t, i, c.want[i], got)
				sameButForTheState(t, before, found)
				before = found
			}
		})
	}
}

// sameButForTheState compares settling findings with the active ones that they
// became from one poll to the next.
func sameButForTheState(t *testing.T, before, found []Finding) {
	t.Helper()
	for i, f := range found {
		if len(before) != len(found) || before[i].State != Pending || f.State != Active {
			continue
		}
		must.Equal(t, f.Kind, before[i], f, cmpopts.IgnoreFields(Finding{}, "State", "Says"))
	}
}

// worlds is a history of what steps make of a world, one after the other.
func worlds(w *world, steps ...func(*world) *world) []snapshot.Snapshot {
	return snapshots(story(w, steps...))
}

func silentNode1(w *world) { w.silence("10.4.94.23", tors...) }

func withdrawn(w *world) { w.withdraw("10.5.115.0/24", tors...) }

// parted is a mesh in which a node lacks its sessions with some others, or with
// all if none is named.
func parted(node string, others ...string) *meshed {
	m := newMesh()
	for _, n := range m.NodeNetworks {
		for i := range n.BIRD.Items[1:] { // the first is no session
			p := &n.BIRD.Items[1+i]
			ends := []string{n.Node, nodeNames[p.Neighbor.As4()[3]-11]}
			if at := slices.Index(ends, node); at >= 0 && (len(others) == 0 || slices.Contains(others, ends[1-at])) {
				p.BGPState = "Active"
			}
		}
	}
	return m
}

func pods(ready ...netip.Addr) []netip.Addr { return ready }

func proxies(polls ...*proxied) []snapshot.Snapshot {
	return each.Of(polls, func(p *proxied) snapshot.Snapshot { return p.Snapshot })
}

// stale is a poll in which shop/web leads to the old endpoint in place of the new one.
func stale(at int) *proxied { return polled(at, pods(newPod), to(oldPod)) }

// What there is to find then, and when node1 has lost its sessions.
var (
	node1Settling = []string{"unannounced settling 10.5.112.0/24 tor1,tor2"}
	webSettling   = []string{"missing-endpoint settling edge", "stale-endpoint settling edge"}
	webActive     = []string{"missing-endpoint active edge", "stale-endpoint active edge"}
)
