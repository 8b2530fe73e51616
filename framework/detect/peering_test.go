package detect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// observed is one snapshot of four nodes with Node.spec and CiliumNode in agreement.
func observed(all ...func(*world)) *world {
	w := incident(false)
	changes(all...)(w)
	return w
}

func routers(change func(*snapshot.Router)) func(*world) {
	return func(w *world) {
		for i := range w.Routers {
			change(&w.Routers[i])
		}
	}
}

func neighbors(change func(*snapshot.Neighbor)) func(*world) {
	return routers(func(r *snapshot.Router) {
		for i := range r.Neighbors.Items {
			change(&r.Neighbors.Items[i])
		}
	})
}

func paths(change func(*snapshot.Path)) func(*world) {
	return routers(func(r *snapshot.Router) {
		for i := range r.Paths.Items {
			change(&r.Paths.Items[i])
		}
	})
}

var (
	// silenced ends the announcements of all nodes, and leaves their sessions.
	silenced = routers(func(r *snapshot.Router) { r.Paths.Items = nil })
	unpeered = routers(func(r *snapshot.Router) { r.Neighbors.Items = nil })
	onLink   = routers(linked)
	// ribOnly has the routers read in a way that cannot give a FIB.
	ribOnly = routers(func(r *snapshot.Router) { r.RIBOnly, r.Routes = true, snapshot.List[snapshot.Route]{} })
	// getPods says of the routers that they get the pod ranges, and onlyServices that they get Services alone.
	getPods      = routers(func(r *snapshot.Router) { r.Pods = true })
	onlyServices = routers(func(r *snapshot.Router) { r.Services = true })
	asked        = routers(func(r *snapshot.Router) { r.IPv6 = true })
	notAsked     = routers(func(r *snapshot.Router) { r.IPv6 = false })
	ofIPv4       = routers(func(r *snapshot.Router) { r.IPv6, r.Families = false, []string{"ipv4"} })
)

func linked(r *snapshot.Router) {
	r.Routes.Items = append(r.Routes.Items, snapshot.Route{
		Prefix: prefix("10.4.94.0/24"), Type: snapshot.RouteUnicast, Protocol: snapshot.RouteKernel, NextHops: []snapshot.NextHop{{Interface: "eth0"}},
	})
}

func forgets(router string) func(*world) {
	return func(w *world) { w.at(router).Paths.Items, w.at(router).Neighbors.Items = nil, nil }
}

// dumped has the routers be read from dumps of such an age.
func dumped(age time.Duration) func(*world) {
	return func(w *world) { routers(func(r *snapshot.Router) { r.At = w.Time.Add(-age) })(w) }
}

// spineAlone leaves no other router than the second one, and unready has node1 not be ready.
func spineAlone(w *world) { w.Routers = w.Routers[1:] }
func unready(w *world)    { w.Nodes.Items[3].Ready = false }

// ofAnotherCNI gives the pods addresses that are in no range.
func ofAnotherCNI(w *world) {
	for i := range w.Pods.Items {
		w.Pods.Items[i].IP = addr(fmt.Sprintf("10.16.0.%d", i+2))
	}
}

func roles(role string) func(*world) {
	return routers(func(r *snapshot.Router) { r.Role = role })
}

func down(ip string) func(*world) {
	return neighbors(func(n *snapshot.Neighbor) {
		if n.Address == addr(ip) {
			n.State = "active"
		}
	})
}

// learned is a path that a router has from a neighbour.
func learned(p, from string, as ...uint32) snapshot.Path {
	return snapshot.Path{Prefix: prefix(p), NextHop: addr(from), Neighbor: addr(from), ASPath: as, Best: true}
}

func learns(router string, p snapshot.Path) func(*world) {
	return func(w *world) { w.at(router).Paths.Items = append(w.at(router).Paths.Items, p) }
}

// withoutCilium makes Node.spec the allocation, as Flannel and kube-router do.
func withoutCilium(w *world) { w.CiliumNodes.Items = nil }

func ofCalico(w *world) {
	withoutCilium(w)
	w.CalicoBlocks.Read = true
	for i, n := range table {
		w.Nodes.Items[i].PodCIDRs = []netip.Prefix{prefix("10.200." + string(rune('0'+i)) + ".0/24")} // not used by Calico
		w.CalicoBlocks.Items = append(w.CalicoBlocks.Items, snapshot.CalicoBlock{CIDR: prefix(n.cilium), Node: n.name})
	}
}

// reflected has master1 alone have peers outside, and announce the ranges of all nodes.
func reflected(w *world) {
	all := snapshot.CalicoPeer{Name: "reflectors"}
	for _, n := range table {
		all.Nodes = append(all.Nodes, n.name)
		if n.name != "master1" {
			w.silence(n.ip, tors...)
			w.announce("10.4.94.32", n.cilium, tors...)
		}
	}
	w.CalicoPeers.Items = []snapshot.CalicoPeer{all, {Name: "tor", Address: addr("10.4.94.253"), Nodes: []string{"master1"}}}
}

// behind has all routers learn what they learn from one that is no node, such as a route reflector.
func behind(state string) func(*world) {
	return routers(func(r *snapshot.Router) {
		r.Neighbors.Items = []snapshot.Neighbor{{Address: netip.MustParseAddr("10.9.9.9"), AS: 64512, State: state}}
	})
}

func dualStack(w *world) {
	asked(w)
	for i, n := range table {
		p := fmt.Sprintf("fd00:10:%d::/64", i)
		w.CiliumNodes.Items[i].PodCIDRs = append(w.CiliumNodes.Items[i].PodCIDRs, prefix(p))
		w.announce(n.ip, p, tors...)
	}
}

// withoutIPv6 ends the announcements of ranges of IPv6, for the nodes of table from an index on.
func withoutIPv6(from int, routers ...string) func(*world) {
	return func(w *world) {
		for i := from; i < len(table); i++ {
			w.withdraw(fmt.Sprintf("fd00:10:%d::/64", i), routers...)
		}
	}
}

// unnumbered has the routers know the nodes by link-local addresses alone.
func unnumbered(w *world) {
	linkLocal := func(a netip.Addr) netip.Addr { return netip.AddrFrom16([16]byte{0xfe, 0x80, 15: a.As4()[3]}) }
	neighbors(func(n *snapshot.Neighbor) { n.RouterID, n.Address = n.Address, linkLocal(n.Address) })(w)
	paths(func(p *snapshot.Path) { p.Neighbor, p.NextHop = linkLocal(p.Neighbor), linkLocal(p.NextHop) })(w)
}

func givesDefault(w *world) {
	learns("tor2", learned("0.0.0.0/0", w.at("tor2").Neighbors.Items[0].Address.String()))(w)
}

// asSpine makes tor2 a spine that has learned aggregates from another router.
func asSpine(aggregates ...string) func(*world) {
	return func(w *world) {
		r, from := w.at("tor2"), addr("10.4.94.254")
		r.Role, r.Paths.Items = snapshot.RoleSpine, nil
		r.Neighbors.Items = []snapshot.Neighbor{{Address: from, AS: 64512, State: snapshot.SessionEstablished}}
		for _, p := range aggregates {
			learns("tor2", learned(p, "10.4.94.254", 64512, 64513))(w)
		}
	}
}

// above has a spine's paths come from an AS that is not the nodes'.
func above(w *world) {
	for i := range w.at("tor2").Paths.Items {
		w.at("tor2").Paths.Items[i].ASPath = []uint32{65000}
	}
}

func announces(p string) func(*world) {
	return func(w *world) {
		for _, n := range table {
			w.announce(n.ip, p, tors...)
		}
	}
}

func pathless(router string) func(*world) {
	return func(w *world) { w.at(router).Paths.Items = nil }
}

func unjudged(s snapshot.Snapshot) []Gap { return NewIndex([]snapshot.Snapshot{s}).Unjudged() }

func states(found []Finding) []State { return each.Of(found, func(f Finding) State { return f.State }) }

// A router whose nodes announce into a table that is not read is not taken for one to which they
// announce nothing.
func TestObservedAnotherTable(t *testing.T) {
	accepting := func(n uint64) func(*world) {
		return func(w *world) {
			for i := range w.Routers[0].Neighbors.Items {
				w.Routers[0].Neighbors.Items[i].Accepted = n
			}
		}
	}
	const says = "tor1 has accepted routes from "
	for _, test := range []struct {
		name    string
		cluster *world
		want    bool
	}{
		{"the routes are in another table", observed(silenced, accepting(1)), true},
		{"nothing is announced", observed(silenced, accepting(0)), false},
		{"the routes are in the RIB", observed(accepting(1)), false},
		{"the RIB was not read", observed(silenced, accepting(1), func(w *world) { w.Routers[0].Paths = snapshot.List[snapshot.Path]{Error: "refused"} }), false},
	} {
		got := slices.ContainsFunc(unjudged(test.cluster.Snapshot), func(g Gap) bool { return g.Open && strings.HasPrefix(g.Says, says) })
		must.Equal(t, test.name, test.want, got)
	}
}

// VRFs that are not read are told, and are open unless somebody has said what is in the default one.
func TestObservedVRFs(t *testing.T) {
	red := func(w *world) { w.at("tor1").VRFs = []string{"blue", "red"} }
	for name, test := range map[string]struct {
		cluster *world
		open    bool
	}{
		"pod ranges are in the default one":        {observed(red), true},
		"they are not":                             {observed(red, silenced, unpeered), true},
		"they are said to be":                      {observed(red, getPods), false},
		"the router is said to get Services alone": {observed(red, onlyServices), false},
	} {
		want := Gap{Says: "tor1 has BGP in VRF blue and red, which is not read.", Open: test.open, Reason: anotherVRF, Routers: "tor1"}
		if got := unjudged(test.cluster.Snapshot); !slices.Contains(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// The nodes whose ranges are unannounced, as an active finding outside of a lab.
func TestObservedPeering(t *testing.T) {
	const node1Range, node1IP = "10.5.112.0/24", "10.4.94.23"
	withdrawn := func(w *world) { w.withdraw(node1Range, tors...) }
	kubeRouter := func(w *world) {
		withoutCilium(w)
		silenced(w)
		for _, n := range table {
			w.announce(n.ip, n.node, tors...)
		}
		w.BGPAdvertisements.Read = true
	}
	services := func(w *world) {
		w.withdraw("10.5.115.0/24", tors...)
		w.announce(node1IP, "10.66.128.1/32", tors...)
	}
	// selecting has the nodes but node1, and then node1, announce what an advertisement says.
	selecting := func(others, node1 snapshot.BGPAdvertisement) func(*world) {
		return func(w *world) {
			others.Speaker, node1.Speaker = snapshot.CiliumBGP, snapshot.CiliumBGP
			others.Nodes, node1.Nodes = []string{"master1", "master2", "master3"}, []string{"node1"}
			w.BGPAdvertisements.Items = append(w.BGPAdvertisements.Items, others, node1)
		}
	}
	ofPods, ofServices := snapshot.BGPAdvertisement{PodCIDRs: true, Families: []string{"ipv4"}}, snapshot.BGPAdvertisement{Families: []string{"ipv4"}}
	peerOf := func(address string, filters ...string) snapshot.CalicoPeer {
		return snapshot.CalicoPeer{Name: "tor", Address: addr(address), Filters: filters, Nodes: []string{"master1", "master2", "master3"}}
	}
	otherCilium := func(w *world) {
		for i, n := range table {
			w.CiliumNodes.Items = append(w.CiliumNodes.Items, snapshot.CiliumNode{Name: n.name, PodCIDRs: []netip.Prefix{prefix(fmt.Sprintf("10.244.%d.0/24", i))}})
		}
	}
	unselected := func(w *world) { w.CalicoPeers.Items = []snapshot.CalicoPeer{peerOf("10.4.94.253")} }
	pool := func(name, cidr string) func(*world) {
		return func(w *world) {
			w.CiliumNodes.Items[3].Pools = []snapshot.AllocatedPool{{Name: name, CIDRs: []netip.Prefix{prefix(cidr)}}}
		}
	}
	dualStackOfCalico := func(w *world) {
		for i, n := range table {
			w.CalicoBlocks.Items = append(w.CalicoBlocks.Items, snapshot.CalicoBlock{CIDR: prefix(fmt.Sprintf("fd00:10:%d::/64", i)), Node: n.name})
		}
		asked(w)
	}
	lostOf := func(w *world, routers ...string) {
		for _, n := range []string{"10.5.112.0/24", "10.5.114.0/24", "10.5.115.0/24"} {
			w.withdraw(n, routers...)
		}
	}
	for _, test := range []struct {
		name     string
		cluster  *world
		active   []string // owners
		unjudged string   // a part of a sentence
		open     bool     // Gap.Open of all
	}{
		{"a session is down that the router has forgotten, or a node without BGP", observed(silentNode1, onLink), nil, noSession, true},
		{"all announced", observed(), nil, "", false},
		// Overlays, and clusters that announce other things.
		{"Cilium without BGP: no sessions, no paths", observed(silenced, unpeered), nil, noPodRange, false},
		{"Flannel", observed(withoutCilium, silenced, unpeered), nil, noPodRange, false},
		{"the only neighbour, which is no node, is idle", observed(silenced, behind("Idle")), nil, noPodRange, true},
		{"a route reflector is up, and tells nothing", observed(silenced, behind(snapshot.SessionEstablished)), nil, noPodRange, false},
		{"a route reflector tells the other ranges", observed(withdrawn, behind(snapshot.SessionEstablished)), nil, noNeighbor, true},
		{"Flannel and MetalLB: sessions, and Services alone", observed(withoutCilium, silenced, announces("10.66.128.1/32")), nil, noPodRange, false},
		{"MetalLB without a Service", observed(withoutCilium, silenced), nil, noPodRange, false},
		{"Cilium that announces Services alone", observed(silenced, announces("10.66.128.1/32")), nil, noPodRange, false},
		{"Calico's mesh without external routers", observed(ofCalico, silenced, unpeered), nil, noPodRange, false},
		{"Calico's blocks with other ranges in Node.spec", observed(ofCalico), nil, "", false},
		{"kube-router", observed(kubeRouter), nil, "", false},
		{"kube-router has stopped on all nodes, and the router forgets them", observed(kubeRouter, silenced, unpeered, onLink, func(w *world) {
			w.Workloads.Items = []snapshot.Workload{{Kind: "DaemonSet", Namespace: "kube-system", Name: "kube-router", Containers: []snapshot.Container{{Name: "kube-router"}}}}
		}), nil, noPodRange, true},
		{"Calico, whose BGPFilters may keep all back", observed(ofCalico, silenced, func(w *world) {
			w.CalicoPeers.Items = []snapshot.CalicoPeer{peerOf("10.4.94.253", "none")}
		}), nil, noPodRange, true},
		{"Calico, whose BGPPeers are route reflectors in the cluster", observed(ofCalico, silenced, func(w *world) {
			w.CalicoPeers.Items = []snapshot.CalicoPeer{peerOf(node1IP), {Name: "reflectors", Nodes: []string{"master1", "master2", "master3"}}}
		}), nil, noPodRange, false},
		{"Calico, whose BGPPeers are of IPv4 and not of node1", observed(ofCalico, dualStackOfCalico, unselected, silentNode1),
			nil, noPeer, false},
		{"Calico, whose route reflectors tell the ranges of other nodes, and two have lost theirs on a router", observed(ofCalico, unselected, getPods, func(w *world) {
			w.silence(node1IP, tors...)
			w.announce("10.4.94.21", node1Range, "tor1")
			w.silence("10.4.94.31", "tor1")
			w.CalicoPeers.Items[0].Nodes = []string{"master1", "master2"}
		}), []string{"node1", "master3"}, "", false},
		{"the same, and the router has a session with node1", observed(ofCalico, unselected, withdrawn), nil, noPeer, true},
		{"the same, and the selector of a BGPPeer selects no node", observed(ofCalico, unselected, getPods, func(w *world) {
			w.silence(node1IP, tors...)
			w.CalicoPeers.Items = append(w.CalicoPeers.Items, snapshot.CalicoPeer{Name: "rack-b", Address: addr("10.4.94.253")})
		}), nil, noPeer, true},
		{"Calico's route reflector tells the ranges of all nodes", observed(ofCalico, getPods, reflected), nil, "", false},
		{"the same, and it has lost those of the others", observed(ofCalico, getPods, reflected, func(w *world) { lostOf(w, tors...) }), nil, noPeer, true},
		{"the same, on one of two routers", observed(ofCalico, getPods, reflected, func(w *world) { lostOf(w, "tor2") }), []string{"node1", "master3", "master2"}, "", false},
		{"routers that get Services alone", observed(silenced, unpeered, onLink, onlyServices, func(w *world) { w.at("tor2").Neighbors.Items = nil }), nil, servicesAlone, false},
		{"the same, and other routers have the ranges", observed(pathless("tor2"), func(w *world) { w.at("tor2").Services = true }),
			nil, servicesAlone, false},
		// What is wrong is found all the same.
		{"a range is not announced", observed(withdrawn), []string{"node1"}, "", false},
		{"a range is not announced, with Calico", observed(ofCalico, withdrawn), []string{"node1"}, "", false},
		{"a range is not announced, and a backup path of a wider one leads to a node", observed(withdrawn, func(w *world) {
			for i := range w.Routers {
				for hop, best := range map[string]bool{"10.4.94.254": true, "10.4.94.21": false} {
					w.Routers[i].Paths.Items = append(w.Routers[i].Paths.Items, snapshot.Path{Prefix: prefix("10.0.0.0/8"), NextHop: addr(hop), Neighbor: addr(hop), Best: best})
				}
			}
		}), []string{"node1"}, "", false},
		{"the wrong range is announced", &world{broken()[0].Snapshot}, []string{"master2"}, "", false},
		{"a session is down", observed(withdrawn, down(node1IP)), []string{"node1"}, "", false},
		{"a range is not announced, and other prefixes are", observed(withdrawn, func(w *world) { w.announce(node1IP, "10.5.113.128/25", tors...) }), []string{"node1"}, "", false},
		{"no session is up, and nothing is learned", observed(silenced, func(w *world) {
			w.Routers[0].Neighbors.Items[0].State = "active"
			w.Routers[1].Neighbors.Items[0].State = "idle"
		}), nil, noPodRange, true},
		{"a node that is not ready", observed(withdrawn, unready), nil, notReady, true},
		{"Cilium with pools", observed(func(w *world) {
			for i := range w.CiliumNodes.Items {
				w.CiliumNodes.Items[i].PodCIDRs = nil
			}
		}), nil, "no CiliumNode has one", true},
		{"Calico with blocks elsewhere", observed(withoutCilium, func(w *world) {
			w.Nodes.Items[0].Calico.Address = netip.MustParsePrefix("10.4.94.32/24")
		}), nil, "there is no IPAMBlock", true},
		{"no ranges anywhere", observed(withoutCilium, func(w *world) {
			for i := range w.Nodes.Items {
				w.Nodes.Items[i].PodCIDRs = nil
			}
		}), nil, "neither CiliumNodes", true},
		{"IPv6 ranges alone", observed(func(w *world) { w.CiliumNodes.Items[3].PodCIDRs = []netip.Prefix{prefix("fd00:10::/64")} }), nil, notIPv6, true},
		{"sessions were not read", observed(withdrawn, routers(func(r *snapshot.Router) { r.Neighbors = snapshot.List[snapshot.Neighbor]{Error: "refused"} })), nil, noNeighbors, true},
		// Who is not expected to announce.
		{"a node in another rack", observed(func(w *world) { w.silence(node1IP, tors...) }), nil, noNeighbor, false},
		{"a node that announces Services alone", observed(withdrawn, func(w *world) { w.announce(node1IP, "10.66.128.1/32", tors...) }), nil, otherPrefixes, true},
		{"a node of kube-router that announces Services alone", observed(kubeRouter, services), []string{"node1"}, "", false},
		{"the same, and MetalLB is on the node", observed(kubeRouter, services, func(w *world) {
			w.BGPAdvertisements.Items = []snapshot.BGPAdvertisement{{Name: "users", Nodes: []string{"node1"}}}
		}), nil, otherPrefixes, true},
		{"a second range, of a pool that is not announced", observed(pool("inside", "10.77.1.0/24")), nil, anotherRange, false},
		{"a second range, of IPv6, of such a pool, with a pod of both families",
			observed(dualStack, pool("inside", "fd00:77::/64"), func(w *world) { w.Pods.Items[3].IPv6 = addr("fd00:77::5") }), nil, anotherRange, true},
		{"a second range of the same pool", observed(func(w *world) {
			w.CiliumNodes.Items[3].PodCIDRs = append(w.CiliumNodes.Items[3].PodCIDRs, prefix("10.77.1.0/24"))
		}), []string{"node1"}, "", false},
		{"a router that rejects some of what the node announces", observed(withdrawn, neighbors(func(n *snapshot.Neighbor) { n.Received = 1 })), nil, rejected, true},
		{"a router with a filter that may refuse some, and does not count", observed(withdrawn, neighbors(func(n *snapshot.Neighbor) { n.MayReject = true })), nil, mayReject, true},
		{"sessions on interfaces", observed(unnumbered), nil, "", false},
		{"sessions on interfaces, and a range is not announced", observed(withdrawn, unnumbered), []string{"node1"}, "", false},
		{"sessions on interfaces, of nodes whose router IDs are other addresses", observed(withdrawn, unnumbered, neighbors(func(n *snapshot.Neighbor) { n.RouterID = addr("192.0.2.1") })), nil, noPodRange, true},
		{"IPv6 ranges, and routers that are asked for IPv4", observed(func(w *world) {
			w.CiliumNodes.Items[3].PodCIDRs = append(w.CiliumNodes.Items[3].PodCIDRs, prefix("fd00:10::/64"))
		}), nil, notIPv6, true},
		{"the same, of routers that are said to carry IPv4", observed(dualStack, ofIPv4, withoutIPv6(0, tors...)), nil, notCarried, false},
		{"the same, and another router has the ranges of IPv6",
			observed(dualStack, withoutIPv6(0, "tor2"), func(w *world) { w.at("tor2").IPv6 = false }), nil, notIPv6, false},
		{"ranges of both families in an overlay, and routers that are asked for IPv4", observed(dualStack, silenced, notAsked), nil, notIPv6, false},
		{"routers that were read for IPv6 alone", observed(withdrawn, routers(func(r *snapshot.Router) { r.NoIPv4 = true })), nil, notIPv4, true},
		{"both families", observed(dualStack), nil, "", false},
		{"a range of IPv6 is not announced, and that of IPv4 is", observed(dualStack, withoutIPv6(3, tors...)), []string{"node1"}, "", false},
		{"IPv6 is not announced by any node", observed(dualStack, withoutIPv6(0, tors...)), nil, noPodRangeV6, true},
		{"neither family is announced by any node", observed(dualStack, silenced), nil, noPodRangeV6, false},
		{"IPv6 by sessions of its own, and a node without one", observed(dualStack, withoutIPv6(3, tors...), func(w *world) {
			toIPv6 := func(a netip.Addr) netip.Addr { return netip.AddrFrom16([16]byte{0xfd, 15: a.As4()[3]}) }
			paths(func(p *snapshot.Path) {
				if p.Prefix.Addr().Is6() {
					p.NextHop, p.Neighbor = toIPv6(p.NextHop), toIPv6(p.NextHop)
				}
			})(w)
			for i, n := range table[:3] {
				a := toIPv6(addr(n.ip))
				w.session(0, a.String(), start.Add(-time.Hour))
				w.session(1, a.String(), start.Add(-time.Hour))
				w.Nodes.Items[i].InternalIPs = append(w.Nodes.Items[i].InternalIPs, a)
			}
		}), nil, noFamily, true},
		{"a router without IPv6", observed(dualStack, withoutIPv6(0, tors...), routers(func(r *snapshot.Router) {
			r.IPv6, r.Remarks = false, []snapshot.Remark{{Says: "It is read for IPv4 alone: refused.", Open: true}}
		})), nil, "It is read for IPv4 alone: refused.\n", true},
		{"all sessions are lost, of routers that get the pod ranges", observed(silenced, getPods, unpeered),
			[]string{"node1", "master1", "master3", "master2"}, "", false},
		{"the session of a node is lost, of routers that get the pod ranges", observed(getPods, func(w *world) { w.silence(node1IP, tors...) }), []string{"node1"}, "", false},
		{"the same, and the node is not ready", observed(getPods, silentNode1, unready), nil, notReady, false},
		{"the same, and another router has its range", observed(getPods, unready, func(w *world) { w.silence(node1IP, "tor1") }),
			nil, notReady, true},
		{"IPv4 alone is announced, to routers that get the pod ranges", observed(dualStack, getPods, withoutIPv6(0, tors...)), nil, noPodRangeV6, true},
		{"the same, and one node announces its range of IPv6", observed(dualStack, getPods, withoutIPv6(1, tors...)),
			[]string{"master2", "master3", "node1"}, "", false},
		{"no configuration of Cilium selects node1", observed(getPods, selecting(ofPods, ofPods), func(w *world) {
			w.silence(node1IP, tors...)
			w.BGPAdvertisements.Items = w.BGPAdvertisements.Items[:1]
		}), nil, notSelected, false},
		{"the same, and the router has a session with it", observed(getPods, withdrawn, selecting(ofPods, ofPods), func(w *world) {
			w.BGPAdvertisements.Items = w.BGPAdvertisements.Items[:1]
		}), nil, notSelected, true},
		{"the same, and another configuration selects no node", observed(getPods, selecting(ofPods, ofPods), func(w *world) {
			w.silence(node1IP, tors...)
			w.BGPAdvertisements.Items[1].Nodes = nil
		}), nil, notSelected, true},
		{"a range that is in podCIDRs and of a pool", observed(pool("default", node1Range)), nil, "", false},
		{"pods of a chained CNI, whose range is lost", observed(ofCalico, withdrawn, otherCilium), []string{"node1"}, "", false},
		{"pods of a CNI whose ranges are not read", observed(ofAnotherCNI),
			nil, "most pods have addresses that are in no range of CiliumNodes", true},
		{"the same, of routers that get Services alone", observed(onlyServices, ofAnotherCNI),
			nil, "most pods have addresses that are in no range of CiliumNodes", false},
		{"objects say that pods are announced, and no router has a range, nor any link of nodes", observed(silenced, unpeered, selecting(ofPods, ofPods)), nil, noPodRange, true},
		{"the same, and the node is to announce Services alone", observed(withdrawn, getPods, selecting(ofPods, ofServices)), nil, notAdvertised, true},
		{"one of two routers has lost all ranges, and the sessions are up", observed(pathless("tor2")), nil, noPodRange, true},
		{"one of two routers has Services alone",
			observed(pathless("tor2"), func(w *world) { w.announce(node1IP, "10.66.128.1/32", "tor2") }), nil, noPodRange, true},
		{"one of two routers has forgotten all sessions", observed(forgets("tor2"),
			func(w *world) { linked(w.at("tor2")) }), nil, noPodRange, true},
		{"the same, and its FIB cannot be read", observed(ribOnly, forgets("tor2")), nil, noPodRange, true},
		{"a router of another rack", observed(forgets("tor2")), nil, noPodRange, false},
		{"Cilium's nodes announce pods, but for one that announces Services alone", observed(withdrawn, selecting(ofPods, ofServices)), nil, notAdvertised, true},
		{"the same, by IPv6 alone", observed(withdrawn, selecting(ofPods, snapshot.BGPAdvertisement{PodCIDRs: true, Families: []string{"ipv6"}})), nil, notAdvertised, true},
		{"no node is to announce pods, and the others do", observed(withdrawn, selecting(ofServices, ofServices)), nil, notAdvertised, true},
		{"Cilium's nodes announce Services alone", observed(silenced, selecting(ofServices, ofServices)), nil, notAdvertised, false},
		{"the same, and an advertisement of pods that no peer selects", observed(silenced, selecting(ofServices, ofServices), func(w *world) {
			w.BGPAdvertisements.Items = append(w.BGPAdvertisements.Items, snapshot.BGPAdvertisement{Speaker: snapshot.CiliumBGP, PodCIDRs: true, Unselected: true})
		}), nil, notAdvertised, true},
		{"an advertisement of pods, and no configuration with peers", observed(silenced, unpeered, func(w *world) {
			w.BGPAdvertisements.Items = []snapshot.BGPAdvertisement{{Speaker: snapshot.CiliumBGP, PodCIDRs: true, Unselected: true}}
		}), nil, noPodRange, true},
		{"no advertisement is selected", observed(silenced, selecting(snapshot.BGPAdvertisement{Unselected: true}, snapshot.BGPAdvertisement{Unselected: true})), nil, notAdvertised, true},
		{"Cilium's nodes announce IPv4, and ranges of IPv6 are inside",
			observed(dualStack, selecting(ofPods, ofPods), withoutIPv6(0, tors...)), nil, notAdvertised, false},
		{"a session with Calico's address for the node", observed(withdrawn, func(w *world) {
			w.Nodes.Items[3].Calico.Address = netip.MustParsePrefix("10.9.0.23/24")
			for i := range w.Routers {
				w.silence(node1IP, w.Routers[i].Name)
				w.session(i, "10.9.0.23", start)
			}
		}), []string{"node1"}, "", false},
		{"a spine with aggregates alone", observed(func(w *world) {
			w.withdraw(node1Range, tors...)
			r := w.at("tor2")
			r.Neighbors.Items = []snapshot.Neighbor{{Address: addr("10.4.94.254"), AS: 64512, State: snapshot.SessionEstablished}}
			r.Paths.Items = []snapshot.Path{{Prefix: prefix("10.5.112.0/21"), NextHop: addr("10.4.94.254"), Neighbor: addr("10.4.94.254"), Best: true}}
		}), []string{"node1"}, "tor2 has no route to pod ranges of master1, master2, master3 and 1 more, and is not judged by that: " + noPodRange + ".", false},
		{"a table dump that is older than a node", observed(withdrawn, dumped(time.Minute), func(w *world) {
			w.CiliumNodes.Items[3].Created = w.Time
		}), nil, tooOld, true},
		{"a table dump that is younger than a node", observed(withdrawn, dumped(time.Minute), func(w *world) {
			w.CiliumNodes.Items[3].Created = w.Time.Add(-time.Hour)
		}), []string{"node1"}, "", false},
		{"sessions of which a dump does not tell the state", observed(silenced, neighbors(func(n *snapshot.Neighbor) { n.State = snapshot.SessionUnknown })), nil, noPodRange, true},
		{"a declared spine with an aggregate", observed(asSpine("10.5.112.0/21")), nil, "", false},
		{"a declared spine that lacks the aggregate of one node, and of no pods", observed(asSpine("10.5.112.0/23", "10.5.114.0/23"), func(w *world) {
			w.CiliumNodes.Items[3].PodCIDRs = []netip.Prefix{prefix("10.5.200.0/24")}
			w.announce(node1IP, "10.5.200.0/24", "tor1")
		}), nil, "tor2 has no route to pod ranges of node1, and is not judged by that: " + noAggregate, true},
		{"a declared spine that has lost all", observed(asSpine()), nil, noAggregate, true},
		{"a spine with an aggregate from above alone", observed(asSpine("10.0.0.0/8"), above), nil, fromAbove, true},
		{"the same, and one from the cluster that is narrower", observed(asSpine("10.0.0.0/8"), above, learns("tor2", learned("10.5.112.0/21", "10.4.94.254", 64513))), nil, "", false},
		{"the same, and one from the cluster that is wider", observed(asSpine("10.5.0.0/16"), above, learns("tor2", learned("10.0.0.0/8", "10.4.94.254", 64513))), nil, fromAbove, true},
		{"an aggregate from above, with the nodes' AS in its path by chance", observed(asSpine("10.0.0.0/8"), givesDefault), nil, fromAbove, true},
		{"an aggregate from above, with a backup path from the cluster", observed(asSpine("10.0.0.0/8"), above, func(w *world) {
			r := w.at("tor2")
			r.Paths.Items = append(r.Paths.Items, snapshot.Path{Prefix: prefix("10.0.0.0/8"), NextHop: addr("10.4.94.253"), Neighbor: addr("10.4.94.253"), ASPath: []uint32{64513}})
		}), nil, fromAbove, true},
		{"an aggregate by way of a router that is read", observed(asSpine("10.5.112.0/21"), above, func(w *world) {
			w.at("tor1").Routes.Items = append(w.at("tor1").Routes.Items, snapshot.Route{
				Prefix: prefix("10.4.94.252/30"), Type: snapshot.RouteUnicast, Protocol: snapshot.RouteKernel, Source: addr("10.4.94.254"),
			})
		}), nil, "", false},
		{"an aggregate that leads where the route to the nodes does", observed(asSpine("10.5.112.0/21", "10.4.94.0/24"), above), nil, "", false},
		{"an aggregate that leads elsewhere than the route to the nodes", observed(asSpine("10.5.112.0/21", "10.4.94.0/24"), above, func(w *world) {
			w.at("tor2").Paths.Items[1].NextHop = addr("10.4.94.253")
		}), nil, fromAbove, true},
		{"a prefix from above that includes nodes and pods", observed(asSpine("10.0.0.0/8"), above, spineAlone), nil, fromAbove, true},
		{"one from above, and the cluster announces no pod ranges", observed(asSpine("10.0.0.0/8"), above, pathless("tor1")), nil, fromAbove, false},
		{"a declared spine alone that has lost all", observed(asSpine(), spineAlone), nil, noAggregate, true},
		{"two spines that have lost all", observed(asSpine(), func(w *world) {
			w.Routers[0] = w.Routers[1]
			w.Routers[0].Name = "spine1"
		}), nil, noAggregate, true},
		{"a declared spine of a cluster that announces no pod ranges", observed(asSpine(), pathless("tor1")), nil, noAggregate, false},
		{"a declared spine with a session that is down", observed(asSpine(), spineAlone, down("10.4.94.254")), nil, noAggregate, true},
		{"a route server has no FIB", observed(ribOnly, roles(snapshot.RoleRouteServer)), nil, "", false},
		{"a route server lacks a range", observed(withdrawn, ribOnly, roles(snapshot.RoleRouteServer)), []string{"node1"}, "", false},
		{"a route server may have forgotten a session", observed(ribOnly, roles(snapshot.RoleRouteServer), func(w *world) { w.silence(node1IP, tors...) }), nil, noLinks, true},
		{"a FIB that cannot be read", observed(ribOnly), nil, "The FIB of tor1 and tor2 is not read", true},
		{"a range is not announced, and the FIB cannot be read", observed(withdrawn, ribOnly), []string{"node1"}, "The FIB of tor1 and tor2 is not read", true},
		{"a session that the router may have forgotten, and the FIB cannot be read", observed(ribOnly, func(w *world) { w.silence(node1IP, tors...) }), nil, noLinks, true},
		{"FIB not read", observed(withdrawn, routers(func(r *snapshot.Router) { r.Routes = snapshot.List[snapshot.Route]{Error: "no ip(8)"} })), nil, "tor1 is not judged by the routes that it lacks", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var active []string
			for _, f := range test.cluster.run(RouteOwnership{Peering: Observed}) {
				if f.Kind == TwinRange || f.Kind == Unannounced && f.State != Active {
					t.Errorf("%s", f.ID())
				}
				if f.Kind == Unannounced {
					if strings.Contains(test.name, "session with Calico's address") && strings.Contains(f.Says, "no BGP session") {
						t.Errorf("says %q", f.Says)
					}
					active = append(active, f.Owner)
				}
			}
			must.Equal(t, "unannounced", test.active, active)
			says := ""
			for _, gap := range unjudged(test.cluster.Snapshot) {
				says += gap.Says + "\n"
				must.Equal(t, gap, test.open, gap.Open)
			}
			if (test.unjudged == "") != (says == "") || !strings.Contains(says, test.unjudged) {
				t.Errorf("not judged: %q, want %q", says, test.unjudged)
			}
			// Image drift and permissions go by the same rule.
			history := []snapshot.Snapshot{test.cluster.Snapshot}
			v := newViews(history, NewIndex(history), Observed).now()
			for _, n := range table {
				must.Equal(t, "without a route to "+n.name, slices.Contains(test.active, n.name), len(v.routersWithout(n.name)) > 0)
			}
		})
	}
}

// A second cluster in the same AS on one router: its nodes are not absent ones of this cluster,
// unless they announce a range of it.
func TestObservedNeighbours(t *testing.T) {
	foreign := func(p string) *world {
		return observed(func(w *world) {
			w.session(0, "10.4.94.99", start)
			w.announce("10.4.94.99", p, "tor1")
		})
	}
	for _, test := range []struct {
		name    string
		cluster *world
		peering Peering
		want    string
	}{
		{"another cluster's range", foreign("10.99.1.0/24"), Observed, ""},
		{"a range of this cluster, whose owner announces it too", foreign("10.5.112.0/24"), Observed, ""},
		{"a range of this cluster", &world{advance(foreign("10.5.112.0/24"), 0, func(w *world) { w.silence("10.4.94.23", "tor1") }).Snapshot}, Observed, AbsentNode},
		{"a range of a node that has no session by an address that is known", &world{advance(foreign("10.5.112.0/24"), 0, func(w *world) { w.silence("10.4.94.23", tors...) }).Snapshot}, Observed, ""},
		{"the same, and one of another node", &world{advance(foreign("10.5.112.0/24"), 0, func(w *world) {
			w.silence("10.4.94.23", tors...)
			w.withdraw("10.5.115.0/24", "tor1")
			w.announce("10.4.94.99", "10.5.115.0/24", "tor1")
		}).Snapshot}, Observed, AbsentNode + AbsentNode},
		{"in a lab there is one cluster", foreign("10.99.1.0/24"), Declared, AbsentNode},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := test.cluster.run(RouteOwnership{Peering: test.peering})
			must.Equal(t, "found", test.want, each.Joined(found, "", func(f Finding) string { return f.Kind }))
		})
	}
}

// Nodes with a mesh of Calico announce each other's ranges to their router. What counts is a range that
// its owner does not announce, and a static route. Where there is no such mesh, what counts is the way of the packets.
func TestObservedMesh(t *testing.T) {
	mesh := func(changes ...func(*world)) *world {
		w := observed(changes...)
		for _, n := range table {
			for _, other := range table {
				if other != n {
					w.announce(n.ip, other.cilium, "tor1")
				}
			}
		}
		return w
	}
	// by has tor1 reach node1's range by way of its owner and of master2, which forward the packets, or not.
	by := func(owner, other bool) *world {
		return observed(func(w *world) {
			w.announce("10.4.94.21", "10.5.112.0/24", "tor1")
			for i, forwards := range []bool{other, owner} {
				p := &w.at("tor1").Paths.Items[len(w.at("tor1").Paths.Items)-1-i]
				p.Best, p.Multipath = forwards, forwards
			}
		})
	}
	silent := func(w *world) { w.withdraw("10.5.112.0/24", tors...) } // of node1
	static := func(p, hop string) func(*world) { return func(w *world) { w.static(p, hop, "tor1") } }
	bgp := func(metric int) func(*world) {
		return func(w *world) {
			w.static("10.5.112.0/24", "10.4.94.23", "tor1")
			r := w.at("tor1")
			r.Routes.Items[len(r.Routes.Items)-1].Protocol, r.Routes.Items[len(r.Routes.Items)-1].Metric = snapshot.RouteBGP, metric
		}
	}
	for name, test := range map[string]struct {
		cluster *world
		peering Peering
		wrong   int
		absent  int
	}{
		"mesh of Calico": {mesh(ofCalico), Observed, 0, 0},
		"mesh of Calico, and one does not announce its own": {mesh(ofCalico, silent), Observed, 3, 0},
		"mesh of Calico, and a static route":                {mesh(ofCalico, static("10.5.112.0/24", "10.4.94.21")), Observed, 1, 0},
		"mesh of Calico, of which one node has a peer":      {observed(ofCalico, reflected), Observed, 0, 0},
		"the same, and another announces ranges":            {observed(ofCalico, reflected, func(w *world) { w.announce("10.4.94.21", "10.5.112.0/24", "tor1") }), Observed, 1, 0},
		"nodes without a mesh":                              {mesh(), Observed, 12, 0},
		"a lab":                                             {mesh(), Declared, 12, 0},
		"the owner's path is best":                          {by(true, false), Observed, 0, 0},
		"the owner's path is a backup":                      {by(false, true), Observed, 1, 0},
		"both forward":                                      {by(true, true), Observed, 1, 0},
		"a static route to another node":                    {observed(static("10.5.112.0/24", "10.4.94.21")), Observed, 1, 0},
		"the same, which the kernel does not prefer":        {observed(static("10.5.112.0/24", "10.4.94.21"), bgp(0)), Observed, 0, 0},
		"the same, which the kernel prefers":                {observed(static("10.5.112.0/24", "10.4.94.21"), bgp(20)), Observed, 1, 0},
		"a static route to its owner":                       {observed(static("10.5.112.0/24", "10.4.94.23")), Observed, 0, 0},
		"a static route to a stranger":                      {observed(onLink, static("10.5.112.0/24", "10.4.94.77")), Observed, 0, 1},
		"the same, which the kernel does not prefer to BGP": {observed(onLink, static("10.5.112.0/24", "10.4.94.77"), bgp(0)), Observed, 0, 0},
		"a static route to a stranger, of a part":           {observed(onLink, static("10.5.112.128/25", "10.4.94.77")), Observed, 0, 1},
		"a static route to a neighbour, such as a firewall": {observed(onLink, static("10.5.112.0/24", "10.4.94.77"), func(w *world) {
			w.Routers[0].Neighbors.Items = append(w.Routers[0].Neighbors.Items, snapshot.Neighbor{Address: addr("10.4.94.77"), AS: 65000, State: snapshot.SessionEstablished})
		}), Observed, 0, 0},
		"a static route to elsewhere":                    {observed(onLink, static("10.5.112.0/24", "10.9.9.9")), Observed, 0, 0},
		"a static route to a stranger, of another range": {observed(onLink, static("10.99.0.0/24", "10.4.94.77")), Observed, 0, 0},
	} {
		kinds := map[string]int{}
		for _, f := range test.cluster.run(RouteOwnership{Peering: test.peering}) {
			kinds[f.Kind]++
		}
		must.Equal(t, name, [2]int{test.wrong, test.absent}, [2]int{kinds[WrongAnnouncer], kinds[AbsentNode]})
	}
}

// A range whose routes discard packets, or lead to a machine that was taken away, is not announced, and one whose
// routes are kept of sessions that ended is about to be lost.
func TestObservedFIB(t *testing.T) {
	discards := func(w *world) {
		w.static("10.5.112.0/24", "10.4.94.23", "tor1")
		w.at("tor1").Routes.Items[0].Type, w.at("tor1").Routes.Items[0].NextHops = snapshot.RouteBlackhole, nil
	}
	gone := func(w *world) {
		w.withdraw("10.5.112.0/24", tors...)
		w.static("10.5.112.0/24", "10.4.94.77", "tor1")
	}
	for _, test := range []struct {
		name    string
		cluster *world
		want    []string
	}{
		{"the FIB discards packets", observed(discards), []string{"active unannounced tor1"}},
		{"a static route to a stranger, and nothing else", observed(onLink, gone), []string{"active unannounced tor1, tor2", "latent absent-node tor1"}},
		{"the same, and the session is gone", observed(onLink, getPods, gone, func(w *world) { w.silence("10.4.94.23", tors...) }), []string{"active unannounced tor1, tor2", "latent absent-node tor1"}},
		{"routes of a session that ended", observed(down("10.4.94.23")), []string{"latent stale-route tor1, tor2"}},
		{"the same, and another path is up", observed(down("10.4.94.23"), func(w *world) {
			w.announce("10.4.94.23", "10.5.112.0/24", tors...)
			for i := range w.Routers {
				w.Routers[i].Paths.Items[len(w.Routers[i].Paths.Items)-1].Neighbor = addr("10.4.94.254")
			}
		}), nil},
		{"a dump does not tell which sessions are up", observed(neighbors(func(n *snapshot.Neighbor) { n.State = snapshot.SessionUnknown })), nil},
	} {
		must.Equal(t, test.name, test.want, each.Of(test.cluster.run(RouteOwnership{Peering: Observed}), func(f Finding) string {
			return fmt.Sprintf("%s %s %s", f.State, f.Kind, strings.Join(f.Routers, ", "))
		}))
	}
}

// What is wrong with the routes of a router is found as well where it gets Services alone.
func TestObservedServicesAlone(t *testing.T) {
	for name, change := range map[string]func(*world){
		"a range by another node": func(w *world) {
			w.withdraw("10.5.112.0/24", tors...)
			w.announce("10.4.94.21", "10.5.112.0/24", tors...)
		},
		"a static route to another node":           func(w *world) { w.static("10.5.112.0/24", "10.4.94.21", "tor1") },
		"a static route to another node of a part": func(w *world) { w.static("10.5.112.128/25", "10.4.94.21", "tor1") },
		"a part of a range, told by another peer": learns("tor1",
			snapshot.Path{Prefix: prefix("10.5.112.0/25"), NextHop: addr("10.4.94.21"), Neighbor: addr("10.4.94.23"), Best: true}),
	} {
		found := func(w *world) []ID { return each.Of(w.run(RouteOwnership{Peering: Observed}), Finding.ID) }
		normal := found(observed(change))
		must.Equal(t, name, normal, found(observed(change, onlyServices)))
		must.Equal(t, name+": found", true, len(normal) > 0)
	}
}

// A route of BIRD in the FIB is the RIB's, unless it leads elsewhere: then it is of a protocol static.
func TestRoutesOfBIRD(t *testing.T) {
	for name, test := range map[string]struct {
		prefix, via string
		link        func(*world)
		want        int
	}{
		"of BGP":                            {"10.5.112.0/24", "10.4.94.23", onLink, 0},
		"of another":                        {"10.5.112.0/24", "10.4.94.21", onLink, 1},
		"of a part":                         {"10.5.112.128/25", "10.4.94.21", onLink, 1},
		"of BGP, by a gateway that is told": {"10.5.112.0/24", "10.4.94.21", nothing, 0},
	} {
		cluster := observed(func(w *world) {
			w.static(test.prefix, test.via, "tor1")
			w.at("tor1").Routes.Items[0].Protocol = snapshot.RouteBIRD
		}, test.link)
		must.Equal(t, name, test.want, len(cluster.run(RouteOwnership{Peering: Observed})))
	}
}

// Routers send packets for a Service of policy Local to nodes that have no endpoint. It has one on worker1.
func TestObservedLocal(t *testing.T) {
	aggregate := changes(paths(func(p *snapshot.Path) { p.Prefix = prefix("10.66.128.0/24") }),
		func(w *world) { w.BGPAdvertisements.Items[0].AggregationLength = 24 })
	for _, test := range []struct {
		name   string
		change func(*world)
		want   int
	}{
		{"both nodes announce it", nothing, 1},
		{"policy Cluster", func(w *world) { w.Services.Items[0].Local = false }, 0},
		{"both have an endpoint", func(w *world) { w.EndpointSlices.Items[0].ReadyNodes = []string{"worker1", "worker2"} }, 0},
		{"it is not known where endpoints are", func(w *world) { w.EndpointSlices.Items[0].ReadyNodes = nil }, 0},
		{"the other one's endpoint ends, and still serves", func(w *world) { w.EndpointSlices.Items[0].DrainingNodes = []string{"worker2"} }, 0},
		{"one of them announces it", func(w *world) { w.silence("10.66.4.22", tors...) }, 0},
		{"the other one does", func(w *world) { w.silence("10.66.4.21", tors...) }, 1},
		{"both announce an aggregate alone", aggregate, 1},
		{"both announce an aggregate, and one the address",
			changes(aggregate, func(w *world) { w.announce("10.66.4.21", "10.66.128.1/32", tors...) }), 0},
		{"another load balancer's", func(w *world) { w.BGPAdvertisements.Items = nil }, 0},
		{"the routers' tables are dumps of before", dumped(10 * time.Minute), 0},
		{"a router was not read", func(w *world) { w.Routers[0].Paths.Read = false }, 0},
	} {
		w := balanced(0)
		w.Services.Items[0].Local = true
		test.change(w)
		for _, peering := range []Peering{Declared, Observed} {
			got := w.run(ServiceRoute{Peering: peering})
			if len(got) != test.want || len(got) > 0 && (got[0].Kind != NoLocalEndpoint || got[0].State != Active || len(got[0].Routers) != 2) {
				t.Errorf("%s, %v: %+v, want %d", test.name, peering, got, test.want)
			}
		}
	}
}

// In an audit an endpoint may have moved a moment ago.
func TestMovedEndpoint(t *testing.T) {
	for since, want := range map[time.Duration]State{time.Second: Pending, announcedWithin: Active} {
		w := balanced(0)
		w.Services.Items[0].Local = true
		w.EndpointSlices.Items[0].Changed = w.Time.Add(-since)
		for peering, state := range map[Peering]State{Declared: Active, Observed: want} {
			must.Equal(t, since, []State{state}, states(w.run(ServiceRoute{Peering: peering})))
		}
	}
}

// For how long a session has been up is known by the times of snapshots alone: a router's clock
// may be any. The node is a second old.
func TestObservedSessions(t *testing.T) {
	at := func(seconds float64, established time.Time) *world {
		return advance(observed(), seconds, func(w *world) {
			w.withdraw("10.5.112.0/24", tors...)
			w.Nodes.Items[3].Created = start.Add(-time.Second)
			neighbors(func(n *snapshot.Neighbor) {
				if n.Address == addr("10.4.94.23") {
					n.Established = established
				}
			})(w)
		})
	}
	longAgo, toCome := start.Add(-time.Hour), start.Add(time.Hour)
	for _, test := range []struct {
		name    string
		history []*world
		want    State
	}{
		{"one snapshot, and a clock that is behind", []*world{at(0, longAgo)}, Pending},
		{"one snapshot, and a clock that is ahead", []*world{at(0, toCome)}, Pending},
		{"two", []*world{at(0, longAgo), at(3, longAgo)}, Pending},
		{"three", []*world{at(0, toCome), at(3, toCome), at(6, toCome)}, Active},
		{"three, and a session that was made anew", []*world{at(0, longAgo), at(3, longAgo), at(6, toCome)}, Pending},
		{"three, too close", []*world{at(0, longAgo), at(0.5, longAgo), at(1, longAgo)}, Pending},
	} {
		got := Run([]Detector{RouteOwnership{Peering: Observed}}, snapshots(test.history))
		must.Equal(t, test.name, []State{test.want}, states(got))
	}
}

func TestObservedServiceRoute(t *testing.T) {
	spineTo := func(p string, as ...uint32) func(*world) {
		return changes(pathless("tor1"), learns("tor1", learned(p, "10.66.4.254", as...)))
	}
	nodes := func(names ...string) func(*world) {
		return func(w *world) { w.BGPAdvertisements.Items[0].Nodes = names }
	}
	ofIPv6 := func(asked bool) func(*world) {
		return func(w *world) {
			a := addr("fd00:66::1")
			w.Services.Items[0].LoadBalancerIPs = []netip.Addr{a}
			w.BGPAdvertisements.Items[0].Ranges = append(w.BGPAdvertisements.Items[0].Ranges, snapshot.AddressRange{First: a, Last: a})
			routers(func(r *snapshot.Router) { r.IPv6 = asked })(w)
		}
	}
	for _, test := range []struct {
		name   string
		change func(*world)
		want   State // empty: no finding
		gap    bool  // it is told as not judged
	}{
		{"withdrawn", func(*world) {}, Active, false},
		{"of IPv6", ofIPv6(true), Active, false},
		{"of IPv6, and routers that were not asked", ofIPv6(false), "", true},
		{"of IPv6, and routers that are said to carry IPv4", changes(ofIPv6(true), ofIPv4), "", false},
		{"of IPv6, and one router is said to carry IPv4",
			changes(ofIPv6(true), func(w *world) { w.Routers[0].IPv6, w.Routers[0].Families = false, []string{"ipv4"} }), Active, false},
		{"younger than a table dump", func(w *world) {
			w.Services.Items[0].Created, w.Routers[0].At = w.Time.Add(-time.Minute), w.Time.Add(-2*time.Minute)
		}, "", true},
		{"announced to other routers", unpeered, "", true},
		{"announced to some peers alone", func(w *world) { w.BGPAdvertisements.Items[0].Peers = []string{"tor3"} }, "", true},
		{"a new Service", func(w *world) { w.Services.Items[0].Created = w.Time.Add(-time.Second) }, Pending, false},
		{"of a class that MetalLB leaves to another", func(w *world) { w.Services.Items[0].Class = "kube-vip.io/kube-vip-class" }, "", false},
		{"new by this machine's clock, which is an hour behind", func(w *world) {
			w.Services.Items[0].Created, w.ServerAhead = w.Time, time.Hour
		}, Active, false},
		{"old by this machine's clock, which is an hour ahead", func(w *world) {
			w.Services.Items[0].Created, w.ServerAhead = w.Time.Add(-time.Hour), -time.Hour
		}, Pending, false},
		{"policy Local, and the endpoint on a node that is no neighbour", func(w *world) {
			w.Services.Items[0].Local = true
			routers(func(r *snapshot.Router) { r.Neighbors.Items = r.Neighbors.Items[1:] })(w)
		}, "", true},
		{"Services alone, and an advertisement whose node is no neighbour", changes(onlyServices, nodes("worker2"),
			routers(func(r *snapshot.Router) { r.Neighbors.Items = r.Neighbors.Items[:1] })), "", true},
		{"Services alone, and one whose node is a neighbour", changes(onlyServices, nodes("worker1")), Active, false},
		{"Services alone, and a wider route to elsewhere", changes(onlyServices, spineTo("10.0.0.0/8")), Active, false},
		{"an aggregate that may come from elsewhere", spineTo("10.66.128.0/24"), "", true},
		{"an aggregate with the nodes' AS", spineTo("10.66.128.0/24", 64512, 64513), "", false},
		{"the same from above, by chance", func(w *world) {
			spineTo("10.66.128.0/24", 64512, 64513)(w)
			w.Routers[0].Routes.Items = []snapshot.Route{{Prefix: prefix("0.0.0.0/0"), Type: snapshot.RouteUnicast, Protocol: snapshot.RouteBGP, NextHops: []snapshot.NextHop{{Address: addr("10.66.4.254")}}}}
		}, "", true},
		{"a backup path by way of a node", changes(spineTo("10.66.0.0/16"), learns("tor1",
			snapshot.Path{Prefix: prefix("10.66.0.0/16"), NextHop: addr("10.66.4.21"), Neighbor: addr("10.66.4.21")})), Active, false},
		{"one of several paths by way of a node", changes(spineTo("10.66.0.0/16"), learns("tor1",
			snapshot.Path{Prefix: prefix("10.66.0.0/16"), NextHop: addr("10.66.4.21"), Neighbor: addr("10.66.4.21"), Multipath: true})), "", false},
		{"a wider route to elsewhere", spineTo("10.0.0.0/8"), Active, false},
		{"a wider route to elsewhere, which begins where the pool does", spineTo("10.66.128.0/17"), Active, false},
		{"by way of a spine", spineTo("10.66.128.1/32"), "", false},
		{"a static route to a machine that was taken away", func(w *world) {
			w.Routers[0].Routes.Items = []snapshot.Route{
				{Prefix: prefix("10.66.4.0/24"), Type: snapshot.RouteUnicast, Protocol: snapshot.RouteKernel},
				{Prefix: prefix("10.66.128.1/32"), Type: snapshot.RouteUnicast, Protocol: snapshot.RouteStatic, NextHops: []snapshot.NextHop{{Address: addr("10.66.4.77")}}},
			}
		}, Active, false},
		{"one router was not read", func(w *world) { w.Routers[1].Routes.Read = false }, "", false},
		{"no router", func(w *world) { w.Routers = nil }, "", false},
	} {
		w := balanced(0).withdrawn()
		test.change(w)
		got := w.run(ServiceRoute{Peering: Observed})
		must.Equal(t, test.name, string(test.want), each.Joined(got, ", ", func(f Finding) string { return string(f.State) }))
		must.Equal(t, test.name+": not judged", test.gap, strings.Contains(fmt.Sprint(unjudged(w.Snapshot)), "of Services"))
	}
}
