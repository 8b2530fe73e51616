// Package netaddr has what gomplate uses of inet.af/netaddr, over net/netip.
package netaddr

import (
	"errors"
	"net"
	"net/netip"
)

type IP = netip.Addr

type IPPrefix struct{ netip.Prefix }

type IPRange struct{ From, To netip.Addr }

func ParseIP(s string) (IP, error) { return netip.ParseAddr(s) }

func ParseIPPrefix(s string) (IPPrefix, error) {
	p, err := netip.ParsePrefix(s)
	return IPPrefix{p}, err
}

func ParseIPRange(string) (IPRange, error) { return IPRange{}, errors.ErrUnsupported }

func (p IPPrefix) Masked() IPPrefix { return IPPrefix{p.Prefix.Masked()} }

func (p IPPrefix) IPNet() *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
