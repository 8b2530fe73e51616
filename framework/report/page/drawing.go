package page

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/report"
)

// drawing is a topology with the paths of the lost packets in it.
type drawing struct {
	Width, Height int
	Networks      []drawnNetwork
	Boxes         []box
	Links         []segment
	Expected      []string // points of polylines
	Broken        []string
	Breaks        []point
	// Ends say where the drawn paths end, one sentence each; More is how many paths are left out.
	Ends     []string
	More     int
	Impacted bool // whether any probe loses packets
}

type drawnNetwork struct {
	Name, Subnet string
	Y, Right     int
}

type box struct {
	X, Y, W, H int
	Name, Kind string
	Sub        string // the line below the name
	Impacted   bool
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
)

// draw draws a topology with the paths of lost packets; nil without a topology.
func draw(s stored, t tracing) *drawing {
	members := t.topology.Members
	if len(members) == 0 {
		return nil
	}
	d := &drawing{Width: drawingWidth, Impacted: len(s.ProbesHurt) > 0}
	places := d.place(t.topology)
	for _, r := range t.impacted() {
		for _, end := range []string{r.Probe.From, r.Probe.To} {
			if m, there := places[t.on[end]]; there {
				m.box.Impacted = true
			}
		}
	}
	journeys := t.journeys()
	d.More = max(0, len(journeys)-maxPaths)
	for n, j := range journeys[:len(journeys)-d.More] {
		d.add(places, n, j)
	}
	return d
}

type member struct {
	report.Member
	box *box
}

// place places boxes and networks from top to bottom: hosts, other networks, members of
// both kinds of networks, networks of nodes, nodes.
func (d *drawing) place(t *report.Topology) map[string]member {
	rows, lower := rowsOf(t)
	networks := map[string]int{}
	y := 8
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
	var tops [len(rows)]int
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
	d.Boxes = make([]box, 0, len(t.Members)) // which places point into
	for row, members := range rows {
		slot := drawingWidth / max(1, len(members))
		for i, m := range members {
			places[m.Name] = member{m, d.attach(m, i*slot, tops[row], slot, networks)}
		}
	}
	return places
}

// rowsOf sorts the members into rows from top to bottom; lower are the networks of nodes.
func rowsOf(t *report.Topology) (rows [3][]report.Member, lower map[string]bool) {
	lower = map[string]bool{}
	for _, m := range t.Members {
		for _, l := range m.Links {
			if m.Kind == report.NodeMember {
				lower[l.Network] = true
			}
		}
	}
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
	return rows, lower
}

// attach draws a member into a slot, and its links to the networks, which are at those heights.
func (d *drawing) attach(m report.Member, x, y, slot int, networks map[string]int) *box {
	w := min(132, slot-8)
	b := box{X: x + (slot-w)/2, Y: y, W: w, H: boxHeight, Name: m.Name, Kind: m.Kind}
	if len(m.Links) > 0 {
		b.Sub = m.Links[0].Address.String()
	}
	if m.Software != "" {
		b.Sub += " " + m.Software
	}
	for i, l := range m.Links {
		network, there := networks[l.Network]
		if !there {
			continue
		}
		from := b.Y
		if network > b.Y {
			from = b.Y + b.H
		}
		d.Links = append(d.Links, segment{b.CX() + 10*i, from, b.CX() + 10*i, network})
	}
	d.Boxes = append(d.Boxes, b)
	return &d.Boxes[len(d.Boxes)-1]
}

func (d *drawing) add(places map[string]member, n int, j journey) {
	shift := pathWidth * (2*n - 3) / 2
	d.Expected = append(d.Expected, d.line(places, j.Expected, shift-pathWidth/3))
	d.Broken = append(d.Broken, d.line(places, j.Hops, shift))
	last := places[j.Hops[len(j.Hops)-1]].box
	at := point{last.CX() + shift, last.Y}
	if len(j.Hops) > 1 && places[j.Hops[len(j.Hops)-2]].box.Y > last.Y {
		at.Y = last.Y + last.H
	}
	d.Breaks = append(d.Breaks, at)
	d.Ends = append(d.Ends, j.String())
}

// line goes along networks from box to box. Lines of different paths lie side by side.
func (d *drawing) line(places map[string]member, hops []string, shift int) string {
	var points []string
	add := func(x, y int) { points = append(points, fmt.Sprintf("%d,%d", x, y)) }
	for i, name := range hops {
		b := places[name].box
		if i > 0 {
			before := places[hops[i-1]]
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
