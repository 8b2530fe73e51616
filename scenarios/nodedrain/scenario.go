package nodedrain

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// The versions under test.
const (
	affected = "1.11.6"
	fixed    = "1.12.0"
)

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Labels:   []string{"bgp", "ipam"},
	Owner:    "@relapse-dev",
	Topology: lab,
	Variants: []framework.Variant{
		{
			Name: "cilium-" + affected, Role: framework.Affected, Form: framework.Slice,
			Components: map[string]string{"cilium": affected},
			// Moving to the fixed speaker is one of the remedies.
			Images: append(images(affected), images(fixed)...),
			Script: affectedScript,
		},
		{
			Name: "cilium-" + fixed, Role: framework.Fixed, Form: framework.Slice,
			Components: map[string]string{"cilium": fixed},
			Images:     images(fixed),
			Script:     fixedScript,
		},
	},
	Tested: []framework.Tested{{Name: "cilium", Default: affected, Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		version := versions["cilium"]
		return framework.Variant{
			Name: "cilium-" + version, Form: framework.Slice,
			Components: versions,
			Images:     images(version),
			Script: func() framework.Script {
				s := common(version)
				s.Named = []framework.Finding{unannounced}
				s.Refuses = func(ctx context.Context, r *framework.Run) (string, error) {
					return incident(version, cilium.ClusterPool).Refusals(ctx, r.Cluster, staying)
				}
				return s
			},
		}
	},
}

// unannounced is what the incident is to the routers: they have lost the victim's
// range.
var unannounced = framework.Finding{
	Detector: routeOwnership, Kind: detect.Unannounced, State: detect.Active, Object: detect.Prefix(orphan), Owner: victim, Routers: routers,
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
	{"master1", netip.MustParsePrefix("10.5.112.0/24"), netip.MustParsePrefix("10.5.113.0/24")},
	{"master2", netip.MustParsePrefix("10.5.114.0/24"), netip.MustParsePrefix("10.5.115.0/24")},
	{"master3", netip.MustParsePrefix("10.5.113.0/24"), netip.MustParsePrefix("10.5.114.0/24")},
	{"node1", netip.MustParsePrefix("10.5.115.0/24"), netip.MustParsePrefix("10.5.112.0/24")},
}

// ciliumOrder is the order in which the CiliumNodes are created, and so the
// order of the ranges in use; that of Node.spec.podCIDRs is the topology's.
var ciliumOrder = []string{"node1", "master1", "master3", "master2"}

// removed is the node that the incident takes away, victim the one whose
// pods it hurts, orphan the victim's range.
const (
	removed = "node1"
	victim  = "master2"
)

var (
	all     = []string{"master1", "master2", "master3", "node1"}
	staying = []string{"master1", "master2", "master3"}
	orphan  = rowOf(victim).use
)

func rowOf(node string) allocation {
	i := slices.IndexFunc(table, func(a allocation) bool { return a.node == node })
	return table[i]
}

// incident is Cilium as the incident's cluster ran it, at a version: native
// routing, no masquerade, the MetalLB speaker for BGP.
func incident(version, ipam string) cilium.Cilium {
	c := cilium.Cilium{
		Agent: cilium.Agent(version), Operator: cilium.Operator(version),
		Config: cilium.Native.With(cilium.Config{
			"ipam":                        ipam,
			"cluster-pool-ipv4-cidr":      podCIDR.String(),
			"cluster-pool-ipv4-mask-size": strconv.Itoa(lab.Clusters[0].NodeMask),
			"enable-ipv4-masquerade":      "false",
			"ipv4-native-routing-cidr":    podCIDR.String(),
			"auto-direct-node-routes":     "true",
			"bgp-announce-pod-cidr":       "true",
			"bgp-config-path":             "/var/lib/cilium/bgp/config.yaml",
		}),
	}
	for _, r := range lab.Routers {
		c.Peers = append(c.Peers, cilium.Peer{Address: addressOf(r.Name), ASN: torASN, ClusterASN: clusterASN})
	}
	return c
}

// The ends of the probes: a pod on each node, which bears the node's name, and
// the host beyond the routers.
var (
	podOn   = framework.PodOn
	outside = framework.HostEnd(lab.Hosts[0])
)

// common is what both variants do.
func common(version string) framework.Script {
	return framework.Script{
		Install: func(ctx context.Context, r *framework.Run) error { return install(ctx, r, version) },
		Ends:    append(framework.PodsOn(all...), outside),
		// Every node's pod from and to the outside, and a ring inside the
		// cluster: pods among themselves were never hurt.
		Probes: append(outside.Both(framework.PodsOn(all...)...),
			podOn("master1").To(podOn("master2")), podOn("master2").To(podOn("master3")),
			podOn("master3").To(podOn("node1")), podOn("node1").To(podOn("master1"))),
		Detectors: []detect.Detector{detect.RouteOwnership{}},
		Baseline: []framework.Check{
			{Name: "the allocations are the incident's", Reads: allocations, Holds: allocationsAreTheIncidents},
		},
		Fault: func(r *framework.Run) fault.Fault {
			return fault.RemoveNode(r.Lab, r.Cluster, removed)
		},
		Gone:    []framework.End{podOn(removed)},
		Hurt:    outside.Both(podOn(victim)),
		Observe: 5 * time.Second,
	}
}

// deleteNode is the second form: the Node object goes, the agent stays.
func deleteNode(after framework.Check, named ...framework.Finding) framework.LesserForm {
	return framework.LesserForm{
		Name:  "the Node object of " + removed + " is deleted while its agent runs",
		Fault: func(r *framework.Run) fault.Fault { return fault.DeleteNodeObject(r.Cluster, removed) },
		Named: named, Aftermath: []framework.Check{after},
	}
}

func affectedScript() framework.Script {
	s := common(affected)
	s.Latent = swapped()
	s.Baseline = append(s.Baseline,
		framework.Check{Name: "the routers send each range of Node.spec to its node", Reads: routes, Holds: routersFollow(specOf, all)},
		framework.Check{Name: "probes from outside cross a router, the announcing node and the owner, untranslated", Holds: hops(3)},
	)
	s.Forms = []framework.LesserForm{
		// Its agent still announces the range that Node.spec gave to it.
		deleteNode(
			framework.Check{Name: "the routers go on sending " + rowOf(removed).spec.String() + " to " + removed, Reads: routes, Holds: routersFollow(specOf, all)},
			announced(detect.AbsentNode, rowOf(removed).spec, victim, removed),
		),
	}
	s.Aftermath = []framework.Check{
		{Name: "the routers have lost " + orphan.String() + " and nothing else", Reads: routes, Holds: routersFollow(specOf, staying), Bound: 5 * time.Second},
	}
	s.Named = []framework.Finding{
		unannounced,
		// The owner of the range that master1 announces is gone, with its CiliumNode.
		announced(detect.AbsentNode, rowOf("master1").spec, "", "master1"),
		announced(detect.WrongAnnouncer, rowOf("master2").spec, "master3", "master2"),
		announced(detect.WrongAnnouncer, rowOf("master3").spec, "master1", "master3"),
	}
	// Until then the detector says that a CiliumNode without a Node holds the range.
	s.NamedWithin = collectedWithin
	s.Remedies = []framework.Remedy{
		{
			Name: "restart every agent",
			Apply: func(ctx context.Context, r *framework.Run) error {
				again := incident(affected, cilium.ClusterPool)
				again.Restart = "by the operator"
				return again.Announce(ctx, r.Lab, r.Cluster, staying)
			},
		},
		{
			Name: "restart every host but the API server's", ReplacesEnds: true,
			Apply: restartHosts,
		},
		{
			Name: "static route on the routers", Helps: true, Bound: 30 * time.Second,
			Apply: func(ctx context.Context, r *framework.Run) error { return static(ctx, r, true) },
			Undo:  func(ctx context.Context, r *framework.Run) error { return static(ctx, r, false) },
		},
		{
			Name: "Cilium " + fixed, Helps: true, Bound: 2 * time.Minute,
			Apply: func(ctx context.Context, r *framework.Run) error {
				return incident(fixed, cilium.ClusterPool).Announce(ctx, r.Lab, r.Cluster, staying)
			},
			Undo: func(ctx context.Context, r *framework.Run) error {
				return incident(affected, cilium.ClusterPool).Announce(ctx, r.Lab, r.Cluster, staying)
			},
		},
		{
			Name: "ipam mode kubernetes, nodes made anew", Helps: true, Bound: 3 * time.Minute, ReplacesEnds: true,
			Apply: agreeingAllocations,
		},
	}
	return s
}

// collectedWithin bounds how long Kubernetes' garbage collector takes to delete the
// CiliumNode of a deleted Node. It takes a moment, but for a type that was made anew
// since it began: its watch of the old one has ended, and it looks for the new one
// after pauses of up to half a minute, twice that with their jitter.
const collectedWithin = 90 * time.Second

func fixedScript() framework.Script {
	s := common(fixed)
	s.Baseline = append(s.Baseline,
		framework.Check{Name: "the routers send each range in use to its node", Reads: routes, Holds: routersFollow(useOf, all)},
		framework.Check{Name: "probes from outside cross a router and the owner, untranslated", Holds: hops(2)},
	)
	s.Forms = []framework.LesserForm{deleteNode(
		// With the Node goes its CiliumNode, which the speaker follows.
		framework.Check{Name: "the routers have lost " + rowOf(removed).use.String() + " and nothing else", Reads: routes, Holds: routersFollow(useOf, staying), Bound: collectedWithin},
	)}
	s.Aftermath = []framework.Check{
		{Name: "the routers have lost the removed node's own range and nothing else", Reads: routes, Holds: routersFollow(useOf, staying), Bound: 5 * time.Second},
	}
	return s
}

// install puts Cilium and the probe pods into the lab, from whatever state
// an earlier variant or run has left.
func install(ctx context.Context, r *framework.Run, version string) error {
	if err := cilium.Uninstall(ctx, r.Lab, r.Cluster, all, podCIDR); err != nil {
		return err
	}
	c := incident(version, cilium.ClusterPool)
	if err := c.Configure(ctx, r.Cluster); err != nil {
		return err
	}
	if err := cilium.CreateNodes(ctx, r.Cluster, ciliumOrder, addressOf); err != nil {
		return err
	}
	if err := c.Announce(ctx, r.Lab, r.Cluster, all); err != nil {
		return err
	}
	// Not before: a pod that finds no CNI configuration is tried again only
	// after a while.
	return workload.StartProbes(ctx, r.Cluster, workload.OnEach(all...))
}

// restartHosts cuts the power of those machines that stay, and switches it on
// again. That of the API server goes on: without it nobody would see anything.
func restartHosts(ctx context.Context, r *framework.Run) error {
	hosts := slices.DeleteFunc(slices.Clone(staying), func(n string) bool { return n == r.Cluster.Nodes()[0] })
	began := time.Now()
	err := r.Lab.EachNode(ctx, hosts, func(ctx context.Context, n *kindlab.Node) error {
		return errors.Join(n.Stop(ctx), n.Start(ctx))
	})
	if err != nil {
		return err
	}
	if err := r.Lab.SessionsUp(ctx, hosts, began); err != nil {
		return err
	}
	// Kubelets would start the probes' pods again, each in its own time.
	return workload.StartProbes(ctx, r.Cluster, workload.OnEach(staying...))
}

// static adds the stopgap route to both routers, or removes it.
func static(ctx context.Context, r *framework.Run, add bool) error {
	for _, t := range lab.Routers {
		handle, err := r.Lab.Router(t.Name)
		if err != nil {
			return err
		}
		if add {
			err = handle.AddStatic(ctx, orphan, addressOf(victim))
		} else {
			err = handle.RemoveStatic(ctx, orphan)
		}
		if err = errors.Join(err, handle.Close()); err != nil {
			return err
		}
	}
	return nil
}

// agreeingAllocations moves the cluster to the one allocation that the speaker
// announces: the nodes are removed and join as new machines, and agents and pods
// get their ranges from Node.spec. The API server's machine is kept, and cleaned
// as a reboot would do it.
func agreeingAllocations(ctx context.Context, r *framework.Run) error {
	if err := cilium.Uninstall(ctx, r.Lab, r.Cluster, staying, podCIDR); err != nil {
		return err
	}
	// In the order of their ranges, so that each gets its own again.
	anew := []string{"master3", "master2"}
	var removals errgroup.Group
	for _, node := range anew {
		removals.Go(func() error { return fault.RemoveNode(r.Lab, r.Cluster, node).Inject(ctx) })
	}
	if err := removals.Wait(); err != nil {
		return err
	}
	if err := r.Cluster.ReplaceNodes(ctx, anew...); err != nil {
		return err
	}
	if err := incident(affected, cilium.Kubernetes).Announce(ctx, r.Lab, r.Cluster, staying); err != nil {
		return err
	}
	return workload.StartProbes(ctx, r.Cluster, workload.OnEach(staying...))
}
