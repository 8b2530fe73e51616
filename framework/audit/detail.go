package audit

import (
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Command is a command line, for a shell, that shows what a finding is based on. It changes
// nothing.
type Command struct {
	// On is the router on which it is run; empty: where the audit ran.
	On  string `json:"on,omitempty"`
	Run string `json:"run"`
}

// Reached is how a cluster and its routers are reached by hand.
type Reached struct {
	// Kubectl are the flags of kubectl that name the cluster.
	Kubectl []string
	// Routers are declared in the file of routers. What is run on others is told with their names.
	Routers []bgprouter.Declared
}

// mostLayers is how many statements of layers a finding has at most.
const mostLayers = 30

// Detail adds to each finding what each layer says of its object, and the commands that show it
// again. Both are of the last read.
func (r *Result) Detail(last snapshot.Snapshot, by Reached) {
	var findings []*Finding
	for _, all := range [][]Finding{r.Findings, r.Once} {
		for i := range all {
			findings = append(findings, &all[i])
		}
	}
	if len(findings) == 0 {
		return
	}
	statements := about(last, findings).Statements()
	for _, f := range findings {
		d := detail{f.Finding, last, by}
		also := d.related()
		for _, s := range append(statements, d.nothing()...) {
			switch {
			case !f.Concerns(s) && !slices.Contains(also, s.Object):
			case len(f.Layers) == mostLayers:
				f.MoreLayers++
			default:
				f.Layers = append(f.Layers, s)
			}
		}
		slices.SortStableFunc(f.Layers, func(a, b snapshot.Statement) int {
			return slices.Index(snapshot.Layers, a.Layer) - slices.Index(snapshot.Layers, b.Layer)
		})
		if show, known := shows[f.Detector]; known {
			f.Again = show(d)
		}
	}
}

// about is a read with the routes to the objects of findings alone: there may be a million
// others, and each would become a statement.
func about(s snapshot.Snapshot, findings []*Finding) snapshot.Snapshot {
	objects := map[netip.Prefix]bool{}
	for _, f := range findings {
		if p, is := f.Object.Prefix(); is {
			objects[p] = true
		}
	}
	s.Routers = slices.Clone(s.Routers)
	for i := range s.Routers {
		router := &s.Routers[i]
		router.Paths.Items = each.Where(router.Paths.Items, func(p snapshot.Path) bool { return objects[p.Prefix] })
		router.Routes.Items = each.Where(router.Routes.Items, func(r snapshot.Route) bool { return objects[r.Prefix] })
	}
	return s
}

type detail struct {
	detect.Finding
	read snapshot.Snapshot
	by   Reached
}

// nothing says which of the finding's routers have no route to its object.
func (d detail) nothing() []snapshot.Statement {
	p, is := d.Object.Prefix()
	if !is {
		return nil
	}
	var all []snapshot.Statement
	for _, r := range d.read.Routers {
		if !slices.Contains(d.Routers, r.Name) {
			continue
		}
		if r.Paths.Read && !slices.ContainsFunc(r.Paths.Items, func(o snapshot.Path) bool { return o.Prefix == p }) {
			all = append(all, snapshot.Statement{Layer: snapshot.RIB, Where: r.Name, Object: p.String(), Says: "no route"})
		}
		if r.Routes.Read && !r.RIBOnly && r.Role != snapshot.RoleRouteServer &&
			!slices.ContainsFunc(r.Routes.Items, func(o snapshot.Route) bool { return o.Prefix == p }) {
			all = append(all, snapshot.Statement{Layer: snapshot.FIB, Where: r.Name, Object: p.String(), Says: "no route"})
		}
	}
	return all
}

// related are objects of statements that a finding's object, an address of a Service, stands for:
// the Service, and the ranges from which it is announced.
func (d detail) related() []string {
	services := d.services()
	if len(services) == 0 {
		return nil
	}
	p, _ := d.Object.Prefix()
	all := each.Of(services, snapshot.Service.String)
	for _, b := range d.read.BGPAdvertisements.Items {
		for _, r := range b.Ranges {
			if r.Contains(p.Addr()) {
				all = append(all, r.First.String()+"-"+r.Last.String())
			}
		}
	}
	return all
}

// services have the finding's object as an address.
func (d detail) services() []snapshot.Service {
	p, is := d.Object.Prefix()
	if !is || !p.IsSingleIP() {
		return nil
	}
	return each.Where(d.read.Services.Items, func(s snapshot.Service) bool { return slices.Contains(s.LoadBalancerIPs, p.Addr()) })
}
