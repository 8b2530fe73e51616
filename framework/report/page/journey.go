package page

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/detect/path"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/each"
)

type journey struct {
	packets string // the requests or the replies of a probe
	path.Path
}

// String says in one sentence where the packets end.
func (j journey) String() string {
	end, last := j.End, j.Hops[len(j.Hops)-1]
	switch {
	case end != "":
	case len(j.Unread) == len(j.Hops)-1:
		end = "no routes on the path were read"
	case len(j.Unread) > 0:
		unread := strings.Join(j.Unread, ", ")
		end = "the routes that were read lead to " + last + ", and the packets are lost (routes not read: " + unread + ")"
	default:
		end = "the routes lead to " + last + ", and the packets are lost"
	}
	return j.packets + ": " + end
}

// tracing follows the packets of a variant's probes through its snapshots.
type tracing struct {
	stored
	path.Tracer
	topology *report.Topology
	targets  map[string]netip.Addr // by endpoint
	on       map[string]string     // the member that an endpoint is on
}

func newTracing(t *report.Topology, s stored) tracing {
	all := tracing{
		stored: s, topology: t, Tracer: path.Tracer{Tables: s.after, Members: map[netip.Addr]string{}},
		targets: map[string]netip.Addr{}, on: map[string]string{},
	}
	if t == nil {
		all.topology = &report.Topology{}
	}
	for _, m := range all.topology.Members {
		for _, l := range m.Links {
			all.Members[l.Address] = m.Name
		}
	}
	for _, r := range s.traffic {
		if !all.targets[r.Probe.To].IsValid() { // a remedy may replace the pod later
			all.targets[r.Probe.To] = r.Target.Addr()
		}
	}
	for _, e := range s.Ends {
		// A server without an agent is on the member with its address.
		all.on[e.Name] = cmp.Or(e.On, all.Members[all.targets[e.Name]])
	}
	return all
}

// impacted are the first records of the probes that lose packets.
func (t tracing) impacted() []probe.Timeline {
	var all []probe.Timeline
	seen := map[string]bool{}
	for _, r := range t.traffic {
		if name := r.Probe.Name; slices.Contains(t.ProbesHurt, name) && !seen[name] {
			seen[name] = true
			all = append(all, r)
		}
	}
	return all
}

// journeys are the paths of the lost packets. Paths with a known end come first. Probes whose
// packets take the same path share one journey.
func (t tracing) journeys() []journey {
	var ended, open []journey
	for _, r := range t.impacted() {
		for _, j := range t.journeysOf(r) {
			all := &ended
			if j.End == "" {
				all = &open
			}
			same := func(o journey) bool {
				return slices.Equal(o.Expected, j.Expected) && slices.Equal(o.Hops, j.Hops) && o.End == j.End
			}
			if !slices.ContainsFunc(*all, same) {
				*all = append(*all, j)
			}
		}
	}
	return append(ended, open...)
}

// journeysOf are the journeys of a probe's requests, or of its replies if more of them were lost.
func (t tracing) journeysOf(r probe.Timeline) []journey {
	from, to, packets := r.Probe.From, r.Probe.To, "requests of "+r.Probe.Name
	counts := r.Counts()
	if counts.LostReply > counts.LostRequest {
		from, to, packets = to, from, "replies of "+r.Probe.Name
	}
	a, ok := t.member(t.on[from])
	if !ok {
		return nil
	}
	if from == r.Probe.From {
		if end := t.Service(a.Name, r.Target, transport(r.Probe.Protocol)); end != "" {
			alone := []string{a.Name}
			return []journey{{packets, path.Path{Expected: alone, Hops: alone, End: end}}}
		}
	}
	b, ok := t.member(t.on[to])
	if !ok || a.Name == b.Name || r.Probe.Protocol == probe.DNS {
		return nil
	}
	var all []journey
	for _, declared := range t.declared(a, b) {
		for _, p := range t.Trace(declared, t.targets[to]) {
			if p.End == "" && counts.Denied > 0 {
				p.End = to + " answers, and denies the request"
			}
			all = append(all, journey{packets, p})
		}
	}
	return all
}

func (t tracing) member(name string) (report.Member, bool) {
	return each.First(t.topology.Members, func(m report.Member) bool { return m.Name == name })
}

// declared are the paths that the topology declares between two members: direct, or over each
// router of the default route of from.
func (t tracing) declared(from, to report.Member) [][]string {
	if len(from.Via) == 0 || slices.ContainsFunc(from.Links, func(l report.Link) bool {
		return slices.ContainsFunc(to.Links, func(m report.Link) bool { return l.Network == m.Network })
	}) {
		return [][]string{{from.Name, to.Name}}
	}
	routers := each.Where(from.Via, func(router string) bool { _, ok := t.member(router); return ok })
	return each.Of(routers, func(router string) []string { return []string{from.Name, router, to.Name} })
}

func isDenied(t probe.Timeline) bool { return t.Counts().Denied > 0 }

func transport(p probe.Protocol) string {
	if p == probe.UDP || p == probe.UDPFlow || p == probe.UDPConnected {
		return "udp"
	}
	return "tcp"
}
