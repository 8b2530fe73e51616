package router

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// Protocol is the origin of a route: rtm_protocol of rtnetlink(7).
type Protocol uint8

// Protocols of routes.
const (
	ProtocolKernel Protocol = unix.RTPROT_KERNEL
	ProtocolBoot   Protocol = unix.RTPROT_BOOT
	ProtocolStatic Protocol = unix.RTPROT_STATIC
	ProtocolBGP    Protocol = unix.RTPROT_BGP
)

// Protocols that only the kernel's table has: a Client gets those above in their place.
const (
	protocolBIRD    Protocol = unix.RTPROT_BIRD // all routes of BIRD
	protocolZStatic Protocol = 196              // static routes of FRR (zebra/rt_netlink.h, RTPROT_ZSTATIC)
)

var protocolNames = map[Protocol]string{
	ProtocolKernel:   "kernel",
	ProtocolBoot:     "boot",
	ProtocolStatic:   "static",
	unix.RTPROT_DHCP: "dhcp",
	ProtocolBGP:      "bgp",
	protocolBIRD:     "bird",
}

// String is ip(8)'s name of the protocol, or the number if it has none.
func (p Protocol) String() string { return name(protocolNames, p) }

// MarshalText implements encoding.TextMarshaler.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText accepts what MarshalText writes.
func (p *Protocol) UnmarshalText(text []byte) error {
	return parseName(protocolNames, string(text), "route protocol", p)
}

// Type is the effect of a route on a packet: rtm_type of rtnetlink(7).
type Type uint8

// Types of routes.
const (
	TypeUnicast     Type = unix.RTN_UNICAST
	TypeBlackhole   Type = unix.RTN_BLACKHOLE
	TypeUnreachable Type = unix.RTN_UNREACHABLE
)

var typeNames = map[Type]string{
	TypeUnicast:        "unicast",
	unix.RTN_LOCAL:     "local",
	unix.RTN_BROADCAST: "broadcast",
	unix.RTN_MULTICAST: "multicast",
	TypeBlackhole:      "blackhole",
	TypeUnreachable:    "unreachable",
	unix.RTN_PROHIBIT:  "prohibit",
	unix.RTN_THROW:     "throw",
}

// String is ip(8)'s name of the type, or the number if it has none.
func (t Type) String() string { return name(typeNames, t) }

// MarshalText implements encoding.TextMarshaler.
func (t Type) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText accepts what MarshalText writes.
func (t *Type) UnmarshalText(text []byte) error {
	return parseName(typeNames, string(text), "route type", t)
}

func name[T ~uint8](names map[T]string, v T) string {
	if n, ok := names[v]; ok {
		return n
	}
	return strconv.Itoa(int(v))
}

func parseName[T ~uint8](names map[T]string, text, what string, v *T) error {
	for k, n := range names {
		if n == text {
			*v = k
			return nil
		}
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return fmt.Errorf("%q is not a %s: expected a name of ip(8), or a number up to 255", text, what)
	}
	*v = T(n)
	return nil
}
