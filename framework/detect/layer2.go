package detect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gaissmai/bart"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Kinds of findings of Layer2.
const (
	// TwoSpeakers: an address of a Service that two stations announce or answer for.
	TwoSpeakers = "two-speakers"
	// StaleNeighbour: an address of a Service that a router sends to another node than the one that announces
	// it. It is latent while that node passes the packets on.
	StaleNeighbour = "stale-neighbour"
	// LeaseWithoutEndpoint: an address of a Service of externalTrafficPolicy Local, announced by a node
	// without a ready endpoint: it drops the packets.
	LeaseWithoutEndpoint = "lease-without-endpoint"
)

// layer2Within is how long a change of the node that announces may take to the routers: the new node
// announces the address by itself (gratuitous ARP), several times.
const layer2Within = 3 * time.Second

// Layer2 compares the node that announces the address of a Service on a link, as MetalLB and Cilium say, with the
// station to which routers send packets for it. An entry of a neighbour table counts if the router's FIB sends by it.
// It is compared with the announcing node if the same interface has an address of that node: then the node's MAC is
// known there, and a proxy that answers for all addresses is not taken for another station. If nothing says who
// announces, routers are compared with each other.
type Layer2 struct{}

func (Layer2) Name() string { return "layer2" }

func (Layer2) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Nodes, snapshot.Services, snapshot.EndpointSlices, snapshot.L2Announcements,
		snapshot.BGPAdvertisements, snapshot.Routers}
}

// Detect implements Detector. Findings are in order of address.
func (d Layer2) Detect(history []snapshot.Snapshot, x *Index) []Finding {
	vs := newViews(history, x, Observed)
	findings := linksOf(vs.now()).findings()
	for i := range history {
		if vs.now().Time.Sub(history[i].Time) >= layer2Within {
			continue
		}
		earlier := linksOf(vs[i]()).findings()
		for j := range findings {
			f := &findings[j]
			if f.State == Active && !slices.ContainsFunc(earlier, func(o Finding) bool { return o.ID() == f.ID() }) {
				f.State = Pending
				f.Says += fmt.Sprintf(" Pending: this becomes active after %s.", layer2Within)
			}
		}
	}
	return findings
}

type links struct {
	*view
	// at are the Services with ready endpoints, by address.
	at      map[netip.Addr][]service
	entries map[netip.Addr][]linkEntry
}

type linkEntry struct {
	snapshot.LinkNeighbor
	router string
	table  []snapshot.LinkNeighbor // the router's, where a MAC is known
}

// linksOf has no Services if a source was not read. Routers need not be.
func linksOf(v *view) *links {
	l := &links{v, map[netip.Addr][]service{}, map[netip.Addr][]linkEntry{}}
	if !v.Nodes.Read || !v.Services.Read || !v.EndpointSlices.Read || !v.L2Announcements.Read || !v.BGPAdvertisements.Read {
		return l
	}
	for _, s := range v.Services.Items {
		for _, a := range s.LoadBalancerIPs {
			if entry := v.services()[s.String()]; entry.ready {
				l.at[a] = append(l.at[a], entry)
			}
		}
	}
	for _, r := range v.Routers {
		l.read(r)
	}
	return l
}

// read adds the entries by which a router sends packets: an entry has the interface of the narrowest route to the
// address in the FIB, which has no gateway.
func (l *links) read(r snapshot.Router) {
	var addresses bart.Lite
	table := slices.DeleteFunc(slices.Clone(r.Links.Items), func(n snapshot.LinkNeighbor) bool { return n.MAC == "" })
	for _, n := range table {
		if l.at[n.Address] != nil {
			addresses.Insert(netip.PrefixFrom(n.Address, n.Address.BitLen()))
		}
	}
	narrowest := map[netip.Addr]snapshot.Route{}
	for _, f := range r.Routes.Items {
		for p := range addresses.Subnets(f.Prefix) {
			was, there := narrowest[p.Addr()]
			if !there || cmp.Or(cmp.Compare(was.Prefix.Bits(), f.Prefix.Bits()), cmp.Compare(f.Metric, was.Metric)) < 0 {
				narrowest[p.Addr()] = f
			}
		}
	}
	for _, n := range table {
		if slices.Contains(narrowest[n.Address].NextHops, snapshot.NextHop{Interface: n.Interface}) {
			l.entries[n.Address] = append(l.entries[n.Address], linkEntry{n, r.Name, table})
		}
	}
}

func (l *links) findings() []Finding {
	return slices.Concat(each.Of(slices.SortedFunc(maps.Keys(l.at), netip.Addr.Compare), l.findingsOf)...)
}

func (l *links) findingsOf(a netip.Addr) []Finding {
	names := each.Of(l.at[a], func(s service) string { return s.String() })
	holders := slices.DeleteFunc(slices.Clone(l.L2Announcements.Items), func(o snapshot.L2Announcement) bool {
		return !slices.Contains(names, o.Service) || !l.nodes[o.Node].Ready
	})
	says := fmt.Sprintf("%s, the address of %s %s", a, plural(len(names), "Service", "Services"), and(names))
	all := slices.Concat(l.both(a, says, holders), l.without(a, says, holders))
	if len(holders) > 0 {
		all = append(all, l.elsewhere(a, says, holders)...)
	}
	for i := range all {
		all[i].Object = Prefix(netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

func sayHolder(o snapshot.L2Announcement) string {
	if o.Lease != "" {
		return fmt.Sprintf("%s, which holds the lease %s,", o.Node, o.Lease)
	}
	return o.Node + ", as MetalLB says in its ServiceL2Status,"
}

// both is the finding of an address that two nodes announce; or for which two nodes have just answered
// routers, where nobody says which one is to.
func (l *links) both(a netip.Addr, says string, holders []snapshot.L2Announcement) []Finding {
	f, does, who := Finding{Kind: TwoSpeakers, State: Active}, "announce", map[string]string{}
	for _, o := range holders {
		who[o.Node] = strings.TrimSuffix(sayHolder(o), ",")
	}
	for _, e := range l.entries[a] {
		if node, ok := l.station(e); ok && e.Confirmed && len(holders) == 0 {
			f.Routers, does = append(f.Routers, e.router), "have just answered for"
			who[node] = fmt.Sprintf("%s (%s) on the link of %s", node, e.MAC, e.router)
		}
	}
	if len(who) < 2 {
		return nil
	}
	f.Says = fmt.Sprintf("Nodes %s %s: %s. Which of them gets a packet is chance.", does, says,
		strings.Join(slices.Sorted(maps.Values(who)), "; "))
	return []Finding{f}
}

// station is what has the MAC of an entry, on that interface: a node, or else a machine by an address that is
// of no Service, or the MAC.
func (l *links) station(e linkEntry) (name string, node bool) {
	name = e.MAC
	for _, o := range e.table {
		switch owner := l.addresses[o.Address]; {
		case o.Interface != e.Interface || o.MAC != e.MAC:
		case owner != "" && node && owner != name:
			return e.MAC, false // a proxy of several
		case owner != "":
			name, node = owner, true
		case !node && l.at[o.Address] == nil && !o.Address.IsLinkLocalUnicast():
			name = o.Address.String()
		}
	}
	return name, node
}

// misleads reports whether an entry has another MAC than an announcing node, whose MAC is known on that interface.
func (l *links) misleads(e linkEntry, holders []snapshot.L2Announcement) bool {
	found := false
	for _, o := range e.table {
		announces := func(by snapshot.L2Announcement) bool { return by.Node == l.addresses[o.Address] }
		if o.Interface == e.Interface && slices.ContainsFunc(holders, announces) {
			if found = true; o.MAC == e.MAC {
				return false
			}
		}
	}
	return found
}

// elsewhere are the findings of an address that routers send to stations that are not to get it, one for
// each. A node that does not announce an address passes it on all the same, unless its policy is Local. An
// entry that is not confirmed is asked again when it is used. A MAC alone may be a second card of a node.
func (l *links) elsewhere(a netip.Addr, says string, holders []snapshot.L2Announcement) (all []Finding) {
	wrong := map[string][]linkEntry{}
	for _, e := range l.entries[a] {
		if l.misleads(e, holders) {
			name, _ := l.station(e)
			wrong[name] = append(wrong[name], e)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		f := Finding{Kind: StaleNeighbour, State: Latent, Owner: holders[0].Node, Announcer: name}
		confirmed, mac := false, wrong[name][0].MAC
		for _, e := range wrong[name] {
			f.Routers, confirmed = append(f.Routers, e.router), confirmed || e.Confirmed
		}
		lacks := slices.ContainsFunc(l.at[a], func(s service) bool { return s.Local && len(s.on) > 0 && !s.on[name] && !s.draining[name] })
		_, node := l.station(wrong[name][0])
		why, active := name+" passes it on", false
		switch {
		case !node && !confirmed:
			why = "it is no node"
		case !node && name == mac:
			f.Kind, why = TwoSpeakers, "two stations answer, unless that is another interface of "+f.Owner
		case !node:
			f.Kind, why, active = TwoSpeakers, "it is no node, and two stations answer", true
		case !l.nodes[name].Ready:
			why, active = name+" is not ready", true
		case lacks:
			why, active = name+" has no ready endpoint of its own, which externalTrafficPolicy Local asks for, and drops it", true
		case !confirmed:
			continue
		}
		if active && confirmed {
			f.State = Active
		}
		f.Says = fmt.Sprintf("%s what is for %s, to %s (%s), and %s announces it: %s.",
			do(f.Routers, "sends", "send"), says, name, mac, sayHolder(holders[0]), why)
		all = append(all, f)
	}
	return all
}

// without is the finding of a Service of policy Local, where no node that announces the address has a
// ready endpoint. Where nodes announce it by BGP too, packets may come to others.
func (l *links) without(a netip.Addr, says string, holders []snapshot.L2Announcement) []Finding {
	for _, service := range l.at[a] {
		serves := func(o snapshot.L2Announcement) bool { return service.on[o.Node] || service.draining[o.Node] }
		if service.Local && len(service.on) > 0 && len(holders) > 0 && !slices.ContainsFunc(holders, serves) &&
			(len(l.entries[a]) > 0 || !l.view.announced(service.Service, a)) {
			return []Finding{{Kind: LeaseWithoutEndpoint, State: Active, Announcer: holders[0].Node, Says: fmt.Sprintf(
				"%s announces %s, and has no ready endpoint of its own: externalTrafficPolicy Local asks for one, "+
					"and it drops the packets; endpoints are on %s.",
				sayHolder(holders[0]), says, and(few(slices.Sorted(maps.Keys(service.on)))))}}
		}
	}
	return nil
}
