package upgrade

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// routersOf is what each router learned in a time, by all polls, without passing prefixes.
func routersOf(t topology.Topology, polls []history.Poll, s span, passing func(netip.Prefix) bool) []Router {
	all := []Router{}
	for _, declared := range t.Routers {
		r := Router{
			Name: declared.Name, Due: int(s.ended.Sub(s.began) / pollEvery),
			Withdrawals: []string{}, NextHops: []string{}, Resets: []string{}, TwoOrigins: []string{}, Events: []RouterEvent{},
		}
		var last *state                 // of the poll before
		var alone map[netip.Prefix]bool // whether a prefix had one origin in the first poll
		for _, poll := range polls {
			now, read := stateOf(t, poll, declared.Name)
			if !read || !poll.Began.Before(s.ended) {
				continue
			}
			for prefix := range now.origins {
				if passing(prefix) {
					delete(now.origins, prefix)
					delete(now.hops, prefix)
				}
			}
			if poll.Began.Before(s.began) {
				last = &now
				continue
			}
			r.Polls++
			if last == nil { // in the first poll
				last = &now
			}
			if alone == nil {
				alone = map[netip.Prefix]bool{}
				for prefix, origins := range last.origins {
					alone[prefix] = len(origins) == 1
				}
			}
			r.compare(t, *last, now, alone)
			last = &now
		}
		for _, list := range []*[]string{&r.Withdrawals, &r.NextHops, &r.Resets, &r.TwoOrigins, &r.Answerers, &r.TwoAnswerers} {
			slices.Sort(*list)
			*list = slices.Compact(*list)
		}
		all = append(all, r)
	}
	return all
}

type state struct {
	at time.Time
	// hops are the next hops of each prefix, and origins the neighbours that announce it.
	hops, origins map[netip.Prefix][]netip.Addr
	sessions      map[netip.Addr]time.Time
	// answerers are the nodes that answer for addresses on the router's links; two has since when several stations do.
	answerers map[netip.Addr]string
	two       map[netip.Addr]time.Time
	stations  map[netip.Addr]string
}

// stateOf is the state of a router in a poll; false if the router was not read.
func stateOf(t topology.Topology, poll history.Poll, name string) (state, bool) {
	router, _ := each.First(poll.Routers, func(r snapshot.Router) bool { return r.Name == name })
	if !router.Paths.Read || !router.Neighbors.Read {
		return state{}, false
	}
	s := state{
		at: poll.Began, hops: map[netip.Prefix][]netip.Addr{}, origins: map[netip.Prefix][]netip.Addr{},
		sessions: map[netip.Addr]time.Time{}, two: map[netip.Addr]time.Time{},
	}
	links := linksOf(t, router.Links.Items)
	s.answerers, s.stations = links.entries, links.two(poll.Began)
	for _, p := range router.Paths.Items {
		s.origins[p.Prefix] = sorted(append(s.origins[p.Prefix], p.Neighbor))
		if p.Best || p.Multipath {
			s.hops[p.Prefix] = sorted(append(s.hops[p.Prefix], p.NextHop))
		}
	}
	for _, n := range router.Neighbors.Items {
		if n.State == snapshot.SessionEstablished {
			s.sessions[n.Address] = n.Established
		}
	}
	return s, true
}

// keeping says which routers keep a node's routes although they have no session with it; empty if no router does.
func keeping(t topology.Topology, poll history.Poll, node string) string {
	var all []string
	for _, router := range t.Routers {
		s, read := stateOf(t, poll, router.Name)
		if !read {
			all = append(all, router.Name+" was not read")
			continue
		}
		for _, n := range nodeAddresses(t, node) {
			if _, up := s.sessions[n]; up {
				continue
			}
			for _, prefix := range keysOf(netip.Prefix.Compare, s.origins) {
				if slices.Contains(s.origins[prefix], n) {
					all = append(all, fmt.Sprintf("%s has %s without a session", router.Name, prefix))
				}
			}
		}
	}
	return strings.Join(all, "; ")
}

func nodeAddresses(t topology.Topology, node string) []netip.Addr {
	var all []netip.Addr
	m, _ := t.Member(node)
	for _, l := range m.Links {
		for _, f := range t.Families() {
			all = append(all, f.Addr(l.Address))
		}
	}
	return all
}

func sorted(addresses []netip.Addr) []netip.Addr {
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses)
}

// twoFor is how long several stations may answer for an address in a change from one to another.
const twoFor = 3 * time.Second

// compare adds the changes from one poll to the next. alone says of the first poll's prefixes whether each had one
// origin; other prefixes had none.
func (r *Router) compare(t topology.Topology, before, now state, alone map[netip.Prefix]bool) {
	event := func(format string, args ...any) {
		r.Events = append(r.Events, RouterEvent{At: now.at, Says: fmt.Sprintf(format, args...)})
	}
	for _, prefix := range keysOf(netip.Prefix.Compare, before.origins, now.origins) {
		name := prefix.String()
		switch has, had := len(now.origins[prefix]) > 0, len(before.origins[prefix]) > 0; {
		case had && !has:
			r.Withdrawals = append(r.Withdrawals, name)
			event("%s is withdrawn", name)
		case has && !had:
			event("%s is announced by %s", name, namesOf(t, now.origins[prefix]))
		case has && had && !slices.Equal(before.hops[prefix], now.hops[prefix]):
			r.NextHops = append(r.NextHops, name)
			event("%s has the next hops %s, and had %s", name, namesOf(t, now.hops[prefix]), namesOf(t, before.hops[prefix]))
		}
		if one, found := alone[prefix]; len(now.origins[prefix]) > 1 && (one || !found) {
			r.TwoOrigins = append(r.TwoOrigins, name)
			if len(before.origins[prefix]) < 2 {
				event("%s is announced by %s", name, namesOf(t, now.origins[prefix]))
			}
		}
	}
	for address, stations := range now.stations {
		since, was := before.two[address]
		if !was {
			since = now.at
		}
		now.two[address] = since
		if lasts := now.at.Sub(since); lasts >= twoFor && before.at.Sub(since) < twoFor {
			r.TwoAnswerers = append(r.TwoAnswerers, address.String())
			event("%s is answered for by %s at once", address, stations)
		}
	}
	for _, address := range keysOf(netip.Addr.Compare, now.answerers) {
		if oldAnswerer, answerer := before.answerers[address], now.answerers[address]; oldAnswerer != "" && answerer != oldAnswerer {
			r.Answerers = append(r.Answerers, address.String())
			event("%s is answered for by %s, and was by %s", address, answerer, oldAnswerer)
		}
	}
	for _, address := range keysOf(netip.Addr.Compare, before.sessions, now.sessions) {
		old, had := before.sessions[address]
		established, has := now.sessions[address]
		switch name := namesOf(t, []netip.Addr{address}); {
		case had && !has:
			r.Resets = append(r.Resets, name)
			event("the session with %s is down", name)
		case had && !established.Equal(old):
			r.Resets = append(r.Resets, name)
			event("the session with %s was reset, and is up again", name)
		case has && !had:
			event("the session with %s is up", name)
		}
	}
}

func keysOf[K comparable, V any](compare func(a, b K) int, sets ...map[K]V) []K {
	var all []K
	for _, m := range sets {
		all = slices.AppendSeq(all, maps.Keys(m))
	}
	slices.SortFunc(all, compare)
	return slices.Compact(all)
}

func namesOf(t topology.Topology, addresses []netip.Addr) string {
	var names []string
	for _, a := range addresses {
		name := a.String()
		for _, n := range t.Nodes() {
			if slices.Contains(nodeAddresses(t, n.Name), a) {
				name = n.Name
			}
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return "no neighbour"
	}
	return strings.Join(names, ", ")
}
