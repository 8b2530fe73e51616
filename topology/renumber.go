package topology

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Renumbering moves networks of a topology to other subnets of the same size. Each address
// keeps its host part. The zero value moves nothing.
type Renumbering []Move

// Move is the new subnet of one network.
type Move struct {
	Network  string
	From, To netip.Prefix
}

// Within moves the networks that can move into a prefix: from its first address on, in the
// order of declaration, each to the next subnet of its size. The pod and Service ranges, and
// networks that are Fixed, stay.
//
// The error is one sentence: the prefix is not a private IPv4 prefix (RFC 1918), is too
// small, or overlaps a range that stays.
func (t Topology) Within(prefix netip.Prefix) (Renumbering, error) {
	if err := private(prefix); err != nil {
		return nil, err
	}
	for _, fixed := range t.fixedRanges() {
		if prefix.Overlaps(fixed.prefix) {
			return nil, fmt.Errorf("%s overlaps %s, %s of %s, which stays: choose another prefix", prefix, fixed.prefix, fixed.what, t.Name)
		}
	}
	var moves Renumbering
	next := uint64(number(prefix.Addr()))
	for _, n := range t.Networks {
		if n.Fixed != "" {
			continue
		}
		size := sizeOf(n.Subnet)
		next = (next + size - 1) / size * size
		to := netip.PrefixFrom(address(uint32(next)), n.Subnet.Bits())
		if n.Subnet.Bits() < prefix.Bits() || !prefix.Contains(to.Addr()) {
			return nil, fmt.Errorf("%s is too small: the networks of %s need a /%d", prefix, t.Name, t.Block())
		}
		moves = append(moves, Move{Network: n.Name, From: n.Subnet, To: to})
		next += size
	}
	if len(moves) == 0 {
		return nil, fmt.Errorf("no network of %s can move", t.Name)
	}
	return moves, nil
}

// Block is the length of the longest prefix that Within can use; 32 if no network can move.
func (t Topology) Block() int {
	var end uint64
	for _, n := range t.Networks {
		if n.Fixed == "" {
			size := sizeOf(n.Subnet)
			end = (end+size-1)/size*size + size
		}
	}
	bits := 32
	for uint64(1)<<(32-bits) < end {
		bits--
	}
	return bits
}

// Split cuts a prefix into one for each topology, in this order, so that their labs can
// exist at the same time. The error is one sentence, as Within's is.
func Split(prefix netip.Prefix, all ...Topology) ([]netip.Prefix, error) {
	if err := private(prefix); err != nil {
		return nil, err
	}
	var parts []netip.Prefix
	next := uint64(number(prefix.Addr()))
	for _, t := range all {
		// The parts alone may overlap nothing where the prefix does. Which part a topology
		// gets depends on the others, and is no reason to accept a prefix or not.
		if _, err := t.Within(prefix); err != nil {
			return nil, err
		}
		size := uint64(1) << (32 - t.Block())
		next = (next + size - 1) / size * size
		part := netip.PrefixFrom(address(uint32(next)), t.Block())
		if !prefix.Contains(part.Addr()) {
			return nil, fmt.Errorf("%s is too small for %d labs: no /%d is left for that of %s", prefix, len(all), t.Block(), t.Name)
		}
		parts = append(parts, part)
		next += size
	}
	return parts, nil
}

// Onto moves networks to these subnets, by name. A network without one stays, and a name that no network
// has is ignored. The error is one sentence about a subnet of another size.
func (t Topology) Onto(subnets map[string]netip.Prefix) (Renumbering, error) {
	var moves Renumbering
	for _, n := range t.Networks {
		to, given := subnets[n.Name]
		switch {
		case !given || to == n.Subnet:
		case !to.Addr().Is4() || to.Bits() != n.Subnet.Bits() || to != to.Masked():
			return nil, fmt.Errorf("network %q of %s is a /%d, and %s is not a subnet of that size", n.Name, t.Name, n.Subnet.Bits(), to)
		default:
			moves = append(moves, Move{Network: n.Name, From: n.Subnet, To: to})
		}
	}
	return moves, nil
}

// Renumber returns the topology with its networks moved, and the addresses of its members
// and the router IDs that are such addresses.
func (t Topology) Renumber(r Renumbering) Topology {
	if len(r) == 0 {
		return t
	}
	t.Networks = slices.Clone(t.Networks)
	for i, n := range t.Networks {
		for _, m := range r {
			if m.Network == n.Name {
				t.Networks[i].Subnet = m.To
			}
		}
	}
	links := func(old []Link) []Link {
		moved := slices.Clone(old)
		for i, l := range old {
			moved[i].Address = r.Addr(l.Address)
		}
		return moved
	}
	t.Clusters = slices.Clone(t.Clusters)
	for i, c := range t.Clusters {
		t.Clusters[i].Nodes = slices.Clone(c.Nodes)
		for j, n := range c.Nodes {
			t.Clusters[i].Nodes[j].Links = links(n.Links)
		}
	}
	t.Routers = slices.Clone(t.Routers)
	for i, one := range t.Routers {
		t.Routers[i].Links, t.Routers[i].ID = links(one.Links), r.Addr(one.ID)
	}
	t.Hosts = slices.Clone(t.Hosts)
	for i, h := range t.Hosts {
		t.Hosts[i].Links = links(h.Links)
	}
	return t
}

// Addr is the address after the move. One in no network that moves stays.
func (r Renumbering) Addr(a netip.Addr) netip.Addr {
	for _, m := range r {
		if m.From.Contains(a) {
			return address(number(m.To.Addr()) + number(a) - number(m.From.Masked().Addr()))
		}
	}
	return a
}

// ipv4 is an IPv4 address, perhaps with a prefix length, and the spaces after it.
var ipv4 = regexp.MustCompile(`\b((?:\d{1,3}\.){3}\d{1,3})(/\d{1,2})?\b( *)`)

// Text replaces the addresses and subnets of the networks that move in a text. Text to the right of an
// address, after two spaces or more, stays in its column if there is room.
func (r Renumbering) Text(text string) string {
	return ipv4.ReplaceAllStringFunc(text, func(found string) string {
		parts := ipv4.FindStringSubmatch(found)
		old, err := netip.ParseAddr(parts[1])
		if err != nil {
			return found
		}
		moved, spaces := r.Addr(old).String(), len(parts[3])
		if spaces > 1 {
			spaces = max(2, spaces+len(parts[1])-len(moved))
		}
		return moved + parts[2] + strings.Repeat(" ", spaces)
	})
}

// fixedRange is a range of a topology that no network may move onto.
type fixedRange struct {
	prefix netip.Prefix
	what   string
}

// fixedRanges are the ranges that stay when networks move.
func (t Topology) fixedRanges() []fixedRange {
	var all []fixedRange
	for _, c := range t.Clusters {
		all = append(all, fixedRange{c.PodCIDR, "the pod range"}, fixedRange{c.ServiceCIDR, "the Service range"})
	}
	for _, n := range t.Networks {
		if n.Fixed != "" {
			all = append(all, fixedRange{n.Subnet, fmt.Sprintf("the network %q", n.Name)})
		}
	}
	for _, p := range t.Routed {
		all = append(all, fixedRange{p, "a routed range"})
	}
	return all
}

func private(p netip.Prefix) error {
	switch {
	case !p.IsValid() || !p.Addr().Is4():
		return fmt.Errorf("%s is not an IPv4 prefix: expected one such as 10.200.0.0/16", p)
	case p != p.Masked():
		return fmt.Errorf("%s has host bits: expected %s", p, p.Masked())
	case !p.Addr().IsPrivate() || !lastAddr(p).IsPrivate():
		return fmt.Errorf("%s is not private: expected a prefix in 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16 (RFC 1918)", p)
	}
	return nil
}

func sizeOf(p netip.Prefix) uint64 { return 1 << (32 - p.Bits()) }

func number(a netip.Addr) uint32 { b := a.As4(); return binary.BigEndian.Uint32(b[:]) }
func address(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}
