package router

import (
	"context"
	"log"
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/bgp"
)

type speaker interface {
	// start starts it. It accepts sessions when start returns.
	start(ctx context.Context) error
	// stop closes every session with a notification and ends it.
	stop()
	// paths lists the RIB by prefix, then by preference.
	paths(ctx context.Context) ([]bgp.Path, error)
	// neighbors lists the peers in order of address.
	neighbors(ctx context.Context) ([]bgp.Neighbor, error)
	// clear closes the session with a neighbour and drops its paths: see Client.Clear.
	clear(ctx context.Context, neighbor netip.Addr) error
}

// installer is a speaker that installs its routes in the kernel's table itself. The
// server then only keeps the unreachable default route.
type installer interface {
	speaker
	// setStatics replaces the static routes. They may reach the kernel's table later.
	setStatics(ctx context.Context, statics []Static) error
}

// newSpeaker makes the speaker of the configured kind. It calls changed after each change
// of a best path if the server has to install it, and fail when it ends by itself.
func newSpeaker(c Config, l *log.Logger, changed func(), fail func(error)) speaker {
	switch c.Kind {
	case topology.FRR:
		return newFRR(c, l, fail)
	case topology.BIRD:
		return &bird{config: c, log: l, fail: fail}
	default:
		return &goBGP{config: c, log: l, changed: changed, fail: fail}
	}
}
