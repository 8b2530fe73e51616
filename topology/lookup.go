package topology

import "net/netip"

// Kind is what a member of a lab is.
type Kind string

// Kinds of members.
const (
	KindNode   Kind = "node"
	KindRouter Kind = "router"
	KindHost   Kind = "host"
)

// Member is what nodes, routers and hosts have in common: a name that is
// theirs alone in the lab, links, and (but for routers) a default route.
type Member struct {
	Kind Kind
	Name string
	// Cluster names the cluster of a node, and is empty otherwise.
	Cluster string
	Links   []Link
	Via     []string
}

// LinkOn returns the member's link to a network, and its index: 0 is eth0.
// The index is -1 where there is no such link.
func (m Member) LinkOn(network string) (Link, int) {
	for i, l := range m.Links {
		if l.Network == network {
			return l, i
		}
	}
	return Link{}, -1
}

// NextHop is one next hop of a member's default route.
type NextHop struct {
	// Router is the router's name, Address its address on Network, which the
	// member has a link to as well.
	Router  string
	Network string
	Address netip.Addr
}

// Bridge is the address of the network's bridge on the machine that runs the
// lab: the first one after the network address.
func (n Network) Bridge() netip.Addr {
	return n.Subnet.Masked().Addr().Next()
}

// Broadcast is the network's broadcast address: its last one.
func (n Network) Broadcast() netip.Addr { return lastAddr(n.Subnet) }

// Network returns the network of that name.
func (t Topology) Network(name string) (Network, bool) {
	for _, n := range t.Networks {
		if n.Name == name {
			return n, true
		}
	}
	return Network{}, false
}

// Members returns every node, router and host, in the order of declaration.
func (t Topology) Members() []Member {
	var ms []Member
	for _, c := range t.Clusters {
		for _, n := range c.Nodes {
			ms = append(ms, Member{Kind: KindNode, Name: n.Name, Cluster: c.Name, Links: n.Links, Via: n.Via})
		}
	}
	for _, r := range t.Routers {
		ms = append(ms, Member{Kind: KindRouter, Name: r.Name, Links: r.Links})
	}
	for _, h := range t.Hosts {
		ms = append(ms, Member{Kind: KindHost, Name: h.Name, Links: h.Links, Via: h.Via})
	}
	return ms
}

// Member returns the node, router or host of that name.
func (t Topology) Member(name string) (Member, bool) {
	for _, m := range t.Members() {
		if m.Name == name {
			return m, true
		}
	}
	return Member{}, false
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

// MembersOn returns the members that have a link to a network, in the order
// of declaration.
func (t Topology) MembersOn(network string) []Member {
	var on []Member
	for _, m := range t.Members() {
		if _, i := m.LinkOn(network); i >= 0 {
			on = append(on, m)
		}
	}
	return on
}

// NextHops resolves a member's Via: one next hop for each router, on the
// first of the member's networks that the router is on too. Routers of Via
// that do not exist or are on no common network are left out; a valid
// topology has none of them.
func (t Topology) NextHops(m Member) []NextHop {
	var hops []NextHop
	for _, name := range m.Via {
		r, ok := t.router(name)
		if !ok {
			continue
		}
		if h, ok := t.nextHop(m.Links, r); ok {
			hops = append(hops, h)
		}
	}
	return hops
}

func (t Topology) router(name string) (Router, bool) {
	for _, r := range t.Routers {
		if r.Name == name {
			return r, true
		}
	}
	return Router{}, false
}

func (t Topology) nextHop(links []Link, r Router) (NextHop, bool) {
	for _, l := range links {
		if rl, ok := linkOn(r.Links, l.Network); ok {
			return NextHop{Router: r.Name, Network: l.Network, Address: rl.Address}, true
		}
	}
	return NextHop{}, false
}

func linkOn(links []Link, network string) (Link, bool) {
	l, i := Member{Links: links}.LinkOn(network)
	return l, i >= 0
}
