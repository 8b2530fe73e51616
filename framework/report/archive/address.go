package archive

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/topology/each"
)

// addresses maps addresses to others so that any two have as many leading bits in common as before:
// what was in one subnet is in one subnet, and routes still match (after Crypto-PAn: Xu, Fan,
// Ammar, Moon, 2002). The last byte of an IPv4 address stays, so that network and broadcast
// addresses can still be recognised; so does a range's well-known head, such as 10.0.0.0/8.
//
// A bit is flipped, or not, by the bits before it and a random key that is not stored.
type addresses struct {
	key   []byte
	cache map[netip.Addr]netip.Addr // a run has few addresses, which occur often
}

func newAddresses(key []byte) *addresses { return &addresses{key, map[netip.Addr]netip.Addr{}} }

// whole are ranges that stay as they are; heads are ranges whose leading bits stay.
var (
	whole = prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/16", "fe80::/10", "ff00::/8")
	heads = prefixes("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "fc00::/7")
)

func prefixes(texts ...string) []netip.Prefix { return each.Of(texts, netip.MustParsePrefix) }

// flippedBits is how many leading bits of an address may change.
func flippedBits(a netip.Addr) int {
	if a.Is4() {
		return 24
	}
	return 64
}

// stays reports whether no bit of a range may change.
func stays(p netip.Prefix) bool {
	return slices.ContainsFunc(whole, p.Overlaps) || slices.ContainsFunc(heads, func(h netip.Prefix) bool {
		return p.Overlaps(h) && (p.Bits() <= h.Bits() || h.Bits() >= flippedBits(h.Addr()))
	})
}

// flips reports whether the bit after a path changes.
func (a *addresses) flips(path netip.Prefix) bool {
	if slices.ContainsFunc(whole, path.Overlaps) ||
		slices.ContainsFunc(heads, func(h netip.Prefix) bool { return path.Bits() < h.Bits() && path.Overlaps(h) }) {
		return false
	}
	text, _ := path.MarshalBinary() // of a valid prefix, which cannot fail
	return a.sum(text)[0]&1 == 1
}

func (a *addresses) sum(text []byte) []byte {
	h := hmac.New(sha256.New, a.key)
	h.Write(text)
	return h.Sum(nil)
}

// to is the replacement of an address. For a range only its leading bits are mapped.
func (a *addresses) to(addr netip.Addr, bits int) netip.Addr {
	found, there := a.cache[addr]
	if !there {
		found = a.walk(addr)
		a.cache[addr] = found
	}
	if own, err := addr.Prefix(bits); err == nil && own.Addr() == addr {
		mapped, _ := found.Prefix(bits) // as many bits as addr has
		return mapped.Addr()
	}
	return found
}

func (a *addresses) walk(addr netip.Addr) netip.Addr {
	out := addr.AsSlice()
	for i := range flippedBits(addr) {
		path, _ := addr.Prefix(i)
		if a.flips(path) {
			out[i/8] ^= 1 << (7 - i%8)
		}
	}
	// The interface identifier of an IPv6 address may hold a MAC address. It is replaced
	// as a whole unless it is small: then it was assigned by hand.
	if addr.Is6() {
		if low := out[8:]; binary.BigEndian.Uint64(low) > 0xffff {
			copy(low, a.sum(addr.AsSlice()))
		}
	}
	mapped, _ := netip.AddrFromSlice(out)
	return mapped
}

// mac is the replacement of a MAC address: unicast and locally administered.
func (a *addresses) mac(m net.HardwareAddr) net.HardwareAddr {
	if text := m.String(); text == "00:00:00:00:00:00" || text == "ff:ff:ff:ff:ff:ff" {
		return m
	}
	to := net.HardwareAddr(a.sum(append([]byte("mac"), m...))[:len(m)])
	to[0] = to[0]&^1 | 2
	return to
}

// forms are other ways to write an address: with dashes as in names of the DNS, and with underscores
// as in the names of BIRD's protocols; one of IPv4 also as numbers in both byte orders.
func forms(a netip.Addr) []string {
	if !a.Is4() {
		var all []string
		for _, text := range []string{a.String(), a.StringExpanded()} {
			if strings.HasPrefix(text, ":") { // a word begins with a letter or a digit
				text = ""
			}
			all = append(all, strings.ReplaceAll(text, ":", "-"), strings.ReplaceAll(text, ":", "_"))
		}
		return all
	}
	b := a.As4()
	all := []string{fmt.Sprintf("%d-%d-%d-%d", b[0], b[1], b[2], b[3]), fmt.Sprintf("%d_%d_%d_%d", b[0], b[1], b[2], b[3])}
	for _, n := range []uint32{binary.BigEndian.Uint32(b[:]), binary.LittleEndian.Uint32(b[:])} {
		if n < 1<<24 { // it may be a port or a counter
			all = append(all, "", "", "", "")
			continue
		}
		all = append(all, fmt.Sprintf("0x%x", n), fmt.Sprintf("0x%08x", n), fmt.Sprintf("%08x", n), fmt.Sprint(n))
	}
	return all
}
