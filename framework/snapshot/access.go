package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
)

// Access reaches the sources of a snapshot: in a lab, by a kubeconfig and the addresses of
// routers, or otherwise. If a method returns an error, every source that needs it is
// unavailable for that reason.
//
// Routers and registries that are an io.Closer are closed by the Collector's Close. Names are the names that the
// topology or the operator uses; they appear in snapshots.
type Access interface {
	// Kubernetes is the configuration of a client of the cluster's API server.
	Kubernetes(context.Context) (*rest.Config, error)
	// Routers are the BGP routers by name.
	Routers(context.Context) (map[string]RouterReader, error)
	// Nodes are the cluster's nodes by name.
	Nodes(context.Context) (map[string]Machine, error)
	// Outside are hosts outside every cluster by name.
	Outside(context.Context) (map[string]Machine, error)
	// Registry says which images the nodes would pull.
	Registry(context.Context) (Registry, error)
}

// RouterReader reads a BGP router.
type RouterReader interface {
	RIB(context.Context) ([]Path, error)
	FIB(context.Context) ([]Route, error)
	Neighbors(context.Context) ([]Neighbor, error)
}

// LinkReader is a RouterReader that also reads who answers for addresses on the router's links.
type LinkReader interface {
	Links(context.Context) ([]LinkNeighbor, error)
}

// Machine is a node or a host. A method that it does not support returns an error: a node with
// its own kernel has no process and no network namespace on the collecting machine. The
// answers change when the machine restarts, so every snapshot calls the methods again.
type Machine interface {
	// Exec runs a command as root and returns its standard output. A command
	// that fails is an error.
	Exec(ctx context.Context, command ...string) (string, error)
	// PID is a process in the machine's namespaces.
	PID(context.Context) (int, error)
	// Netns is the path of the machine's network namespace, such as /proc/4711/ns/net.
	Netns(context.Context) (string, error)
	// Path is where the machine that collects sees a path of this machine's file system.
	Path(ctx context.Context, path string) (string, error)
}

// Registry says which digest a pull of an image would bring.
type Registry interface {
	Resolve(ctx context.Context, image string) (digest string, err error)
}

// Remote is a node that a program on it reads (package nodestate): its kernel is not reached
// from here, and all methods of Machine return an error.
type Remote struct {
	// Read returns a snapshot of that node alone. It is called once for each source of nodes.
	Read func(context.Context) (Snapshot, error)
	why  error
}

func (r Remote) err() error { return cmp.Or(r.why, errors.New("it is not reached from here")) }

func (r Remote) Exec(context.Context, ...string) (string, error) { return "", r.err() }

func (r Remote) PID(context.Context) (int, error) { return 0, r.err() }

func (r Remote) Netns(context.Context) (string, error) { return "", r.err() }

func (r Remote) Path(context.Context, string) (string, error) { return "", r.err() }

// perNode is perName of the nodes; nodeOf names the node of an item.
func perNode[T interface{ parts() []part }](name string, reader func(node string, m Machine) func(context.Context) T,
	nodeOf func(T) string, field func(*Snapshot) *[]T) Source {
	reachable := func(o *opening) (map[string]Machine, error) { return o.nodes() }
	return perName(name, reachable, func(node string, m Machine) func(context.Context) T {
		r, remote := m.(Remote)
		if !remote {
			return reader(node, m)
		}
		return func(ctx context.Context) T {
			s, err := r.Read(ctx)
			if items := *field(&s); err == nil && len(items) == 1 && nodeOf(items[0]) == node {
				return items[0]
			}
			if err == nil {
				err = fmt.Errorf("the program on it has not answered with %s of this node, and is perhaps of another version", name)
			}
			return reader(node, Remote{why: err})(ctx)
		}
	}, field)
}
