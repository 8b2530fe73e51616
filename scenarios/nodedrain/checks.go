package nodedrain

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

func specOf(a allocation) netip.Prefix { return a.spec }
func useOf(a allocation) netip.Prefix  { return a.use }

// What the checks ask of snapshots.
var (
	allocations = []snapshot.Source{snapshot.Nodes, snapshot.CiliumNodes}
	routes      = []snapshot.Source{snapshot.Routers}
)

// allocationsAreTheIncidents compares both allocations with the table: by
// luck they could agree, and then the fault would hurt nobody.
func allocationsAreTheIncidents(_ context.Context, r *framework.Run) (bool, string, error) {
	at := r.Snapshot()
	spec, use := map[string][]netip.Prefix{}, map[string][]netip.Prefix{}
	for _, n := range at.Nodes.Items {
		spec[n.Name] = n.PodCIDRs
	}
	for _, n := range at.CiliumNodes.Items {
		use[n.Name] = n.PodCIDRs
	}
	var wrong framework.Mismatches
	for _, row := range table {
		if !slices.Equal(spec[row.node], []netip.Prefix{row.spec}) || !slices.Equal(use[row.node], []netip.Prefix{row.use}) {
			wrong.Addf("%s has %v in Node.spec and uses %v, not %s and %s", row.node, spec[row.node], use[row.node], row.spec, row.use)
		}
	}
	return wrong.Result()
}

// routersFollow asserts that each router's kernel sends a range of each of the
// nodes to that node, and has no other pod range.
func routersFollow(rangeOf func(allocation) netip.Prefix, nodes []string) func(context.Context, *framework.Run) (bool, string, error) {
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		routers := map[string]snapshot.Router{}
		for _, t := range r.Snapshot().Routers {
			routers[t.Name] = t
		}
		var wrong framework.Mismatches
		for _, declared := range lab.Routers {
			t := routers[declared.Name]
			if !t.Routes.Read {
				return false, "", fmt.Errorf("the routes of %s were not read", declared.Name)
			}
			got := nextHops(t)
			for _, node := range nodes {
				prefix := rangeOf(rowOf(node))
				if !slices.Equal(got[prefix], []netip.Addr{addressOf(node)}) {
					wrong.Addf("%s sends %s to %v, not to %s", t.Name, prefix, got[prefix], addressOf(node))
				}
				delete(got, prefix)
			}
			for _, prefix := range slices.SortedFunc(maps.Keys(got), netip.Prefix.Compare) {
				wrong.Addf("%s has %s via %v", t.Name, prefix, got[prefix])
			}
		}
		return wrong.Result()
	}
}

// nextHops are the kernel routes of a router for pod ranges.
func nextHops(t snapshot.Router) map[netip.Prefix][]netip.Addr {
	hops := map[netip.Prefix][]netip.Addr{}
	for _, route := range t.Routes.Items {
		if route.Prefix.Overlaps(podCIDR) && route.Prefix.Bits() > 0 && route.Protocol == router.ProtocolBGP {
			for _, hop := range route.NextHops {
				hops[route.Prefix] = append(hops[route.Prefix], hop.Address)
			}
		}
	}
	return hops
}

// hops asserts that every probe from the outside comes to its pod over that
// many forwarding hops, with the outside's own address: a probe that went
// over the bridge of the machine, or through its NAT, would prove nothing
// about routes.
func hops(n int) func(context.Context, *framework.Run) (bool, string, error) {
	const sentWith = 64 // TTL
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		address := lab.Hosts[0].Links[0].Address
		probes := slices.DeleteFunc(r.Timelines(), func(t probe.Timeline) bool { return t.Probe.From != outside.Name })
		if len(probes) == 0 {
			return false, "no probe from outside runs", nil
		}
		var wrong framework.Mismatches
		for _, t := range probes {
			for _, ttl := range slices.Sorted(maps.Keys(t.RequestTTL)) {
				if int(ttl) != sentWith-n {
					wrong.Addf("%d packets of %s crossed %d hops, not %d", t.RequestTTL[ttl], t.Probe.Name, sentWith-int(ttl), n)
				}
			}
			for _, s := range t.Sources {
				if s.Address != address {
					wrong.Addf("packets of %s come from %s", t.Probe.Name, s.Address)
				}
			}
			if len(t.RequestTTL) == 0 || len(t.Sources) == 0 {
				wrong.Addf("no packet of %s has come to its end", t.Probe.Name)
			}
		}
		return wrong.Result()
	}
}

// routeOwnership names the scenario's detector, and routers are those that it
// looks at.
var (
	routeOwnership = detect.RouteOwnership{}.Name()
	routers        = []string{lab.Routers[0].Name, lab.Routers[1].Name}
)

// announced is a finding about a range that all routers send to a node.
func announced(kind string, prefix netip.Prefix, owner, announcer string) framework.Finding {
	return framework.Finding{
		Detector: routeOwnership, Kind: kind, State: detect.Latent, Object: detect.Prefix(prefix),
		Owner: owner, Announcer: announcer, Routers: routers,
	}
}

// swapped are the findings in which the incident shows before it happens.
func swapped() []framework.Finding {
	var want []framework.Finding
	for _, row := range table {
		announcer := slices.IndexFunc(table, func(a allocation) bool { return a.spec == row.use })
		want = append(want, announced(detect.WrongAnnouncer, row.use, row.node, table[announcer].node))
	}
	return want
}
