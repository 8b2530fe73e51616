package snapshot

import (
	"context"
	"sync"
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

func (Router) names(*Names) {} // routers are members of the topology, which are replaced by it

func (r Router) parts() []part {
	return []part{
		listPart("RIB of "+r.Name, r.Paths, func(p Path, to *statements) {
			if p.Best || p.Multipath {
				to.add(RIB, r.Name, p.Prefix.String(), to.nodes[p.NextHop], "next hop %s", to.named(p.NextHop))
			}
		}),
		listPart("FIB of "+r.Name, r.Routes, routeState(FIB, r.Name)),
		listPart("sessions of "+r.Name, r.Neighbors, func(n Neighbor, to *statements) {
			to.add(BGP, r.Name, to.nameOf(n.Address), "", "session with %s (AS %d): %s", n.Address, n.AS, n.State)
		}),
	}
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
