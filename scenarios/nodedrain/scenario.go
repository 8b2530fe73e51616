package nodedrain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

const (
	affected = "1.11.6"
	fixed    = "1.12.0"

	oldVariant = "cilium-" + affected
	newVariant = "cilium-" + fixed
)

const (
	master1 = "master1"
	master2 = "master2"
	master3 = "master3"
	node1   = "node1"
)

var (
	podCIDR = netip.MustParsePrefix("10.5.112.0/21")
	nodeNet = topology.NewNetwork("nodes", "10.4.94.0/24")
	uplink  = topology.NewNetwork("uplink", "10.4.36.0/24")
	tors    = []string{"tor1", "tor2"}
)

// lab is the cluster that Record draws, with the incident's names and addresses.
// master1 is the only control plane, and not all three masters: the routes do not depend on it.
// kube-controller-manager gives the nodes their Node.spec.podCIDRs in the order of this list.
var lab = topology.Topology{
	Name: "node-drain", Networks: []topology.Network{nodeNet, uplink}, Hosts: []topology.Host{uplink.Host("outside", 10)},
	Clusters: []topology.Cluster{{
		PodCIDR: podCIDR, NodeMask: 24,
		Nodes: []topology.Node{nodeNet.Node(master1, 32), nodeNet.Node(master3, 31), nodeNet.Node(master2, 21), nodeNet.Node(node1, 23)},
	}},
}.Behind([]topology.Router{tor(tors[0], 239), tor(tors[1], 238)})

func tor(name string, last byte) topology.Router {
	outer := uplink.Last(last)
	return topology.Router{
		Name: name, ASN: topology.TorASN, ID: outer.Address, Links: []topology.Link{outer, nodeNet.Last(last)},
		Peers: []topology.Peers{{Network: nodeNet.Name, ASN: topology.ClusterASN}},
	}
}

var routerParameter = framework.Parameter{
	Name: "router", Default: string(topology.GoBGP), About: "what speaks BGP on the ToRs: gobgp, frr or bird",
}

// withRouters is a scenario with ToRs of another kind. The script is the same.
func withRouters(s framework.Scenario, values map[string]string) (framework.Scenario, error) {
	kind := topology.RouterKind(cmp.Or(values[routerParameter.Name], routerParameter.Default))
	if !slices.Contains(topology.RouterKinds, kind) {
		return framework.Scenario{}, fmt.Errorf("%s %q: want one of %q", routerParameter.Name, kind, topology.RouterKinds)
	}
	if kind == topology.GoBGP {
		return s, nil
	}
	s.Topology.Routers = slices.Clone(s.Topology.Routers)
	for i := range s.Topology.Routers {
		s.Topology.Routers[i].Kind = kind
	}
	_, version, _ := strings.Cut(kindlab.RouterImage(kind), ":")
	software := strings.ToUpper(string(kind)) + " " + version
	s.Incident.Diagram = strings.Replace(s.Incident.Diagram, "GoBGP", software, 1)
	withRouter := func(v framework.Variant) framework.Variant {
		v.Components = maps.Clone(v.Components)
		v.Components[string(kind)] = version
		return v
	}
	s.Variants = slices.Clone(s.Variants)
	for i, v := range s.Variants {
		s.Variants[i] = withRouter(v)
	}
	at := s.At
	s.At = func(versions map[string]string) framework.Variant { return withRouter(at(versions)) }
	return s, nil
}

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Topology: lab,
	Owner:    framework.Maintainers,
	Labels:   []framework.Label{framework.BGP, framework.IPAM},
	// Of whole Cilium. The slices have no chart, and announce in any case.
	NeedsValue: "bgpControlPlane.enabled",
	Foreign:    true,
	SecondLab:  netip.MustParsePrefix("10.208.0.0/20"),
	Budget:     framework.Budget{Whole: 90 * time.Second, Lab: 14 * time.Second, Detect: time.Second},
	Variants: []framework.Variant{
		// Moving to the fixed speaker is one of the remedies.
		variant(framework.Affected, affected, affectedScript, images(fixed)...),
		variant(framework.Fixed, fixed, fixedScript),
	},
	Parameters: []framework.Parameter{routerParameter, framework.Family},
	With: func(s framework.Scenario, values map[string]string) (framework.Scenario, error) {
		s, err := withRouters(s, values)
		if err != nil {
			return s, err
		}
		return framework.WithFamily(s, values)
	},
	Tested: []framework.Tested{{Name: "cilium", Default: affected, Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		version := versions["cilium"]
		if isWhole(version) {
			return wholeVariant(version)
		}
		return variant(framework.Unclassified, version, func() framework.Script {
			s := common(version)
			s.Expected = []framework.Finding{unannounced}
			s.Refuses = func(ctx context.Context, r *framework.Run) (string, error) {
				return incident(version, cilium.ClusterPool).Refusals(ctx, r, staying, new(cilium.Starts))
			}
			return s
		})
	},
}

func variant(role framework.Role, version string, script func() framework.Script, more ...string) framework.Variant {
	return framework.Variant{
		Name: "cilium-" + version, Role: role, Form: framework.Slice,
		OnlyIPv4:   "the BGP speaker of these versions is MetalLB's, which announces no IPv6 (\"cannot advertise non-v4 prefix\")",
		Components: map[string]string{"cilium": version},
		Images:     append(images(version), more...), Script: script,
	}
}

func images(version string) []string {
	return []string{cilium.Agent(version), cilium.Operator(version), workload.ProbeImage}
}

// allocation is one row of the incident's table: what kube-controller-manager
// has put into Node.spec, and where cilium-operator lets the pods live.
type allocation struct {
	node      string
	spec, use netip.Prefix
}

var table = []allocation{
	{master1, netip.MustParsePrefix("10.5.112.0/24"), netip.MustParsePrefix("10.5.113.0/24")},
	{master2, netip.MustParsePrefix("10.5.114.0/24"), netip.MustParsePrefix("10.5.115.0/24")},
	{master3, netip.MustParsePrefix("10.5.113.0/24"), netip.MustParsePrefix("10.5.114.0/24")},
	{node1, netip.MustParsePrefix("10.5.115.0/24"), netip.MustParsePrefix("10.5.112.0/24")},
}

// ciliumOrder is the order in which the CiliumNodes are created, and so the
// order of the ranges in use; the order of Node.spec.podCIDRs is the topology's.
var ciliumOrder = []string{node1, master1, master3, master2}

// removed is the node that the incident removes, victim the one whose pods become
// unreachable, orphan the victim's range.
const (
	removed = node1
	victim  = master2
)

var (
	all     = []string{master1, master2, master3, node1}
	staying = []string{master1, master2, master3}
	orphan  = rowOf(victim).use
)

func rowOf(node string) allocation {
	row, _ := each.First(table, func(a allocation) bool { return a.node == node })
	return row
}

// incident is Cilium as the incident's cluster ran it, at a version.
func incident(version, ipam string) cilium.Cilium {
	return cilium.Announcing(version, lab.Clusters[0], cilium.Config{"ipam": ipam})
}

var (
	pod     = framework.PodOn
	outside = framework.HostEndpoint(lab.Hosts[0])
)

func common(version string) framework.Script {
	return framework.Script{
		Install: framework.InOrder(uninstall, incident(version, cilium.ClusterPool).Configure, createCiliumNodes, announce(version, all...),
			// Only now: a pod without a CNI configuration is retried only after a while.
			workload.ProbesOn(all...)),
		Endpoints: append(framework.PodsOn(all...), outside),
		// Every node's pod from and to the outside, and a ring inside the
		// cluster: pods always reached each other.
		Probes: append(outside.Both(framework.PodsOn(all...)...),
			pod(master1).To(pod(master2)), pod(master2).To(pod(master3)), pod(master3).To(pod(node1)), pod(node1).To(pod(master1))),
		Detectors: []detect.Detector{detect.RouteOwnership{}},
		Baseline: []framework.Check{
			{ID: "allocations-as-documented", Name: "the allocations are the incident's", Reads: allocations, Holds: allocationsAreTheIncidents},
		},
		Fault:    fault.RemoveNode(removed),
		Gone:     []framework.Endpoint{pod(removed)},
		Impacted: outside.Both(pod(victim)),
		Observe:  5 * time.Second,
	}
}

func affectedScript() framework.Script {
	s := common(affected)
	s.Latent = swapped()
	s.Baseline = append(s.Baseline,
		framework.Check{ID: "routes-follow-node-spec", Name: "the routers send each range of Node.spec to its node", Reads: routes,
			Holds: routersFollow(specOf, all)},
		framework.Check{ID: "path-of-probes", Name: "probes from outside cross a router, the announcing node and the owner, untranslated",
			Holds: check.Hops(outside, 3)},
	)
	s.Precursors = []framework.Precursor{
		// Its agent still announces the range that Node.spec gave to it.
		deleteNode(
			framework.Check{
				ID: "route-stays", Name: "the routers keep sending " + rowOf(removed).spec.String() + " to " + removed,
				Reads: routes, Holds: routersFollow(specOf, all),
			},
			announced(detect.AbsentNode, rowOf(removed).spec, victim, removed),
		),
	}
	s.Aftermath = []framework.Check{
		withdrawn("orphan-withdrawn", orphan.String(), specOf, 5*time.Second),
	}
	s.Expected = []framework.Finding{
		unannounced,
		// The range that master1 announces has no owner: its CiliumNode is deleted.
		announced(detect.AbsentNode, rowOf(master1).spec, "", master1),
		announced(detect.WrongAnnouncer, rowOf(master2).spec, master3, master2),
		announced(detect.WrongAnnouncer, rowOf(master3).spec, master1, master3),
	}
	// Until then the detector reports that a CiliumNode without a Node has the range.
	s.ExpectedWithin = collectedWithin
	s.Remedies = []framework.Remedy{
		{
			ID: "restart-agents", Name: "restart every agent",
			Apply: incident(affected, cilium.ClusterPool).Restarted("by the operator").Announced(staying...),
		},
		{
			ID: "restart-hosts", Name: "restart every host but the API server's", ReplacesEndpoints: true,
			// Kubelets would restart the probe pods, but at different times.
			Apply: framework.InOrder(restartHosts, workload.ProbesOn(staying...)),
		},
		{
			ID: "static-route", Name: "static route on the routers", Helps: true, Bound: 30 * time.Second,
			Apply: labaccess.StaticAdded(orphan, victim), Undo: labaccess.StaticRemoved(orphan),
		},
		{
			ID: "fixed-speaker", Name: "Cilium " + fixed, Helps: true, Bound: 2 * time.Minute,
			Apply: announce(fixed, staying...), Undo: announce(affected, staying...),
		},
		{
			ID: "kubernetes-ipam", Name: "ipam mode kubernetes, nodes recreated", Helps: true, Bound: 3 * time.Minute, ReplacesEndpoints: true,
			Apply: framework.InOrder(agreeingAllocations, workload.ProbesOn(staying...)),
		},
	}
	return s
}

// collectedWithin bounds how long Kubernetes' garbage collector takes to delete the
// CiliumNode of a deleted Node. It is usually immediate. If the type CiliumNode was
// created again after the collector started, its watch of the old type has ended, and
// it retries after pauses of up to half a minute, twice that with their jitter.
const collectedWithin = 90 * time.Second

func fixedScript() framework.Script {
	s := common(fixed)
	s.Baseline = append(s.Baseline,
		framework.Check{ID: "routes-follow-use", Name: "the routers send each range in use to its node", Reads: routes,
			Holds: routersFollow(useOf, all)},
		framework.Check{ID: "path-of-probes", Name: "probes from outside cross a router and the owner, untranslated",
			Holds: check.Hops(outside, 2)},
	)
	s.Precursors = []framework.Precursor{
		// The CiliumNode, which the speaker follows, is deleted with the Node.
		deleteNode(withdrawn("route-withdrawn", rowOf(removed).use.String(), useOf, collectedWithin)),
	}
	s.Aftermath = []framework.Check{
		withdrawn("own-range-withdrawn", "the removed node's own range", useOf, 5*time.Second),
	}
	return s
}

// deleteNode is the harmless precursor: the Node object is deleted, and the agent runs.
func deleteNode(aftermath framework.Check, named ...framework.Finding) framework.Precursor {
	return framework.Precursor{
		ID: "node-object-deleted", Name: "the Node object of " + removed + " is deleted while its agent runs",
		Fault:    fault.DeleteNodeObject(removed),
		Expected: named, Aftermath: []framework.Check{aftermath},
	}
}

// withdrawn asserts that the routers send the remaining nodes their ranges and have
// no other route to pods.
func withdrawn(id, what string, rangeOf func(allocation) netip.Prefix, bound time.Duration) framework.Check {
	return framework.Check{
		ID: id, Name: "the routers have lost " + what + " and nothing else",
		Reads: routes, Holds: routersFollow(rangeOf, staying), Bound: bound,
	}
}

// uninstall removes Cilium in the form in which an earlier variant or run has left it.
func uninstall(ctx context.Context, r *framework.Run) error {
	whole, err := release.Installed(ctx, labaccess.Cluster(r))
	if err != nil {
		return err
	}
	if whole {
		return release.Uninstalled(all, podCIDR)(ctx, r)
	}
	return cilium.Uninstalled(all, podCIDR)(ctx, r)
}

var createCiliumNodes = cilium.CreateNodes(ciliumOrder, (*framework.Run).Address)

func announce(version string, nodes ...string) framework.Action {
	return incident(version, cilium.ClusterPool).Announced(nodes...)
}

// restartHosts cuts the power of the remaining machines and switches it on again. The
// API server's machine is not restarted: without it nothing could be observed.
var restartHosts = labaccess.SessionsUp(staying[1:], labaccess.OnNodes(staying[1:], func(ctx context.Context, n *kindlab.Node) error {
	return errors.Join(n.Stop(ctx), n.Start(ctx))
}))

// agreeingAllocations moves the cluster to the one allocation that the speaker announces: the nodes
// are removed and join as new machines, and agents and pods get their ranges from Node.spec. The
// API server's machine is kept, and cleaned as a reboot would do it.
var agreeingAllocations = framework.InOrder(
	cilium.Uninstalled(staying, podCIDR), framework.AtOnce(fault.RemoveNode(master3).Inject, fault.RemoveNode(master2).Inject),
	labaccess.NodesReplaced(master3, master2), // in the order of their ranges, so that each gets its own again
	incident(affected, cilium.Kubernetes).Announced(staying...),
)

var (
	allocations = []snapshot.Source{snapshot.Nodes, snapshot.CiliumNodes}
	routes      = []snapshot.Source{snapshot.Routers}
)

// allocationsAreTheIncidents compares both allocations with the table: if they agreed
// by chance, no probe would lose packets after the fault.
func allocationsAreTheIncidents(_ context.Context, r *framework.Run) (bool, string, error) {
	at := r.Snapshot()
	spec, use := map[string][]netip.Prefix{}, map[string][]netip.Prefix{}
	for _, n := range at.Nodes.Items {
		spec[n.Name] = n.PodCIDRs
	}
	for _, n := range at.CiliumNodes.Items {
		use[n.Name] = n.PodCIDRs
	}
	matches := func(has []netip.Prefix, want netip.Prefix) bool { // of each family
		return slices.Equal(has, each.Of(r.Topology.Families(), func(f topology.Family) netip.Prefix { return f.Prefix(want) }))
	}
	var wrong framework.Mismatches
	for _, row := range table {
		if !matches(spec[row.node], row.spec) || !matches(use[row.node], row.use) {
			wrong.Addf("%s has %v in Node.spec and uses %v, not %s and %s", row.node, spec[row.node], use[row.node], row.spec, row.use)
		}
	}
	return wrong.Result()
}

func specOf(a allocation) netip.Prefix { return a.spec }
func useOf(a allocation) netip.Prefix  { return a.use }

func routersFollow(rangeOf func(allocation) netip.Prefix, nodes []string) framework.Condition {
	via := map[netip.Prefix][]string{}
	for _, node := range nodes {
		via[rangeOf(rowOf(node))] = []string{node}
	}
	return check.Routes(podCIDR, nodeNet.Name, via)
}

var (
	routeOwnership = detect.RouteOwnership{}.Name()

	// unannounced is the incident itself: the routers have lost the victim's range.
	unannounced = framework.Finding{
		Detector: routeOwnership, Kind: detect.Unannounced, State: detect.Active, Object: detect.Prefix(orphan), Owner: victim, Routers: tors,
	}
)

func announced(kind string, prefix netip.Prefix, owner, announcer string) framework.Finding {
	return framework.Finding{
		Detector: routeOwnership, Kind: kind, State: detect.Latent, Object: detect.Prefix(prefix),
		Owner: owner, Announcer: announcer, Routers: tors,
	}
}

// swapped are the latent findings before the incident: each range in use is announced
// by the node that has it in Node.spec.
func swapped() []framework.Finding {
	return each.Of(table, func(row allocation) framework.Finding {
		announcer, _ := each.First(table, func(a allocation) bool { return a.spec == row.use })
		return announced(detect.WrongAnnouncer, row.use, row.node, announcer.node)
	})
}

// isWhole reports whether a version runs whole, with Cilium's BGP control plane in place of
// the MetalLB speaker.
func isWhole(version string) bool { return semver.Compare("v"+version, "v"+labvalues.First) >= 0 }

func wholeVariant(version string) framework.Variant {
	return framework.Variant{
		Name: "cilium-" + version, Role: framework.Unclassified, Form: framework.Whole,
		OnlyOwnLab: "whole Cilium leaves BPF programs and policy routes on nodes, which are not known to come back",
		Components: map[string]string{"cilium": version},
		Images:     append(release.Images(version), workload.ProbeImage),
		Script: func() framework.Script {
			s := common(version)
			s.Install = framework.InOrder(installWhole(version), workload.ProbesOn(all...))
			s.Expected = []framework.Finding{unannounced}
			return s
		},
	}
}

// wholeIncident is Cilium by the vendor's chart, with the values that say what incident says
// of a slice. Ranges of pods are set by the release.
func wholeIncident(version string) release.Release {
	values := release.NativeRouting()
	values["ipam"] = map[string]any{"mode": cilium.ClusterPool}
	// The removed node must not take the operator with it.
	values["operator"] = map[string]any{
		"replicas":     int64(1),
		"nodeSelector": map[string]any{"kubernetes.io/hostname": lab.Clusters[0].Nodes[0].Name},
	}
	return release.Release{Version: version, Values: values, NoServices: true}
}

// installWhole is install with the vendor's chart. The agents come last: each makes its
// CiliumNode if there is none, and the order of CiliumNodes is the incident's.
func installWhole(version string) framework.Action {
	whole := wholeIncident(version)
	peer := release.Peering{}.Apply(release.TypesOf(version)) // without graceful restart, which MetalLB's speaker has not
	return framework.InOrder(
		release.Uninstalled(all, podCIDR), whole.WithoutAgents().Apply, createCiliumNodes, peer,
		labaccess.SessionsUp(all, framework.InOrder(whole.Apply, whole.Ready(all...))),
	)
}
