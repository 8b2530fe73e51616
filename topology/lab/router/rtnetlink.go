package router

import (
	"fmt"
	"strconv"
)

// Protocol says who installed a route: rtm_protocol of rtnetlink(7).
type Protocol uint8

// Protocols that a lab's routers see (linux/rtnetlink.h).
const (
	ProtocolKernel Protocol = 2
	ProtocolBoot   Protocol = 3
	ProtocolStatic Protocol = 4
	ProtocolDHCP   Protocol = 16
	ProtocolBGP    Protocol = 186
)

var protocolNames = map[Protocol]string{
	ProtocolKernel: "kernel",
	ProtocolBoot:   "boot",
	ProtocolStatic: "static",
	ProtocolDHCP:   "dhcp",
	ProtocolBGP:    "bgp",
}

// String is the name that ip(8) prints, or the number if there is none.
func (p Protocol) String() string { return name(protocolNames, p) }

// MarshalText implements encoding.TextMarshaler.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText accepts what MarshalText writes.
func (p *Protocol) UnmarshalText(text []byte) error {
	return parseName(protocolNames, string(text), "route protocol", p)
}

// Type is what a route does with a packet: rtm_type of rtnetlink(7).
type Type uint8

// Types of routes (linux/rtnetlink.h).
const (
	TypeUnicast     Type = 1
	TypeLocal       Type = 2
	TypeBroadcast   Type = 3
	TypeMulticast   Type = 5
	TypeBlackhole   Type = 6
	TypeUnreachable Type = 7
	TypeProhibit    Type = 8
	TypeThrow       Type = 9
)

var typeNames = map[Type]string{
	TypeUnicast:     "unicast",
	TypeLocal:       "local",
	TypeBroadcast:   "broadcast",
	TypeMulticast:   "multicast",
	TypeBlackhole:   "blackhole",
	TypeUnreachable: "unreachable",
	TypeProhibit:    "prohibit",
	TypeThrow:       "throw",
}

// String is the name that ip(8) prints, or the number if there is none.
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
		return fmt.Errorf("%q is no %s: want a name that ip(8) prints, or a number up to 255", text, what)
	}
	*v = T(n)
	return nil
}
