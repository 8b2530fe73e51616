package snapshot

import (
	"context"

	"k8s.io/client-go/rest"
)

// Access is how the sources of a snapshot are reached: in a lab, by a
// kubeconfig and the addresses of routers, or in any other way. A caller that
// does not have one of these returns an error that says so; every source that
// needs it is then unread, for that reason.
//
// Routers and registries that are an io.Closer are closed by the Collector's
// Close. Names are those that the topology or the operator uses; they appear in
// snapshots.
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

// Machine is a node or a host, with the ways in which sources read it. A
// method returns an error where the machine does not have that way: a node
// with a kernel of its own has no process and no network namespace on the
// machine that collects. The answers change when the machine is started again,
// so they are asked for in every snapshot.
type Machine interface {
	// Exec runs a command as root and returns its standard output. A command
	// that fails is an error.
	Exec(ctx context.Context, command ...string) (string, error)
	// PID is a process in the machine's namespaces.
	PID(context.Context) (int, error)
	// Netns is the path of the machine's network namespace, such as
	// /proc/4711/ns/net.
	Netns(context.Context) (string, error)
	// Path is where the machine that collects sees a path of this machine's
	// file system.
	Path(ctx context.Context, path string) (string, error)
}

// Registry says which digest a pull of an image would bring.
type Registry interface {
	Resolve(ctx context.Context, image string) (digest string, err error)
}
