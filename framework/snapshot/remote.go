package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
)

// Remote is a node that a program on it reads (package nodestate): its kernel is not reached
// from here, and all methods of Machine return an error.
type Remote struct {
	// Read returns a snapshot of that node alone. It is called once for each source of nodes.
	Read func(context.Context) (Snapshot, error)
	// why is the error of all methods.
	why error
}

func (r Remote) err() error { return cmp.Or(r.why, errors.New("it is not reached from here")) }

func (r Remote) Exec(context.Context, ...string) (string, error) { return "", r.err() }

func (r Remote) PID(context.Context) (int, error) { return 0, r.err() }

func (r Remote) Netns(context.Context) (string, error) { return "", r.err() }

func (r Remote) Path(context.Context, string) (string, error) { return "", r.err() }

// perNode is perName of the nodes.
func perNode[T interface {
	on() string // the node
	parts() []part
}](name string, reader func(node string, m Machine) func(context.Context) T, field func(*Snapshot) *[]T) Source {
	reachable := func(o *opening) (map[string]Machine, error) { return o.nodes() }
	return perName(name, reachable, func(node string, m Machine) func(context.Context) T {
		r, remote := m.(Remote)
		if !remote {
			return reader(node, m)
		}
		return func(ctx context.Context) T {
			s, err := r.Read(ctx)
			if items := *field(&s); err == nil && len(items) == 1 && items[0].on() == node {
				return items[0]
			}
			if err == nil {
				err = fmt.Errorf("the program on it has not answered with %s of this node, and is perhaps of another version", name)
			}
			return reader(node, Remote{why: err})(ctx)
		}
	}, field)
}
