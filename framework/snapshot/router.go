package snapshot

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Router is what one BGP router says. Paths are read before Neighbors: a session that is up in
// Neighbors was up when its paths were read, or came up since.
type Router struct {
	Name string `json:"name"`
	// Role is what the router does in the network: empty for a top-of-rack switch, RoleSpine or
	// RoleRouteServer.
	Role string `json:"role,omitempty"`
	// Pods is set if somebody has said that the cluster's nodes announce their pod ranges to it.
	Pods bool `json:"pods,omitempty"`
	// Services is set if somebody has said that they announce addresses of Services alone to it.
	Services bool `json:"services,omitempty"`
	// Families are the address families that the router carries, ipv4 and ipv6, where that was declared; empty: both
	// may be.
	Families []string `json:"families,omitempty"`
	// RIBOnly is set if the way in which the router is read cannot give its FIB: Routes has
	// nothing, and was not to be read.
	RIBOnly bool `json:"rib_only,omitempty"`
	// IPv6 is set if Paths and Routes are of both families, and not of IPv4 alone; with NoIPv4 they
	// are of IPv6 alone.
	IPv6   bool `json:"ipv6,omitempty"`
	NoIPv4 bool `json:"no_ipv4,omitempty"`
	// At is when the router had what was read, where that is not the time of the snapshot: the time
	// of a table dump.
	At time.Time `json:"at,omitzero"`
	// VRFs are the VRFs with a BGP instance besides the default VRF. None of them is read.
	VRFs []string `json:"vrfs,omitempty"`
	// Remarks say what else must be known of how the router was read.
	Remarks   []Remark       `json:"remarks,omitempty"`
	Paths     List[Path]     `json:"paths"`     // the RIB
	Routes    List[Route]    `json:"routes"`    // the FIB
	Neighbors List[Neighbor] `json:"neighbors"` // the sessions
	// Links are the addresses of its links, with who answers for each: the neighbour table of its kernel.
	Links List[LinkNeighbor] `json:"links,omitzero"`
}

// Carries reports whether the router is to have routes to an address of a family, as far as that is said.
func (r Router) Carries(a netip.Addr) bool {
	family := map[bool]string{true: "ipv4", false: "ipv6"}[a.Is4()]
	return len(r.Families) == 0 || slices.Contains(r.Families, family)
}

// Remark is one sentence on how a router was read.
type Remark struct {
	Says string `json:"says"`
	// Open is set if a fault may be unseen for that reason.
	Open bool `json:"open,omitempty"`
}

const (
	// RoleSpine carries aggregates: what is inside one that it has learned from the cluster has a
	// route there.
	RoleSpine = "spine"
	// RoleRouteServer forwards no packets: its FIB has no meaning, and is not read.
	RoleRouteServer = "route-server"
)

// Routers is the source of what each BGP router says.
var Routers = perName("routers",
	func(o *opening) (map[string]RouterReader, error) { return o.access.Routers(o.ctx) }, routerReader,
	func(s *Snapshot) *[]Router { return &s.Routers })

func (r Router) parts() []part {
	all := []part{
		listPart("RIB of "+r.Name, r.Paths, func(p Path, to *statements) {
			if p.Best || p.Multipath {
				to.add(RIB, r.Name, p.Prefix.String(), to.nodes[p.NextHop], "next hop %s", to.named(p.NextHop))
			}
		}),
		listPart("sessions of "+r.Name, r.Neighbors, func(n Neighbor, to *statements) {
			to.add(BGP, r.Name, to.nameOf(n.Address), "", "session with %s (AS %d): %s", n.Address, n.AS, n.State)
		}),
	}
	if r.Links.Error != "" {
		all = append(all, listPart[LinkNeighbor]("neighbour table of "+r.Name, r.Links, nil))
	}
	if r.RIBOnly {
		return all
	}
	return slices.Insert(all, 1, listPart("FIB of "+r.Name, r.Routes, routeState(FIB, r.Name)))
}

// RouterDescriber is a RouterReader that reads in another way than a lab does.
type RouterDescriber interface {
	// Describe sets what is known of the router besides its lists, once these were read.
	Describe(*Router)
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
		if reader, reads := from.(LinkReader); reads {
			all.Go(func() { r.Links = list(ctx, reader.Links) })
		}
		all.Wait()
		if d, ok := from.(RouterDescriber); ok {
			d.Describe(&r)
		}
		if r.RIBOnly {
			r.Routes = List[Route]{}
		}
		return r
	}
}
