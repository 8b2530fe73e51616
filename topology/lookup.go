package topology

import (
	"net/netip"
	"slices"
)

// Kind is the kind of a lab's member.
type Kind string

// Kinds of members.
const (
	KindNode   Kind = "node"
	KindRouter Kind = "router"
	KindHost   Kind = "host"
)

// Member is what nodes, routers and hosts have in common: a name that is unique
// in the lab, links and, except on routers, a default route.
type Member struct {
	Kind  Kind
	Name  string
	Links []Link
	Via   []string
}

// LinkOn returns the member's link to a network, and its index: 0 is eth0.
// The index is -1 where there is no such link.
func (m Member) LinkOn(network string) (Link, int) {
	i := slices.IndexFunc(m.Links, func(l Link) bool { return l.Network == network })
	if i < 0 {
		return Link{}, i
	}
	return m.Links[i], i
}

// Bridge is the address of the network's bridge on the machine: the first one
// after the network address.
func (n Network) Bridge() netip.Addr { return n.Subnet.Masked().Addr().Next() }

// Broadcast is the network's broadcast address: its last one.
func (n Network) Broadcast() netip.Addr { return lastAddr(n.Subnet) }

// Network returns the network of that name.
func (t Topology) Network(name string) (Network, bool) {
	return find(t.Networks, func(n Network) bool { return n.Name == name })
}

func find[T any](all []T, matches func(T) bool) (found T, ok bool) {
	if i := slices.IndexFunc(all, matches); i >= 0 {
		return all[i], true
	}
	return found, false
}

// Members returns every node, router and host, in the order of declaration.
func (t Topology) Members() []Member {
	var ms []Member
	for _, n := range t.Nodes() {
		ms = append(ms, Member{Kind: KindNode, Name: n.Name, Links: n.Links, Via: n.Via})
	}
	for _, r := range t.Routers {
		ms = append(ms, Member{Kind: KindRouter, Name: r.Name, Links: r.Links})
	}
	for _, h := range t.Hosts {
		ms = append(ms, Member{Kind: KindHost, Name: h.Name, Links: h.Links, Via: h.Via})
	}
	return ms
}

// Nodes are the nodes of all clusters.
func (t Topology) Nodes() []Node {
	var all []Node
	for _, c := range t.Clusters {
		all = append(all, c.Nodes...)
	}
	return all
}

// Guests are the nodes that have a kernel of their own.
func (t Topology) Guests() []Node {
	return slices.DeleteFunc(t.Nodes(), func(n Node) bool { return n.Kernel == "" })
}

// Member returns the node, router or host of that name.
func (t Topology) Member(name string) (Member, bool) {
	return find(t.Members(), func(m Member) bool { return m.Name == name })
}

// AddressOn returns the address that a member has on a network.
func (t Topology) AddressOn(member, network string) (netip.Addr, bool) {
	m, ok := t.Member(member)
	if !ok {
		return netip.Addr{}, false
	}
	l, i := m.LinkOn(network)
	return l.Address, i >= 0
}

// MembersOn returns the members that have a link to a network, in the order of declaration.
func (t Topology) MembersOn(network string) []Member {
	return slices.DeleteFunc(t.Members(), func(m Member) bool {
		_, i := m.LinkOn(network)
		return i < 0
	})
}

// NextHops resolves a member's Via: one next hop for each router, on the first
// network that the two share. A valid topology has no router that shares none.
func (t Topology) NextHops(m Member) []netip.Addr {
	var hops []netip.Addr
	for _, name := range m.Via {
		r, _ := t.router(name)
		if h, ok := nextHop(m.Links, r); ok {
			hops = append(hops, h)
		}
	}
	return hops
}

func (t Topology) router(name string) (Router, bool) {
	return find(t.Routers, func(r Router) bool { return r.Name == name })
}

func nextHop(links []Link, r Router) (netip.Addr, bool) {
	for _, l := range links {
		if rl, ok := linkOn(r.Links, l.Network); ok {
			return rl.Address, true
		}
	}
	return netip.Addr{}, false
}

func linkOn(links []Link, network string) (Link, bool) {
	l, i := Member{Links: links}.LinkOn(network)
	return l, i >= 0
}

// NodeRanges are the Node.spec.podCIDRs of the cluster's nodes, in their order.
func (c Cluster) NodeRanges() []netip.Prefix {
	var ranges []netip.Prefix
	given := netip.PrefixFrom(c.PodCIDR.Masked().Addr(), c.NodeMask)
	for range c.Nodes {
		ranges = append(ranges, given)
		given = NextRange(given)
	}
	return ranges
}

// NextRange is the IPv4 prefix of the same length that comes after p.
func NextRange(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(address(number(p.Addr())+1<<(32-p.Bits())), p.Bits())
}
