package detect

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/gaissmai/bart"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// intended are the prefixes that Kubernetes says must be reachable, and the nodes that
// should announce each. An allocator adds its own: the pod ranges of the CNI, whichever
// objects it keeps them in. A prefix of a Service, whose nodes follow from policy and
// endpoints, can be added in the same way.
type intended struct {
	// layer is the kind of the objects that decide which node owns a pod range.
	layer string
	// origins are in order of age, the eldest claim first. The allocators give a range to
	// one node; where one has more, two objects claim it.
	origins *bart.Table[[]origin]
	ranges  map[string][]netip.Prefix
	// pools are the names of the ranges' pools. A range without a name has no pool, or its pool is not known.
	pools map[netip.Prefix]string
	// lent are addresses that another node than the owner of their range uses and announces.
	lent map[netip.Addr]string
}

// origin is a node that should announce a prefix, whether it has a Node object or not.
type origin struct {
	node string
	// since is when the object that says so was created; zero if that is not known.
	since time.Time
}

// Layers of pod ranges, by the name of the kind.
const (
	ciliumLayer = "CiliumNode"
	calicoLayer = "IPAMBlock"
	nodeLayer   = "Node"
)

// podRanges are the nodes' pod ranges by the CNI's own allocation: CiliumNodes, with their ranges of pools, else
// Calico's blocks, else Node.spec.podCIDRs, which kube-router, Flannel and others use. With Observed it is the first
// of these in which most pods have their addresses: objects of another CNI may be left over, or it is chained. It
// returns false if the source that decides was not read.
func podRanges(s snapshot.Snapshot, peering Peering) (intended, bool) {
	read := s.Nodes.Read && s.CiliumNodes.Read
	var all []intended
	if len(s.CiliumNodes.Items) > 0 {
		all = append(all, ciliumRanges(s))
	}
	if len(s.CalicoBlocks.Items) > 0 {
		all = append(all, calicoRanges(s))
	}
	all = append(all, nodeRanges(s))
	i := all[0]
	if peering == Observed && !i.used(s, false) {
		i = all[max(0, slices.IndexFunc(all, func(i intended) bool { return i.used(s, true) }))]
	}
	if i.layer == nodeLayer {
		// Snapshots that were stored before have no such source, and no error.
		read = read && s.CalicoBlocks.Error == ""
	}
	for _, origins := range i.origins.All() {
		slices.SortStableFunc(origins, func(a, b origin) int {
			return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.node, b.node))
		})
	}
	return i, read
}

func newIntended(layer string) intended {
	return intended{
		layer: layer, origins: &bart.Table[[]origin]{}, ranges: map[string][]netip.Prefix{},
		pools: map[netip.Prefix]string{}, lent: map[netip.Addr]string{},
	}
}

func ciliumRanges(s snapshot.Snapshot) intended {
	i := newIntended(ciliumLayer)
	for _, n := range s.CiliumNodes.Items {
		i.add(origin{n.Name, n.Created}, n.PodCIDRs...)
		for _, pool := range n.Pools {
			i.add(origin{n.Name, n.Created}, pool.CIDRs...)
			for _, p := range pool.CIDRs {
				i.pools[p] = pool.Name
			}
		}
	}
	return i
}

func calicoRanges(s snapshot.Snapshot) intended {
	i := newIntended(calicoLayer)
	var pools bart.Table[string]
	for _, pool := range s.CalicoPools.Items {
		pools.Insert(pool.CIDR, pool.Name)
	}
	for _, b := range s.CalicoBlocks.Items {
		if b.Node != "" {
			i.add(origin{b.Node, b.Created}, b.CIDR)
		}
		if pool, ok := pools.LookupPrefix(b.CIDR); ok {
			i.pools[b.CIDR] = pool
		}
		for _, l := range b.Lent {
			i.lent[l.Address] = l.Node
		}
	}
	return i
}

func nodeRanges(s snapshot.Snapshot) intended {
	i := newIntended(nodeLayer)
	for _, n := range s.Nodes.Items {
		i.add(origin{n.Name, n.Created}, n.PodCIDRs...)
	}
	return i
}

// used reports whether most pods have addresses in the ranges: in any, or in their own node's.
func (i intended) used(s snapshot.Snapshot, own bool) bool {
	inside := 0
	for _, p := range s.Pods.Items {
		if origins, ok := i.origins.Lookup(p.IP); ok && (!own || slices.ContainsFunc(origins, func(o origin) bool { return o.node == p.Node })) {
			inside++
		}
	}
	return 2*inside >= len(s.Pods.Items)
}

func (i intended) add(o origin, prefixes ...netip.Prefix) {
	for _, p := range prefixes {
		i.origins.Modify(p, func(origins []origin, _ bool) ([]origin, bool) {
			if slices.ContainsFunc(origins, func(other origin) bool { return other.node == o.node }) {
				return origins, false // the node has it twice, as of podCIDRs and of a pool
			}
			return append(origins, o), false
		})
		if !slices.Contains(i.ranges[o.node], p) {
			i.ranges[o.node] = append(i.ranges[o.node], p)
		}
	}
}

func (i intended) record(node string) string {
	if i.layer == calicoLayer {
		return i.layer + " of " + node
	}
	return i.layer + " " + node
}

// owners returns the nodes whose range p is or is a part of, the eldest first. The narrowest
// range decides.
func (i intended) owners(p netip.Prefix) []origin {
	origins, _ := i.origins.LookupPrefix(p)
	return origins
}

func (i intended) owner(p netip.Prefix) (string, bool) {
	origins := i.owners(p)
	if len(origins) == 0 {
		return "", false
	}
	return origins[0].node, true
}

func (i intended) owns(node string, p netip.Prefix) bool {
	return slices.ContainsFunc(i.owners(p), func(o origin) bool { return o.node == node })
}
