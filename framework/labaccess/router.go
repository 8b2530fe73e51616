package labaccess

import (
	"context"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

// routerReader reads one of the lab's routers, in the types of snapshots.
type routerReader struct{ *kindlab.Router } // whose Close it has

func (r routerReader) RIB(ctx context.Context) ([]snapshot.Path, error) {
	return converted(r.Router.RIB, toPath)(ctx)
}

func (r routerReader) FIB(ctx context.Context) ([]snapshot.Route, error) {
	return converted(r.Router.FIB, toRoute)(ctx)
}

func (r routerReader) Neighbors(ctx context.Context) ([]snapshot.Neighbor, error) {
	return converted(r.Router.Neighbors, toNeighbor)(ctx)
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
