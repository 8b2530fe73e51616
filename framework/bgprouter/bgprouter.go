// Package bgprouter reads BGP routers for snapshots: those of a lab, and those of a file, by the
// programs that they have, by gRPC, from a table dump, or from what they feed to a BMP station.
package bgprouter

import (
	"context"
	"io"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

// Source reads a router.
type Source interface {
	RIB(context.Context) ([]router.Path, error)
	FIB(context.Context) ([]router.Route, error)
	Neighbors(context.Context) ([]router.Neighbor, error)
}

// Reader is a source in the types of snapshots.
type Reader struct{ Source }

// RIB implements snapshot.RouterReader.
func (r Reader) RIB(ctx context.Context) ([]snapshot.Path, error) {
	return converted(r.Source.RIB, toPath)(ctx)
}

// FIB implements snapshot.RouterReader.
func (r Reader) FIB(ctx context.Context) ([]snapshot.Route, error) {
	return converted(r.Source.FIB, toRoute)(ctx)
}

// Neighbors implements snapshot.RouterReader.
func (r Reader) Neighbors(ctx context.Context) ([]snapshot.Neighbor, error) {
	return converted(r.Source.Neighbors, toNeighbor)(ctx)
}

// Describe implements snapshot.RouterDescriber.
func (r Reader) Describe(is *snapshot.Router) {
	if d, ok := r.Source.(snapshot.RouterDescriber); ok {
		d.Describe(is)
	}
}

// Close closes the source, where it can be closed.
func (r Reader) Close() error {
	if c, ok := r.Source.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

func converted[From, To any](list func(context.Context) ([]From, error), convert func(From) To) func(context.Context) ([]To, error) {
	return func(ctx context.Context) ([]To, error) {
		from, err := list(ctx)
		to := make([]To, 0, len(from))
		for _, one := range from {
			to = append(to, convert(one))
		}
		return to, err
	}
}

func toPath(p router.Path) snapshot.Path             { return snapshot.Path(p) }
func toNeighbor(n router.Neighbor) snapshot.Neighbor { return snapshot.Neighbor(n) }

func toRoute(r router.Route) snapshot.Route {
	route := snapshot.Route{
		Prefix: r.Prefix, Type: snapshot.RouteType(r.Type.String()), Protocol: snapshot.RouteProtocol(r.Protocol.String()),
		Metric: r.Metric, Source: r.Source,
	}
	for _, hop := range r.NextHops {
		route.NextHops = append(route.NextHops, snapshot.NextHop(hop))
	}
	return route
}
