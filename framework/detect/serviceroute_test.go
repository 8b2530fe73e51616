package detect

import (
	"net/netip"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// balanced is a snapshot of two nodes that announce 10.66.128.1, the address of a Service with
// an endpoint on worker1, to both routers.
func balanced(elapsed time.Duration) *world {
	w := &world{}
	w.Time = start.Add(elapsed)
	w.Nodes.Read, w.Services.Read, w.EndpointSlices.Read, w.BGPAdvertisements.Read = true, true, true, true
	for _, name := range tors {
		r := readRouter(name)
		for _, node := range []string{"10.66.4.21", "10.66.4.22"} {
			r.Paths.Items = append(r.Paths.Items, snapshot.Path{Prefix: prefix("10.66.128.1/32"), NextHop: addr(node), Neighbor: addr(node), Best: true})
			r.Neighbors.Items = append(r.Neighbors.Items, snapshot.Neighbor{Address: addr(node), AS: 64513, State: snapshot.SessionEstablished, Established: start.Add(-time.Minute)})
		}
		w.Routers = append(w.Routers, r)
	}
	for name, ip := range map[string]string{"worker1": "10.66.4.21", "worker2": "10.66.4.22"} {
		w.Nodes.Items = append(w.Nodes.Items, snapshot.Node{Name: name, InternalIPs: []netip.Addr{addr(ip)}})
	}
	w.Services.Items = []snapshot.Service{{Namespace: "default", Name: "web", LoadBalancerIPs: []netip.Addr{addr("10.66.128.1")}}}
	w.EndpointSlices.Items = []snapshot.EndpointSlice{{Namespace: "default", Service: "web", Ready: []netip.Addr{addr("10.66.65.2")}, ReadyNodes: []string{"worker1"}}}
	w.BGPAdvertisements.Items = []snapshot.BGPAdvertisement{{
		Name: "services", Nodes: []string{"worker1", "worker2"}, Ranges: []snapshot.AddressRange{{First: addr("10.66.128.0"), Last: addr("10.66.128.255")}},
	}}
	return w
}

func (w *world) withdrawn() *world {
	silenced(w)
	return w
}

func (w *world) eachNode(change func(*snapshot.Node)) *world {
	for i := range w.Nodes.Items {
		change(&w.Nodes.Items[i])
	}
	return w
}

func TestServiceRoute(t *testing.T) {
	cordoned := func(n *snapshot.Node) { n.Unschedulable = true }
	at := func(elapsed time.Duration, all ...func(*world)) snapshot.Snapshot {
		w := balanced(elapsed)
		changes(all...)(w)
		return w.Snapshot
	}
	well := balanced(0).Snapshot
	gone := func(w *world) { w.withdrawn().eachNode(cordoned) }
	// bySpine has the routers get the address from a spine, as this prefix.
	bySpine := func(as string) func(*world) {
		return paths(func(p *snapshot.Path) {
			p.Prefix, p.NextHop, p.Neighbor = prefix(as), addr("172.16.0.21"), addr("172.16.0.21")
		})
	}
	const active, pending, none = string(Active), string(Pending), ""
	for _, test := range []struct {
		name    string
		history []snapshot.Snapshot
		state   string
		says    []string
	}{
		{"announced", []snapshot.Snapshot{well}, none, nil},
		{"one snapshot alone", []snapshot.Snapshot{at(0, gone)}, active,
			[]string{"No router has a route to 10.66.128.1, the address of Service default/web", "worker1 is unschedulable; worker2 is unschedulable"}},
		{"first sight", []snapshot.Snapshot{well, at(200*time.Millisecond, gone)}, pending, []string{"pending"}},
		{"second sight", []snapshot.Snapshot{well, at(200*time.Millisecond, gone), at(400*time.Millisecond, gone)}, active, nil},
		{"a sight, and a snapshot without a router", []snapshot.Snapshot{well, at(200*time.Millisecond, gone),
			at(400*time.Millisecond, gone, func(w *world) { w.Routers[1].Paths.Read = false }), at(600*time.Millisecond, gone)}, active, nil},
		{"a new Service", []snapshot.Snapshot{at(0, gone), at(time.Second, gone)}, pending, nil},
		{"a Service that is never announced", []snapshot.Snapshot{at(0, gone), at(announcedWithin, gone)}, active, nil},
		{"one router has it", []snapshot.Snapshot{at(0, func(w *world) { w.Routers[0].Paths.Items = nil })}, none, nil},
		{"paths to next hops that no router can reach", []snapshot.Snapshot{at(0, paths(func(p *snapshot.Path) { p.Best = false }))}, active,
			[]string{"No router has a route"}},
		{"a route of the operator to a node", []snapshot.Snapshot{at(0, func(w *world) {
			w.withdrawn().Routers[1].Routes.Items = []snapshot.Route{{
				Prefix: prefix("10.66.128.0/24"), Protocol: snapshot.RouteStatic, Type: snapshot.RouteUnicast, NextHops: []snapshot.NextHop{{Address: addr("10.66.4.21")}},
			}}
		})}, none, nil},
		{"from a spine", []snapshot.Snapshot{at(0, bySpine("10.66.128.1/32"))}, none, nil},
		{"a spine's aggregate", []snapshot.Snapshot{at(0, bySpine("10.66.128.0/24"))}, active, nil},
		{"from a spine, aggregated by MetalLB", []snapshot.Snapshot{at(0, bySpine("10.66.128.0/24"),
			func(w *world) { w.BGPAdvertisements.Items[0].AggregationLength = 24 })}, none, nil},
		{"of Cilium, whose agents announce from unschedulable nodes", []snapshot.Snapshot{at(0, gone,
			func(w *world) { w.BGPAdvertisements.Items[0].Speaker = snapshot.CiliumBGP })}, active,
			[]string{"worker1 announces it to no router, and nothing that was read says why"}},
		{"no ready endpoint", []snapshot.Snapshot{at(0, gone, func(w *world) { w.EndpointSlices.Items[0].Ready = nil })}, none, nil},
		{"no advertisement", []snapshot.Snapshot{at(0, func(w *world) { gone(w); w.BGPAdvertisements.Items = nil })}, none, nil},
		{"of another pool", []snapshot.Snapshot{at(0, func(w *world) { gone(w); w.BGPAdvertisements.Items[0].Ranges = nil })}, none, nil},
		{"routers were not read", []snapshot.Snapshot{at(0, func(w *world) { gone(w); w.Routers[0].Paths.Read = false })}, none, nil},
		{"advertisements were not read", []snapshot.Snapshot{at(0, func(w *world) { gone(w); w.BGPAdvertisements.Read = false })}, none, nil},
		{"other reasons", []snapshot.Snapshot{at(0, func(w *world) {
			w.withdrawn().Nodes.Items = nil
			w.Nodes.Items = []snapshot.Node{{Name: "worker1", Excluded: true, InternalIPs: []netip.Addr{addr("10.66.4.21")}}, {Name: "worker2", InternalIPs: []netip.Addr{addr("10.66.4.23")}}}
			w.Services.Items[0].Local = true
		})}, active, []string{
			"worker1 has the label node.kubernetes.io/exclude-from-external-load-balancers",
			"worker2 has no ready endpoint of its own, which externalTrafficPolicy Local asks for and has no BGP session",
		}},
		{"cordoned, and one without an endpoint", []snapshot.Snapshot{at(0, func(w *world) { gone(w); w.Services.Items[0].Local = true })}, active, []string{
			"worker1 is unschedulable; worker2 is unschedulable and has no ready endpoint of its own",
		}},
		{"no reason", []snapshot.Snapshot{at(0, func(w *world) { w.withdrawn() })}, active, []string{"worker1 announces it to no router, and nothing that was read says why"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := Run([]Detector{ServiceRoute{}}, test.history)
			if test.state == none {
				must.Equal(t, "found", nil, found)
				return
			}
			want := Finding{Detector: "service-route", Kind: NoRoute, State: State(test.state), Object: Prefix(prefix("10.66.128.1/32")), Routers: tors}
			must.Equal(t, "found", []ID{want.ID()}, each.Of(found, Finding.ID))
			must.Contain(t, each.Joined(found, "", sentenceOf), test.says...)
		})
	}
}
