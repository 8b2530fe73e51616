package addednic

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/calico"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

const version = "3.28.5"

// The variants, which differ in Calico's autodetection method or interval.
const (
	firstFound = calico.FirstFound
	restarted  = calico.FirstFound + "-restarted"
	internalIP = calico.InternalIP
)

const (
	gateway = "gw"
	master  = "master"
	worker1 = "worker1"
	worker2 = "worker2"

	coreDNSNode = worker1 // gets the card
)

var card = fault.NIC{Node: coreDNSNode, Name: "eth1", Address: netip.MustParsePrefix("10.51.7.21/24")}

var (
	podCIDR = netip.MustParsePrefix("10.52.0.0/16")
	nodeNet = topology.NewNetwork("nodes", "10.50.0.0/24")
	onNodes = nodeNet.Last(254)
)

// lab is the cluster that Record draws. With three nodes two have a session without the third. The
// gateway is no more than the default route of all nodes: packets without another route end there.
var lab = topology.Topology{
	Name: "added-nic", Networks: []topology.Network{nodeNet}, Routed: []netip.Prefix{card.Address.Masked()},
	Clusters: []topology.Cluster{{
		ASN:     64512, // Calico's default
		PodCIDR: podCIDR, NodeMask: 24,
		Nodes: []topology.Node{nodeNet.Node(master, 11), nodeNet.Node(worker1, 21), nodeNet.Node(worker2, 22)},
	}},
}.Behind([]topology.Router{{Name: gateway, ASN: 64500, ID: onNodes.Address, Links: []topology.Link{onNodes}}})

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident:   Record,
	Topology:   lab,
	Owner:      framework.Maintainers,
	Labels:     []framework.Label{framework.BGP},
	SecondLab:  netip.MustParsePrefix("10.208.32.0/20"),
	Budget:     framework.Budget{Whole: 180 * time.Second, Lab: 45 * time.Second, Detect: time.Second},
	OnlyOwnLab: "Calico leaves ipsets, and routes of BIRD's, on nodes, which are not known to come back",
	Variants: []framework.Variant{
		variant(firstFound, framework.Affected, version, affectedScript),
		variant(restarted, framework.Affected, version, restartedScript),
		variant(internalIP, framework.Fixed, version, fixedScript),
	},
	Tested: []framework.Tested{{Name: "calico", Default: version, Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		other := versions["calico"]
		return variant("calico-"+other, framework.Unclassified, other, func() framework.Script {
			c := configured(calico.FirstFound, calico.DefaultPoll)
			c.Version = other
			return new(story).firstFound(c)
		})
	},
}

func variant(name string, role framework.Role, version string, script func() framework.Script) framework.Variant {
	return framework.Variant{
		Name: name, Role: role, Form: framework.Whole, Script: script,
		Components: map[string]string{
			"calico": version, "bird": "1.6.8", "kube-proxy": kubeadm.KubernetesVersion, "coredns": kubeadm.CoreDNSVersion,
		},
		Images: slices.Concat(calico.Images(version), kubeadm.Images(), []string{workload.ProbeImage}),
	}
}

const (
	// poll is Calico's autodetection interval in the variant in which it ignores the card.
	poll = 5 * time.Second
	// never is longer than a run.
	never          = 10 * time.Minute
	sessionsWithin = 2 * time.Minute
	// observe is two intervals of Calico with the fixed method, and time for what follows.
	observe = 2*poll + 2*time.Second
	// looksWithin is Calico's default interval, and time for what follows.
	looksWithin = calico.DefaultPoll + 15*time.Second
)

// story is what the steps of one variant note before the fault.
type story struct {
	// agents are calico-node's pods with their restarts.
	agents map[string]string
	// plugged is when the card was plugged in, and reached when the first fact was looked at, after the symptom.
	plugged, reached time.Time
}

func configured(method string, poll time.Duration) calico.Calico {
	return calico.Calico{Version: version, PodCIDR: podCIDR, Method: method, Poll: poll}
}

func (s *story) plugIn() framework.Fault {
	f := fault.PlugNIC(card)
	f.Inject = framework.InOrder(f.Inject, func(context.Context, *framework.Run) error {
		s.plugged, s.reached = time.Now(), time.Time{}
		return nil
	})
	return f
}

// common is what all variants do. Without natOutgoing, which is on by default, pods on the node with
// the card do not reach pods with hostNetwork, which have no route to a pod there.
func (s *story) common(c calico.Calico, natOutgoing bool) framework.Script {
	all, lost := probes()
	return framework.Script{
		Install:   s.install(c, natOutgoing),
		Endpoints: ends(),
		Probes:    all,
		Detectors: []detect.Detector{detect.NodeAddress{}},
		Baseline:  []framework.Check{addressesAndSessions},
		Fault:     s.plugIn(),
		Impacted:  lost,
		Observe:   observe,
	}
}

func (s *story) firstFound(c calico.Calico) framework.Script {
	script := s.common(c, true)
	script.SymptomWithin = looksWithin
	script.Expected = []framework.Finding{finding(detect.WrongAddress, detect.Active)}
	return script
}

func affectedScript() framework.Script {
	s := new(story)
	script := s.firstFound(configured(calico.FirstFound, calico.DefaultPoll))
	for i, f := range facts {
		script.Aftermath = append(script.Aftermath, framework.Check{
			ID: f.id, Name: fmt.Sprintf("fact %d: %s", i+1, f.name), Holds: s.holds(f), Bound: 10 * time.Second,
		})
	}
	script.Aftermath = append(script.Aftermath, addressMoved,
		// Not in Expected: a poll that did not read the node's interfaces cannot name one.
		framework.DetectorsSay("card-reported", "the detector names the node, the address, the interface, and that this appeared after boot",
			finding(detect.WrongAddress, detect.Active, coreDNSNode, card.Address.Addr().String(), " "+card.Name+",", "appeared after boot")),
		framework.Check{ID: "not-restarted", Name: "calico-node was not restarted", Holds: s.notRestarted},
	)
	script.Remedies = []framework.Remedy{
		{
			ID: "restart-calico-node", Name: "restart calico-node",
			Apply: framework.InOrder(calico.Restarted(master, worker1, worker2), birdRuns),
		},
		{
			ID: "restart-kube-proxy", Name: "restart kube-proxy",
			Apply: labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
				return kubeadm.KubeProxy.Restart(ctx, c, c.Nodes(), time.Minute, client.GracePeriodSeconds(0))
			}),
		},
		{
			// Nothing else is changed: calico-node, restarted before and not ready since, finds the old address
			// with its next autodetection.
			ID: "remove-card", Name: "remove the card", Helps: true, Bound: 2 * time.Minute,
			Apply: framework.InOrder(asserted(notReady), s.note, s.plugIn().Undo, calico.Agent.Everywhere(looksWithin), asserted(s.notRestarted)),
		},
	}
	return script
}

// restartedScript is the second form: no autodetection is due during the run, and Calico
// uses the card's address when calico-node is restarted for another reason.
func restartedScript() framework.Script {
	s := new(story)
	script := s.common(configured(calico.FirstFound, never), true)
	script.Precursors = []framework.Precursor{{
		ID: "card-unnoticed", Name: "the card is plugged in, and Calico has not checked its address yet", Fault: s.plugIn(),
		Expected: []framework.Finding{finding(detect.NextAddress, detect.Latent)},
		Within:   time.Second,
	}}
	script.Fault = framework.Fault{
		Name:   "restart calico-node on " + coreDNSNode,
		Inject: calico.Restarted(coreDNSNode),
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			same, _, err := s.notRestarted(ctx, r)
			return !same, "the old pod runs", err
		},
	}
	// Probes from the node itself lose no packets: the new BIRD restarts gracefully (-R) and keeps
	// its routes for 240 s by default, which no run waits for.
	script.Impacted = slices.DeleteFunc(script.Impacted, func(p probe.Probe) bool { return p.From == hostWorker1.Name })
	script.Expected = []framework.Finding{finding(detect.WrongAddress, detect.Active)}
	script.Aftermath = []framework.Check{
		addressMoved,
		{ID: "not-ready", Name: "calico-node on " + coreDNSNode + " is not ready, because its BGP sessions are down", Holds: notReady,
			Bound: 15 * time.Second},
	}
	script.Remedies = []framework.Remedy{
		{
			ID: "internal-ip", Name: calico.InternalIP, Helps: true, Bound: 2 * time.Minute,
			Apply: move(calico.InternalIP), Undo: breakAgain,
		},
		{
			ID: "can-reach", Name: "can-reach with the gateway's address", Helps: true, Bound: 2 * time.Minute,
			Apply: func(ctx context.Context, r *framework.Run) error {
				return move("can-reach="+r.Address(gateway).String())(ctx, r)
			},
		},
	}
	return script
}

// breakAgain has Calico take the card's address again. Changing the method rolls
// calico-node on every node. Each new BIRD restarts gracefully, and would keep its routes for
// 240 s: the routes to the node with the card are removed instead.
func breakAgain(ctx context.Context, r *framework.Run) error {
	started := labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		return calico.Agent.Started(ctx, c, c.Nodes(), time.Minute)
	})
	flush := labaccess.OnNodes([]string{master, worker2}, func(ctx context.Context, node *kindlab.Node) error {
		_, err := node.Exec(ctx, "ip", "-4", "route", "flush", "proto", fmt.Sprint(unix.RTPROT_BIRD), "via", r.Address(coreDNSNode).String())
		return err
	})
	return framework.InOrder(configured(calico.FirstFound, never).Apply, started, birdRuns, flush)(ctx, r)
}

func fixedScript() framework.Script {
	s := new(story)
	script := s.common(configured(calico.InternalIP, poll), false)
	// With a route to the pods on the router, their addresses need no masquerading.
	script.Install = framework.InOrder(script.Install, labaccess.StaticAdded(podCIDR, master))
	// A flow keeps the translation of its first packet: each connection of this probe is a new one.
	script.Probes = append(script.Probes, besideDNS.Over(probe.TCP, hostWorker2))
	script.Detectors = append(script.Detectors, detect.SNAT{})
	script.Precursors = []framework.Precursor{{
		ID: "nat-outgoing", Name: "natOutgoing of the pool is switched on, and the router has a route to the " +
			"pods", Fault: natOutgoing, Undone: true,
		Expected: []framework.Finding{{
			Detector: detect.SNAT{}.Name(), Kind: detect.HiddenSource, State: detect.Active,
			Object: detect.Named("rule in cali-nat-outgoing"), Owner: coreDNSNode, Routers: []string{gateway},
		}},
	}}
	script.Aftermath = []framework.Check{
		{ID: "address-looked-for", Name: "Calico has checked the address of " + coreDNSNode + " while the card is plugged in",
			Holds: s.lookedAgain, Bound: 2 * poll},
		addressesAndSessions,
	}
	return script
}

func (s *story) install(c calico.Calico, natOutgoing bool) framework.Action {
	steps := []framework.Action{s.plugIn().Undo, labaccess.StaticRemoved(podCIDR)} // left by a killed run
	if !natOutgoing {
		// CoreDNS keeps a connection to the API server, and that its translation.
		steps = append(steps, labaccess.OnCluster(kubeadm.CoreDNS.Delete))
	}
	return framework.InOrder(append(steps,
		c.Apply, // first: it takes longest to come up
		calico.NATOutgoing(natOutgoing), kubeadm.ApplyKubeProxy,
		workload.ClusterIP("argocd-redis", corev1.ProtocolTCP, redisVIP, redis.Name),
		workload.ClusterIP("cache", corev1.ProtocolTCP, cacheVIP, cache.Name),
		// A pod that is created earlier is retried only after 10 s and more.
		calico.PodsCanStart, kubeadm.ApplyAddons(coreDNSNode),
		framework.AtOnce(calico.Agent.Everywhere(sessionsWithin), kubeadm.AddonsReady, workload.Probes(workloads...)), s.note)...)
}

func move(method string) framework.Action {
	return framework.InOrder(configured(method, poll).Apply, calico.Agent.Everywhere(time.Minute))
}

var natOutgoing = framework.Fault{
	Name:       "switch natOutgoing of the pool on",
	Inject:     calico.NATOutgoing(true),
	TookEffect: natRules,
	Undo:       calico.NATOutgoing(false),
}
