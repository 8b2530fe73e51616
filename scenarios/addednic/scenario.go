package addednic

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
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

// version is Calico's.
const version = "3.28.5"

// The variants, which differ in Calico's autodetection method or interval.
const (
	firstFound = calico.FirstFound
	restarted  = calico.FirstFound + "-restarted"
	internalIP = calico.InternalIP
)

// Scenario is the incident on a lab.
var Scenario = scenario(lab, fault.NIC{Node: coreDNSNode, Name: "eth1", Address: netip.MustParsePrefix("10.51.7.21/24")})

// coreDNSNode runs CoreDNS, and gets the card.
const coreDNSNode = worker1

func scenario(lab topology.Topology, nic fault.NIC) framework.Scenario {
	lab.Routed = []netip.Prefix{nic.Address.Masked()}
	variant := func(name string, role framework.Role, script func(fault.NIC) framework.Script) framework.Variant {
		return framework.Variant{
			Name: name, Role: role, Form: framework.Whole, Components: components, Images: images,
			Script: func() framework.Script { return script(nic) },
		}
	}
	fixed := variant(internalIP, framework.Fixed, fixedScript)
	fixed.Images = append(slices.Clone(images), calico.OperatorImage())
	return framework.Scenario{
		Incident:   Record,
		Owner:      framework.Maintainers,
		Labels:     []framework.Label{framework.BGP},
		SecondLab:  netip.MustParsePrefix("10.208.32.0/20"),
		Budget:     framework.Budget{Whole: 180 * time.Second, Lab: 45 * time.Second, Detect: time.Second},
		OnlyOwnLab: "Calico leaves ipsets, and routes of BIRD's, on nodes, which are not known to come back",
		Topology:   lab,
		Variants: []framework.Variant{
			variant(firstFound, framework.Affected, affectedScript),
			variant(restarted, framework.Affected, func(nic fault.NIC) framework.Script {
				return restartedScript(nic, addressOf(lab, gateway))
			}),
			fixed,
		},
		Parameters: []framework.Parameter{
			{Name: "nic", Default: nic.Name, About: "the card's name: none that Calico ignores"},
			{Name: "address", Default: nic.Address.String(), About: "its address: none that other nodes have or can reach"},
		},
		Tested: []framework.Tested{{Name: "calico", Default: version, Varied: true}},
		At: func(versions map[string]string) framework.Variant {
			c := configured(calico.FirstFound, calico.DefaultPoll)
			c.Version = versions["calico"]
			v := variant("calico-"+c.Version, framework.Unclassified, func(nic fault.NIC) framework.Script {
				s := &story{nic: nic}
				script := s.common(c)
				script.SymptomWithin = looksWithin
				script.Expected = []framework.Finding{s.finding(detect.WrongAddress, detect.Active)}
				return script
			})
			v.Components = maps.Clone(components)
			v.Components["calico"] = c.Version
			v.Images = imagesOf(c.Version)
			return v
		},
		With: func(s framework.Scenario, values map[string]string) (framework.Scenario, error) {
			made, err := with(s.Topology, nic, values)
			made.Incident, made.Moved = s.Incident, s.Moved
			return made, err
		},
	}
}

// with is the scenario on a lab with another card.
func with(lab topology.Topology, nic fault.NIC, values map[string]string) (framework.Scenario, error) {
	if name, given := values["nic"]; given {
		nic.Name = name
	}
	if text, given := values["address"]; given {
		address, err := netip.ParsePrefix(text)
		if err != nil {
			return framework.Scenario{}, fmt.Errorf("address %q: want an address with the length of its subnet, such as %s", text, nic.Address)
		}
		nic.Address = address
	}
	return scenario(lab, nic), nic.Check(lab)
}

var (
	components = map[string]string{
		"calico": version, "bird": "1.6.8", "kube-proxy": kubeadm.KubernetesVersion, "coredns": kubeadm.CoreDNSVersion,
	}
	images = imagesOf(version)
)

func imagesOf(version string) []string {
	return slices.Concat(calico.Images(version), kubeadm.Images(), []string{workload.ProbeImage})
}

const (
	// poll is Calico's autodetection interval in the variant in which it ignores the card.
	poll = 5 * time.Second
	// never is longer than a run.
	never = 10 * time.Minute
	// sessionsWithin bounds the wait for BIRD's sessions on every node.
	sessionsWithin = 2 * time.Minute
	// observe is two intervals of Calico with the fixed method, and time for what follows.
	observe = 2*poll + 2*time.Second
	// looksWithin is Calico's default interval, and time for what follows.
	looksWithin = calico.DefaultPoll + 15*time.Second
)

// story is what the steps of one variant share: the card, and what they noted before the fault.
type story struct {
	nic fault.NIC
	// agents are calico-node's pods with their restarts, before the fault.
	agents map[string]string
	// plugged is when the card was plugged in.
	plugged time.Time
	// natOff is set where natOutgoing of Calico's pool is off. By default it is on, so
	// that pods on the node with the card reach pods with hostNetwork, although these
	// have no route to a pod there.
	natOff bool
}

func configured(method string, poll time.Duration) calico.Calico {
	return calico.Calico{Version: version, PodCIDR: podCIDR, Method: method, Poll: poll}
}

// plugIn is the fault: the card, and nothing else.
func (s *story) plugIn() framework.Fault {
	f := fault.PlugNIC(s.nic)
	inject := f.Inject
	f.Inject = func(ctx context.Context, r *framework.Run) error {
		err := inject(ctx, r)
		s.plugged = time.Now()
		return err
	}
	return f
}

func (s *story) common(c calico.Calico) framework.Script {
	return framework.Script{
		Install:   s.install(c),
		Endpoints: ends(),
		Probes:    probes(),
		Detectors: []detect.Detector{detect.NodeAddress{}},
		Baseline: []framework.Check{
			addressesAndSessions,
		},
		Fault:    s.plugIn(),
		Impacted: impacted(),
		Observe:  observe,
	}
}

func factsHold() []framework.Check {
	var checks []framework.Check
	for i, f := range facts {
		checks = append(checks, framework.Check{
			ID: f.id, Name: fmt.Sprintf("fact %d: %s", i+1, f.name), Holds: f.holds, Bound: 10 * time.Second,
		})
	}
	return checks
}

func affectedScript(nic fault.NIC) framework.Script {
	s := &story{nic: nic}
	script := s.common(configured(calico.FirstFound, calico.DefaultPoll))
	script.SymptomWithin = looksWithin
	script.Expected = []framework.Finding{s.finding(detect.WrongAddress, detect.Active)}
	script.Aftermath = append(factsHold(),
		s.addressMoved(),
		// Not in Expected: a poll that did not read the node's interfaces cannot name one.
		framework.DetectorsSay("card-reported", "the detector names the node, the address, the interface, and that this appeared after boot",
			s.finding(detect.WrongAddress, detect.Active, coreDNSNode, nic.Address.Addr().String(), " "+nic.Name+",", "appeared after boot")),
		framework.Check{ID: "not-restarted", Name: "calico-node was not restarted", Holds: s.notRestarted},
	)
	script.Remedies = []framework.Remedy{
		{
			ID: "restart-calico-node", Name: "restart calico-node",
			Apply: framework.InOrder(restartAgents(master, worker1, worker2), birdRuns),
		},
		{
			ID: "restart-kube-proxy", Name: "restart kube-proxy",
			Apply: labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
				return kubeadm.KubeProxy.Restart(ctx, c, c.Nodes(), time.Minute, client.GracePeriodSeconds(0))
			}),
		},
		{
			ID: "remove-card", Name: "remove the card", Helps: true, Bound: 2 * time.Minute,
			Apply: s.takeAway,
		},
	}
	return script
}

// takeAway removes the card, and changes nothing else. calico-node, restarted before and
// not ready since, finds the old address with its next autodetection.
func (s *story) takeAway(ctx context.Context, r *framework.Run) error {
	if not, saw, err := notReady(ctx, r); err != nil || !not {
		return cmp.Or(err, fmt.Errorf("calico-node on %s is ready before the card is removed: %s", coreDNSNode, saw))
	}
	before, err := calico.Restarts(ctx, labaccess.Cluster(r))
	if err != nil {
		return err
	}
	if err := framework.InOrder(s.plugIn().Undo, calico.Agent.Everywhere(looksWithin))(ctx, r); err != nil {
		return err
	}
	now, err := calico.Restarts(ctx, labaccess.Cluster(r))
	if err == nil && !maps.Equal(now, before) {
		err = fmt.Errorf("calico-node was restarted in between: before: %v, now: %v", before, now)
	}
	return err
}

// restartedScript is the second form: no autodetection is due during the run, and Calico
// uses the card's address when calico-node is restarted for another reason. Reached is an
// address of the nodes' network.
func restartedScript(nic fault.NIC, reached netip.Addr) framework.Script {
	s := &story{nic: nic}
	script := s.common(configured(calico.FirstFound, never))
	script.Precursors = []framework.Precursor{{
		ID: "card-unnoticed", Name: "the card is plugged in, and Calico has not checked its address yet", Fault: s.plugIn(),
		Expected: []framework.Finding{s.finding(detect.NextAddress, detect.Latent)},
		Within:   time.Second,
	}}
	script.Fault = framework.Fault{
		Name:   "restart calico-node on " + coreDNSNode,
		Inject: restartAgents(coreDNSNode),
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			same, _, err := s.notRestarted(ctx, r)
			return !same, "the old pod runs", err
		},
	}
	script.Impacted = restartedImpacted()
	script.Expected = []framework.Finding{s.finding(detect.WrongAddress, detect.Active)}
	script.Aftermath = []framework.Check{
		s.addressMoved(),
		{ID: "not-ready", Name: "calico-node on " + coreDNSNode + " is not ready, because its BGP sessions are down", Holds: notReady,
			Bound: 15 * time.Second},
	}
	method := "can-reach=" + reached.String()
	script.Remedies = []framework.Remedy{
		{
			ID: "internal-ip", Name: calico.InternalIP, Helps: true, Bound: 2 * time.Minute,
			Apply: move(calico.InternalIP), Undo: breakAgain,
		},
		{
			ID: "can-reach", Name: method, Helps: true, Bound: 2 * time.Minute,
			Apply: move(method),
		},
	}
	return script
}

// breakAgain has Calico take the card's address again. Changing the method rolls
// calico-node on every node; each new BIRD restarts gracefully, and keeps the routes
// that are there for 240 s. Those to the node with the card are removed instead.
func breakAgain(ctx context.Context, r *framework.Run) error {
	started := labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		return calico.Agent.Started(ctx, c, c.Nodes(), time.Minute)
	})
	flush := labaccess.OnNodes([]string{master, worker2}, func(ctx context.Context, node *kindlab.Node) error {
		_, err := node.Exec(ctx, "ip", "-4", "route", "flush", "proto", fmt.Sprint(unix.RTPROT_BIRD), "via", addressOf(r.Topology, coreDNSNode).
			String())
		return err
	})
	return framework.InOrder(labaccess.OnLab(configured(calico.FirstFound, never).Apply), started, birdRuns, flush)(ctx, r)
}

func restartAgents(nodes ...string) framework.Action {
	return labaccess.OnLab(func(ctx context.Context, l *kindlab.Lab) error { return calico.Restart(ctx, l, nodes...) })
}

// restartedImpacted are the probes that lose packets in the second form. Those from the node
// itself do not: the new BIRD restarts gracefully (-R) and keeps its routes for 240 s by
// default, which no run waits for.
func restartedImpacted() []probe.Probe {
	return slices.DeleteFunc(impacted(), func(p probe.Probe) bool { return p.From == hostWorker1.Name })
}

func fixedScript(nic fault.NIC) framework.Script {
	s := &story{nic: nic, natOff: true}
	script := s.common(configured(calico.InternalIP, poll))
	// With a route to the pods on the router, their addresses need no masquerading.
	script.Install = framework.InOrder(script.Install, func(ctx context.Context, r *framework.Run) error {
		return labaccess.Lab(r).AddStatic(ctx, podCIDR, addressOf(r.Topology, master))
	})
	// A flow keeps the translation of its first packet: each connection of this probe is a new one.
	script.Probes = append(script.Probes, byTCP(besideDNS, hostWorker2))
	script.Detectors = append(script.Detectors, detect.SNAT{})
	script.Baseline = append(script.Baseline, operatorAgrees)
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

func (s *story) install(c calico.Calico) framework.Action {
	steps := []framework.Action{s.plugIn().Undo, labaccess.StaticRemoved(podCIDR)} // left by a killed run
	if s.natOff {
		// CoreDNS keeps a connection to the API server, and that its translation.
		steps = append(steps, labaccess.OnCluster(kubeadm.CoreDNS.Delete))
	}
	addons := labaccess.OnLab(func(ctx context.Context, l *kindlab.Lab) error { return kubeadm.ApplyAddons(ctx, l, coreDNSNode) })
	note := labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) (err error) {
		s.agents, err = calico.Restarts(ctx, c)
		return err
	})
	return framework.InOrder(append(steps,
		labaccess.OnLab(c.Apply), // first: it takes longest to come up
		setNATOutgoing(!s.natOff), labaccess.OnLab(kubeadm.ApplyKubeProxy), workload.Applied(servicesYAML),
		// A pod that is created earlier is retried only after 10 s and more.
		labaccess.OnLab(calico.PodsCanStart), addons,
		framework.AtOnce(calico.Agent.Everywhere(sessionsWithin), kubeadm.AddonsReady, workload.Probes(workloads...)), note)...)
}

// move changes the autodetection method, and rolls calico-node.
func move(method string) framework.Action {
	return framework.InOrder(labaccess.OnLab(configured(method, poll).Apply), calico.Agent.Everywhere(time.Minute))
}

// natOutgoing is the switch that in Calico does what Cilium's masquerade does.
var natOutgoing = framework.Fault{
	Name:       "switch natOutgoing of the pool on",
	Inject:     setNATOutgoing(true),
	TookEffect: func(_ context.Context, r *framework.Run) (bool, string, error) { return natRules(r.Snapshot()) },
	Undo:       setNATOutgoing(false),
}

func setNATOutgoing(on bool) framework.Action {
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error { return calico.NATOutgoing(ctx, c, on) })
}
