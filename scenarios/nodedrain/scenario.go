package nodedrain

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

// The versions under test.
const (
	affected = "1.11.6"
	fixed    = "1.12.0"
)

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Topology: lab,
	Variants: []framework.Variant{
		{
			Name: "cilium-" + affected, Role: framework.Affected, Form: framework.Slice,
			Components: map[string]string{"cilium": affected},
			// Moving to the fixed speaker is one of the remedies.
			Images: append(images(affected), images(fixed)...),
			Script: affectedScript(),
		},
		{
			Name: "cilium-" + fixed, Role: framework.Fixed, Form: framework.Slice,
			Components: map[string]string{"cilium": fixed},
			Images:     images(fixed),
			Script:     fixedScript(),
		},
	},
}

func images(version string) []string {
	return []string{
		"quay.io/cilium/cilium:v" + version,
		"quay.io/cilium/operator-generic:v" + version,
		workload.ProbeImage,
	}
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

// common is what both variants do.
func common(version string) framework.Script {
	return framework.Script{
		Install: func(ctx context.Context, r *framework.Run) error { return install(ctx, r, version) },
		Ends: func(ctx context.Context, r *framework.Run, gone ...string) ([]probe.End, error) {
			nodes := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return slices.Contains(gone, n) })
			return framework.ProbeEnds(ctx, r, nodes, []string{"outside"})
		},
		// Every node's pod from and to the outside, and a ring inside the
		// cluster: pods among themselves were never hurt.
		Probes: append(probe.Both("outside", all...),
			probe.Probe{From: "master1", To: "master2"}, probe.Probe{From: "master2", To: "master3"},
			probe.Probe{From: "master3", To: "node1"}, probe.Probe{From: "node1", To: "master1"}),
		Detectors: []detect.Detector{detect.RouteOwnership{}},
		Baseline: []framework.Check{
			{Name: "the allocations are the incident's", Reads: allocations, Holds: allocationsAreTheIncidents},
		},
		Fault: func(r *framework.Run) fault.Fault {
			return fault.RemoveNode(r.Lab, r.Cluster, removed)
		},
		Gone:    []string{removed},
		Hurt:    []string{"outside->" + victim, victim + "->outside"},
		Observe: 5 * time.Second,
	}
}

// deleteNode is the second form: the Node object goes, the agent stays.
func deleteNode(named ...framework.Finding) framework.LesserForm {
	return framework.LesserForm{
		Name:  "the Node object of " + removed + " is deleted while its agent runs",
		Fault: func(r *framework.Run) fault.Fault { return fault.DeleteNodeObject(r.Cluster, removed) },
		Named: named,
	}
}

func affectedScript() framework.Script {
	s := common(affected)
	s.Latent = []string{detect.WrongAnnouncer}
	s.Baseline = append(s.Baseline,
		framework.Check{Name: "the routers send each range of Node.spec to its node", Reads: routes, Holds: routersFollow(specOf, all)},
		framework.Check{Name: "probes from outside cross a router, the announcing node and the owner, untranslated", Holds: hops(3)},
		framework.Check{
			Name:  "the detectors say that each range is announced by a node that does not own it",
			Holds: swapIsReported, AsksDetectors: true,
		},
	)
	s.Forms = []framework.LesserForm{
		deleteNode(framework.Finding{Kind: detect.AbsentNode, Object: detect.Prefix(rowOf(removed).spec)}),
	}
	s.Aftermath = []framework.Check{
		{Name: "the routers have lost " + orphan.String() + " and nothing else", Reads: routes, Holds: routersFollow(specOf, staying), Bound: 5 * time.Second},
	}
	s.Named = []framework.Finding{
		{Kind: detect.Unannounced, Object: detect.Prefix(orphan)},
		{Object: detect.Prefix(rowOf("master1").spec)},
		{Kind: detect.WrongAnnouncer, Object: detect.Prefix(rowOf("master2").spec)},
		{Kind: detect.WrongAnnouncer, Object: detect.Prefix(rowOf("master3").spec)},
	}
	incident := cilium{Version: affected, IPAM: clusterPool}
	s.Remedies = []framework.Remedy{
		{
			Name: "restart every agent",
			Apply: func(ctx context.Context, r *framework.Run) error {
				return cilium{Version: affected, IPAM: clusterPool, Restart: "by the operator"}.applyAgents(ctx, r, staying)
			},
		},
		{
			Name: "static route on the routers", Helps: true, Bound: 10 * time.Second,
			Apply: func(ctx context.Context, r *framework.Run) error { return static(ctx, r, true) },
			Undo:  func(ctx context.Context, r *framework.Run) error { return static(ctx, r, false) },
		},
		{
			Name: "Cilium " + fixed, Helps: true, Bound: time.Minute,
			Apply: func(ctx context.Context, r *framework.Run) error {
				return cilium{Version: fixed, IPAM: clusterPool}.apply(ctx, r, staying)
			},
			Undo: func(ctx context.Context, r *framework.Run) error { return incident.apply(ctx, r, staying) },
		},
		{
			Name: "ipam mode kubernetes, pods made anew", Helps: true, Bound: time.Minute, ReplacesEnds: true,
			Apply: agreeingAllocations,
		},
	}
	return s
}

func fixedScript() framework.Script {
	s := common(fixed)
	s.Baseline = append(s.Baseline,
		framework.Check{Name: "the routers send each range in use to its node", Reads: routes, Holds: routersFollow(useOf, all)},
		framework.Check{Name: "probes from outside cross a router and the owner, untranslated", Holds: hops(2)},
	)
	s.Forms = []framework.LesserForm{deleteNode()}
	s.Aftermath = []framework.Check{
		{Name: "the routers have lost the removed node's own range and nothing else", Reads: routes, Holds: routersFollow(useOf, staying), Bound: 5 * time.Second},
	}
	return s
}

// install puts Cilium and the probe pods into the lab, from whatever state
// an earlier variant or run has left.
func install(ctx context.Context, r *framework.Run, version string) error {
	if err := uninstall(ctx, r, all); err != nil {
		return err
	}
	c := cilium{Version: version, IPAM: clusterPool}
	if err := c.applyOperator(ctx, r); err != nil {
		return err
	}
	if err := createCiliumNodes(ctx, r, ciliumOrder); err != nil {
		return err
	}
	if err := c.applyAgents(ctx, r, all); err != nil {
		return err
	}
	// Not before: a pod that finds no CNI configuration is tried again only
	// after a while.
	return workload.StartProbes(ctx, r.Cluster, workload.OnEach(all...))
}

// uninstall removes Cilium, and what its agents leave behind when they stop:
// CiliumNodes, the CNI configuration, and routes to other nodes' ranges.
func uninstall(ctx context.Context, r *framework.Run, nodes []string) error {
	var side errgroup.Group
	side.Go(func() error { return workload.SystemDaemonSet("cilium").Delete(ctx, r.Cluster) })
	operator := workload.Deployment{Name: "cilium-operator", Pods: workload.Pods{
		Namespace: metav1.NamespaceSystem, Labels: map[string]string{"name": "cilium-operator"},
	}}
	side.Go(func() error { return operator.Delete(ctx, r.Cluster) })
	side.Go(func() error { return workload.StopProbes(ctx, r.Cluster) })
	if err := side.Wait(); err != nil {
		return err
	}
	return errors.Join(deleteCiliumNodes(ctx, r), cleanNodes(ctx, r, nodes))
}

// cleanNodes does what a reboot would do to what the agents have left.
func cleanNodes(ctx context.Context, r *framework.Run, nodes []string) error {
	var side errgroup.Group
	for _, node := range nodes {
		side.Go(func() error {
			_, err := r.Lab.Node(node).Exec(ctx, "sh", "-c",
				"rm -rf /etc/cni/net.d/05-cilium.conflist /var/lib/cni/networks; ip -4 route flush root "+podCIDR.String())
			return err
		})
	}
	return side.Wait()
}

// static adds the stopgap route to both routers, or removes it.
func static(ctx context.Context, r *framework.Run, add bool) error {
	nextHop, _ := lab.AddressOn(victim, "nodes")
	for _, t := range lab.Routers {
		handle, err := r.Lab.Router(t.Name)
		if err != nil {
			return err
		}
		if add {
			err = handle.AddStatic(ctx, orphan, nextHop)
		} else {
			err = handle.RemoveStatic(ctx, orphan)
		}
		if err = errors.Join(err, handle.Close()); err != nil {
			return err
		}
	}
	return nil
}

// agreeingAllocations moves the cluster to the one allocation that the
// speaker announces: agents and pods are made anew, with ranges from
// Node.spec. The nodes' machines are kept; cleanNodes stands for their reboot.
func agreeingAllocations(ctx context.Context, r *framework.Run) error {
	if err := uninstall(ctx, r, staying); err != nil {
		return err
	}
	if err := (cilium{Version: affected, IPAM: kubernetes}).apply(ctx, r, staying); err != nil {
		return err
	}
	return workload.StartProbes(ctx, r.Cluster, workload.OnEach(staying...))
}

func specOf(a allocation) netip.Prefix { return a.spec }
func useOf(a allocation) netip.Prefix  { return a.use }

// What the checks ask of snapshots.
var (
	allocations = []snapshot.Source{snapshot.Nodes, snapshot.CiliumNodes}
	routes      = []snapshot.Source{snapshot.Routers}
)

// allocationsAreTheIncidents compares both allocations with the table: by
// luck they could agree, and then the fault would hurt nobody.
func allocationsAreTheIncidents(_ context.Context, r *framework.Run) (bool, string, error) {
	at := r.Snapshot()
	spec, use := map[string][]netip.Prefix{}, map[string][]netip.Prefix{}
	for _, n := range at.Nodes.Items {
		spec[n.Name] = n.PodCIDRs
	}
	for _, n := range at.CiliumNodes.Items {
		use[n.Name] = n.PodCIDRs
	}
	var wrong []string
	for _, row := range table {
		if !slices.Equal(spec[row.node], []netip.Prefix{row.spec}) || !slices.Equal(use[row.node], []netip.Prefix{row.use}) {
			wrong = append(wrong, fmt.Sprintf("%s has %v in Node.spec and uses %v, not %s and %s",
				row.node, spec[row.node], use[row.node], row.spec, row.use))
		}
	}
	return len(wrong) == 0, strings.Join(wrong, "; "), nil
}

// routersFollow asserts that each router's kernel sends a range of each of the
// nodes to that node, and has no other pod range.
func routersFollow(rangeOf func(allocation) netip.Prefix, nodes []string) func(context.Context, *framework.Run) (bool, string, error) {
	want := map[netip.Prefix]netip.Addr{}
	for _, node := range nodes {
		want[rangeOf(rowOf(node))], _ = lab.AddressOn(node, "nodes")
	}
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		routers := map[string]snapshot.Router{}
		for _, t := range r.Snapshot().Routers {
			routers[t.Name] = t
		}
		var wrong []string
		for _, declared := range lab.Routers {
			t := routers[declared.Name]
			if !t.Routes.Read {
				wrong = append(wrong, declared.Name+" was not read")
				continue
			}
			got := nextHops(t)
			for prefix, hop := range want {
				if !slices.Equal(got[prefix], []netip.Addr{hop}) {
					wrong = append(wrong, fmt.Sprintf("%s sends %s to %v, not to %s", t.Name, prefix, got[prefix], hop))
				}
				delete(got, prefix)
			}
			for prefix, hops := range got {
				wrong = append(wrong, fmt.Sprintf("%s has %s via %v", t.Name, prefix, hops))
			}
		}
		slices.Sort(wrong)
		return len(wrong) == 0, strings.Join(wrong, "; "), nil
	}
}

// nextHops are the kernel routes of a router for pod ranges.
func nextHops(t snapshot.Router) map[netip.Prefix][]netip.Addr {
	hops := map[netip.Prefix][]netip.Addr{}
	for _, route := range t.Routes.Items {
		if route.Prefix.Overlaps(podCIDR) && route.Prefix.Bits() > 0 && route.Protocol == router.ProtocolBGP {
			for _, hop := range route.NextHops {
				hops[route.Prefix] = append(hops[route.Prefix], hop.Address)
			}
		}
	}
	return hops
}

// hops asserts that every probe from the outside comes to its pod over that
// many forwarding hops, with the outside's own address: a probe that went
// over the bridge of the machine, or through its NAT, would prove nothing
// about routes.
func hops(n int) func(context.Context, *framework.Run) (bool, string, error) {
	const sentWith = 64 // TTL
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		outside := lab.Hosts[0].Links[0].Address
		probes := slices.DeleteFunc(r.Timelines(), func(t probe.Timeline) bool { return t.Probe.From != "outside" })
		if len(probes) == 0 {
			return false, "no probe from outside runs", nil
		}
		var wrong []string
		for _, t := range probes {
			for ttl, packets := range t.RequestTTL {
				if int(ttl) != sentWith-n {
					wrong = append(wrong, fmt.Sprintf("%d packets of %s crossed %d hops, not %d", packets, t.Probe.Name, sentWith-int(ttl), n))
				}
			}
			for _, s := range t.Sources {
				if s.Address != outside {
					wrong = append(wrong, fmt.Sprintf("packets of %s come from %s", t.Probe.Name, s.Address))
				}
			}
			if len(t.RequestTTL) == 0 || len(t.Sources) == 0 {
				wrong = append(wrong, "no packet of "+t.Probe.Name+" has come to its end")
			}
		}
		slices.Sort(wrong)
		return len(wrong) == 0, strings.Join(wrong, "; "), nil
	}
}

// swapIsReported asserts that the incident shows before it happens.
func swapIsReported(_ context.Context, r *framework.Run) (bool, string, error) {
	reported := map[detect.Object]string{}
	for _, f := range r.Findings() {
		if f.Kind == detect.WrongAnnouncer && f.State == detect.Latent {
			reported[f.Object] = f.Owner
		}
	}
	var missing []string
	for _, row := range table {
		if reported[detect.Prefix(row.use)] != row.node {
			missing = append(missing, row.use.String())
		}
	}
	return len(missing) == 0, "no finding about " + strings.Join(missing, ", "), nil
}
