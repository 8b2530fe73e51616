package archive

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
)

// addresses maps addresses to others so that any two have as many leading bits in
// common as before: what was in one subnet is in one subnet, and routes still match
// (after Crypto-PAn: Xu, Fan, Ammar, Moon, 2002). The last byte of an IPv4 address
// stays, so that network and broadcast addresses can still be recognised; so does a
// range's well-known head, such as 10.0.0.0/8.
//
// A bit is flipped, or not, by a key and the bits before it. Ranges that the scenario
// declares have a key that follows from the declaration, all others a random key that is
// not stored.
type addresses struct {
	public, private []byte
	declared        []netip.Prefix
	known           map[walked]netip.Addr // a run has few, which occur often
}

// walked is an address, and whether it is replaced (forth) or restored.
type walked struct {
	netip.Addr
	forth bool
}

// whole are ranges that stay as they are; heads are those whose leading bits stay.
var (
	whole = prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/16", "fe80::/10", "ff00::/8")
	heads = prefixes("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "fc00::/7")
)

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// flippedBits is how many leading bits of an address may change.
func flippedBits(a netip.Addr) int {
	if a.Is4() {
		return 24
	}
	return 64
}

// flips reports whether the bit after a path changes.
func (a *addresses) flips(path netip.Prefix) bool {
	if slices.ContainsFunc(whole, path.Overlaps) ||
		slices.ContainsFunc(heads, func(h netip.Prefix) bool { return path.Bits() < h.Bits() && path.Overlaps(h) }) {
		return false
	}
	key := a.private
	if slices.ContainsFunc(a.declared, path.Overlaps) {
		key = a.public
	}
	text, _ := path.MarshalBinary() // of a valid prefix, which cannot fail
	return sum(key, text)[0]&1 == 1
}

func sum(key, text []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(text)
	return h.Sum(nil)
}

// to is the address in place of another, from the other in place of one.
func (a *addresses) to(addr netip.Addr) netip.Addr   { return a.lookUp(walked{addr, true}) }
func (a *addresses) from(addr netip.Addr) netip.Addr { return a.lookUp(walked{addr, false}) }

func (a *addresses) lookUp(w walked) netip.Addr {
	found, there := a.known[w]
	if !there {
		found = a.walk(w.Addr, w.forth)
		a.known[w] = found
	}
	return found
}

func (a *addresses) walk(addr netip.Addr, forth bool) netip.Addr {
	in, out := addr.AsSlice(), addr.AsSlice()
	original := in // by which paths go
	if !forth {
		original = out
	}
	for i := range flippedBits(addr) {
		known, _ := netip.AddrFromSlice(original)
		path, _ := known.Prefix(i)
		if a.flips(path) {
			out[i/8] ^= 1 << (7 - i%8)
		}
	}
	// The interface identifier of an IPv6 address may hold a MAC address. It is replaced
	// as a whole, which cannot be undone, unless it is small: then it was assigned by hand.
	if addr.Is6() && forth {
		if low := out[8:]; binary.BigEndian.Uint64(low) > 0xffff {
			copy(low, sum(a.private, in))
		}
	}
	mapped, _ := netip.AddrFromSlice(out)
	return mapped
}

// mac is the MAC address in place of another: unicast and locally administered.
func (a *addresses) mac(m [6]byte) [6]byte {
	if m == [6]byte{} || m == [6]byte{255, 255, 255, 255, 255, 255} {
		return m
	}
	to := [6]byte(sum(a.private, append([]byte("mac"), m[:]...)))
	to[0] = to[0]&^1 | 2
	return to
}
