package kindlab

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/guest"
)

// Node is a Kubernetes node of a lab: a container on the machine's kernel, or
// a guest. The only difference for the caller is that the machine cannot enter a
// guest's namespaces: see OwnKernelError.
type Node struct {
	member
	lab *Lab
}

// imageOf names the image that a node runs in.
func imageOf(n topology.Node) string {
	if n.Kernel != "" {
		return guest.Image(n.Kernel)
	}
	return nodeImage
}

// Start powers the node on after Stop: with the disk that it had, and the
// Node object that it had, if that is still there. It waits until the node
// runs containers and has its routes; kubelet needs some seconds more.
func (n *Node) Start(ctx context.Context) error {
	if err := n.docker.ContainerStart(ctx, n.container, container.StartOptions{}); err != nil {
		return fmt.Errorf("powering %s on: %w", n.name, err)
	}
	return n.boot(ctx)
}

// boot waits until a node that was powered on can run containers, and wires
// it.
func (n *Node) boot(ctx context.Context) error {
	if n.guest != nil {
		if err := n.guest.Ready(ctx, guestBoots); err != nil {
			return err
		}
	}
	err := await.Until(ctx, "containerd on "+n.name, 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			saw, err := n.Exec(ctx, "systemctl", "is-active", "containerd")
			return err == nil, strings.TrimSpace(saw), err
		})
	if err != nil {
		return err
	}
	return n.lab.wireMember(ctx, n.name)
}
