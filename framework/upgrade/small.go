package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
)

// The nodes, and what is outside.
const (
	master  = "master"
	worker1 = "worker1"
	worker2 = "worker2"
	tor     = "tor"
	outside = "outside"
)

// allNodes are in the order in which they are changed.
var allNodes = []string{master, worker1, worker2}

// small is the lab of every upgrade. Each upgrade has its own number N in the addresses:
//
//	          outside 10.N.5.10
//	             │                    net "uplink" 10.N.5.0/24
//	          tor .254                AS 64524
//	   ┌─────────┼─────────┐          net "nodes"  10.N.4.0/24
//	master    worker1   worker2       AS 64513
//	 .11        .21       .22         pods in 10.N.64.0/20
//
// With two workers, one can be changed before the other, and there is a path between workers. The ToR is the default
// route of every node.
type small struct {
	component string
	number    byte
	// kernel is the version of the workers' own kernels; empty if they have none.
	kernel string
	dual   bool
}

func (s small) address(network, host byte) netip.Addr {
	return netip.AddrFrom4([4]byte{10, s.number, network, host})
}

// on is the lab with its networks moved into a prefix. If they do not fit, they are not moved, and Of has an error.
func (s small) on(subnets netip.Prefix) topology.Topology {
	t := s.topology()
	if !subnets.IsValid() {
		return t
	}
	moves, err := t.Within(subnets)
	if err != nil {
		return t
	}
	return t.Renumber(moves)
}

// networks are the prefixes of a lab that a user's pools must not overlap.
func (s small) networks(t topology.Topology) []netip.Prefix {
	var all []netip.Prefix
	for _, f := range t.Families() {
		all = append(all, f.Prefix(s.podCIDR()), f.Prefix(t.Clusters[0].ServiceCIDR))
		for _, n := range t.Networks {
			all = append(all, f.Prefix(n.Subnet))
		}
	}
	return all
}

func addressOn(lab topology.Topology, name string) netip.Addr {
	addr, _ := lab.AddressOn(name, "nodes")
	return addr
}

func (s small) podCIDR() netip.Prefix { return netip.PrefixFrom(s.address(64, 0), 20) }

func (s small) topology() topology.Topology {
	nodes := topology.Network{Name: "nodes", Subnet: netip.PrefixFrom(s.address(4, 0), 24)}
	uplink := topology.Network{Name: "uplink", Subnet: netip.PrefixFrom(s.address(5, 0), 24)}
	workers := []topology.Node{nodes.Node(worker1, 21), nodes.Node(worker2, 22)}
	for i := range workers {
		workers[i].Kernel = s.kernel
	}
	return topology.Topology{
		Name: "upgrade-" + s.component, Dual: s.dual, Networks: []topology.Network{nodes, uplink},
		Hosts:    []topology.Host{uplink.Host(outside, 10)},
		Clusters: []topology.Cluster{{PodCIDR: s.podCIDR(), NodeMask: 24, Nodes: append([]topology.Node{nodes.Node(master, 11)}, workers...)}},
	}.Behind(topology.GracefulRestart(topology.OneToR(nodes, uplink)))
}

// pods are the probes' pods, which keep running: one on each node, named after the node, and a second one on worker1.
var pods = append(workload.OnEach(allNodes...), beside)

var beside = framework.ProbePod{Name: "beside", Node: worker1}

// nodePort and clusterIP lead to worker2's pod: worker1's pod uses clusterIP, the host outside worker1's nodePort.
const nodePort = 30707

var clusterIP = netip.MustParseAddr("10.96.0.77")

func applyService(ctx context.Context, r *framework.Run) error {
	port := func(protocol string) string {
		return fmt.Sprintf("  - {name: %s, protocol: %s, port: %[3]d, targetPort: %[3]d, nodePort: %d}\n",
			map[string]string{"TCP": "tcp", "UDP": "udp"}[protocol], protocol, wire.DefaultPort, nodePort)
	}
	return workload.Apply(ctx, labaccess.Cluster(r), fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  clusterIP: %s
  clusterIPs: [%s]
  selector: {%s: %s}
  ports:
%s%s`, clusterIP, r.Topology.Addrs(clusterIP), workload.ProbeLabel, worker2, port("TCP"), port("UDP")))
}

// startsPod starts another pod on a node, connects to it from another node, and removes it: a version that carries
// the traffic of wired pods must also wire new ones.
func startsPod(ctx context.Context, r *framework.Run, node string) (err error) {
	fresh := framework.ProbePod{Name: "fresh-" + node, Node: node}
	defer func() {
		if left := workload.ProbePods(fresh).Delete(context.WithoutCancel(ctx), labaccess.Cluster(r)); left != nil && err == nil {
			err = fmt.Errorf("removing a new pod from %s: %s", node, left) // this says nothing of the agent
		}
	}()
	if err := workload.Added(fresh)(ctx, r); err != nil {
		return fmt.Errorf("starting a new pod on %s: %w", node, err)
	}
	addresses, err := podAddresses(ctx, r, fresh)
	if err != nil {
		return err
	}
	from := master
	if node == master {
		from = worker1
	}
	for _, address := range addresses {
		err = await.Until(ctx, fmt.Sprintf("%s to reach a new pod on %s", from, node), 200*time.Millisecond, reachedWithin,
			func(ctx context.Context) (bool, string, error) {
				a, err := connect(ctx, r, from, address)
				return a.answered, a.String(), err
			})
		if err != nil {
			return err
		}
		if err := errors.Join(forget(ctx, r, from, address), forget(ctx, r, node, address)); err != nil {
			return err
		}
	}
	return nil
}

// podAddresses are the addresses of a pod, one of each family of the lab, IPv4 first.
func podAddresses(ctx context.Context, r *framework.Run, pod framework.ProbePod) ([]netip.Addr, error) {
	v4, v6, err := workload.ProbeIPs(ctx, labaccess.Cluster(r), pod)
	if !r.Topology.Dual {
		return []netip.Addr{v4}, err
	}
	return []netip.Addr{v4, v6}, err
}

// reachedWithin bounds the wait for a connection to a new pod. A route of BGP needs some seconds.
const reachedWithin = time.Minute

// serviceProxy is what translates the addresses of Services on a node.
type serviceProxy struct {
	name string
	// tracked is set if the node's connection tracking has the connections to Services.
	tracked bool
}

var (
	kubeProxies = serviceProxy{"kube-proxy", true}
	// Cilium translates at connect(2), or in its own tables.
	ciliumProxies = serviceProxy{"Cilium", false}
)

// followsServices asks the service proxy of a node for new work: a new Service, whose endpoint is then removed and
// replaced. Older Services work without the proxy, and kube-proxy also reports syncs that failed in mode ipvs. The node
// itself connects, so that only its proxy decides.
func followsServices(ctx context.Context, r *framework.Run, proxy serviceProxy, node string, bound time.Duration) (err error) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "fresh-" + node}}
	resources := labaccess.Cluster(r).Client.Resources()
	defer func() {
		err = errors.Join(err, client.IgnoreNotFound(resources.Delete(context.WithoutCancel(ctx), service)))
	}()
	for _, step := range []struct{ pod, what string }{
		{worker1, "a new Service"}, {"none", "the removal of its endpoint"}, {worker2, "its new endpoint"},
	} {
		err := workload.Apply(ctx, labaccess.Cluster(r), fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {%s: %s}
  ports:
  - {name: tcp, protocol: TCP, port: %d}
`, service.Name, workload.ProbeLabel, step.pod, wire.DefaultPort))
		if err == nil {
			err = resources.Get(ctx, service.Name, service.Namespace, service)
		}
		if err != nil {
			return fmt.Errorf("declaring %s for %s on %s: %w", step.what, proxy.name, node, err)
		}
		wanted := make([]netip.Addr, len(service.Spec.ClusterIPs))
		if step.pod != "none" {
			if wanted, err = podAddresses(ctx, r, framework.ProbePod{Name: step.pod, Node: step.pod}); err != nil {
				return err
			}
		}
		for i, address := range service.Spec.ClusterIPs {
			to, err := netip.ParseAddr(address)
			if err != nil || len(wanted) != len(service.Spec.ClusterIPs) {
				return fmt.Errorf("the Service %s has the addresses %q: expected one of each of %v",
					service.Name, service.Spec.ClusterIPs, r.Topology.Families())
			}
			if err := proxy.implements(ctx, r, node, step.what, to, wanted[i], bound); err != nil {
				return err
			}
		}
	}
	for _, address := range service.Spec.ClusterIPs {
		err = errors.Join(err, forget(ctx, r, node, netip.MustParseAddr(address)))
	}
	return err
}

// implements waits until connections from a node to a Service's address reach an endpoint, or none if it is invalid.
func (proxy serviceProxy) implements(
	ctx context.Context, r *framework.Run, node, what string, to, endpoint netip.Addr, bound time.Duration,
) error {
	silent := 0
	return await.Until(ctx, fmt.Sprintf("%s on %s to implement %s", proxy.name, node, what), 200*time.Millisecond, bound,
		func(ctx context.Context) (bool, string, error) {
			a, err := connect(ctx, r, node, to)
			if err != nil {
				return false, "", err
			}
			silent++
			if a.answered || a.refused {
				silent = 0
			}
			return a.leadsTo(endpoint, silent, proxy.tracked), a.String(), nil
		})
}

type connection struct {
	to netip.Addr
	// answered is set if the connection was opened, and by is the address that answered, if the node tracks it.
	answered bool
	by       netip.Addr
	// refused is set if the node was told at once that nobody answers.
	refused bool
	said    string
}

func (c connection) String() string {
	what := "no answer within 1s"
	switch {
	case c.by.IsValid():
		what = "answered by " + c.by.String()
	case c.answered:
		what = "answered, and the node does not track by whom"
	}
	return fmt.Sprintf("a connection to %s: %s", c.to, cmp.Or(c.said, what))
}

// silentFor is how many connections in a row must get no answer, where none is refused, before an address has no
// endpoint: a single one may be slow.
const silentFor = 3

// leadsTo reports whether an endpoint is behind the address: it answered the connection or, without tracking, any
// endpoint did. With an invalid endpoint it reports whether none is: it is refused, or several had no answer.
func (c connection) leadsTo(endpoint netip.Addr, silent int, tracked bool) bool {
	if endpoint.IsValid() {
		return c.by == endpoint || !tracked && c.answered && !c.by.IsValid()
	}
	return c.refused || silent >= silentFor
}

// connected is what connecting prints if the connection was opened.
const connected = "connected"

// connecting opens a connection to $1 within a second. It prints bash's error, or connected and the connection's entry
// in the node's connection tracking.
const connecting = `conntrack -D -p tcp --orig-dst $1 >/dev/null 2>&1 || true
if timeout 1 bash -c ": </dev/tcp/$1/$2" 2>&1; then echo ` + connected + `; conntrack -L -p tcp --orig-dst $1 2>/dev/null; fi || true`

func connect(ctx context.Context, r *framework.Run, node string, to netip.Addr) (connection, error) {
	said, err := labaccess.Lab(r).Node(node).Exec(ctx, "sh", "-c", connecting, "connect", to.String(), fmt.Sprint(wire.DefaultPort))
	return connectionOf(to, said), err
}

// connectionOf parses the output of connecting. The second source of a tracked connection is the source of the replies.
func connectionOf(to netip.Addr, said string) connection {
	c := connection{to: to}
	tracked, answered := strings.CutPrefix(said, connected+"\n")
	if !answered {
		c.said = strings.TrimSpace(said)
		c.refused = strings.Contains(said, "Connection refused")
		return c
	}
	c.answered = true
	for line := range strings.Lines(tracked) {
		var sources []string
		for _, word := range strings.Fields(line) {
			if source, ok := strings.CutPrefix(word, "src="); ok {
				sources = append(sources, source)
			}
		}
		if len(sources) == 2 {
			c.by, _ = netip.ParseAddr(sources[1])
		}
	}
	return c
}

// forget removes connections from a node's connection tracking, which is compared before and after the upgrade.
func forget(ctx context.Context, r *framework.Run, node string, to netip.Addr) error {
	return workload.Forget(ctx, labaccess.Lab(r).Node(node), "-p", "tcp", "--orig-dst", to.String())
}

func (s small) ends() []framework.Endpoint {
	ends := each.Of(pods, framework.PodEndpoint)
	behind := func(name string, at func(*framework.Run) netip.AddrPort) framework.Endpoint {
		e := framework.PodOn(worker2)
		e.Name, e.Address = name, at
		return e
	}
	return append(ends, framework.HostEndpoint(s.topology().Hosts[0]),
		behind("cluster IP", func(*framework.Run) netip.AddrPort { return netip.AddrPortFrom(clusterIP, wire.DefaultPort) }),
		behind("node port of "+worker1, func(r *framework.Run) netip.AddrPort { return netip.AddrPortFrom(r.Address(worker1), nodePort) }))
}

// SourcePath measures the addresses from which pods' packets arrive outside, and at other nodes' pods (native range).
const SourcePath = "source address, pod to outside and to pods"

// sourcePath has a new flow for each packet: a flow's translation never changes.
func sourcePath() PathKind {
	k := PathKind{Name: SourcePath, OneWay: true, BySource: true}
	next := map[string]string{master: worker1, worker1: worker2, worker2: master}
	for _, from := range allNodes {
		for _, to := range []string{outside, next[from]} {
			k.Probes = append(k.Probes, probe.Probe{From: from, To: to, Protocol: probe.UDPFlow, Interval: probe.DefaultTCPInterval}.WithDefaults())
		}
	}
	return k
}

func onDual(kinds []PathKind) (all []PathKind) {
	for _, k := range kinds {
		all = append(all, k)
		if k.Probes = framework.ProbesV6(k.Probes); len(k.Probes) > 0 {
			k.Name += ", IPv6"
			all = append(all, k)
		}
	}
	return all
}

// paths are the lab's paths, with intervals of UDP probes and of other probes. Unless pods are routed, no path leads to
// them from outside.
func (s small) paths(udp, others time.Duration, routed bool) []PathKind {
	to := func(protocol probe.Protocol, from string, tos ...string) []probe.Probe {
		interval := others
		if protocol == probe.UDP {
			interval = udp
		}
		return each.Of(tos, func(end string) probe.Probe {
			return probe.Probe{From: from, To: end, Protocol: protocol, Interval: interval}.WithDefaults()
		})
	}
	inbound := to(probe.UDP, outside, master, worker1, worker2)
	outbound := slices.Concat(each.Of(inbound, func(p probe.Probe) []probe.Probe { return to(probe.UDP, p.To, outside) })...)
	near := to(probe.UDP, worker1, "beside")
	far := append(to(probe.UDP, worker1, worker2), append(to(probe.UDP, worker2, master), to(probe.UDP, master, worker1)...)...)
	// Each UDP probe above has one flow, which a firewall that refuses new flows still accepts.
	opening := func(all ...probe.Probe) []probe.Probe {
		var opened []probe.Probe
		for _, p := range all {
			opened = append(opened, to(probe.TCP, p.From, p.To)...)
			opened = append(opened, to(probe.UDPFlow, p.From, p.To)...)
		}
		return opened
	}
	long := append(to(probe.Stream, outside, "node port of "+worker1), to(probe.Stream, worker1, worker2, outside, "cluster IP")...)
	if routed {
		long = append(to(probe.Stream, outside, worker1, worker2), long...)
	}
	all := []PathKind{
		{Name: "outside to pod", Probes: inbound},
		{Name: "pod to outside", Probes: outbound},
		{Name: "pod to pod, same node", Probes: near},
		{Name: "pod to pod, other node", Probes: far},
		{Name: "new connections, outside to pod", Probes: opening(inbound...)},
		{Name: "new connections, pod to outside", Probes: opening(outbound...)},
		{Name: "new connections, pod to pod, same node", Probes: opening(near...)},
		{Name: "new connections, pod to pod, other node", Probes: opening(far...)},
		{Name: "cluster IP", Probes: opening(probe.Probe{From: worker1, To: "cluster IP"})},
		{Name: "node port", Probes: opening(probe.Probe{From: outside, To: "node port of " + worker1})},
		{Name: "long-lived TCP", Probes: long},
		{Name: "UDP one way, outside to pod", Probes: inbound, OneWay: true},
		{Name: "UDP one way, pod to outside", Probes: outbound, OneWay: true},
		{Name: "UDP one way, pod to pod", Probes: slices.Concat(near, far), OneWay: true},
	}
	if !routed {
		all = slices.DeleteFunc(all, func(k PathKind) bool { return strings.HasSuffix(k.Name, "outside to pod") })
	}
	return all
}
