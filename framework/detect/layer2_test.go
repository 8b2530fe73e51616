package detect

import (
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

const (
	mac1, mac2, stranger = "02:42:0a:42:04:15", "02:42:0a:42:04:16", "02:42:0a:42:04:63"
	arped                = "10.66.4.128"
)

// answering is a snapshot of two nodes. worker1 announces the address of a Service on the link of both routers, as
// MetalLB says and as the routers' neighbour tables have it.
func answering(elapsed time.Duration) *world {
	w := balanced(elapsed).eachNode(func(n *snapshot.Node) { n.Ready = true })
	w.L2Announcements = snapshot.List[snapshot.L2Announcement]{Read: true, Items: []snapshot.L2Announcement{{Service: "default/web", Node: "worker1"}}}
	w.Services.Items[0].LoadBalancerIPs[0] = addr(arped)
	for i := range w.Routers {
		w.Routers[i].Routes.Items = []snapshot.Route{
			{Prefix: prefix("0.0.0.0/0"), NextHops: []snapshot.NextHop{{Address: addr("10.9.0.1"), Interface: "eth0"}}},
			{Prefix: prefix("10.66.4.0/24"), Protocol: snapshot.RouteKernel, NextHops: []snapshot.NextHop{{Interface: "eth1"}}},
		}
		w.Routers[i].Links = snapshot.List[snapshot.LinkNeighbor]{Read: true, Items: []snapshot.LinkNeighbor{
			{Address: addr("10.66.4.21"), Interface: "eth1", MAC: mac1}, {Address: addr("10.66.4.22"), Interface: "eth1", MAC: mac2},
			{Address: addr(arped), Interface: "eth1", MAC: mac1, Confirmed: true},
		}}
	}
	return w
}

// changes makes one change of several.
func changes[T any](all ...func(*T)) func(*T) {
	return func(target *T) {
		for _, change := range all {
			change(target)
		}
	}
}

func TestLayer2(t *testing.T) {
	at := func(elapsed time.Duration, all ...func(*world)) snapshot.Snapshot {
		w := answering(elapsed)
		changes(all...)(w)
		return w.Snapshot
	}
	entry := func(router int, mac string) func(*world) {
		return func(w *world) { w.Routers[router].Links.Items[2].MAC = mac }
	}
	to := func(mac string) func(*world) { return changes(entry(0, mac), entry(1, mac)) }
	link := func(n snapshot.LinkNeighbor) func(*world) {
		return routers(func(r *snapshot.Router) { r.Links.Items = append(r.Links.Items, n) })
	}
	route := func(p string, hop snapshot.NextHop) func(*world) {
		return routers(func(r *snapshot.Router) {
			r.Routes.Items = append(r.Routes.Items, snapshot.Route{Prefix: prefix(p), NextHops: []snapshot.NextHop{hop}})
		})
	}
	unconfirmed := routers(func(r *snapshot.Router) { r.Links.Items[2].Confirmed = false })
	unrouted := func(w *world) { w.Routers = nil }
	holders := func(all ...snapshot.L2Announcement) func(*world) {
		return func(w *world) { w.L2Announcements.Items = all }
	}
	leased := holders(snapshot.L2Announcement{Service: "default/web", Node: "worker1", Lease: "kube-system/cilium-l2announce-default-web"})
	local := func(nodes string) func(*world) {
		return func(w *world) {
			w.Services.Items[0].Local = true
			w.EndpointSlices.Items[0].ReadyNodes = strings.Fields(nodes)
		}
	}
	draining := func(w *world) { w.EndpointSlices.Items[0].DrainingNodes = []string{"worker1"} }
	notReady := func(node string) func(*world) {
		return func(w *world) { w.eachNode(func(n *snapshot.Node) { n.Ready = n.Ready && n.Name != node }) }
	}
	byBGP := func(w *world) {
		w.BGPAdvertisements.Items[0].Ranges[0] = snapshot.AddressRange{First: addr("10.66.4.128"), Last: addr("10.66.4.131")}
	}
	unread := func(w *world) { w.L2Announcements.Read = false }
	const sends = "tor1 and tor2 send what is for 10.66.4.128, the address of Service default/web, to "
	for _, test := range []struct {
		name    string
		history []snapshot.Snapshot
		kind    string
		state   State
		says    string
	}{
		{"nothing is wrong", []snapshot.Snapshot{at(0)}, "", "", ""},
		{"no router has an entry", []snapshot.Snapshot{at(0, to(""))}, "", "", ""},
		{"both send to the other node, which passes it on", []snapshot.Snapshot{at(0, leased, to(mac2))}, StaleNeighbour, Latent,
			sends + "worker2 (" + mac2 + "), and worker1, which holds the lease kube-system/cilium-l2announce-default-web, announces it: worker2 passes it on."},
		{"the other node drops it", []snapshot.Snapshot{at(0, local("worker1"), to(mac2))}, StaleNeighbour, Active,
			"and worker1, as MetalLB says in its ServiceL2Status, announces it: worker2 has no ready endpoint of its own, which externalTrafficPolicy Local asks for, and drops it."},
		{"the other node is not ready", []snapshot.Snapshot{at(0, notReady("worker2"), to(mac2))}, StaleNeighbour, Active, "worker2 is not ready."},
		{"the other node is not ready, and the entry is asked again", []snapshot.Snapshot{at(0, notReady("worker2"), to(mac2), unconfirmed)}, StaleNeighbour, Latent, "not ready"},
		{"the other node passes it on, and the entry is asked again", []snapshot.Snapshot{at(0, to(mac2), unconfirmed)}, "", "", ""},
		{"one sends to it, since a moment ago", []snapshot.Snapshot{at(0), at(time.Second, local("worker1"), entry(1, mac2))}, StaleNeighbour, Pending,
			"tor2 sends what is for 10.66.4.128, the address of Service default/web, to worker2 (" + mac2 + "), and worker1"},
		{"for three seconds", []snapshot.Snapshot{at(0), at(time.Second, local("worker1"), entry(1, mac2)), at(4*time.Second, local("worker1"), entry(1, mac2))}, StaleNeighbour, Active, "drops it."},
		{"nobody says who announces it, and the routers agree", []snapshot.Snapshot{at(0, to(mac2), holders())}, "", "", ""},
		{"nobody says it, and they do not agree", []snapshot.Snapshot{at(0, entry(1, mac2), holders())}, TwoSpeakers, Active,
			"Nodes have just answered for 10.66.4.128, the address of Service default/web: worker1 (" + mac1 + ") on the link of tor1; worker2 (" + mac2 + ") on the link of tor2. Which of them gets a packet is chance."},
		{"nobody says it, and one of the entries may be old", []snapshot.Snapshot{at(0, entry(1, mac2), holders(), unconfirmed)}, "", "", ""},
		{"nobody says it, and one has a station of no node", []snapshot.Snapshot{at(0, entry(1, stranger), holders())}, "", "", ""},
		{"two announce it", []snapshot.Snapshot{at(0, unrouted, holders(snapshot.L2Announcement{Service: "default/web", Node: "worker1"}, snapshot.L2Announcement{Service: "default/web", Node: "worker2", Lease: "a/b"}))},
			TwoSpeakers, Active, "worker1, as MetalLB says in its ServiceL2Status; worker2, which holds the lease a/b."},
		{"two are said to, of which one is not ready", []snapshot.Snapshot{at(0, notReady("worker2"), holders(snapshot.L2Announcement{Service: "default/web", Node: "worker1"}, snapshot.L2Announcement{Service: "default/web", Node: "worker2"}))}, "", "", ""},
		{"another machine answers", []snapshot.Snapshot{at(0, to(stranger), link(snapshot.LinkNeighbor{Address: addr("10.66.4.99"), Interface: "eth1", MAC: stranger}))}, TwoSpeakers, Active,
			sends + "10.66.4.99 (" + stranger + "), and worker1, as MetalLB says in its ServiceL2Status, announces it: it is no node, and two stations answer."},
		{"another machine had the address", []snapshot.Snapshot{at(0, to(stranger), unconfirmed)}, StaleNeighbour, Latent, "it is no node."},
		{"a MAC that nothing is known of", []snapshot.Snapshot{at(0, to(stranger))}, TwoSpeakers, Latent, "unless that is another interface of worker1."},
		{"one that the announcing node's MAC is not known beside", []snapshot.Snapshot{at(0, to(stranger), routers(func(r *snapshot.Router) { r.Links.Items[0].MAC = "" }))}, "", "", ""},
		{"a proxy answers for the nodes too", []snapshot.Snapshot{at(0, to(stranger), routers(func(r *snapshot.Router) { r.Links.Items[0].MAC, r.Links.Items[1].MAC = stranger, stranger }))}, "", "", ""},
		{"an entry of another VRF", []snapshot.Snapshot{at(0, link(snapshot.LinkNeighbor{Address: addr(arped), Interface: "vrf2", MAC: mac2, Confirmed: true}), link(snapshot.LinkNeighbor{Address: addr("10.66.4.21"), Interface: "vrf2", MAC: mac1}))}, "", "", ""},
		{"the announcing node's MAC is known on another interface alone", []snapshot.Snapshot{at(0, to(stranger), routers(func(r *snapshot.Router) { r.Links.Items[0].Interface = "eth2" }))}, "", "", ""},
		{"the route is one of BGP", []snapshot.Snapshot{at(0, to(mac2), route(arped+"/32", snapshot.NextHop{Address: addr("10.66.4.21"), Interface: "eth1"}))}, "", "", ""},
		{"a default route on the link", []snapshot.Snapshot{at(0, to(mac2), route("0.0.0.0/0", snapshot.NextHop{Interface: "eth1"}))}, StaleNeighbour, Latent, ""},
		{"policy Local, with an endpoint there", []snapshot.Snapshot{at(0, local("worker1"))}, "", "", ""},
		{"policy Local, with an endpoint elsewhere", []snapshot.Snapshot{at(0, leased, local("worker2"))}, LeaseWithoutEndpoint, Active,
			"worker1, which holds the lease kube-system/cilium-l2announce-default-web, announces 10.66.4.128, the address of Service default/web, and has no ready endpoint of its own: externalTrafficPolicy Local asks for one, and it drops the packets; endpoints are on worker2."},
		{"the same, without a router", []snapshot.Snapshot{at(0, local("worker2"), unrouted)}, LeaseWithoutEndpoint, Active, ""},
		{"the same, by BGP too", []snapshot.Snapshot{at(0, local("worker2"), unrouted, byBGP)}, "", "", ""},
		{"the same, by BGP too, and a router sends by ARP", []snapshot.Snapshot{at(0, local("worker2"), byBGP)}, LeaseWithoutEndpoint, Active, ""},
		{"policy Local, with an endpoint that ends", []snapshot.Snapshot{at(0, local("worker2"), draining)}, "", "", ""},
		{"policy Local, without an endpoint", []snapshot.Snapshot{at(0, local(""), func(w *world) { w.EndpointSlices.Items[0].Ready = nil })}, "", "", ""},
		{"no endpoint at all", []snapshot.Snapshot{at(0, notReady("worker2"), to(mac2), func(w *world) { w.EndpointSlices.Items[0].Ready = nil })}, "", "", ""},
		{"announcements were not read", []snapshot.Snapshot{at(0, local("worker2"), to(mac2), unread)}, "", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Layer2{}.Detect(test.history, NewIndex(test.history))
			if test.kind == "" {
				must.Equal(t, got, 0, len(got))
				return
			}
			if len(got) != 1 || got[0].Kind != test.kind || got[0].State != test.state || !strings.Contains(got[0].Says, test.says) ||
				got[0].Object != Prefix(prefix(arped+"/32")) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// Two Services may share an address: each has a lease, and one of them may be on the other node.
func TestLayer2SharedAddress(t *testing.T) {
	w := answering(0)
	w.Services.Items = append(w.Services.Items, snapshot.Service{Namespace: "default", Name: "udp", LoadBalancerIPs: w.Services.Items[0].LoadBalancerIPs})
	w.EndpointSlices.Items = append(w.EndpointSlices.Items, snapshot.EndpointSlice{Namespace: "default", Service: "udp", Ready: w.EndpointSlices.Items[0].Ready})
	w.L2Announcements.Items = append(w.L2Announcements.Items, snapshot.L2Announcement{Service: "default/udp", Node: "worker1"})
	detected := func() []Finding { return Run([]Detector{Layer2{}}, []snapshot.Snapshot{w.Snapshot}) }
	must.Equal(t, "", nil, detected())
	w.L2Announcements.Items[1].Node = "worker2"
	if got := detected(); len(got) != 1 || got[0].Kind != TwoSpeakers || !strings.Contains(got[0].Says, "Services default/web and default/udp: worker1") {
		t.Errorf("%+v", got)
	}
}
