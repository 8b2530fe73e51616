package nodedrain

import (
	"context"
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// What the checks read of snapshots.
var (
	allocations = []snapshot.Source{snapshot.Nodes, snapshot.CiliumNodes}
	routes      = []snapshot.Source{snapshot.Routers}
)

// allocationsAreTheIncidents compares both allocations with the table: if they agreed
// by chance, no probe would lose packets after the fault.
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

func specOf(a allocation) netip.Prefix { return a.spec }
func useOf(a allocation) netip.Prefix  { return a.use }

func routersFollow(rangeOf func(allocation) netip.Prefix, nodes []string) framework.Condition {
	via := map[netip.Prefix][]string{}
	for _, node := range nodes {
		via[rangeOf(rowOf(node))] = []string{node}
	}
	return check.Routes(podCIDR, nodeNet.Name, via)
}

// hops asserts over how many hops probes from outside reach the pods, untranslated.
func hops(n int) framework.Condition { return check.Hops(outside, n) }

// The findings of the incident.
var (
	routeOwnership = detect.RouteOwnership{}.Name()

	// unannounced is the incident itself: the routers have lost the victim's range.
	unannounced = framework.Finding{
		Detector: routeOwnership, Kind: detect.Unannounced, State: detect.Active, Object: detect.Prefix(orphan), Owner: victim, Routers: tors,
	}
)

func announced(kind string, prefix netip.Prefix, owner, announcer string) framework.Finding {
	return framework.Finding{
		Detector: routeOwnership, Kind: kind, State: detect.Latent, Object: detect.Prefix(prefix),
		Owner: owner, Announcer: announcer, Routers: tors,
	}
}

// swapped are the latent findings before the incident: each range in use is announced
// by the node that has it in Node.spec.
func swapped() []framework.Finding {
	var want []framework.Finding
	for _, row := range table {
		announcer := slices.IndexFunc(table, func(a allocation) bool { return a.spec == row.use })
		want = append(want, announced(detect.WrongAnnouncer, row.use, row.node, table[announcer].node))
	}
	return want
}
