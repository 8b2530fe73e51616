package labaccess

import (
	"context"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Attach gives the script of a run the lab that it acts on.
func Attach(r *framework.Run, l *kindlab.Lab) { r.Lab = l }

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

// Connected is the action that does another one, and waits until each router has a BGP session
// with each of these nodes that came since it began.
func Connected(nodes []string, do framework.Action) framework.Action {
	return since(do, nodes, (*kindlab.Lab).Connected)
}

// SessionsUp is Connected with a route that was received over each session.
func SessionsUp(nodes []string, do framework.Action) framework.Action {
	return since(do, nodes, (*kindlab.Lab).SessionsUp)
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
