package page

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// drawing is a topology with the paths of the hurt probes in it.
type drawing struct {
	Width, Height int
	Networks      []drawnNetwork
	Boxes         []box
	Links         []segment
	Expected      []string // points of polylines
	Broken        []string
	Breaks        []point
	// Tells are where the paths break, one sentence each; More are those left out.
	Tells []string
	More  int
	Hurt  bool // whether any probe was hurt
}

type drawnNetwork struct {
	Name, Subnet string
	Y, Right     int
}

type box struct {
	X, Y, W, H int
	Name, Kind string
	Sub        string // what stands below the name
	Hurt       bool
}

type segment struct{ X1, Y1, X2, Y2 int }

type point struct{ X, Y int }

func (b box) CX() int    { return b.X + b.W/2 }
func (b box) CY() int    { return b.Y + b.H/2 }
func (b box) NameY() int { return b.Y + 18 }
func (b box) SubY() int  { return b.Y + 33 }

// Sizes in the drawing's own units, which are pixels where it is not scaled.
const (
	drawingWidth = 620
	boxHeight    = 42
	maxPaths     = 4
	pathWidth    = 16
	maxHops      = 8
)

// draw draws a topology, and in it the paths of a variant's hurt probes. It is nil
// for a report of before topologies were in it.
func draw(t *report.Topology, s stored) *drawing {
	if t == nil || len(t.Members) == 0 {
		return nil
	}
	d := &drawing{Width: drawingWidth, Hurt: len(s.ProbesHurt) > 0}
	places := d.place(t)
	d.paths(places, t, s)
	return d
}

// member is a member of the topology in its place.
type member struct {
	report.Member
	box *box
}

// place sets boxes and networks: networks of nodes below, the others above; what is
// on both between them, hosts on top, nodes at the bottom.
func (d *drawing) place(t *report.Topology) map[string]member {
	lower := map[string]bool{}
	for _, m := range t.Members {
		for _, l := range m.Links {
			if m.Kind == report.NodeMember {
				lower[l.Network] = true
			}
		}
	}
	var rows [3][]report.Member
	for _, m := range t.Members {
		row := 0
		switch {
		case m.Kind == report.NodeMember:
			row = 2
		case slices.ContainsFunc(m.Links, func(l report.Link) bool { return lower[l.Network] }):
			row = 1
		}
		rows[row] = append(rows[row], m)
	}
	y := 8
	tops := [3]int{}
	networks := map[string]int{}
	line := func(isLower bool) {
		for _, n := range t.Networks {
			if lower[n.Name] == isLower {
				networks[n.Name] = y + 20
				d.Networks = append(d.Networks, drawnNetwork{Name: n.Name, Subnet: n.Subnet.String(), Y: y + 20, Right: drawingWidth - 8})
				y += 26
			}
		}
		y += 16
	}
	for row := range rows {
		if tops[row] = y; len(rows[row]) > 0 {
			y += boxHeight
		}
		switch {
		case row == 0 && len(lower) < len(t.Networks):
			line(false)
		case row == 1:
			line(true)
		}
	}
	d.Height = y + 8
	places := map[string]member{}
	total := len(t.Members)
	d.Boxes = make([]box, 0, total) // which places point into
	for row, members := range rows {
		for i, m := range members {
			slot := drawingWidth / len(members)
			w := min(132, slot-8)
			b := box{X: i*slot + (slot-w)/2, Y: tops[row], W: w, H: boxHeight, Name: m.Name, Kind: m.Kind}
			if len(m.Links) > 0 {
				b.Sub = m.Links[0].Address.String()
			}
			d.Boxes = append(d.Boxes, b)
			placed := &d.Boxes[len(d.Boxes)-1]
			places[m.Name] = member{m, placed}
			for j, l := range m.Links {
				y, there := networks[l.Network]
				if !there {
					continue
				}
				x := placed.CX() + 10*j
				from := placed.Y
				if y > placed.Y {
					from = placed.Y + placed.H
				}
				d.Links = append(d.Links, segment{x, from, x, y})
			}
		}
	}
	return places
}

// journey is where a probe's packets go, member by member.
type journey struct {
	probe    string
	expected []string
	actual   []string
	why      string // what ends the actual one early; empty where tables lead to the end
}

// paths draws where packets of hurt probes were to go and where they went.
func (d *drawing) paths(places map[string]member, t *report.Topology, s stored) {
	addresses := map[string]netip.Addr{}
	for _, r := range s.timelines {
		if !addresses[r.To].IsValid() { // later ones may be of pods that a remedy has made anew
			addresses[r.To] = r.Target.Addr()
		}
	}
	on := map[string]string{}
	for _, e := range s.Ends {
		// A server that only answers is where its address is.
		on[e.Name] = cmp.Or(e.On, memberAt(t, addresses[e.Name]))
	}
	var journeys []journey
	seen := map[string]bool{}
	for _, r := range s.timelines {
		if !slices.Contains(s.ProbesHurt, r.Probe) || seen[r.Probe] {
			continue
		}
		seen[r.Probe] = true
		for _, end := range []string{r.From, r.To} {
			if m, there := places[on[end]]; there {
				m.box.Hurt = true
			}
		}
		from, to, way := r.From, r.To, "requests of "+r.Probe
		if requests, replies := lostSides(r); replies > requests {
			from, to, way = to, from, "replies of "+r.Probe
		}
		a, b := places[on[from]], places[on[to]]
		if a.box != nil && from == r.From {
			if why, done := translated(s.after, a.Name, r); done {
				journeys = append(journeys, journey{probe: way, expected: []string{a.Name}, actual: []string{a.Name}, why: why})
				continue
			}
		}
		if a.box == nil || b.box == nil || a.Name == b.Name || r.Protocol == probe.DNS {
			continue
		}
		for _, j := range ways(t, s.after, a.Member, b.Member, addresses[to]) {
			j.probe = way
			if j.why == "" && denied(r) {
				j.why = to + " answers, and turns the client away"
			}
			nowhere := func(name string) bool { return places[name].box == nil }
			if !slices.ContainsFunc(slices.Concat(j.expected, j.actual), nowhere) {
				journeys = append(journeys, j)
			}
		}
	}
	// What says where it breaks comes first, and of each way one.
	slices.SortStableFunc(journeys, func(x, y journey) int { return level(x.why == "") - level(y.why == "") })
	ways := map[string]bool{}
	for _, j := range journeys {
		way := strings.Join(j.expected, ">") + "|" + strings.Join(j.actual, ">") + j.why
		switch {
		case ways[way]:
			continue
		case len(ways) == maxPaths:
			d.More++
			continue
		}
		n := len(ways)
		ways[way] = true
		shift := pathWidth * (2*n - 3) / 2
		d.Expected = append(d.Expected, d.line(places, j.expected, shift-pathWidth/3))
		d.Broken = append(d.Broken, d.line(places, j.actual, shift))
		last := places[j.actual[len(j.actual)-1]].box
		at := point{last.CX() + shift, last.Y}
		if len(j.actual) > 1 && places[j.actual[len(j.actual)-2]].box.Y > last.Y {
			at.Y = last.Y + last.H
		}
		d.Breaks = append(d.Breaks, at)
		if j.why == "" {
			j.why = "the tables lead to " + j.actual[len(j.actual)-1] + ", and the packets are lost all the same"
		}
		d.Tells = append(d.Tells, j.probe+": "+j.why)
	}
}

// denied tells whether a probe's server has turned it away.
func denied(r probe.Record) bool {
	return slices.ContainsFunc(r.Windows, func(w probe.Window) bool { return w.Denied > 0 })
}

func lostSides(r probe.Record) (requests, replies int) {
	for _, w := range r.Windows {
		requests, replies = requests+w.LostRequest, replies+w.LostReply
	}
	return requests, replies
}

// ways are the journeys from one member to another, one for each router that the
// first one may send to.
func ways(t *report.Topology, s *snapshot.Snapshot, from, to report.Member, target netip.Addr) []journey {
	firsts := []string{""}
	if !share(from, to) && len(from.Via) > 0 {
		firsts = from.Via
	}
	var all []journey
	for _, first := range firsts {
		expected := declared(t, from, to, first)
		for _, one := range follow(t, s, expected, target) {
			one.expected = expected
			all = append(all, one)
		}
	}
	return all
}

// declared is the way that the topology means: straight, or over a router.
func declared(t *report.Topology, from, to report.Member, first string) []string {
	if first == "" {
		return []string{from.Name, to.Name}
	}
	return []string{from.Name, first, to.Name}
}

// follow goes from member to member as their tables say, and along each next hop where a
// route has several. Where a table was not read the way is the expected one.
func follow(t *report.Topology, s *snapshot.Snapshot, expected []string, target netip.Addr) []journey {
	return onward(t, s, expected, target, expected[:1])
}

// onward are the ways on from the end of one.
func onward(t *report.Topology, s *snapshot.Snapshot, expected []string, target netip.Addr, way []string) []journey {
	at := way[len(way)-1]
	ends := func(why string) []journey { return []journey{{actual: way, why: why}} }
	if at == expected[len(expected)-1] {
		return ends("")
	}
	if len(way) == maxHops {
		return ends("they go on without end")
	}
	nexts, known := hops(t, s, at, target)
	if i := slices.Index(expected, at); !known && i < 0 {
		from := way[len(way)-2]
		meant := expected[min(slices.Index(expected, from)+1, len(expected)-1)]
		return ends(fmt.Sprintf("%s sends them to %s instead of %s; what %s does with them was not read", from, at, meant, at))
	} else if !known {
		nexts = []next{{to: expected[i+1]}}
	}
	var all []journey
	for _, n := range nexts {
		switch longer := append(slices.Clone(way), n.to); {
		case n.why != "":
			all = append(all, ends(n.why)...)
		case n.to == at: // to a device of its own
			all = append(all, ends(fmt.Sprintf("%s takes %s for its own", at, target))...)
		case slices.Contains(way, n.to):
			all = append(all, journey{actual: longer, why: fmt.Sprintf("they go round between %s and %s", at, n.to)})
		default:
			all = append(all, onward(t, s, expected, target, longer)...)
		}
	}
	return all
}

// next is where a member sends packets, or why it sends them nowhere.
type next struct{ to, why string }

// hops are where a member sends what is for an address, if its table was read: several
// where its route has several next hops.
func hops(t *report.Topology, s *snapshot.Snapshot, at string, target netip.Addr) (nexts []next, known bool) {
	routes, read := tableOf(s, at)
	if !read || !target.IsValid() {
		return nil, false
	}
	var best *snapshot.Route
	for i, r := range routes {
		if r.Prefix.Contains(target) && (best == nil || r.Prefix.Bits() > best.Prefix.Bits() ||
			r.Prefix.Bits() == best.Prefix.Bits() && r.Metric < best.Metric) {
			best = &routes[i]
		}
	}
	switch {
	case best == nil:
		return []next{{why: fmt.Sprintf("%s has no route to %s", at, target)}}, true
	case len(best.NextHops) == 0:
		return []next{{why: fmt.Sprintf("%s has no route to %s (%s %s)", at, target, best.Type, best.Prefix)}}, true
	}
	for _, h := range best.NextHops {
		switch name := memberAt(t, cmp.Or(h.Address, target)); {
		case name != "":
			nexts = append(nexts, next{to: name})
		case !h.Address.IsValid():
			nexts = append(nexts, next{to: at})
		default:
			nexts = append(nexts, next{why: fmt.Sprintf("%s sends %s to %s, which is nobody's address", at, target, h.Address)})
		}
	}
	return nexts, true
}

// translated is where a node's IPVS table ends a way to the address of a Service, and
// why; done is false where there is no such table, or packets find a server in it that
// Kubernetes knows as well.
func translated(s *snapshot.Snapshot, node string, r probe.Record) (why string, done bool) {
	if s == nil {
		return "", false
	}
	i := slices.IndexFunc(s.Proxies, func(p snapshot.Proxy) bool { return p.Node == node && p.Read && p.Mode == "ipvs" })
	if i < 0 {
		return "", false
	}
	service := slices.IndexFunc(s.Services.Items, func(s snapshot.Service) bool { return slices.Contains(s.ClusterIPs, r.Target.Addr()) })
	if service < 0 || !s.EndpointSlices.Read {
		return "", false
	}
	own := s.Services.Items[service]
	var ready []netip.Addr
	for _, e := range s.EndpointSlices.Items {
		if e.Namespace == own.Namespace && e.Service == own.Name {
			ready = append(ready, e.Ready...)
		}
	}
	at := slices.IndexFunc(s.Proxies[i].Table, func(v snapshot.VirtualServer) bool {
		return v.Address == r.Target && strings.EqualFold(v.Protocol, string(transport(r.Protocol)))
	})
	if at < 0 {
		return fmt.Sprintf("%s has no IPVS service %s (%s)", node, r.Target, own), true
	}
	var to, gone []string
	for _, server := range s.Proxies[i].Table[at].Servers {
		if server.Weight == 0 {
			continue
		}
		to = append(to, server.Address.String())
		if !slices.Contains(ready, server.Address.Addr()) {
			gone = append(gone, server.Address.String())
		}
	}
	known := "none"
	if len(ready) > 0 {
		known = fmt.Sprint(ready)
	}
	switch {
	case len(to) == 0:
		return fmt.Sprintf("%s has no server behind %s (%s) in IPVS; ready endpoints: %s", node, r.Target, own, known), true
	case len(gone) == len(to):
		return fmt.Sprintf("%s sends %s (%s) to %s by IPVS, where no ready endpoint is: those are %s", node, r.Target, own, strings.Join(gone, " and "), known), true
	}
	return "", false
}

// transport is the protocol that carries a probe's.
func transport(p probe.Protocol) probe.Protocol {
	if p == probe.UDP {
		return p
	}
	return probe.TCP
}

// memberAt is the member that has an address; empty where none has.
func memberAt(t *report.Topology, a netip.Addr) string {
	for _, m := range t.Members {
		if a.IsValid() && slices.ContainsFunc(m.Links, func(l report.Link) bool { return l.Address == a }) {
			return m.Name
		}
	}
	return ""
}

// tableOf is the routing table of a router or node in a snapshot, if it was read.
func tableOf(s *snapshot.Snapshot, name string) ([]snapshot.Route, bool) {
	if s == nil {
		return nil, false
	}
	for _, r := range s.Routers {
		if r.Name == name {
			return r.Routes.Items, r.Routes.Read
		}
	}
	for _, n := range s.NodeTables {
		if n.Node == name {
			return n.Routes.Items, n.Routes.Read
		}
	}
	return nil, false
}

func share(a, b report.Member) bool { return sharedNetwork(a, b) != "" }

func sharedNetwork(a, b report.Member) string {
	for _, l := range a.Links {
		for _, m := range b.Links {
			if l.Network == m.Network {
				return l.Network
			}
		}
	}
	return ""
}

// line goes along networks from box to box. Lines of different paths lie side by
// side.
func (d *drawing) line(places map[string]member, way []string, shift int) string {
	var points []string
	add := func(x, y int) { points = append(points, fmt.Sprintf("%d,%d", x, y)) }
	for i, name := range way {
		b := places[name].box
		if i > 0 {
			before := places[way[i-1]]
			y := (before.box.CY() + b.CY()) / 2
			network := sharedNetwork(before.Member, places[name].Member)
			for _, drawn := range d.Networks {
				if drawn.Name == network {
					y = drawn.Y
				}
			}
			add(before.box.CX()+shift, y+shift/2)
			add(b.CX()+shift, y+shift/2)
		}
		add(b.CX()+shift, b.CY())
	}
	return strings.Join(points, " ")
}
