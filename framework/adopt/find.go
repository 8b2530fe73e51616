package adopt

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

const clusterLabel = "io.x-k8s.kind.cluster"

// containerOf is the container of a node. Another machine may have a cluster of kind with the same
// names: the container must have the machine ID that the node tells, which kind makes anew for
// each container.
func (l *Lab) containerOf(ctx context.Context, n corev1.Node) (string, error) {
	cluster, name, ok := strings.Cut(strings.TrimPrefix(n.Spec.ProviderID, "kind://docker/"), "/")
	if !ok || !strings.HasPrefix(n.Spec.ProviderID, "kind://docker/") {
		return "", fmt.Errorf("its provider ID is %q, not that of a container of kind", n.Spec.ProviderID)
	}
	info, err := l.docker.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if err != nil {
		return "", err
	}
	if info.Container.Config.Labels[clusterLabel] != cluster {
		return "", fmt.Errorf("container %s has label %s=%q, not %q", name, clusterLabel, info.Container.Config.Labels[clusterLabel], cluster)
	}
	if !info.Container.State.Running {
		return "", fmt.Errorf("container %s is %s", name, info.Container.State.Status)
	}
	look := kindlab.Look(l.docker, topology.Topology{}, kindlab.Foreign{Containers: map[string]string{n.Name: name}})
	id, err := look.Node(n.Name).Exec(ctx, "cat", "/etc/machine-id")
	if err != nil {
		return "", err
	}
	if nodeID := n.Status.NodeInfo.MachineID; strings.TrimSpace(id) != nodeID {
		return "", fmt.Errorf("container %s has machine ID %s, and the node tells %s: it is of another cluster of that name", name,
			strings.TrimSpace(id), nodeID)
	}
	return name, nil
}

// execs is the container of a router's command docker exec, which is its last word.
func execs(command []string) string {
	for i := range len(command) - 2 {
		if command[i] == "docker" && command[i+1] == "exec" {
			return command[len(command)-1]
		}
	}
	return ""
}

func addressesOf(m topology.Member) []netip.Addr {
	return each.Of(m.Links, func(link topology.Link) netip.Addr { return link.Address })
}

// find maps the topology's routers and hosts to containers: by name, or else by addresses.
func (c *checker) find(ctx context.Context) {
	has := func(container string, m topology.Member) bool {
		interfaces, err := c.look.InterfacesOf(ctx, container)
		return err == nil && holds(interfaces.Addresses, addressesOf(m)) // members reports unreadable known ones
	}
	for _, m := range c.t.Members() {
		if m.Kind != topology.KindRouter {
			continue
		}
		i := slices.IndexFunc(c.routers, func(d bgprouter.Declared) bool { return d.Name == m.Name })
		if i < 0 {
			i = slices.IndexFunc(c.routers, func(d bgprouter.Declared) bool {
				container := execs(d.Command)
				return container != "" && has(container, m)
			})
		}
		if i < 0 { // readRouters reports it
			continue
		}
		c.Foreign.Routers[m.Name] = c.controls[i]
		if container := execs(c.routers[i].Command); container != "" {
			c.Foreign.Containers[m.Name] = container
		}
	}
	var running []string
	for _, m := range c.t.Members() {
		if m.Kind == topology.KindNode || c.Foreign.Containers[m.Name] != "" {
			continue
		}
		if running == nil {
			var err error
			if running, err = c.running(ctx); err != nil {
				c.missing("containers of this machine: %v", err)
				return
			}
		}
		found := slices.DeleteFunc(slices.Clone(running), func(container string) bool { return !has(container, m) })
		switch len(found) {
		case 0: // members reports it
		case 1:
			c.Foreign.Containers[m.Name] = found[0]
		default:
			c.missing("%s %s: containers %q all have %v; expected one", m.Kind, m.Name, found, addressesOf(m))
		}
	}
}

func holds(list, all []netip.Addr) bool {
	return !slices.ContainsFunc(all, func(a netip.Addr) bool { return !slices.Contains(list, a) })
}

// running are the containers of this machine's Docker that run in network namespaces of their own.
func (l *Lab) running(ctx context.Context) ([]string, error) {
	all, err := l.docker.ContainerList(ctx, client.ContainerListOptions{})
	names := []string{}
	for _, c := range all.Items {
		mode := container.NetworkMode(c.HostConfig.NetworkMode)
		if !mode.IsHost() && !mode.IsContainer() {
			names = append(names, strings.TrimPrefix(c.Names[0], "/"))
		}
	}
	return names, err
}
