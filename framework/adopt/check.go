package adopt

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/moby/moby/client"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/containerlab"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/status"
)

// unfit is the error of a lab that lacks something for a scenario, or has something in its way.
func unfit(missing ...string) error {
	return status.Machine("the lab does not fit, and nothing was touched:\n  %s", strings.Join(missing, "\n  "))
}

// Check reads whether the lab is one, and whether it fits a scenario's variants. It changes
// nothing. The error names all that is missing.
func (l *Lab) Check(ctx context.Context, s framework.Scenario, variants []framework.Variant, isLab bool) error {
	if !isLab {
		var system corev1.Namespace
		if err := l.api.Resources().Get(ctx, metav1.NamespaceSystem, "", &system); err != nil {
			return fmt.Errorf("reading namespace %s: %w", metav1.NamespaceSystem, err)
		}
		if system.Labels[containerlab.LabLabel] != "true" {
			return status.Input("nothing says that this cluster is a lab: label it (kubectl label namespace kube-system %s=true), "+
				"or say so with --yes-this-is-a-lab", containerlab.LabLabel)
		}
	}
	c := checker{Lab: l, t: s.TopologyFor(variants)}
	c.look = kindlab.Look(l.docker, c.t, l.Foreign)
	c.scenario(s, variants)
	if len(c.found) == 0 { // the lab is another scenario's
		c.find(ctx)
		c.members(ctx)
		c.cluster(ctx)
		c.readRouters(ctx)
	}
	if len(c.found) > 0 {
		return unfit(c.found...)
	}
	return nil
}

type checker struct {
	*Lab
	t     topology.Topology
	look  *kindlab.Lab
	found []string
}

func (c *checker) missing(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

func (c *checker) scenario(s framework.Scenario, variants []framework.Variant) {
	if !s.Foreign {
		c.missing("scenario %s runs on relapse's own labs alone: %s", s.Incident.Name,
			cmp.Or(s.OnlyOwnLab, "it is not known to leave another one as it was"))
	}
	if len(c.t.Clusters) != 1 {
		c.missing("scenario %s has %d clusters; expected one", s.Incident.Name, len(c.t.Clusters))
	}
	for _, v := range variants {
		if v.OnlyOwnLab != "" {
			c.missing("variant %s runs on relapse's own labs alone: %s", v.Name, v.OnlyOwnLab)
		}
	}
	for _, n := range s.Topology.Guests() {
		c.missing("node %s needs a kernel of its own (%s), which a container does not have", n.Name, n.Kernel)
	}
	for _, h := range c.t.Hosts {
		if h.Image != "" {
			c.missing("host %s must run image %s", h.Name, h.Image)
		}
	}
}

// members checks that each member has a container that runs, with its addresses, and that its
// default route leads to its routers and nowhere else.
func (c *checker) members(ctx context.Context) {
	for _, m := range c.t.Members() {
		container := c.Foreign.Containers[m.Name]
		if container == "" {
			if m.Kind != topology.KindNode { // cluster reports nodes
				c.missing("%s %s: no container of this machine's Docker has that name in the lab, or %v", m.Kind, m.Name, addressesOf(m))
			}
			continue
		}
		has, err := c.look.InterfacesOf(ctx, container)
		if err != nil {
			c.missing("%s %s: %v", m.Kind, m.Name, err)
			continue
		}
		for _, link := range m.Links {
			if !slices.Contains(has.Addresses, link.Address) {
				c.missing("%s %s: address %s on network %s; container %s has %v", m.Kind, m.Name, link.Address, link.Network, container, has.Addresses)
			}
		}
		if m.Kind == topology.KindRouter { // readRouters reports routers
			continue
		}
		hops := slices.SortedFunc(slices.Values(c.t.NextHops(m)), netip.Addr.Compare)
		if !slices.Equal(has.Gateways, hops) {
			c.missing("%s %s: a default route via %v and nothing else; container %s has %v", m.Kind, m.Name, hops, container, has.Gateways)
		}
	}
}

func (c *checker) cluster(ctx context.Context) {
	spec := c.t.Clusters[0]
	for i, given := range spec.NodeRanges() {
		name := spec.Nodes[i].Name
		object, there := c.nodes[name]
		if !there {
			c.missing("node %s: the cluster has %q", name, slices.Sorted(maps.Keys(c.nodes)))
			continue
		}
		if c.Foreign.Containers[name] == "" {
			c.missing("node %s: it is no container of this machine's Docker: %s", name, c.elsewhere[name])
			continue
		}
		c.card(ctx, spec.Nodes[i])
		if object.Spec.PodCIDR != given.String() {
			c.missing("node %s: Node.spec.podCIDR %s; it is %q", name, given, object.Spec.PodCIDR)
		}
		address := spec.Nodes[i].Links[0].Address.String()
		if !slices.ContainsFunc(object.Status.Addresses, func(a corev1.NodeAddress) bool {
			return a.Type == corev1.NodeInternalIP && a.Address == address
		}) {
			c.missing("node %s: InternalIP %s; it has %v", name, address, object.Status.Addresses)
		}
		for _, taint := range object.Spec.Taints {
			if !strings.HasPrefix(taint.Key, "node.kubernetes.io/") { // Kubernetes sets these taints by the node's state
				c.missing("node %s: it has taint %s, which the scenario's cluster does not have", name, taint.ToString())
			}
		}
		said, err := c.look.Node(name).Exec(ctx, "sh", "-c", examine)
		if err != nil {
			c.missing("node %s: %v", name, err)
		}
		for line := range strings.Lines(said) {
			c.missing("node %s: %s", name, strings.TrimSpace(line))
		}
	}
	for name := range maps.Keys(c.nodes) {
		if !slices.ContainsFunc(spec.Nodes, func(n topology.Node) bool { return n.Name == name }) {
			c.missing("node %s is there, which the scenario's cluster does not have", name)
		}
	}
	var sets appsv1.DaemonSetList
	if err := c.api.Resources().List(ctx, &sets); err != nil {
		c.missing("DaemonSets of the cluster: %v", err)
	}
	for _, d := range sets.Items {
		c.missing("DaemonSet %s/%s is there; expected a cluster without CNI plugin, kube-proxy and other agents on its nodes", d.Namespace,
			d.Name)
	}
}

// card checks that a node keeps its address when its container starts again.
func (c *checker) card(ctx context.Context, n topology.Node) {
	container := c.Foreign.Containers[n.Name]
	info, err := c.docker.ContainerInspect(ctx, container, client.ContainerInspectOptions{})
	if err != nil {
		c.missing("node %s: %v", n.Name, err)
		return
	}
	for network, endpoint := range info.Container.NetworkSettings.Networks {
		fixed := endpoint.IPAMConfig != nil && endpoint.IPAMConfig.IPv4Address == endpoint.IPAddress
		if endpoint.IPAddress == n.Links[0].Address && !fixed {
			c.missing("node %s: Docker has chosen its address %s, and may choose another when it is powered on again; expected "+
				"docker network connect --ip %[2]s %s %s", n.Name, endpoint.IPAddress, network, container)
		}
	}
}

// examine prints a line for each thing that a node lacks, or that is in the way.
const examine = `for tool in conntrack crictl ip ip6tables-restore ip6tables-save iptables-restore iptables-save nft tc systemctl; do
	command -v $tool >/dev/null || echo "program $tool"
done
for f in /etc/cni/net.d/*; do test ! -e "$f" || echo "it has a CNI configuration, $f; expected none"; done
certs=/etc/containerd/certs.d config=/etc/containerd/config.toml
grep -q "config_path *= *\"$certs\"" $config || echo "config_path = \"$certs\" in $config, for a registry of relapse's"
test ! -e $certs/_default || echo "it has a registry mirror for all hosts in $certs/_default; expected none"`

// readRouters checks that each router can be read, and lets no packet out of the lab.
func (c *checker) readRouters(ctx context.Context) {
	for _, r := range c.t.Routers {
		control, there := c.Foreign.Routers[r.Name]
		if !there {
			c.missing("router %s: the file of the routers has none of that name, or with its addresses", r.Name)
			continue
		}
		table, err := control.FIB(ctx)
		if err == nil {
			_, err = control.RIB(ctx)
		}
		if err == nil {
			_, err = control.Neighbors(ctx)
		}
		if err != nil {
			c.missing("router %s: %v", r.Name, err)
		}
		for _, route := range table {
			if route.Prefix.Bits() == 0 && len(route.NextHops) > 0 {
				c.missing("router %s: it has a default route, %s, by which packets to withdrawn ranges would leave the lab", r.Name, route)
			}
		}
	}
}
