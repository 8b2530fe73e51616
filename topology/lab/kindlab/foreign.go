package kindlab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/bgp"
)

// RouterControl reads a router and changes its static routes, as *router.Client does.
type RouterControl interface {
	RIB(context.Context) ([]bgp.Path, error)
	FIB(context.Context) ([]bgp.Route, error)
	Neighbors(context.Context) ([]bgp.Neighbor, error)
	AddStatic(ctx context.Context, prefix netip.Prefix, nextHops ...netip.Addr) error
	RemoveStatic(ctx context.Context, prefix netip.Prefix) error
	Clear(ctx context.Context, neighbor netip.Addr) error
	Close() error
}

// ForeignRouter is a RouterControl that takes its changes back.
type ForeignRouter interface {
	RouterControl
	Restore(context.Context) error
}

// Foreign is a lab that somebody else has brought up on this machine's Docker: one cluster
// of kind, with the topology's names, addresses and ranges.
type Foreign struct {
	// Containers are the containers of the topology's members, by member.
	Containers map[string]string
	// Kubeconfig is the administrator's.
	Kubeconfig []byte
	Routers    map[string]ForeignRouter
}

type foreign struct {
	Foreign
	api, registry netip.AddrPort
	// network is Docker's network over which nodes reach the registry.
	network string
	objects map[string]bool
	nodes   map[string]*before
}

type before struct {
	object corev1.Node
	kernel kernelState
	cables []cable
	// rules are the outputs of families' programs.
	rules [len(families)]string
	// has are the lines that the lists of leftovers print, sorted.
	has [len(leftovers)][]string
}

// families are the programs of IPv4's and IPv6's rules of iptables.
var families = [...]string{"iptables", "ip6tables"}

// leftovers are commands that list things of a node, one a line, and the commands that remove new ones. The
// files among them are CNI's configuration, programs and state, and relapse's sockets.
var leftovers = [...]struct{ list, remove []string }{
	{
		[]string{"sh", "-c", `for d in /etc/cni/net.d /opt/cni/bin /etc/containerd/certs.d /kind \
			/var/lib/cni /var/lib/cilium /run/cilium /run/relapse; do
			test ! -e $d || find $d -xdev -maxdepth 2
		done`},
		[]string{"rm", "-rf", "--one-file-system", "--"},
	},
	// crictl gives a request 2 s by default, and images are removed one after the other.
	{[]string{"crictl", "--timeout=2m", "images", "--quiet", "--no-trunc"}, []string{"crictl", "--timeout=2m", "rmi"}},
	{
		[]string{"sh", "-c", `nft list tables | sed -n 's/^table \([^ ]*\) \([^ ]*\).*/\1:\2/p'`},
		[]string{"sh", "-ec", `for t; do nft delete table "${t%%:*}" "${t#*:}"; done`, "nft"},
	},
}

// Adopt takes over a lab that somebody else has brought up. It makes nothing of the topology. It adds a
// registry on kind's network, from which the nodes pull while the lab is adopted, and beside each host
// a container in its network namespace, with the probe agent, which is the handle of that host. Down
// removes both, and restores the lab by comparison: new objects of the cluster and new routes, links,
// rules, tables of nftables, files and images of nodes are removed; earlier Node objects, power, links
// and sysctls come back.
//
// Power cuts kill the container of a node. Remove does the same, because the machine that comes back must
// have the same cables: Docker's network card comes back with the container, and this package lays the
// others again. Docker chooses a new address for its card: addresses of a network whose subnet Docker has
// chosen cannot be requested.
//
// When it fails, it also returns the lab if parts of it may be changed; the caller must take
// it down. Its bridges are not isolated by relapse.
func Adopt(ctx context.Context, docker *client.Client, t topology.Topology, f Foreign, o Options) (*Lab, error) {
	l, err := hold(docker, t, o)
	if err != nil {
		return nil, err
	}
	l.foreign = &foreign{Foreign: f, nodes: map[string]*before{}}
	there, err := Exists(ctx, docker, t.Name)
	if err == nil && there {
		err = fmt.Errorf("there are containers of relapse's own lab %q already: relapse down %s removes them", t.Name, t.Name)
	}
	if err != nil {
		l.Release()
		return nil, err
	}
	if err := l.record(ctx); err != nil {
		l.Release()
		return nil, errors.Join(err, removeStateDir(t.Name))
	}
	return l, l.equip(ctx)
}

// AdoptedImages are the images that a lab needs to be adopted, without its workloads' images.
func AdoptedImages(t topology.Topology) []string {
	refs := []string{registryImage}
	if len(t.Hosts) > 0 {
		refs = append(refs, hostImage)
	}
	return refs
}

// Look is a handle for reading a lab that is not adopted: its nodes' commands, namespaces and files.
func Look(docker *client.Client, t topology.Topology, f Foreign) *Lab {
	return &Lab{Topology: t, docker: docker, log: slog.New(slog.DiscardHandler), foreign: &foreign{Foreign: f}, unlock: func() {}}
}

// Interfaces are the IPv4 addresses and gateways of a container's network namespace.
type Interfaces struct {
	Addresses []netip.Addr
	// Gateways are the next hops of default routes, sorted.
	Gateways []netip.Addr
}

// InterfacesOf reads the network namespace of a container.
func (l *Lab) InterfacesOf(ctx context.Context, container string) (Interfaces, error) {
	var n Interfaces
	add := func(to *[]netip.Addr, ip net.IP) {
		if address, ok := netip.AddrFromSlice(ip.To4()); ok {
			*to = append(*to, address)
		}
	}
	err := (&member{name: container, container: container, docker: l.docker}).InNetns(ctx, func() error {
		addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
		if err != nil {
			return fmt.Errorf("listing addresses: %w", err)
		}
		for _, a := range addresses {
			add(&n.Addresses, a.IP)
		}
		routes, err := listRoutes()
		for _, r := range routes {
			if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
				continue
			}
			add(&n.Gateways, r.Gw)
			for _, hop := range r.MultiPath {
				add(&n.Gateways, hop.Gw)
			}
		}
		slices.SortFunc(n.Gateways, netip.Addr.Compare)
		return err
	})
	return n, err
}

// record notes the state of the lab, and changes nothing.
func (l *Lab) record(ctx context.Context) error {
	c := l.Topology.Clusters[0]
	if err := os.MkdirAll(stateDir(l.Topology.Name), 0o700); err != nil {
		return fmt.Errorf("creating the state folder of lab %q: %w", l.Topology.Name, err)
	}
	if err := os.WriteFile(l.kubeconfig(c), l.foreign.Kubeconfig, 0o600); err != nil {
		return fmt.Errorf("writing the kubeconfig of lab %q: %w", l.Topology.Name, err)
	}
	running, err := l.openCluster(c)
	if err != nil {
		return err
	}
	l.Clusters = []*Cluster{running}
	if l.foreign.api, err = running.advertised(ctx); err != nil {
		return err
	}
	if l.foreign.objects, err = running.objects(ctx); err != nil {
		return err
	}
	first, err := l.member(c.Nodes[0].Name).inspect(ctx)
	if err != nil {
		return err
	}
	l.foreign.network = registryNetwork(first.NetworkSettings.Networks, c.Nodes[0])
	var mu sync.Mutex
	return l.EachNode(ctx, running.Nodes(), func(ctx context.Context, n *Node) error {
		b, err := l.recordNode(ctx, n)
		mu.Lock()
		defer mu.Unlock()
		l.foreign.nodes[n.name] = b
		return err
	})
}

// registryNetwork is Docker's network over which a node reaches the registry: kind's, because on a network
// of the topology Docker might take a member's address.
func registryNetwork(on map[string]*network.EndpointSettings, n topology.Node) string {
	chosen := ""
	for _, name := range slices.Sorted(maps.Keys(on)) {
		declared := slices.ContainsFunc(n.Links, func(l topology.Link) bool { return l.Address == on[name].IPAddress })
		if chosen == "" || !declared {
			chosen = name
		}
	}
	return chosen
}

func (l *Lab) recordNode(ctx context.Context, n *Node) (*before, error) {
	b := &before{}
	if err := l.Clusters[0].Client.Resources().Get(ctx, n.name, "", &b.object); err != nil {
		return nil, fmt.Errorf("reading its Node object: %w", err)
	}
	declared, _ := l.Topology.Member(n.name)
	info, err := n.inspect(ctx)
	if err != nil {
		return nil, err
	}
	var cards []string
	for _, card := range info.NetworkSettings.Networks {
		cards = append(cards, card.IPAddress.String())
	}
	err = n.InNetns(ctx, func() (err error) {
		b.kernel, b.cables, err = readKernel(declared.Links, cards)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range b.cables {
		if err := b.cables[i].findPort(); err != nil {
			return nil, err
		}
	}
	for i, family := range families {
		if b.rules[i], err = n.Exec(ctx, family+"-save"); err != nil {
			return nil, err
		}
	}
	for i, k := range leftovers {
		if b.has[i], err = n.lines(ctx, k.list...); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (m *member) lines(ctx context.Context, command ...string) ([]string, error) {
	text, err := m.Exec(ctx, command...)
	return slices.Sorted(slices.Values(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }))), err
}

// advertised is where nodes reach the API server.
func (c *Cluster) advertised(ctx context.Context) (netip.AddrPort, error) {
	var slice discoveryv1.EndpointSlice
	if err := c.Client.Resources().Get(ctx, "kubernetes", metav1.NamespaceDefault, &slice); err != nil {
		return netip.AddrPort{}, fmt.Errorf("reading the addresses of the API server: %w", err)
	}
	if len(slice.Endpoints) == 0 || len(slice.Endpoints[0].Addresses) == 0 || len(slice.Ports) == 0 || slice.Ports[0].Port == nil {
		return netip.AddrPort{}, errors.New("EndpointSlice default/kubernetes has no address of the API server")
	}
	address, err := netip.ParseAddr(slice.Endpoints[0].Addresses[0])
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("reading the addresses of the API server: %w", err)
	}
	return netip.AddrPortFrom(address, uint16(*slice.Ports[0].Port)), nil
}

func (l *Lab) equip(ctx context.Context) error {
	images, err := l.load(ctx, AdoptedImages(l.Topology))
	if err != nil {
		return err
	}
	err = l.options.step("registry", func() error {
		if err := l.startOurs(ctx, l.Registry(), images[registryImage]); err != nil {
			return err
		}
		return l.push(ctx, l.options.Serve)
	})
	if err != nil {
		return err
	}
	err = l.EachNode(ctx, l.Clusters[0].Nodes(), func(ctx context.Context, n *Node) error {
		const write = "mkdir -p " + mirrorFolder + " && cat >" + mirrorFolder + "/hosts.toml"
		_, err := n.ExecInput(ctx, strings.NewReader(l.Registry().mirror()), "sh", "-c", write)
		return err
	})
	if err != nil {
		return err
	}
	for _, h := range l.Topology.Hosts {
		if err := l.startBeside(ctx, h.Name, images[hostImage]); err != nil {
			return err
		}
	}
	return nil
}

// mirrorFolder is where a node's containerd finds the registry that it asks first for
// images of every host.
const mirrorFolder = "/etc/containerd/certs.d/_default"

// startBeside runs a host's probe agent in the network namespace of its container.
func (l *Lab) startBeside(ctx context.Context, host, image string) error {
	dir, err := l.makeRunFolder(host)
	if err != nil {
		return err
	}
	m := l.member(host)
	err = m.createIn(ctx, "container:"+l.foreign.Containers[host], nil, l.agent(image), &container.HostConfig{
		CapAdd: []string{"NET_ADMIN"}, Binds: []string{dir + ":" + runDir},
	})
	if err != nil {
		return err
	}
	return m.start(ctx)
}

func (l *Lab) powerOn(ctx context.Context, n *Node) error {
	if err := n.member.start(ctx); err != nil {
		return err
	}
	pid, err := n.PID(ctx)
	if err != nil {
		return err
	}
	for _, c := range l.foreign.nodes[n.name].cables {
		// The kernel removes the old one some time after the kill.
		err := await.Until(ctx, "the old "+c.port+" to go", 20*time.Millisecond, 10*time.Second, func(context.Context) (bool, string, error) {
			_, err := netlink.LinkByName(c.port)
			if errors.As(err, new(netlink.LinkNotFoundError)) {
				return true, "", nil
			}
			return false, "it is there", err
		})
		if err == nil {
			err = c.lay(pid)
		}
		if err != nil {
			return fmt.Errorf("connecting %s to %s again: %w", n.name, c.bridge, err)
		}
	}
	if err := n.InNetns(ctx, func() error { return configure(l.foreign.nodes[n.name].cables) }); err != nil {
		return fmt.Errorf("on %s: %w", n.name, err)
	}
	// The node's entrypoint fails if the default route has two next hops already.
	if err := await.Until(ctx, "containerd on "+n.name, 100*time.Millisecond, nodeBoots, n.containerd); err != nil {
		return err
	}
	return n.InNetns(ctx, func() error { return l.foreign.nodes[n.name].kernel.restore() })
}

// putBack powers declared nodes on again, with the Node objects that they had when the lab was
// adopted, which have their ranges.
func (l *Lab) putBack(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := l.registerAgain(ctx, name); err != nil {
			return err
		}
	}
	return l.EachNode(ctx, names, func(ctx context.Context, n *Node) error {
		if err := n.Start(ctx); err != nil {
			return err
		}
		return l.Clusters[0].takesPods(ctx, n.name)
	})
}

func (l *Lab) registerAgain(ctx context.Context, name string) error {
	was := l.foreign.nodes[name].object
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: was.Labels, Annotations: was.Annotations}, Spec: was.Spec}
	object.Spec.Taints = nil // such as the taint of a node that is not ready yet
	if err := l.Clusters[0].Client.Resources().Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("registering node %q again: %w", name, err)
	}
	return nil
}

func (l *Lab) restore(ctx context.Context) error {
	c := l.Clusters[0]
	var errs []error
	for _, r := range l.foreign.Routers {
		errs = append(errs, r.Restore(ctx))
	}
	step := func(name string, do func() error) {
		errs = append(errs, l.options.step(name, do))
	}
	step("nodes are as they were", func() error {
		var off []string
		for _, name := range c.Nodes() {
			there, err := l.Node(name).Exists(ctx)
			if err != nil {
				return err
			}
			registered := c.Client.Resources().Get(ctx, name, "", &corev1.Node{})
			if apierrors.IsNotFound(registered) && there {
				// A running kubelet does not notice its Node object.
				if err := l.registerAgain(ctx, name); err != nil {
					return err
				}
				if _, err := l.Node(name).Exec(ctx, "systemctl", "restart", "kubelet"); err != nil {
					return err
				}
			}
			if !there {
				off = append(off, name)
			}
		}
		if err := l.putBack(ctx, off); err != nil {
			return err
		}
		return l.EachNode(ctx, c.Nodes(), func(ctx context.Context, n *Node) error { return c.describeAs(ctx, &l.foreign.nodes[n.name].object) })
	})
	step("objects are as they were", func() error { return c.deleteOthers(ctx, l.foreign.objects) })
	step("nodes' networks and files are as they were", func() error {
		return l.EachNode(ctx, c.Nodes(), func(ctx context.Context, n *Node) error {
			return n.cleanTo(ctx, l.foreign.nodes[n.name])
		})
	})
	return errors.Join(errs...)
}

// describeAs gives a Node object its earlier labels, annotations and spec.unschedulable.
func (c *Cluster) describeAs(ctx context.Context, was *corev1.Node) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		var object corev1.Node
		if err := c.Client.Resources().Get(ctx, was.Name, "", &object); err != nil {
			return err
		}
		object.Labels, object.Annotations, object.Spec.Unschedulable = was.Labels, was.Annotations, was.Spec.Unschedulable
		return c.Client.Resources().Update(ctx, &object)
	})
}

func (n *Node) cleanTo(ctx context.Context, was *before) error {
	for i, family := range families {
		present, err := n.Exec(ctx, family+"-save")
		if err != nil {
			return err
		}
		if _, err := n.ExecInput(ctx, strings.NewReader(was.rules[i]+emptied(present, was.rules[i])), family+"-restore", "--wait"); err != nil {
			return err
		}
	}
	if err := n.InNetns(ctx, func() error { return was.kernel.restore() }); err != nil {
		return fmt.Errorf("on %s: %w", n.name, err)
	}
	for i, k := range leftovers {
		has, err := n.lines(ctx, k.list...)
		if err != nil {
			return err
		}
		if more := others(has, was.has[i]); len(more) > 0 {
			if _, err := n.Exec(ctx, append(slices.Clone(k.remove), more...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// emptied is iptables-restore's input to empty the tables that were not there before.
func emptied(present, before string) string {
	tables := func(text string) []string {
		return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return !strings.HasPrefix(line, "*") })
	}
	var text string
	for _, table := range others(tables(present), tables(before)) {
		text += table + "\nCOMMIT\n"
	}
	return text
}

func others(list, excluded []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(excluded, s) })
}
