package kindlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/guest"
)

// Node is a Kubernetes node of a lab: a container on the machine's kernel, or a guest. Both have
// the same methods, except that the machine cannot enter a guest's namespaces: see PID.
type Node struct {
	member
	lab *Lab
}

func imageOf(n topology.Node) string {
	if n.Kernel != "" {
		return guest.Image(n.Kernel)
	}
	return nodeImage
}

// EachNode calls do for each of these nodes concurrently, and waits for all calls.
// The error joins all errors, with the nodes' names.
func (l *Lab) EachNode(ctx context.Context, nodes []string, do func(context.Context, *Node) error) error {
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, name := range nodes {
		all.Go(func() {
			if err := do(ctx, l.Node(name)); err != nil {
				errs[i] = fmt.Errorf("node %s: %w", name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Start powers the node on after Stop, with its previous disk and Node object. It waits until the
// node can run containers and has its routes; kubelet needs some seconds more.
func (n *Node) Start(ctx context.Context) error {
	if n.lab.foreign != nil {
		return n.lab.powerOn(ctx, n)
	}
	if err := n.start(ctx); err != nil {
		return fmt.Errorf("powering %s on: %w", n.name, err)
	}
	return n.boot(ctx)
}

// Remove removes the node's container and its volumes, running or not. A node of an adopted lab is
// powered off: see Adopt.
func (n *Node) Remove(ctx context.Context) error {
	if n.lab.foreign == nil {
		return n.member.Remove(ctx)
	}
	if there, err := n.Exists(ctx); !there || err != nil {
		return err
	}
	return n.Stop(ctx)
}

// Exists reports whether the node has a container, running or not; in an adopted lab, one
// that runs.
func (n *Node) Exists(ctx context.Context) (bool, error) {
	if n.lab.foreign == nil {
		return n.member.Exists(ctx)
	}
	info, err := n.inspect(ctx)
	return err == nil && info.State.Running, err
}

// nodeBoots bounds the time from a container's start to its containerd: some seconds.
// On two CPUs with a load of 40, labs of four nodes took 38 to 113 s.
const nodeBoots = 3 * time.Minute

func (n *Node) boot(ctx context.Context) error {
	if n.guest != nil {
		if err := n.guest.Ready(ctx, guestBoots); err != nil {
			return err
		}
	}
	if err := await.Until(ctx, "containerd on "+n.name, 100*time.Millisecond, nodeBoots, n.containerd); err != nil {
		return err
	}
	if err := n.ownNameServer(ctx); err != nil {
		return err
	}
	return n.lab.wireMember(ctx, n.name)
}

// ownNameServer makes a node and its pods ask the node itself for names, where nobody answers.
// Docker writes the file whenever a node starts; for the first node, which kind makes, with the machine's
// name servers. An address elsewhere would give pods flows that leave the node.
func (n *Node) ownNameServer(ctx context.Context) error {
	if n.guest != nil {
		return nil // it has a file of its own
	}
	declared, _ := n.lab.Topology.Member(n.name)
	path, err := n.Path(ctx, "/etc/resolv.conf")
	if err == nil {
		err = os.WriteFile(path, fmt.Appendf(nil, "nameserver %s\n", declared.Links[0].Address), 0o644)
	}
	if err != nil {
		return fmt.Errorf("on %s: setting the name server: %w", n.name, err)
	}
	return nil
}

// containerd reports whether containerd serves on the node. In a container it dials the socket from
// the machine, because a command takes 0.1 s of CPU and the poll runs ten times a second.
func (n *Node) containerd(ctx context.Context) (bool, string, error) {
	if n.guest != nil {
		saw, err := n.Exec(ctx, "systemctl", "is-active", "containerd")
		return err == nil, strings.TrimSpace(saw), err
	}
	socket, err := n.Path(ctx, "/run/containerd/containerd.sock")
	if err != nil {
		return false, "", err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return false, "", err
	}
	return true, "", conn.Close()
}
