package addednic

import (
	"context"
	"errors"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/calico"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// podsRouted gives the router a route to the pods, by way of one of the nodes, or
// takes it away. Only where a router knows the way to the pods do their addresses
// need no hiding.
func podsRouted(ctx context.Context, r *framework.Run, on bool) (err error) {
	router, err := r.Lab.Router(lab.Routers[0].Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, router.Close()) }()
	if !on {
		return router.RemoveStatic(ctx, podCIDR)
	}
	by, _ := lab.AddressOn(lab.Clusters[0].Nodes[0].Name, "nodes")
	return router.AddStatic(ctx, podCIDR, by)
}

// natOutgoing is the switch that in Calico does what Cilium's masquerade does.
func natOutgoing(r *framework.Run) fault.Fault {
	return fault.Fault{
		Name:   "switch natOutgoing of the pool on",
		Inject: func(ctx context.Context) error { return calico.NATOutgoing(ctx, r.Cluster, true) },
		Held:   func(ctx context.Context) (bool, string, error) { return natRules(r.Snapshot()) },
		Undo:   func(ctx context.Context) error { return calico.NATOutgoing(ctx, r.Cluster, false) },
	}
}

// natRules tells whether felix has written the rule of natOutgoing on every node.
func natRules(at snapshot.Snapshot) (bool, string, error) {
	var without framework.Mismatches
	for _, n := range at.NAT {
		if !slices.ContainsFunc(n.Rules.Items, func(r snapshot.Rule) bool {
			return r.Chain == "cali-nat-outgoing" && r.Target == "MASQUERADE"
		}) {
			without.Addf("%s has no rule in cali-nat-outgoing", n.Node)
		}
	}
	if len(at.NAT) == 0 {
		return false, "no look at the nodes' rules yet", nil
	}
	return without.Result()
}
