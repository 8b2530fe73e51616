package snapshot

import (
	"context"

	"k8s.io/client-go/rest"
)

// Access reaches the sources of a snapshot: in a lab, by a kubeconfig and the addresses of
// routers, or otherwise. If a method returns an error, every source that needs it is
// unavailable for that reason.
//
// Routers and registries that are an io.Closer are closed by the Collector's Close. Names are those
// that the topology or the operator uses; they appear in snapshots.
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
