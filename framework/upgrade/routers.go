package upgrade

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
)

// routersOf is what each router of a lab saw in a time, of all looks that there were.
func routersOf(t topology.Topology, looks []snapshot.Snapshot, s span) []Router {
	all := []Router{}
	for _, declared := range t.Routers {
		r := Router{
			Name: declared.Name, Due: int(s.ended.Sub(s.began) / lookEvery),
			Withdrawals: []string{}, NextHops: []string{}, Resets: []string{}, TwoOrigins: []string{}, Events: []RouterEvent{},
		}
		var last *seen // the newest look before the one that is compared
		var alone map[netip.Prefix]bool
		for _, look := range looks {
			now, read := seenBy(look, declared.Name)
			if !read || !look.Time.Before(s.ended) {
				continue
			}
			if look.Time.Before(s.began) {
				last = &now
				continue
			}
			r.Looks++
			if last == nil { // nothing came before
				last = &now
			}
			if alone == nil {
				alone = last.alone()
			}
			r.compare(t, *last, now, alone)
			last = &now
		}
		for _, list := range []*[]string{&r.Withdrawals, &r.NextHops, &r.Resets, &r.TwoOrigins} {
			slices.Sort(*list)
			*list = slices.Compact(*list)
		}
		all = append(all, r)
	}
	return all
}

// seen is one router's state at one look.
type seen struct {
	at time.Time
	// hops are where it sends a prefix, and origins who announces it.
	hops, origins map[netip.Prefix][]netip.Addr
	// sessions are those that are up, with the moment from which on they are.
	sessions map[netip.Addr]time.Time
}

// seenBy is what a router said in a look; false if it was not read.
func seenBy(look snapshot.Snapshot, name string) (seen, bool) {
	i := slices.IndexFunc(look.Routers, func(r snapshot.Router) bool { return r.Name == name })
	if i < 0 || !look.Routers[i].Paths.Read || !look.Routers[i].Neighbors.Read {
		return seen{}, false
	}
	s := seen{
		at: look.Time, hops: map[netip.Prefix][]netip.Addr{}, origins: map[netip.Prefix][]netip.Addr{},
		sessions: map[netip.Addr]time.Time{},
	}
	for _, p := range look.Routers[i].Paths.Items {
		s.origins[p.Prefix] = sorted(append(s.origins[p.Prefix], p.Neighbor))
		if p.Best || p.Multipath {
			s.hops[p.Prefix] = sorted(append(s.hops[p.Prefix], p.NextHop))
		}
	}
	for _, n := range look.Routers[i].Neighbors.Items {
		if n.State == snapshot.SessionEstablished {
			s.sessions[n.Address] = n.Established
		}
	}
	return s, true
}

// sorted are addresses in their order, each once.
func sorted(addresses []netip.Addr) []netip.Addr {
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses)
}

// alone are the prefixes that one node alone announces.
func (s seen) alone() map[netip.Prefix]bool {
	alone := map[netip.Prefix]bool{}
	for prefix, origins := range s.origins {
		alone[prefix] = len(origins) == 1
	}
	return alone
}

// compare notes what is another way than at the look before. Alone are the prefixes
// that had one origin to begin with; one that was not there had none.
func (r *Router) compare(t topology.Topology, before, now seen, alone map[netip.Prefix]bool) {
	event := func(format string, args ...any) {
		r.Events = append(r.Events, RouterEvent{At: now.at, Says: fmt.Sprintf(format, args...)})
	}
	for _, prefix := range prefixesOf(before.origins, now.origins) {
		name := prefix.String()
		switch is, was := len(now.origins[prefix]) > 0, len(before.origins[prefix]) > 0; {
		case was && !is:
			r.Withdrawals = append(r.Withdrawals, name)
			event("%s is withdrawn", name)
		case is && !was:
			event("%s is announced by %s", name, namesOf(t, now.origins[prefix]))
		case is && was && !slices.Equal(before.hops[prefix], now.hops[prefix]):
			r.NextHops = append(r.NextHops, name)
			event("%s goes by way of %s, and went by way of %s", name, namesOf(t, now.hops[prefix]), namesOf(t, before.hops[prefix]))
		}
		if there, known := alone[prefix]; len(now.origins[prefix]) > 1 && (there || !known) {
			r.TwoOrigins = append(r.TwoOrigins, name)
			if len(before.origins[prefix]) < 2 {
				event("%s is announced by %s", name, namesOf(t, now.origins[prefix]))
			}
		}
	}
	for _, address := range addressesOf(before.sessions, now.sessions) {
		since, was := before.sessions[address]
		anew, is := now.sessions[address]
		switch name := namesOf(t, []netip.Addr{address}); {
		case was && !is:
			r.Resets = append(r.Resets, name)
			event("the session with %s is down", name)
		case was && !anew.Equal(since):
			r.Resets = append(r.Resets, name)
			event("the session with %s is another one", name)
		case is && !was:
			event("the session with %s is up", name)
		}
	}
}

func prefixesOf(maps ...map[netip.Prefix][]netip.Addr) []netip.Prefix {
	var all []netip.Prefix
	for _, m := range maps {
		for prefix := range m {
			all = append(all, prefix)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

func addressesOf(maps ...map[netip.Addr]time.Time) []netip.Addr {
	var all []netip.Addr
	for _, m := range maps {
		for address := range m {
			all = append(all, address)
		}
	}
	return sorted(all)
}

// namesOf names nodes by their addresses.
func namesOf(t topology.Topology, addresses []netip.Addr) string {
	var names []string
	for _, a := range addresses {
		name := a.String()
		for _, c := range t.Clusters {
			for _, n := range c.Nodes {
				if slices.ContainsFunc(n.Links, func(l topology.Link) bool { return l.Address == a }) {
					name = n.Name
				}
			}
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(names, ", ")
}
