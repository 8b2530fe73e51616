package detect

import (
	"fmt"
	"go/parser"
	"go/token"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix
	start  = time.Date(2022, 6, 1, 12, 0, 0, 0, time.UTC)
)

// Nodes of the incident: name, InternalIP, Node.spec.podCIDRs and the CiliumNode's podCIDRs.
var table = []struct{ name, ip, node, cilium string }{
	{"master1", "10.4.94.32", "10.5.112.0/24", "10.5.113.0/24"},
	{"master2", "10.4.94.21", "10.5.114.0/24", "10.5.115.0/24"},
	{"master3", "10.4.94.31", "10.5.113.0/24", "10.5.114.0/24"},
	{"node1", "10.4.94.23", "10.5.115.0/24", "10.5.112.0/24"},
}

var tors = []string{"tor1", "tor2"}

type world struct{ snapshot.Snapshot }

func (w *world) run(d Detector) []Finding { return Run([]Detector{d}, []snapshot.Snapshot{w.Snapshot}) }

// incident is the cluster of the incident. Its nodes announce the ranges in Node.spec.podCIDRs as Cilium 1.11 does,
// or else the ranges of their CiliumNode as 1.12 does. There is one pod in each range.
func incident(affected bool) *world {
	w := &world{}
	w.Time = start
	w.Nodes.Read, w.CiliumNodes.Read, w.Pods.Read = true, true, true
	w.Routers = each.Of(tors, readRouter)
	for _, n := range table {
		w.node(n.name, n.ip, n.node, n.cilium)
		w.pod(n.name, prefix(n.cilium).Addr().Next().Next())
		announced := n.cilium
		if affected {
			announced = n.node
		}
		w.announce(n.ip, announced, tors...)
	}
	return w
}

func readRouter(name string) snapshot.Router {
	r := snapshot.Router{Name: name}
	r.Paths.Read, r.Routes.Read, r.Neighbors.Read = true, true, true
	return r
}

func (w *world) node(name, ip, node, cilium string) {
	w.Nodes.Items = append(w.Nodes.Items, snapshot.Node{
		Name: name, UID: "uid-" + name, Created: start.Add(-time.Hour), Ready: true,
		InternalIPs: []netip.Addr{addr(ip)}, PodCIDRs: []netip.Prefix{prefix(node)},
	})
	w.CiliumNodes.Items = append(w.CiliumNodes.Items, snapshot.CiliumNode{
		Name: name, PodCIDRs: []netip.Prefix{prefix(cilium)}, InternalIPs: []netip.Addr{addr(ip)},
	})
	for i := range w.Routers {
		w.session(i, ip, start.Add(-time.Hour))
	}
}

func (w *world) session(router int, ip string, since time.Time) {
	r := &w.Routers[router]
	r.Neighbors.Items = append(r.Neighbors.Items, snapshot.Neighbor{Address: addr(ip), AS: 64513, State: "established", Established: since})
}

func (w *world) pod(node string, ip netip.Addr) {
	w.Pods.Items = append(w.Pods.Items, snapshot.Pod{
		Namespace: "default", Name: fmt.Sprintf("on-%s-%d", node, len(w.Pods.Items)), Node: node, IP: ip,
	})
}

func (w *world) at(name string) *snapshot.Router {
	return &w.Routers[slices.Index(tors, name)]
}

func (w *world) announce(ip, p string, routers ...string) {
	for _, name := range routers {
		r := w.at(name)
		r.Paths.Items = append(r.Paths.Items, snapshot.Path{
			Prefix: prefix(p), NextHop: addr(ip), Neighbor: addr(ip), ASPath: []uint32{64513}, Best: true, Multipath: true,
		})
	}
}

func (w *world) static(p, nextHop string, routers ...string) {
	for _, name := range routers {
		r := w.at(name)
		r.Routes.Items = append(r.Routes.Items, snapshot.Route{
			Prefix: prefix(p), Type: snapshot.RouteUnicast, Protocol: snapshot.RouteStatic, Metric: 1,
			NextHops: []snapshot.NextHop{{Address: addr(nextHop), Interface: "eth0"}},
		})
	}
}

func (w *world) silence(ip string, routers ...string) {
	for _, name := range routers {
		r := w.at(name)
		r.Neighbors.Items = slices.DeleteFunc(r.Neighbors.Items, func(n snapshot.Neighbor) bool { return n.Address == addr(ip) })
		r.Paths.Items = slices.DeleteFunc(r.Paths.Items, func(p snapshot.Path) bool { return p.Neighbor == addr(ip) })
	}
}

// withdraw takes a path away and leaves the session.
func (w *world) withdraw(p string, routers ...string) {
	for _, name := range routers {
		r := w.at(name)
		r.Paths.Items = slices.DeleteFunc(r.Paths.Items, func(x snapshot.Path) bool { return x.Prefix == prefix(p) })
	}
}

// allocate gives every node the same range in Node.spec and CiliumNode, as
// ipam=kubernetes does, and lets it announce that.
func (w *world) allocate() {
	for i := range w.Nodes.Items {
		w.CiliumNodes.Items[i].PodCIDRs = w.Nodes.Items[i].PodCIDRs
	}
	for i := range w.Pods.Items {
		w.Pods.Items[i].IP = w.Nodes.Items[i].PodCIDRs[0].Addr().Next().Next()
	}
}

func advance(w *world, seconds float64, change func(*world)) *world {
	c := &world{w.Snapshot}
	c.Time = w.Time.Add(time.Duration(seconds * float64(time.Second)))
	c.Nodes.Items = slices.Clone(w.Nodes.Items)
	c.CiliumNodes.Items = slices.Clone(w.CiliumNodes.Items)
	c.Pods.Items = slices.Clone(w.Pods.Items)
	c.Routers = slices.Clone(w.Routers)
	for i := range c.Routers {
		c.Routers[i].Paths.Items = slices.Clone(w.Routers[i].Paths.Items)
		c.Routers[i].Routes.Items = slices.Clone(w.Routers[i].Routes.Items)
		c.Routers[i].Neighbors.Items = slices.Clone(w.Routers[i].Neighbors.Items)
	}
	change(c)
	return c
}

// then is the next snapshot of a story, some seconds after the one before.
func then(seconds float64, change func(*world)) func(*world) *world {
	return func(w *world) *world { return advance(w, seconds, change) }
}

func story(w *world, steps ...func(*world) *world) []*world {
	all := []*world{w}
	for _, step := range steps {
		all = append(all, step(all[len(all)-1]))
	}
	return all
}

func snapshots(story []*world) (history []snapshot.Snapshot) {
	for _, w := range story {
		history = append(history, w.Snapshot)
	}
	return history
}

// deleteNode removes the Node object of node1, which is the last one, and its pod; deleteNode1 the CiliumNode as well.
func deleteNode(w *world)  { w.Nodes.Items, w.Pods.Items = w.Nodes.Items[:3], w.Pods.Items[:3] }
func deleteNode1(w *world) { deleteNode(w); w.CiliumNodes.Items = w.CiliumNodes.Items[:3] }

func nothing(*world) {}

// newcomer adds node2, which has no session yet.
func newcomer(w *world) {
	w.node("node2", "10.4.94.24", "10.5.116.0/24", "10.5.116.0/24")
	w.Nodes.Items[len(w.Nodes.Items)-1].Created = w.Time.Add(-3 * time.Second)
	w.silence("10.4.94.24", tors...)
}

// removeNode1 is the fault of the incident.
func removeNode1(w *world) { deleteNode1(w); silentNode1(w) }

func broken(all ...func(*world)) []*world {
	w := advance(incident(true), 0, removeNode1)
	changes(all...)(w)
	return []*world{w}
}

func healthy(all ...func(*world)) []*world { return []*world{observed(all...)} }

// twin gives node1 the range of master2 instead of its own. Its CiliumNode is so much
// younger, and it announces the range to these routers.
func (w *world) twin(younger time.Duration, routers ...string) {
	w.withdraw("10.5.112.0/24", tors...)
	for i := range w.CiliumNodes.Items {
		w.CiliumNodes.Items[i].Created = start.Add(-time.Hour)
	}
	w.CiliumNodes.Items[3].Created = start.Add(younger - time.Hour)
	w.CiliumNodes.Items[3].PodCIDRs = w.CiliumNodes.Items[1].PodCIDRs
	w.announce("10.4.94.23", "10.5.115.0/24", routers...)
}

func (w *world) block(cidr, node string) {
	w.CalicoBlocks.Items = append(w.CalicoBlocks.Items, snapshot.CalicoBlock{CIDR: prefix(cidr), Node: node})
}

// blocks is a cluster with Calico. Its Nodes have ranges as well, which nothing uses.
func blocks(all ...func(*world)) []*world {
	w := incident(false)
	w.CiliumNodes.Items, w.Pods.Items, w.CalicoBlocks.Read = nil, nil, true
	silenced(w)
	w.block("10.5.113.0/26", "master1")
	w.announce("10.4.94.32", "10.5.113.0/26", tors...)
	w.block("10.5.114.0/26", "master3")
	w.announce("10.4.94.31", "10.5.114.0/26", tors...)
	changes(all...)(w)
	return []*world{w}
}

func TestRouteOwnership(t *testing.T) {
	var (
		swapped = []string{
			"wrong-announcer latent 10.5.112.0/24 owner=node1 announcer=master1 at=tor1,tor2",
			"wrong-announcer latent 10.5.113.0/24 owner=master1 announcer=master3 at=tor1,tor2",
			"wrong-announcer latent 10.5.114.0/24 owner=master3 announcer=master2 at=tor1,tor2",
			"wrong-announcer latent 10.5.115.0/24 owner=master2 announcer=node1 at=tor1,tor2",
		}
		// What the removal leaves, but for the range that is lost.
		stale = []string{
			"absent-node latent 10.5.112.0/24 owner= announcer=master1 at=tor1,tor2",
			"wrong-announcer latent 10.5.113.0/24 owner=master1 announcer=master3 at=tor1,tor2",
			"wrong-announcer latent 10.5.114.0/24 owner=master3 announcer=master2 at=tor1,tor2",
		}
		lost    = "unannounced active 10.5.115.0/24 owner=master2 announcer= at=tor1,tor2"
		hidden  = slices.Concat(stale, []string{lost})
		joining = "unannounced settling 10.5.116.0/24 owner=node2 announcer= at=tor1,tor2"
	)
	tests := []struct {
		name    string
		history []*world
		want    []string
	}{
		{"affected, before the removal", story(incident(true)), swapped},
		{"affected, after the removal", broken(), hidden},
		{"affected, the removal in history", story(incident(true), then(0.2, removeNode1), then(0.2, nothing)), hidden},
		{"affected, the removal seen once", story(incident(true), then(0.2, removeNode1)), append(slices.Clone(stale), "unannounced settling 10.5.115.0/24 owner=master2 announcer= at=tor1,tor2")},
		{"affected, all agents restarted: sessions down",
			story(incident(true), then(0.2, removeNode1), then(0.2, nothing), then(1, changes(silenced, unpeered))), []string{
				"unannounced settling 10.5.113.0/24 owner=master1 announcer= at=tor1,tor2",
				"unannounced settling 10.5.114.0/24 owner=master3 announcer= at=tor1,tor2", lost}},
		{"affected, all agents restarted: sessions up again", story(incident(true), then(0.2, removeNode1), then(0.2, nothing), then(5, func(w *world) {
			neighbors(func(n *snapshot.Neighbor) { n.Established = w.Time })(w)
		})), hidden},
		{"fixed, before the removal", healthy(), nil},
		{"fixed, after the removal", story(incident(false), then(0.2, removeNode1), then(20, nothing)), nil},
		{"fixed, the session goes before the objects", story(incident(false), then(0.2, silentNode1), then(3, nothing)), []string{"unannounced settling 10.5.112.0/24 owner=node1 announcer= at=tor1,tor2"}},
		{"fixed, the objects go before the session", story(incident(false), then(0.2, deleteNode1)), []string{"absent-node latent 10.5.112.0/24 owner= announcer=node1 at=tor1,tor2"}},
		{"a session that stays down", story(incident(false), then(0.2, silentNode1), then(11, nothing)), []string{"unannounced active 10.5.112.0/24 owner=node1 announcer= at=tor1,tor2"}},
		{"a session that was down before history", healthy(func(w *world) { w.silence("10.4.94.23", "tor2") }), []string{"unannounced active 10.5.112.0/24 owner=node1 announcer= at=tor2"}},

		{"second form: the Node is deleted and the agent runs on", story(incident(true), then(60, deleteNode1)), append(slices.Clone(stale),
			"absent-node latent 10.5.115.0/24 owner=master2 announcer=node1 at=tor1,tor2")},
		{"second form, without history", story(advance(incident(true), 0, deleteNode1)), append(slices.Clone(stale),
			"absent-node latent 10.5.115.0/24 owner=master2 announcer=10.4.94.23 at=tor1,tor2")},
		{"second form, the CiliumNode lingers", story(advance(incident(true), 0, deleteNode)), []string{
			"absent-node latent 10.5.112.0/24 owner=node1 announcer=master1 at=tor1,tor2",
			swapped[1], swapped[2],
			"absent-node latent 10.5.115.0/24 owner=master2 announcer=node1 at=tor1,tor2",
		}},
		{"second form, fixed version", story(advance(incident(false), 0, deleteNode)), []string{"absent-node latent 10.5.112.0/24 owner=node1 announcer=node1 at=tor1,tor2"}},

		{"remedy: fixed speaker", story(advance(incident(false), 0, removeNode1)), nil},
		{"remedy: static route to the owner", broken(func(w *world) { w.static("10.5.115.0/24", "10.4.94.21", tors...) }), stale},
		{"remedy: static route on one router only", broken(func(w *world) { w.static("10.5.115.0/24", "10.4.94.21", "tor1") }), append(slices.Clone(stale), "unannounced active 10.5.115.0/24 owner=master2 announcer= at=tor2")},
		{"remedy: static route to the wrong node", broken(func(w *world) { w.static("10.5.115.0/24", "10.4.94.32", tors...) }), append(slices.Clone(stale), "wrong-announcer latent 10.5.115.0/24 owner=master2 announcer=master1 at=tor1,tor2")},
		{"remedy: ipam=kubernetes", story(advance(incident(true), 0, (*world).allocate)), nil},
		{"remedy: ipam=kubernetes, after the removal", story(advance(advance(incident(true), 0, (*world).allocate), 0, removeNode1)), nil},
		{"no CiliumNodes: Node.spec decides", story(advance(incident(true), 0, func(w *world) {
			w.CiliumNodes.Items = nil
			w.withdraw("10.5.114.0/24", "tor2")
		})), []string{"unannounced active 10.5.114.0/24 owner=master2 announcer= at=tor2"}},

		{"twins: node1 has the range of master2, and both announce it", healthy(func(w *world) { w.twin(time.Minute, tors...) }), []string{"twin-range active 10.5.115.0/24 owner=master2 announcer=node1 at=tor1,tor2"}},
		{"twins: node1 is the elder", healthy(func(w *world) { w.twin(-time.Minute, tors...) }), []string{"twin-range active 10.5.115.0/24 owner=node1 announcer=master2 at=tor1,tor2"}},
		{"twins: one router has the range, from node1 alone", healthy(withdrawn, func(w *world) {
			w.twin(time.Minute, "tor2")
			w.Routers = w.Routers[1:]
		}), []string{"twin-range active 10.5.115.0/24 owner=master2 announcer=node1 at=tor2"}},
		{"twins at rest", healthy(func(w *world) {
			w.twin(time.Minute)
			w.Routers = nil
		}), []string{"twin-range latent 10.5.115.0/24 owner=master2 announcer=node1 at="}},
		{"twins of Node.spec", healthy(func(w *world) {
			w.CiliumNodes.Items = nil
			for i := range w.Nodes.Items {
				w.Nodes.Items[i].PodCIDRs = []netip.Prefix{prefix(table[i].cilium)}
			}
			w.Nodes.Items[3].PodCIDRs = w.Nodes.Items[1].PodCIDRs
			w.withdraw("10.5.112.0/24", tors...)
			w.announce("10.4.94.23", "10.5.115.0/24", "tor1")
		}), []string{"twin-range active 10.5.115.0/24 owner=master2 announcer=node1 at=tor1,tor2"}},

		{"Calico: the node with the affinity announces its block", blocks(), nil},
		{"Calico: a block that no router has, and one without a node", blocks(func(w *world) {
			w.withdraw("10.5.114.0/26", tors...)
			w.block("10.5.115.0/26", "")
		}), []string{"unannounced active 10.5.114.0/26 owner=master3 announcer= at=tor1,tor2"}},
		{"Calico: another node announces a block", blocks(func(w *world) { w.announce("10.4.94.21", "10.5.114.0/26", "tor1") }), []string{"wrong-announcer latent 10.5.114.0/26 owner=master3 announcer=master2 at=tor1"}},
		{"Calico: a pod has an address of another node's block", blocks(func(w *world) {
			w.pod("master2", addr("10.5.114.9"))
			w.announce("10.4.94.21", "10.5.114.9/32", tors...)
		}), nil},
		{"Calico: blocks not read", blocks(func(w *world) { w.CalicoBlocks = snapshot.List[snapshot.CalicoBlock]{Error: "forbidden"} }), nil},

		{"Nodes not read", broken(func(w *world) { w.Nodes = snapshot.List[snapshot.Node]{Error: "timeout"} }), nil},
		{"CiliumNodes not read", broken(func(w *world) { w.CiliumNodes = snapshot.List[snapshot.CiliumNode]{Error: "timeout"} }), nil},
		{"no RIB was read", broken(routers(func(r *snapshot.Router) { r.Paths = snapshot.List[snapshot.Path]{Error: "refused"} })), nil},
		{"one RIB was not read", broken(func(w *world) { w.Routers[0].Paths = snapshot.List[snapshot.Path]{Error: "refused"} }), []string{
			"absent-node latent 10.5.112.0/24 owner= announcer=master1 at=tor2",
			"wrong-announcer latent 10.5.113.0/24 owner=master1 announcer=master3 at=tor2",
			"wrong-announcer latent 10.5.114.0/24 owner=master3 announcer=master2 at=tor2",
			"unannounced active 10.5.115.0/24 owner=master2 announcer= at=tor2",
		}},
		{"one FIB was not read: there may be a static route", broken(func(w *world) { w.Routers[1].Routes = snapshot.List[snapshot.Route]{Error: "refused"} }), append(slices.Clone(stale), "unannounced active 10.5.115.0/24 owner=master2 announcer= at=tor1")},
		{"sessions and pods were not read", broken(func(w *world) { w.Pods = snapshot.List[snapshot.Pod]{Error: "timeout"} },
			routers(func(r *snapshot.Router) { r.Neighbors = snapshot.List[snapshot.Neighbor]{Error: "refused"} })), hidden},
		{"a source missing for a moment does not end the alarm", story(incident(true), then(0.2, removeNode1), then(0.1, func(w *world) { w.Nodes.Read = false }), then(0.1, func(w *world) { w.Nodes.Read = true })), hidden},

		{"ECMP: owner and another node announce", healthy(func(w *world) { w.announce("10.4.94.31", "10.5.115.0/24", "tor2") }), []string{"wrong-announcer latent 10.5.115.0/24 owner=master2 announcer=master3 at=tor2"}},
		{"ECMP: static route to owner and another node", healthy(func(w *world) {
			w.static("10.5.115.0/24", "10.4.94.21", tors...)
			w.static("10.5.115.0/24", "10.4.94.31", tors...)
		}), []string{"wrong-announcer latent 10.5.115.0/24 owner=master2 announcer=master3 at=tor1,tor2"}},
		{"one router lacks the range", healthy(func(w *world) { w.withdraw("10.5.115.0/24", "tor2") }), []string{"unannounced active 10.5.115.0/24 owner=master2 announcer= at=tor2"}},
		{"a range with many pods", healthy(withdrawn, func(w *world) {
			for i := range 5 {
				w.pod("master2", netip.AddrFrom4([4]byte{10, 5, 115, byte(10 + i)}))
			}
		}), []string{lost}},
		{"a range without pods", healthy(withdrawn, func(w *world) { w.Pods.Items = nil }), []string{lost}},

		{"a node has just joined", healthy(newcomer), []string{joining}},
		{"a node has joined and stays silent", story(healthy(newcomer)[0], then(10, nothing)), []string{"unannounced active 10.5.116.0/24 owner=node2 announcer= at=tor1,tor2"}},
		{"a node's session has just come up", story(healthy(newcomer)[0], then(1, func(w *world) {
			w.session(0, "10.4.94.24", w.Time.Add(-time.Second))
			w.session(1, "10.4.94.24", w.Time.Add(-time.Second))
		})), []string{joining}},
		{"a node came back under its name", story(incident(false), then(60, func(w *world) {
			w.silence("10.4.94.23", tors...)
			w.Nodes.Items[3].UID, w.Nodes.Items[3].Created = "another", w.Time.Add(-time.Second)
		})), []string{"unannounced settling 10.5.112.0/24 owner=node1 announcer= at=tor1,tor2"}},

		{"an address of a Service", healthy(func(w *world) { w.announce("10.4.94.21", "192.0.2.7/32", tors...) }), nil},
		{"a spine's default route and aggregate", healthy(func(w *world) {
			w.announce("10.4.36.1", "0.0.0.0/0", tors...)
			w.announce("10.4.36.1", "10.0.0.0/8", tors...)
			paths(func(p *snapshot.Path) {
				if p.Neighbor == addr("10.4.36.1") {
					p.ASPath = []uint32{64999}
				}
			})(w)
			w.withdraw("10.5.115.0/24", "tor1")
		}), []string{"unannounced active 10.5.115.0/24 owner=master2 announcer= at=tor1"}},
		{"a node announces an aggregate", healthy(withdrawn, func(w *world) { w.announce("10.4.94.32", "10.5.112.0/21", tors...) }), nil},
		{"a path learned from the other router", healthy(func(w *world) {
			w.withdraw("10.5.115.0/24", "tor1")
			w.announce("10.4.36.238", "10.5.115.0/24", "tor1")
		}), nil},
		{"a blackhole is no route", healthy(func(w *world) {
			w.withdraw("10.5.115.0/24", "tor1")
			w.static("10.5.115.0/24", "10.4.94.21", "tor1")
			w.at("tor1").Routes.Items[0].Type, w.at("tor1").Routes.Items[0].NextHops = snapshot.RouteBlackhole, nil
		}), []string{"unannounced active 10.5.115.0/24 owner=master2 announcer= at=tor1"}},
		{"no snapshot", nil, nil},
	}
	var golden strings.Builder
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			fmt.Fprintf(&golden, "# %s\n", tt.name)
			for _, f := range detected(t, RouteOwnership{}, snapshots(tt.history)) {
				must.Equal(t, "detector", "route-ownership", f.Detector)
				got = append(got, fmt.Sprintf("%s %s %s owner=%s announcer=%s at=%s",
					f.Kind, f.State, f.Object, f.Owner, f.Announcer, strings.Join(f.Routers, ",")))
				fmt.Fprintf(&golden, "%s %s: %s\n", f.State, f.Kind, f.Says)
			}
			must.Equal(t, "findings", tt.want, got)
		})
	}
	goldentest.Compare(t, "route-ownership.txt", golden.String())
}

// What detectors import, however far away, brings up or changes no lab and sends no traffic.
func TestDependenciesDoNotAct(t *testing.T) {
	acts := regexp.MustCompile(`^(github\.com/docker/|sigs\.k8s\.io/kind|github\.com/relapse-dev/relapse/` +
		`(topology/(lab|host)|framework/(component|fault|engine|labaccess|probe|load)|images)(/|$))`)
	out := must.Get(exec.CommandContext(t.Context(), "go", "list", "-deps", "./...").Output())(t)
	deps := strings.Fields(string(out))
	if len(deps) < 50 {
		t.Fatalf("%d packages: %s", len(deps), out)
	}
	must.Equal(t, "what a detector needs", nil, each.Where(deps, acts.MatchString))
}

// A detector that could act, or that saw traffic, would be no witness.
func TestImportsNothingThatActs(t *testing.T) {
	allowed := []string{
		"github.com/relapse-dev/relapse/framework/snapshot",
		"github.com/relapse-dev/relapse/framework/detect",               // for a detector that is a package of its own
		"github.com/relapse-dev/relapse/framework/detect/autodetection", // which is held to the same
		"github.com/relapse-dev/relapse/topology/each",                  // functions of lists
		"golang.org/x/mod/semver",                                       // functions of strings
		"github.com/relapse-dev/relapse/topology",                       // declarations and words
		"github.com/gaissmai/bart",                                      // a trie
	}
	files := must.Get(filepath.Glob("*.go"))(t)
	for _, file := range append(files, must.Get(filepath.Glob("*/*.go"))(t)...) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, spec := range must.Get(parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly))(t).Imports {
			path := strings.Trim(spec.Path.Value, `"`)
			forbidden := slices.Contains([]string{"os", "os/exec", "net", "net/http", "syscall"}, path)
			if forbidden || strings.Contains(path, ".") && !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", file, path)
			}
		}
	}
}

func BenchmarkRouteOwnership(b *testing.B) {
	// The longest history that the engine keeps, at one snapshot each 100 ms.
	var history []snapshot.Snapshot
	w := incident(true)
	for range int(History / (100 * time.Millisecond)) {
		history = append(history, w.Snapshot)
		w = advance(w, 0.1, nothing)
	}
	history = append(history, advance(w, 0.1, removeNode1).Snapshot)
	for b.Loop() {
		Run([]Detector{RouteOwnership{}}, history)
	}
}
