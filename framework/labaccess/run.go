package labaccess

import (
	"context"
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Lab is the lab that the script of a run acts on; nil where it is tried without one.
func Lab(r *framework.Run) *kindlab.Lab {
	l, _ := r.Lab.(*kindlab.Lab)
	return l
}

// Cluster is the first cluster of the lab that the script of a run acts on; nil where
// there is none.
func Cluster(r *framework.Run) *kindlab.Cluster {
	if l := Lab(r); l != nil && len(l.Clusters) > 0 {
		return l.Clusters[0]
	}
	return nil
}

// OnLab is the action that does something to the lab of the run.
func OnLab(do func(context.Context, *kindlab.Lab) error) framework.Action {
	return func(ctx context.Context, r *framework.Run) error { return do(ctx, Lab(r)) }
}

// OnCluster is OnLab for the first cluster of the lab.
func OnCluster(do func(context.Context, *kindlab.Cluster) error) framework.Action {
	return func(ctx context.Context, r *framework.Run) error { return do(ctx, Cluster(r)) }
}

// OnNodes is the action that does something to each of these nodes at the same time.
func OnNodes(nodes []string, do func(context.Context, *kindlab.Node) error) framework.Action {
	return func(ctx context.Context, r *framework.Run) error { return Lab(r).EachNode(ctx, nodes, do) }
}

// Connected is the action that does another one, and waits until each router has a BGP session
// with each of these nodes that came since it began.
func Connected(nodes []string, do framework.Action) framework.Action {
	return since(do, nodes, (*kindlab.Lab).Connected)
}

// SessionsUp is Connected with a route that was received over each session.
func SessionsUp(nodes []string, do framework.Action) framework.Action {
	return since(do, nodes, (*kindlab.Lab).SessionsUp)
}

// StaticAdded is the action that gives every router a static route to a prefix over a node or a host.
func StaticAdded(prefix netip.Prefix, member string) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		return Lab(r).AddStatic(ctx, prefix, r.Address(member))
	}
}

// StaticRemoved is the action that takes a static route from every router. One that is not there is no error.
func StaticRemoved(prefix netip.Prefix) framework.Action {
	return OnLab(func(ctx context.Context, l *kindlab.Lab) error { return l.RemoveStatic(ctx, prefix) })
}

// NodesReplaced is the action that has new machines join in place of these nodes, in their order.
func NodesReplaced(nodes ...string) framework.Action {
	return OnCluster(func(ctx context.Context, c *kindlab.Cluster) error { return c.ReplaceNodes(ctx, nodes...) })
}

// SessionsCleared is the action that has each router end its sessions with these nodes, and drop their routes.
func SessionsCleared(nodes ...string) framework.Action {
	return OnLab(func(ctx context.Context, l *kindlab.Lab) error { return l.ClearSessions(ctx, nodes) })
}

func since(do framework.Action, nodes []string, await func(*kindlab.Lab, context.Context, []string, time.Time) error) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		began := time.Now()
		if err := do(ctx, r); err != nil {
			return err
		}
		return await(Lab(r), ctx, nodes, began)
	}
}
