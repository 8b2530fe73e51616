package twincidr

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

const (
	affected = "1.12.3"
	fixed    = "1.12.4"

	affectedVariant = "cilium-" + affected
	fixedVariant    = "cilium-" + fixed
)

const (
	master = "master"
	// newcomer joins. Its name sorts before owner's, whose range is the lowest: the operator
	// lists CiliumNodes in order of name.
	newcomer = "new"
	owner    = "worker"
)

var (
	nodes   = []string{master, newcomer, owner}
	tors    = []string{"tor1", "tor2"}
	rack    = topology.NewRack(69)
	podCIDR = netip.MustParsePrefix("10.69.128.0/17")
)

// The ranges of pods, in the order in which cilium-operator gives them out.
var (
	lowest = netip.MustParsePrefix("10.69.128.0/27")
	second = netip.MustParsePrefix("10.69.128.32/27")
	third  = netip.MustParsePrefix("10.69.128.64/27")
)

// others is the number of CiliumNodes without a machine, as of a large cluster. A starting operator
// handles them first, because their names sort before owner's, and may give owner's range away
// meanwhile. Nothing is sent to their addresses, which are in elsewhere.
const others = 400

var elsewhere = netip.MustParsePrefix("10.69.64.0/20")

func createNodes() framework.Action {
	order, at := []string{owner, master, newcomer}, map[string]netip.Addr{}
	next := elsewhere.Addr()
	for i := range others {
		name := fmt.Sprintf("other-%03d", i)
		next = next.Next()
		order, at[name] = append(order, name), next
	}
	return cilium.CreateNodes(order, func(r *framework.Run, name string) netip.Addr {
		if slices.Contains(nodes, name) {
			return r.Address(name)
		}
		return at[name]
	})
}

var lab = topology.Topology{
	Name: "twin-cidr", Networks: []topology.Network{rack.Nodes, rack.Uplink}, Hosts: []topology.Host{rack.Uplink.Host("outside", 10)},
	Clusters: []topology.Cluster{{
		PodCIDR: podCIDR, NodeMask: lowest.Bits(),
		Nodes: []topology.Node{rack.Nodes.Node(master, 11), rack.Nodes.Node(newcomer, 22), rack.Nodes.Node(owner, 21)},
	}},
}.Behind(topology.TwoToRs(rack.Nodes, rack.Uplink))

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Topology: lab,
	Owner:    framework.Maintainers, Slow: true, Foreign: true,
	Labels:    []framework.Label{framework.BGP, framework.IPAM},
	SecondLab: netip.MustParsePrefix("10.208.80.0/20"),
	Budget:    framework.Budget{Whole: 180 * time.Second, Lab: 45 * time.Second, Detect: time.Second},
	Variants: []framework.Variant{
		variant(framework.Affected, affected, cilium.Operator(fixed)),
		variant(framework.Fixed, fixed),
	},
	Tested: []framework.Tested{{Name: "cilium", Default: affected, Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		return variant(framework.Unclassified, versions["cilium"])
	},
}

func variant(role framework.Role, version string, more ...string) framework.Variant {
	return framework.Variant{
		Name: "cilium-" + version, Role: role, Form: framework.Slice,
		Components: map[string]string{"cilium": version},
		Images:     append([]string{cilium.Agent(version), cilium.Operator(version), workload.ProbeImage}, more...),
		Script:     func() framework.Script { return (&story{version: version}).script(role) },
	}
}

// ratesJSON are the outcomes of affected operators, from the reports of runs with --repeat.
//
//go:embed rates.json
var ratesJSON []byte

type story struct {
	version string
	// tries are the starts of the operator since the fault; given is the range that the
	// newcomer got in the last of them.
	tries int
	given netip.Prefix
}

func (s *story) cilium(operator string) cilium.Cilium {
	c := cilium.Announcing(s.version, lab.Clusters[0], cilium.Config{
		"ipam":                    cilium.ClusterPool,
		"auto-direct-node-routes": "false", // nodes reach each other's pods over the ToRs
		// A log line for each CiliumNode gives the race more time.
		"debug": "true",
		// The operator writes each CiliumNode when it starts.
		"k8s-client-qps":   "2000",
		"k8s-client-burst": "2000",
		// The CiliumNodes without a machine stay, and the operator does not wait for
		// Nodes before it gives ranges away (operator/main.go).
		"nodes-gc-interval": "0s",
	})
	c.Operator = cilium.Operator(operator)
	return c
}

var (
	pod     = framework.PodOn
	outside = framework.HostEndpoint(lab.Hosts[0])
)

// flows are the probes of the owner's pod, each packet from another port: ToRs choose a next hop
// for each flow, and a flow is lost or is not.
var flows = []probe.Probe{outside.Over(probe.UDPFlow, pod(owner)), pod(owner).Over(probe.UDPFlow, outside)}

func (s *story) script(role framework.Role) framework.Script {
	script := framework.Script{
		Install: s.install(),
		// The newcomer has no pods yet.
		Endpoints: []framework.Endpoint{pod(master), pod(owner), outside},
		Probes:    append(outside.Both(pod(master)), flows...),
		Detectors: []detect.Detector{detect.RouteOwnership{}},
		PollEvery: 500 * time.Millisecond, // each lists hundreds of CiliumNodes
		Baseline: []framework.Check{
			{ID: "one-origin", Name: "the routers send each range to one node", Reads: routes, Holds: oneOrigin},
			{ID: "path-of-probes", Name: "probes from outside cross a router and the owner, untranslated", Holds: check.Hops(outside, 2)},
		},
		Fault: s.fault(),
		Trials: &framework.Trials{
			Unit: "start of cilium-operator", Load: loadName, Rates: framework.EmbeddedRates(ratesJSON),
			// An affected operator would survive seven with a probability of 1 of 128, if it
			// gave a range twice in every other start.
			Most:   7,
			Result: func() (int, bool) { return s.tries, s.twin() },
		},
		Impacted: flows, Partial: true,
		Observe: 10 * time.Second,
	}
	// An agent has sessions before it has a range to announce.
	for _, from := range [][]string{tors, tors[:1], tors[1:]} {
		script.Transient = append(script.Transient, framework.Finding{
			Detector: detect.RouteOwnership{}.Name(), Kind: detect.Unannounced, State: detect.Active,
			Object: detect.Prefix(third), Owner: newcomer, Routers: from,
		})
	}
	if role == framework.Fixed {
		script.Aftermath = []framework.Check{{ID: "own-range", Name: newcomer + " has a range of its own, and the routers send it there",
			Reads: routes, Holds: oneOrigin}}
		return script
	}
	script.Expected = []framework.Finding{{
		Detector: detect.RouteOwnership{}.Name(), Kind: detect.TwinRange, State: detect.Active,
		Object: detect.Prefix(lowest), Owner: owner, Announcer: newcomer, Routers: tors,
	}}
	if role == framework.Affected {
		script.Aftermath = []framework.Check{
			{ID: "two-origins", Name: "the routers share packets to " + lowest.String() + " out between both nodes", Reads: routes,
				Holds: twoOrigins},
			{ID: "operator-knows", Name: "the operator says in the status of CiliumNode " + owner + " that its range is taken",
				Holds: operatorKnows, Bound: 10 * time.Second},
		}
		script.Remedies = s.remedies()
	}
	return script
}

// loadName is what Rates count under.
var loadName = fmt.Sprintf("%d CiliumNodes, debug", others)

// fault lets the newcomer join while the operator is down, and starts it. A start is one try.
func (s *story) fault() framework.Fault {
	return framework.Fault{
		Name: newcomer + " joins while cilium-operator is down, which then starts",
		Inject: func(ctx context.Context, r *framework.Run) error {
			for s.tries, s.given = 0, (netip.Prefix{}); !s.twin() && s.tries < max(1, r.TrialsDue()); s.tries++ {
				if err := s.joinWithout(s.version)(ctx, r); err != nil {
					return err
				}
				r.Note(fmt.Sprintf("start %d of cilium-operator: %s is given %s", s.tries+1, newcomer, s.given))
			}
			return nil
		},
		TookEffect: func(context.Context, *framework.Run) (bool, string, error) {
			return s.given.IsValid(), newcomer + " has no range", nil
		},
		Undo: s.install(), Replaced: true,
	}
}

// twin reports whether the newcomer was given the range of another node: all below its own are
// taken, and its own is free.
func (s *story) twin() bool { return s.given.IsValid() && s.given != third }

// joinWithout lets the newcomer join while no operator runs, and starts the operator of a version.
func (s *story) joinWithout(version string) framework.Action {
	return framework.InOrder(cilium.StopOperator, s.join(s.cilium(version).Configure))
}

// join makes the newcomer's CiliumNode anew, does what comes then, and waits until the
// newcomer announces the range that it is given.
func (s *story) join(then ...framework.Action) framework.Action {
	rejoin := labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error { return cilium.Rejoin(ctx, c, newcomer) })
	noteRange := labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) (err error) {
		s.given, err = cilium.AwaitRange(ctx, c, newcomer)
		return err
	})
	return labaccess.SessionsUp([]string{newcomer}, framework.InOrder(rejoin, framework.InOrder(then...), noteRange))
}

const within = 2 * time.Minute

func (s *story) remedies() []framework.Remedy {
	return []framework.Remedy{
		{
			ID: "restart-agents", Name: "restart every agent", Watch: 5 * time.Second,
			Apply: s.cilium(s.version).Restarted("by the operator").Announced(nodes...),
		},
		{
			ID: "fixed-operator", Name: "cilium-operator " + fixed + " alone", Watch: 5 * time.Second,
			Apply: framework.InOrder(cilium.StopOperator, s.cilium(fixed).Configure, cilium.OperatorUp),
		},
		{
			// That operator has refused the owner its range, and gives it away again once
			// the newcomer has given it back.
			ID: "join-again", Name: newcomer + "'s CiliumNode made anew while cilium-operator " + fixed + " runs", Watch: 5 * time.Second,
			Apply: s.join(),
		},
		{
			ID: "join-without", Name: newcomer + "'s CiliumNode made anew while no operator runs, then cilium-operator " +
				fixed, Helps: true, Bound: within,
			Apply: s.joinWithout(fixed),
		},
	}
}

func (s *story) install() framework.Action {
	if semver.MajorMinor("v"+s.version) != "v1.12" {
		return func(context.Context, *framework.Run) error {
			return fmt.Errorf("the script is for Cilium 1.12, not for %s: the speaker of 1.11 announces Node.spec.podCIDRs, "+
				"whatever the CiliumNodes say", s.version)
		}
	}
	wanted := s.cilium(s.version)
	return framework.InOrder(cilium.Uninstalled(nodes, podCIDR), wanted.Configure, createNodes(), wanted.Announced(nodes...),
		workload.ProbesOn(master, owner))
}

var routes = []snapshot.Source{snapshot.Routers}

// oneOrigin asserts that the routers send each node its own range, and twoOrigins that they
// share the lowest out between its owner and the newcomer.
var (
	oneOrigin  = sends(map[netip.Prefix][]string{lowest: {owner}, second: {master}, third: {newcomer}})
	twoOrigins = sends(map[netip.Prefix][]string{lowest: {owner, newcomer}, second: {master}})
)

func sends(via map[netip.Prefix][]string) framework.Condition {
	return check.Routes(podCIDR, rack.Nodes.Name, via)
}

func operatorKnows(ctx context.Context, r *framework.Run) (bool, string, error) {
	says, err := cilium.OperatorError(ctx, labaccess.Cluster(r), owner)
	return refused(says), fmt.Sprintf("it says %q", says), err
}

// refused reports whether the operator says that the lowest range is taken: "requested CIDR
// (10.69.128.0/27) is already allocated" (ErrCIDRAllocated, pkg/ipam/allocator/podcidr of 1.12.0
// and 1.12.3).
func refused(says string) bool {
	return strings.Contains(says, "requested CIDR ("+lowest.String()+") is already allocated")
}
