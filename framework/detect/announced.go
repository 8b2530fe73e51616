package detect

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// announcing are the sources that say which pod ranges a node is to announce. In a lab (Declared) the topology says
// that, and they are not read.
func (p Peering) announcing() []snapshot.Source {
	if p == Declared {
		return nil
	}
	return []snapshot.Source{snapshot.BGPAdvertisements, snapshot.CalicoPools, snapshot.CalicoPeers}
}

// Reasons why a range is not announced by intent.
const (
	notAdvertised = "no CiliumBGPAdvertisement of the node's peers is of that range"
	notExported   = "IPPool %s is not exported by BGP (disableBGPExport)"
	notSelected   = "no CiliumBGPClusterConfig and no CiliumBGPPeeringPolicy selects the node"
	noPeer        = "no BGPPeer of Calico gives the node a peer of that family outside of the cluster"
)

// intents are what objects say that nodes announce.
type intents struct {
	// cilium are the nodes for which Cilium's BGP is configured, metalLB the nodes that MetalLB announces from. idle
	// has the reasons (notSelected, noPeer) that may be a fault, because a configuration of the CNI selects no node.
	cilium  map[string]*ciliumIntent
	metalLB map[string]bool
	idle    map[string]bool
	// announced are the pools of Cilium that some node announces, unselected the pools of advertisements that no peer
	// selects.
	announced, unselected map[poolOf]bool
	// inside are the pools of Calico, true if a pool is not exported. peered are the nodes with a peer outside of the
	// cluster, true if one of these peers has no filter that may keep ranges back; filtered is set if any peer has
	// one. reflected are the nodes with peers inside of the cluster, which pass their ranges on.
	inside    map[string]bool
	peered    map[nodeFamily]bool
	reflected map[string]bool
	filtered  bool
	// nodeRanges is set if kube-router runs, which announces nodes' ranges to peers that are not read, or if an object
	// of Antrea or frr-k8s has nodes announce them.
	nodeRanges bool
}

type ciliumIntent struct {
	// pools are the pools that the node announces. The pool without a name is the ranges in podCIDRs.
	pools map[poolOf]bool
	// ipv6 is set if it is known which ranges of IPv6 the node announces, silent if its peers select no advertisement
	// at all.
	ipv6, silent bool
}

type nodeFamily struct {
	node string
	ipv6 bool
}

type poolOf struct {
	name string
	ipv6 bool
}

func (v *view) poolOf(p netip.Prefix) poolOf { return poolOf{v.pools[p], !p.Addr().Is4()} }

func intentsOf(s snapshot.Snapshot) intents {
	all := intents{
		cilium: map[string]*ciliumIntent{}, metalLB: map[string]bool{}, idle: map[string]bool{}, reflected: map[string]bool{},
		announced: map[poolOf]bool{}, unselected: map[poolOf]bool{}, inside: map[string]bool{}, peered: map[nodeFamily]bool{},
	}
	for _, b := range s.BGPAdvertisements.Items {
		switch b.Speaker {
		case "":
			for _, node := range b.Nodes {
				all.metalLB[node] = true
			}
		case snapshot.CiliumBGP:
			all.idle[notSelected] = all.idle[notSelected] || len(b.Nodes) == 0 && (len(b.Families) > 0 || !b.PodCIDRs && len(b.PodPools) == 0)
			all.addCilium(b)
		case snapshot.OtherBGP:
			all.nodeRanges = true
		}
	}
	for _, p := range s.CalicoPools.Items {
		all.inside[p.Name] = p.NotExported
	}
	for _, p := range s.CalicoPeers.Items {
		inCluster := slices.ContainsFunc(s.Nodes.Items, func(n snapshot.Node) bool {
			return slices.Contains(n.InternalIPs, p.Address) || n.Calico.Address.Addr() == p.Address
		})
		if !p.Address.IsValid() || inCluster { // a mesh, or route reflectors
			for _, node := range p.Nodes {
				all.reflected[node] = true
			}
			continue
		}
		all.idle[noPeer] = all.idle[noPeer] || len(p.Nodes) == 0
		all.filtered = all.filtered || len(p.Filters) > 0
		for _, node := range p.Nodes {
			family := nodeFamily{node, !p.Address.Is4()}
			all.peered[family] = all.peered[family] || len(p.Filters) == 0
		}
	}
	all.nodeRanges = all.nodeRanges || slices.ContainsFunc(s.Workloads.Items, func(w snapshot.Workload) bool {
		return slices.ContainsFunc(w.Containers, func(c snapshot.Container) bool { return c.Name == "kube-router" })
	}) || slices.ContainsFunc(s.Nodes.Items, func(n snapshot.Node) bool { return len(n.KubeRouterAddresses) > 0 })
	return all
}

func (i intents) addCilium(b snapshot.BGPAdvertisement) {
	var pools []poolOf
	for _, ipv6 := range []bool{false, true} {
		announces := slices.Contains(b.Families, "ipv6")
		if !ipv6 { // a snapshot that was stored before has no families, and what it has is of IPv4
			announces = len(b.Families) == 0 || slices.Contains(b.Families, "ipv4")
		}
		if !announces && !b.Unselected {
			continue
		}
		if b.PodCIDRs {
			pools = append(pools, poolOf{ipv6: ipv6})
		}
		pools = append(pools, each.Of(b.PodPools, func(name string) poolOf { return poolOf{name, ipv6} })...)
	}
	for _, pool := range pools {
		i.announced[pool] = i.announced[pool] || len(b.Nodes) > 0
		i.unselected[pool] = i.unselected[pool] || b.Unselected
	}
	for _, node := range b.Nodes {
		intent := i.cilium[node]
		if intent == nil {
			intent = &ciliumIntent{pools: map[poolOf]bool{}}
			i.cilium[node] = intent
		}
		intent.silent = intent.silent || b.Unselected
		intent.ipv6 = intent.ipv6 || len(b.Families) > 0 || b.Unselected
		for _, pool := range pools {
			intent.pools[pool] = true
		}
	}
}

// declared returns what the objects of the CNI say of a node's range: that it is announced, or why it is not. It
// returns neither if they say nothing. A session of Calico carries only the family of its addresses.
func (v *view) declared(node string, p netip.Prefix) (yes bool, why string) {
	i, pool := v.intents(), v.poolOf(p)
	switch {
	case v.layer == calicoLayer && i.inside[pool.name]:
		return false, fmt.Sprintf(notExported, pool.name)
	case v.layer == calicoLayer && len(i.peered) > 0:
		unfiltered, peered := i.peered[nodeFamily{node, pool.ipv6}]
		if !peered {
			return false, noPeer
		}
		_, found := i.inside[pool.name]
		return found && unfiltered, ""
	case v.layer != ciliumLayer || len(i.cilium) == 0:
		return false, ""
	}
	switch intent := i.cilium[node]; {
	case intent == nil:
		return false, notSelected
	case pool.ipv6 && !intent.ipv6:
		return false, ""
	case intent.pools[pool]:
		return true, ""
	}
	return false, notAdvertised
}

// leftOut reports whether a reason why a range is not announced is that its node has no BGP with routers.
func leftOut(why string) bool { return why == notSelected || why == noPeer }

// reflects reports whether a node of Calico announces another node's range: the owner has no peer outside of the
// cluster, and the node has one.
func (v *view) reflects(node, owner string, p netip.Prefix) bool {
	_, why := v.declared(owner, p)
	_, peered := v.intents().peered[nodeFamily{node, !p.Addr().Is4()}]
	return why == noPeer && peered
}

// lostReflection reports whether a range may have been lost between the nodes: its node has no peer outside of the
// cluster, and passes the range to nodes that have one.
func (v *view) lostReflection(node string, p netip.Prefix) bool {
	i := v.intents()
	return i.reflected[node] && slices.ContainsFunc(v.Nodes.Items, func(n snapshot.Node) bool { return v.reflects(n.Name, node, p) })
}

// strays are the families (true: IPv4) in which a router has learned a range although its node is left out: another
// node announces it, such as a route reflector.
func (v *view) strays(r *router) map[bool]bool {
	all := map[bool]bool{}
	for p := range v.origins.All() {
		node, _ := v.owner(p)
		if is4 := p.Addr().Is4(); !all[is4] && r.routing().learned(p) {
			_, why := v.declared(node, p)
			all[is4] = leftOut(why)
		}
	}
	return all
}

// lostAdvertisement reports whether a node of Cilium may fail to announce a range because of a change of labels or
// objects, and not by intent: another range of its pool is announced, no peer selects an advertisement of the pool,
// or the node's peers select nothing.
func (v *view) lostAdvertisement(node string, p netip.Prefix) bool {
	i, pool := v.intents(), v.poolOf(p)
	return i.announced[pool] || i.unselected[pool] || v.learned()[pool] || i.cilium[node].silent
}

// speaksForOthers reports whether a node may announce Services by another program than its pods, or by settings of
// the node alone. Then the Services that it announces say nothing about its pods.
func (v *view) speaksForOthers(node string) bool {
	return v.layer == ciliumLayer || !v.BGPAdvertisements.Read || v.intents().metalLB[node]
}

// poolsDiffer reports whether two ranges of a node are of different pools, or may be.
func (v *view) poolsDiffer(p, q netip.Prefix) bool {
	return v.pools[p] != v.pools[q] || v.layer == calicoLayer && v.pools[p] == ""
}

func (v *view) somewhere(p netip.Prefix) bool {
	return slices.ContainsFunc(v.routers, func(r *router) bool { return v.covered(r, p) })
}
