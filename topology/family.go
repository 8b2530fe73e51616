package topology

import (
	"net/netip"
	"strings"
)

// Family is an address family of a lab.
type Family string

// The families. Topologies declare IPv4 addresses.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
)

// Families are the families of the lab, IPv4 first.
func (t Topology) Families() []Family {
	if t.Dual {
		return []Family{IPv4, IPv6}
	}
	return []Family{IPv4}
}

// ula has all IPv6 addresses of labs: a prefix for local use with a random number (RFC 4193).
var ula = netip.MustParseAddr("fd5c:3f1e:a2d7::")

// V6Bits are how much longer a prefix of IPv6 is than the one of IPv4 to which it belongs.
const V6Bits = 96

// Addr is the address of the family that belongs to an IPv4 address. The last 32 bits of the IPv6 address
// are the IPv4 address, so that names, subnets and ranges are declared once.
func (f Family) Addr(a netip.Addr) netip.Addr {
	if f != IPv6 || !a.Is4() {
		return a
	}
	b, last := ula.As16(), a.As4()
	copy(b[12:], last[:])
	return netip.AddrFrom16(b)
}

// Prefix is the prefix of the family that belongs to an IPv4 prefix, of the same size.
func (f Family) Prefix(p netip.Prefix) netip.Prefix {
	if f != IPv6 || !p.Addr().Is4() {
		return p
	}
	return netip.PrefixFrom(f.Addr(p.Addr()), p.Bits()+V6Bits)
}

// Addrs are the addresses that belong to an IPv4 address, one of each family of the lab, separated by
// commas as in Kubernetes.
func (t Topology) Addrs(a netip.Addr) string { return joined(t, a, Family.Addr) }

// Prefixes are the prefixes that belong to an IPv4 prefix, as Addrs.
func (t Topology) Prefixes(p netip.Prefix) string { return joined(t, p, Family.Prefix) }

func joined[T interface{ String() string }](t Topology, declared T, convert func(Family, T) T) string {
	var all []string
	for _, f := range t.Families() {
		all = append(all, convert(f, declared).String())
	}
	return strings.Join(all, ",")
}
