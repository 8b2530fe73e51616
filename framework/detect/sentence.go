package detect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// maxNamed is how many pods a sentence lists; all are in Finding.Pods.
const maxNamed = 3

// sayPods is the part of a sentence that follows "CiliumNode x holds that range".
func (o ownership) sayPods(pods []string) string {
	switch {
	case !o.now.Pods.Read:
		return " (its pods could not be read)"
	case len(pods) == 0:
		return ", without pods"
	}
	return fmt.Sprintf(", with %d %s in it (%s)", len(pods), plural(len(pods), "pod", "pods"), and(few(pods)))
}

func (o ownership) saySpeaker(node string, p netip.Prefix, routers []string) string {
	var sessions, unavailable bool
	var announced []netip.Prefix
	for _, r := range o.now.routers {
		if !slices.Contains(routers, r.Name) {
			continue
		}
		unavailable = unavailable || !r.Neighbors.Read || r.untold[node]
		_, up := r.sessions[node]
		sessions = sessions || up
		for _, w := range r.leads()[node] {
			announced = slices.AppendSeq(announced, r.routing().by(w))
		}
	}
	slices.SortFunc(announced, comparePrefixes)
	announced = slices.Compact(announced)
	switch {
	case slices.Contains(announced, p):
		return fmt.Sprintf("%s announces it, and the FIB has a route to elsewhere, or one that discards packets", node)
	case len(announced) > 0:
		return fmt.Sprintf("%s announces %s instead", node, and(announced))
	case sessions:
		return node + " announces nothing"
	case unavailable:
		return "no node announces it there"
	}
	return fmt.Sprintf("%s has no BGP session with %s", node, and(routers))
}

func (o ownership) sayPlace(p place, routers []string) string {
	target := p.to.address.String()
	if p.to.name != "" {
		target = fmt.Sprintf("%s (%s)", p.to.name, p.to.address)
	}
	how := fmt.Sprintf("%s %s to %s", do(routers, "routes", "route"), p.prefix, target)
	if p.protocol != snapshot.RouteBGP {
		how = fmt.Sprintf("%s a %s route for %s to %s", do(routers, "has", "have"), p.protocol, p.prefix, target)
	}
	owner, owned := o.now.owner(p.prefix)
	switch {
	case p.to.name == "" && p.protocol != snapshot.RouteBGP:
		how += ", which is no Node, no router that is read, and no BGP neighbour"
	case !p.to.present && p.to.name == "":
		how += ", which is in the AS of the nodes and is no Node"
	case !p.to.present:
		how += ", which is no longer a Node"
	case o.now.allocations[p.prefix] == p.to.name && o.now.layer != nodeLayer:
		how += ", which has it in Node.spec.podCIDRs"
	}
	if p.kind == WrongAnnouncer {
		return fmt.Sprintf("%s, but %s holds that range: packets for its pods go through %s.", how, o.now.record(owner), p.to.name)
	}
	_, alive := o.now.nodes[owner]
	former := o.formerOwner(p.prefix)
	switch {
	case owned && alive:
		return fmt.Sprintf("%s; %s holds that range.", how, o.now.record(owner))
	case owned && !p.to.present:
		return fmt.Sprintf("%s, though %s still holds that range.", how, o.now.record(owner))
	case owned:
		return fmt.Sprintf("%s, but %s holds that range and is no longer a Node.", how, o.now.record(owner))
	case former != "":
		return fmt.Sprintf("%s, but no %s holds that range since %s was removed.", how, o.now.layer, former)
	}
	return fmt.Sprintf("%s, but no %s holds that range.", how, o.now.layer)
}

func (o ownership) sayTwins(p netip.Prefix, owner, later string, routers []string) string {
	says := fmt.Sprintf("%s and %s both hold %s%s", o.now.record(owner), o.now.record(later), p, o.sayPods(o.podsIn(p)))
	if len(routers) == 0 {
		return says + ", and no router has a route to it."
	}
	var to []string
	for _, r := range o.now.routers {
		if hops := each.Once(each.Of(o.speakers(r, p), speaker.String)); len(hops) > 0 {
			to = append(to, fmt.Sprintf("%s has it from %s", r.Name, and(hops)))
		}
	}
	return fmt.Sprintf("%s: %s, and packets that reach one node are lost to pods on the other.", says, strings.Join(to, ", "))
}

func unlike(routers []string) string {
	if len(routers) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s)", do(routers, "has one", "have one"))
}

func and[T any](items []T) string {
	texts := each.Of(items, func(item T) string { return fmt.Sprint(item) })
	if last := len(texts) - 1; last > 0 {
		texts = []string{strings.Join(texts[:last], ", "), texts[last]}
	}
	return strings.Join(texts, " and ")
}

// do is who does something: "a has", "a and b have".
func do(names []string, one, many string) string {
	return and(names) + " " + plural(len(names), one, many)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
