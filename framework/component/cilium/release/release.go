// Package release installs whole Cilium, from 1.15 on, on a lab's cluster, as Helm does: by the vendor's own chart of
// the version. Versions up to 1.12 run as slices, which package cilium installs.
//
// Images of the lab lack what is not built: Envoy, and what Hubble's relay, interface and
// certificates need. [Release.Settings] switches these off.
package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/chart/install"
	"github.com/relapse-dev/relapse/framework/component/chart/published"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Name and namespace of the release, as in the vendor's documentation.
const (
	name      = "cilium"
	namespace = metav1.NamespaceSystem
)

// Images are the images that a version runs, under the vendor's names.
func Images(version string) []string {
	return []string{cilium.Agent(version), cilium.Operator(version)}
}

// Release is a version of Cilium with values for its chart.
type Release struct {
	Version string
	// Values are the user's. Settings take precedence over them.
	Values Values
	// NoServices is set for a lab in which nothing serves Services, the API server's included.
	NoServices bool
}

var (
	agents   = workload.SystemDaemonSet(name)
	operator = workload.Deployment{Name: "cilium-operator", Pods: workload.Pods{
		Namespace: namespace, Labels: client.MatchingLabels{"io.cilium/app": "operator"},
	}}
)

// Pods are the pods of a version.
var Pods = []workload.Pods{agents.Pods, operator.Pods}

const (
	// startsWithin bounds the start of agents: seconds, unless all nodes pull an image with a compiler at once.
	startsWithin = 3 * time.Minute
	// typesWithin bounds how long the operator needs to register its types, one a second.
	typesWithin = 2 * time.Minute
)

// Apply is the action that brings the cluster to this release as helm upgrade --install does, and waits until the
// operator works. Objects that only the earlier release has are deleted at the end. Running agents stay: see Restart.
func (r Release) Apply(ctx context.Context, run *framework.Run) error {
	c := labaccess.Cluster(run)
	objects, err := r.render(ctx, run.Topology, labaccess.Cluster(run).APIServer())
	if err != nil {
		return err
	}
	if err := installed.Apply(ctx, c, r.Version, objects, nil); err != nil {
		return err
	}
	return operator.Ready(ctx, c, startsWithin)
}

var installed = install.Release{Name: name, Namespace: namespace}

func (r Release) render(ctx context.Context, t topology.Topology, apiServer netip.AddrPort) ([]unstructured.Unstructured, error) {
	c, err := published.Of(ctx, name, r.Version)
	if err != nil {
		return nil, err
	}
	return installed.Render(c, r.Values.with(r.Settings(t, apiServer)))
}

// Ready is the action that waits until this release's agents are ready on these nodes, and kubelet accepts pods there.
func (r Release) Ready(nodes ...string) framework.Action {
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error { return r.ready(ctx, c, nodes) })
}

func (r Release) ready(ctx context.Context, c *kindlab.Cluster, nodes []string) error {
	if err := agents.Ready(ctx, c, nodes, startsWithin); err != nil {
		return err
	}
	return await.Until(ctx, "the nodes to be ready, and their agents to be of "+r.Version, 200*time.Millisecond, startsWithin,
		func(ctx context.Context) (bool, string, error) {
			pods, err := agents.Pods.List(ctx, c)
			if err != nil {
				return false, "", err
			}
			for _, pod := range pods {
				i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Image == cilium.Agent(r.Version) })
				if i < 0 && slices.Contains(nodes, pod.Spec.NodeName) {
					return false, fmt.Sprintf("%s runs %s", pod.Spec.NodeName, pod.Spec.Containers[0].Image), nil
				}
			}
			for _, name := range nodes {
				var node corev1.Node
				if err := c.Kube().Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
					return false, "", err
				}
				for _, condition := range node.Status.Conditions {
					if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
						return false, name + ": " + condition.Message, nil
					}
				}
			}
			return true, "", nil
		})
}

// Peering gives every agent a session with each router, over which it announces the pods of its node
// (CiliumBGPClusterConfig). A dual lab has a session of each family: over a session of IPv4 GoBGP gives routes of IPv6
// a next hop of IPv4.
type Peering struct {
	Routers         []netip.Addr
	Dual            bool
	RoutersASN, ASN uint32
	// GracefulRestart has routers keep the routes of an agent whose session has ended. The vendor's default is without.
	GracefulRestart bool
	// LoadBalancers is the range of addresses for Services of type LoadBalancer; invalid: none. Every agent announces the
	// addresses of Services with the label [Announced].
	LoadBalancers netip.Prefix
	// RestartTime is for how long routers keep the routes of an agent; zero: 120 s, the vendor's default.
	RestartTime time.Duration
}

// PeeringOf is the peering with each router of a lab that accepts sessions.
func PeeringOf(lab topology.Topology) Peering {
	p := Peering{RoutersASN: topology.TorASN, ASN: topology.ClusterASN, Dual: lab.Dual}
	for _, r := range lab.BGPPeers() {
		p.Routers = append(p.Routers, r.Address)
	}
	return p
}

// Types are the types by which users of a version configure BGP.
type Types string

const (
	// Policy is CiliumBGPPeeringPolicy, which 1.16 to 1.18 read as well.
	Policy Types = "CiliumBGPPeeringPolicy"
	// Alpha and V2 are CiliumBGPClusterConfig and the types beside it. 1.18 and 1.19 serve both versions of them.
	Alpha Types = "cilium.io/v2alpha1"
	V2    Types = "cilium.io/v2"
)

// TypesOf are the newest types of a version of Cilium.
func TypesOf(version string) Types {
	switch {
	case semver.Compare("v"+version, "v1.18.0-0") >= 0:
		return V2
	case semver.Compare("v"+version, "v1.16.0-0") >= 0:
		return Alpha
	}
	return Policy
}

// Announced is the label of what agents announce, as "key: value".
const Announced = "announced-by: lab"

// Apply is the action that creates the objects when the types are registered. Without routers the peers are the lab's.
func (p Peering) Apply(types Types) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		p := p
		if lab := PeeringOf(r.Topology); len(p.Routers) == 0 {
			p.Routers, p.RoutersASN, p.ASN, p.Dual = lab.Routers, lab.RoutersASN, lab.ASN, lab.Dual
		}
		all, err := workload.Objects(p.manifest(types))
		if err != nil {
			return err
		}
		return apply(all)(ctx, r)
	}
}

func (p Peering) manifest(types Types) string {
	restart := fmt.Sprintf("{enabled: %t, restartTimeSeconds: %d}", p.GracefulRestart, int(cmp.Or(p.RestartTime, 120*time.Second).Seconds()))
	all, version := []string{peering, peerConfig("lab", topology.IPv4), pods}, types
	if types == Policy {
		all, version = []string{policy}, Alpha
	}
	if p.LoadBalancers.IsValid() && types != Policy { // a policy announces Services itself
		all = append(all, services)
	}
	if p.LoadBalancers.IsValid() {
		all = append(all, pool)
	}
	var peers strings.Builder
	families, blocks := "", fmt.Sprintf("{cidr: %s}", p.LoadBalancers)
	peer := func(i int, router netip.Addr, config string) {
		if types == Policy {
			fmt.Fprintf(&peers, "\n    - {peerASN: %d, peerAddress: %q, gracefulRestart: %s%s}",
				p.RoutersASN, netip.PrefixFrom(router, router.BitLen()), restart, families)
		} else {
			fmt.Fprintf(&peers, "\n    - {name: router%d, peerASN: %d, peerAddress: %q, peerConfigRef: {name: %s}}",
				i+1, p.RoutersASN, router, config)
		}
	}
	if p.Dual {
		families = ", families: [{afi: ipv4, safi: unicast}]"
		blocks += fmt.Sprintf(", {cidr: %q}", topology.IPv6.Prefix(p.LoadBalancers))
	}
	for i, router := range p.Routers {
		peer(i, router, "lab")
	}
	if p.Dual {
		families = strings.ReplaceAll(families, "ipv4", "ipv6")
		for i, router := range p.Routers {
			peer(len(p.Routers)+i, topology.IPv6.Addr(router), "lab-v6")
		}
		if types != Policy {
			all = append(all, peerConfig("lab-v6", topology.IPv6))
		}
	}
	return strings.NewReplacer(
		"${version}", string(version), "${asn}", fmt.Sprint(p.ASN), "${peers}", peers.String(), "${restart}", restart, "${blocks}", blocks,
		"${selector}", ofLabel,
	).Replace(strings.Join(all, "---\n"))
}

const services = `apiVersion: ${version}
kind: CiliumBGPAdvertisement
metadata: {name: services, labels: {` + Announced + `}}
spec:
  advertisements:
  - advertisementType: Service
    service: {addresses: [LoadBalancerIP]}
    selector: ${selector}
`

const ofLabel = "{matchLabels: {" + Announced + "}}"

// SelectsAll is the fault that agents announce the addresses of all Services, and not only of Services with the label
// [Announced]: by the selector in the vendor's documentation of the BGP control plane.
func SelectsAll(types Types) framework.Fault {
	const all = "{matchExpressions: [{key: somekey, operator: NotIn, values: [never-used-value]}]}"
	with := func(selector string) framework.Action {
		return workload.Applied(strings.NewReplacer("${version}", string(types), "${selector}", selector).Replace(services))
	}
	return framework.Fault{
		Name: "an advertisement that selects all Services", Inject: with(all), Undo: with(ofLabel), Replaced: true,
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			var o unstructured.Unstructured
			o.SetGroupVersionKind(schema.FromAPIVersionAndKind(string(types), kindAdvertisement))
			err := labaccess.Cluster(r).Kube().Get(ctx, client.ObjectKey{Name: "services"}, &o)
			spec := fmt.Sprint(o.Object["spec"])
			return strings.Contains(spec, "somekey"), "the advertisement is " + spec, err
		},
	}
}

// HasFrontend holds if the table of frontends of the agent on a node, of 1.18 or newer, has a name in it.
func HasFrontend(node, name string) framework.Condition {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		table, err := InAgent(ctx, labaccess.Lab(r).Node(node), "crictl exec $id cilium-dbg shell -- db/show frontends")
		return strings.Contains(table, name), "it has " + table, err
	}
}

const pool = `apiVersion: ${version}
kind: CiliumLoadBalancerIPPool
metadata: {name: lab}
spec:
  blocks: [${blocks}]
`

const policy = `apiVersion: ${version}
kind: CiliumBGPPeeringPolicy
metadata: {name: lab}
spec:
  virtualRouters:
  - localASN: ${asn}
    exportPodCIDR: true
    serviceSelector: {matchLabels: {` + Announced + `}}
    neighbors:${peers}
`

const peering = `apiVersion: ${version}
kind: CiliumBGPClusterConfig
metadata: {name: lab}
spec:
  bgpInstances:
  - name: lab
    localASN: ${asn}
    peers:${peers}
`

func peerConfig(name string, f topology.Family) string {
	return fmt.Sprintf(`apiVersion: ${version}
kind: CiliumBGPPeerConfig
metadata: {name: %s}
spec:
  gracefulRestart: ${restart}
  families:
  - {afi: %s, safi: unicast, advertisements: {matchLabels: {%s}}}
`, name, f, Announced)
}

const pods = `apiVersion: ${version}
kind: CiliumBGPAdvertisement
metadata: {name: pods, labels: {` + Announced + `}}
spec:
  advertisements: [{advertisementType: PodCIDR}]
`

// Routed is the action that gives every router static routes to the pods of these nodes, whose agents are ready.
func Routed(nodes ...string) framework.Action {
	return labaccess.OnLab(func(ctx context.Context, l *kindlab.Lab) error {
		for _, node := range nodes {
			ranges, err := cilium.PodRanges(ctx, l.Clusters[0], node)
			if err != nil {
				return err
			}
			for _, pods := range ranges {
				if err := l.RouteOver(ctx, node, pods); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// WithoutAgents is the release with its operator alone, as in an installation that needs something before the agents.
func (r Release) WithoutAgents() Release {
	r.Values = r.Values.with([]chart.Setting{{Path: "agent", Value: false}})
	return r
}

// ApplyAgents is the action that applies the DaemonSet of this release alone, as kubectl rollout undo does: permissions
// and configuration stay. Restart replaces running agents, ApplyAgents does not.
func (r Release) ApplyAgents(ctx context.Context, run *framework.Run) error {
	objects, err := r.render(ctx, run.Topology, labaccess.Cluster(run).APIServer())
	if err != nil {
		return err
	}
	return workload.ApplyObjects(ctx, labaccess.Cluster(run), chart.Find(objects, "DaemonSet", name))
}

// Restart is the action that replaces the agents of nodes by this release's, whose DaemonSet was applied, and waits
// until they are ready, whatever routers hear from them.
func (r Release) Restart(nodes ...string) framework.Action {
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		if err := agents.Restart(ctx, c, nodes, startsWithin); err != nil {
			return err
		}
		return r.ready(ctx, c, nodes)
	})
}

// Installed reports whether a release is on the cluster.
func Installed(ctx context.Context, c *kindlab.Cluster) (bool, error) {
	return installed.Exists(ctx, c)
}

// Uninstalled is the action that removes the release, if there is one, and what its agents have left on these nodes.
// The probe pods go with it, because its CNI plugin has wired them. pods is the cluster's range of pods.
func Uninstalled(nodes []string, pods netip.Prefix) framework.Action {
	remove := func(ctx context.Context, r *framework.Run) error {
		deleted := make(chan struct{})
		// The API server on a node cannot be reached from outside of it between the end of the agent and the cleaning.
		err := framework.AtOnce(
			func(ctx context.Context, r *framework.Run) error {
				defer close(deleted)
				return cilium.Uninstalled(nodes, pods)(ctx, r)
			},
			labaccess.OnNodes(nodes, func(ctx context.Context, node *kindlab.Node) error { return clean(ctx, node, deleted) }),
		)(ctx, r)
		return errors.Join(err, installed.Remove(ctx, labaccess.Cluster(r)))
	}
	// Without an agent cilium-cni waits for its limit before it releases a pod.
	return framework.InOrder(workload.StopProbes, remove)
}

// clean cleans up on a node whenever no agent runs there, until the agents are deleted and the node is clean.
func clean(ctx context.Context, node *kindlab.Node, deleted <-chan struct{}) error {
	poll := func(ctx context.Context) (bool, string, error) {
		last := false
		select {
		case <-deleted:
			last = true
		default:
		}
		runs, err := node.Exec(ctx, "sh", "-ec", cleaning)
		if err != nil {
			return false, "", fmt.Errorf("cleaning up after Cilium: %w", err)
		}
		if len(runs) > 0 {
			return false, "cilium-agent runs", nil
		}
		return last, "the agents are not deleted yet", nil
	}
	return await.Until(ctx, "Cilium's agent to end on "+node.Name(), 500*time.Millisecond, startsWithin, poll)
}

// cleaning says so if an agent runs. Otherwise it removes the agent's devices, maps, and the files that keep BPF
// programs attached: programs in place of kube-proxy drop packets from outside of the node once the agent is gone.
const cleaning = `
if grep -qsx cilium-agent /proc/[0-9]*/comm; then echo runs; exit; fi
for device in cilium_vxlan cilium_host lxc_health; do ip link delete $device 2>/dev/null || true; done
rm -rf /sys/fs/bpf/cilium /sys/fs/bpf/tc/globals/cilium_* /etc/cni/net.d/05-cilium.conflist`
