package router

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/topology"
)

// Socket is the name of the socket in Config.Sockets, which serves the HTTP API of this package.
const Socket = "router.sock"

const bgpPort = 179

// holdTime is offered to peers, in seconds. It detects a silent peer soon, and tolerates a machine
// with busy CPUs. A peer may negotiate a shorter one. The end of a connection is detected at once,
// regardless of the hold time.
const holdTime = 9

// Config is a router's configuration. Its JSON form is the file that cmd/tor reads.
type Config struct {
	// Kind is the software that speaks BGP; empty means GoBGP.
	Kind topology.RouterKind `json:"kind,omitempty"`
	AS   uint32              `json:"as"`
	// RouterID is the BGP identifier, by convention one of the router's addresses.
	RouterID netip.Addr `json:"router_id"`
	// Listen are the router's addresses on which it accepts sessions. They must
	// exist when the router starts.
	Listen []netip.Addr `json:"listen"`
	// Dual has the router carry IPv6 beside IPv4, in each session, and listen on its addresses of IPv6, too.
	Dual bool `json:"dual,omitempty"`
	// Peers are the neighbours from which it accepts sessions.
	Peers []Peers `json:"peers"`
	// Sockets is the folder of the socket.
	Sockets string `json:"sockets"`
}

// Peers are dynamic neighbours: all addresses in Prefix, with the AS number AS. They
// are iBGP peers if that is the router's AS.
type Peers struct {
	Prefix netip.Prefix `json:"prefix"`
	AS     uint32       `json:"as"`
	// GracefulRestart retains the paths of a peer that has asked for it when its
	// session ends, until the session is up again or the peer's restart time is over
	// (RFC 4724). Without it the paths are dropped at once.
	GracefulRestart bool `json:"graceful_restart,omitempty"`
	// BFD is for FRR alone. BFDPeers are the peers with which the router has it before they have a BGP
	// session: FRR 10 opens none while BFD is down.
	BFD      topology.BFD `json:"bfd,omitzero"`
	BFDPeers []netip.Addr `json:"bfd_peers,omitempty"`
}

// ReadConfig reads and validates a Config in its JSON form. An unknown field is an error.
func ReadConfig(r io.Reader) (Config, error) {
	var c Config
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("parsing router configuration: %w", err)
	}
	return c, c.Validate()
}

// Validate returns the errors of the configuration that the validation of a topology does not find, joined.
func (c Config) Validate() error {
	var errs []error
	for i, p := range c.Peers {
		// GoBGP and FRR select a peer group by the address alone.
		if first := slices.IndexFunc(c.Peers, func(o Peers) bool { return o.Prefix == p.Prefix }); first < i {
			errs = append(errs, fmt.Errorf("router configuration: peers[%d].prefix: %s is also the prefix of peers[%d]", i, p.Prefix, first))
		}
		if p.BFD != (topology.BFD{}) && c.kind() != topology.FRR {
			errs = append(errs, fmt.Errorf("router configuration: peers[%d].bfd: %s has no BFD", i, c.kind()))
		}
	}
	return errors.Join(errs...)
}

// listen are the addresses on which the router accepts sessions. IPv6 addresses may come after its start.
func (c Config) listen() []netip.Addr {
	if !c.Dual {
		return c.Listen
	}
	return append(slices.Clone(c.Listen), netip.IPv6Unspecified())
}

func (c Config) kind() topology.RouterKind { return cmp.Or(c.Kind, topology.RouterKinds[0]) }
