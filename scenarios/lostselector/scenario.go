package lostselector

import (
	"context"
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/calico"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

const version = "3.28.5"

// The labels of control planes, before Kubernetes 1.24 and since, and the variants that select by them.
const (
	oldLabel = "node-role.kubernetes.io/master"
	newLabel = "node-role.kubernetes.io/control-plane"

	affectedVariant = "master-label"
	fixedVariant    = "control-plane-label"
)

const (
	master  = "master"
	worker1 = "worker1"
	worker2 = "worker2"
)

var (
	nodes   = []string{master, worker1, worker2}
	nodeNet = topology.NewNetwork("nodes", "10.72.4.0/24")
	gateway = nodeNet.Last(254)
)

var lab = topology.Topology{
	Name: "lost-selector", Networks: []topology.Network{nodeNet},
	Clusters: []topology.Cluster{{
		ASN:     64512, // Calico's default
		PodCIDR: netip.MustParsePrefix("10.72.64.0/20"), NodeMask: 24,
		Nodes: []topology.Node{nodeNet.Node(master, 11), nodeNet.Node(worker1, 21), nodeNet.Node(worker2, 22)},
	}},
}.Behind([]topology.Router{{Name: "gw", ASN: 64500, ID: gateway.Address, Links: []topology.Link{gateway}}})

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record, Topology: lab,
	Owner: framework.Maintainers, Slow: true,
	OnlyOwnLab: "Calico leaves ipsets, and routes of BIRD's, on nodes, which are not known to come back",
	Labels:     []framework.Label{framework.BGP, framework.Upgrade},
	SecondLab:  netip.MustParsePrefix("10.208.128.0/20"),
	Budget:     framework.Budget{Whole: 180 * time.Second, Lab: 45 * time.Second, Detect: time.Second},
	Variants: []framework.Variant{
		variant(affectedVariant, framework.Affected, version, oldLabel),
		variant(fixedVariant, framework.Fixed, version, newLabel),
	},
	Tested: []framework.Tested{{Name: "calico", Default: version, Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		v := versions["calico"]
		return variant("calico-"+v, framework.Unclassified, v, oldLabel)
	},
}

func variant(name string, role framework.Role, version, label string) framework.Variant {
	return framework.Variant{
		Name: name, Role: role, Form: framework.Whole,
		Components: map[string]string{"calico": version, "bird": "1.6.8"},
		Images:     append(calico.Images(version), workload.ProbeImage),
		Script:     func() framework.Script { return script(role, version, label) },
	}
}

func selected(label string) framework.Action { return calico.Reflected(master, "has("+label+")") }

// within bounds what sessions need after a change of Calico's objects.
const within = 2 * time.Minute

func script(role framework.Role, version, label string) framework.Script {
	removal := fault.RemoveLabel(oldLabel, master)
	pods := framework.PodsOn(nodes...)
	paths := append(pods[1].Both(pods[0], pods[2]), pods[0].Both(pods[2])...)
	c := calico.Calico{Version: version, PodCIDR: lab.Clusters[0].PodCIDR, Method: calico.InternalIP, Poll: calico.DefaultPoll}
	s := framework.Script{
		Install: framework.InOrder(
			removal.Undo, c.Apply, selected(label), calico.PodsCanStart,
			framework.AtOnce(calico.Agent.Everywhere(within), workload.ProbesOn(nodes...)),
		),
		Endpoints: pods,
		Probes:    paths,
		Detectors: []detect.Detector{detect.LostSelector{}},
		Baseline:  []framework.Check{sessions("sessions", "each worker has a session with the reflector, and the reflector with each", 1, 2)},
		Fault:     removal,
		Impacted:  paths,
		Observe:   10 * time.Second,
	}
	if label == newLabel {
		return s
	}
	s.Latent = []framework.Finding{finding(detect.RemovedLabel, detect.Latent)}
	s.Expected = []framework.Finding{finding(detect.SelectsNoNode, detect.Active)}
	if role != framework.Affected {
		return s
	}
	s.Aftermath = []framework.Check{sessions("no-sessions", "no node has a BGP session", 0, 0)}
	s.Remedies = []framework.Remedy{
		{ID: "restart-calico-node", Name: "restart calico-node", Apply: calico.Restarted(nodes...)},
		{ID: "label", Name: "the label back on " + master, Helps: true, Bound: within, Apply: removal.Undo, Undo: removal.Inject},
		{ID: "selector", Name: "a selector on " + newLabel, Helps: true, Bound: within, Apply: selected(newLabel)},
	}
	return s
}

func finding(kind string, state detect.State) framework.Finding {
	return framework.Finding{
		Detector: detect.LostSelector{}.Name(), Kind: kind, State: state,
		Object: detect.Named("BGPPeer reflectors, spec.peerSelector"), Words: []string{oldLabel},
	}
}

func sessions(id, name string, worker, reflector int) framework.Check {
	return framework.Check{
		ID: id, Name: name, Reads: []snapshot.Source{snapshot.NodeNetworks}, Bound: 10 * time.Second,
		Holds: func(_ context.Context, r *framework.Run) (bool, string, error) {
			var wrong framework.Mismatches
			for _, n := range r.Snapshot().NodeNetworks {
				want := worker
				if n.Node == master {
					want = reflector
				}
				established := func(p snapshot.BIRDProtocol) bool { return p.BGPState == snapshot.Established }
				if up := len(each.Where(calico.Sessions(n), established)); up != want {
					wrong.Addf("%s has %d sessions, not %d", n.Node, up, want)
				}
			}
			return wrong.Result()
		},
	}
}
