package snapshot

import (
	"context"
	"sync"

	"github.com/relapse-dev/relapse/topology/lab/router"
)

// The types in which routers answer are those of package router.
type (
	// Path is one path of a router's RIB.
	Path = router.Path
	// Route is one route of a kernel's main table.
	Route = router.Route
	// NextHop is where a route leads.
	NextHop = router.NextHop
	// Neighbor is a BGP session, as the router sees it.
	Neighbor = router.Neighbor
)

// Router is what one BGP router says. Paths are read before Neighbors: a
// session that is up in Neighbors was up when its paths were read, or came up
// since.
type Router struct {
	Name      string         `json:"name"`
	Paths     List[Path]     `json:"paths"`     // the RIB
	Routes    List[Route]    `json:"routes"`    // the FIB
	Neighbors List[Neighbor] `json:"neighbors"` // the sessions
}

// Routers is the source of what each BGP router says.
var Routers = perName("routers", 0,
	func(o *opening) (map[string]RouterReader, error) { return o.access.Routers(o.ctx) }, routerReader,
	func(s *Snapshot) *[]Router { return &s.Routers })

func (r Router) unread(say sayUnread) {
	say("RIB of "+r.Name, r.Paths.Read, r.Paths.Error)
	say("FIB of "+r.Name, r.Routes.Read, r.Routes.Error)
	say("sessions of "+r.Name, r.Neighbors.Read, r.Neighbors.Error)
}

func routerReader(name string, from RouterReader) func(context.Context) Router {
	return func(ctx context.Context) Router {
		r := Router{Name: name}
		var all sync.WaitGroup
		all.Go(func() {
			r.Paths = list(ctx, from.RIB)
			r.Neighbors = list(ctx, from.Neighbors) // after Paths: see Router
		})
		all.Go(func() { r.Routes = list(ctx, from.FIB) })
		all.Wait()
		return r
	}
}
