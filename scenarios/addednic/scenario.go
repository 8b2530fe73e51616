package addednic

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/calico"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// version is Calico's.
const version = "3.28.5"

// Scenario is the incident on a lab.
var Scenario = scenario(fault.NIC{Node: coreDNSNode, Name: "eth1", Address: netip.MustParsePrefix("10.51.7.21/24")})

// coreDNSNode runs CoreDNS, and gets the card.
const coreDNSNode = "worker1"

// scenario is the incident with a card.
func scenario(nic fault.NIC) framework.Scenario {
	variant := func(name string, role framework.Role, script func(fault.NIC) framework.Script) framework.Variant {
		return framework.Variant{
			Name: name, Role: role, Form: framework.Whole, Components: components, Images: images,
			Script: func() framework.Script { return script(nic) },
		}
	}
	fixed := variant(calico.InternalIP, framework.Fixed, fixedScript)
	fixed.Images = append(slices.Clone(images), calico.OperatorImage())
	return framework.Scenario{
		Incident: Record,
		Labels:   []string{"bgp"},
		Owner:    "@relapse-dev",
		Topology: lab,
		Variants: []framework.Variant{
			variant(calico.FirstFound, framework.Affected, affectedScript),
			variant(calico.FirstFound+"-restarted", framework.Affected, restartedScript),
			fixed,
		},
		Parameters: []framework.Parameter{
			{Name: "nic", Default: nic.Name, About: "the card's name: none that Calico passes over"},
			{Name: "address", Default: nic.Address.String(), About: "its address: none that other nodes reach, or have"},
		},
		Tested: []framework.Tested{{Name: "calico", Default: version, Varied: true}},
		At: func(versions map[string]string) framework.Variant {
			c := configured(calico.FirstFound, calico.DefaultPoll)
			c.Version = versions["calico"]
			v := variant("calico-"+c.Version, framework.Unclassified, func(nic fault.NIC) framework.Script {
				s := &story{nic: nic}
				script := s.common(c)
				script.HurtWithin = looksWithin
				script.Named = []framework.Finding{s.finding(detect.WrongAddress, detect.Active)}
				return script
			})
			v.Components = maps.Clone(components)
			v.Components["calico"] = c.Version
			v.Images = imagesOf(c.Version)
			return v
		},
		With: func(values map[string]string) (framework.Scenario, error) { return with(nic, values) },
	}
}

// with is the scenario with another card.
func with(nic fault.NIC, values map[string]string) (framework.Scenario, error) {
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
	return scenario(nic), nic.Check(lab)
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
	// poll is how often Calico looks for its address where it is to pass the card
	// over: often enough for a run.
	poll = 5 * time.Second
	// never is longer than a run.
	never = 10 * time.Minute
	// sessionsWithin bounds the wait for BIRD's sessions on every node.
	sessionsWithin = 2 * time.Minute
	// observe is two looks of Calico with the fixed method, and time for what
	// follows.
	observe = 2*poll + 2*time.Second
	// looksWithin is one look of Calico by default, and time for what follows.
	looksWithin = calico.DefaultPoll + 15*time.Second
)

// story is what the steps of one variant share: the card, and what they noted
// before the fault.
type story struct {
	nic fault.NIC
	// before is what Calico had made of the nodes' addresses, agents are
	// calico-node's pods with their restarts.
	before *calico.State
	agents map[string]string
	// plugged is when the card had been plugged in.
	plugged time.Time
	// method is what the operator makes of NodeInternalIP.
	method string
	// natOff is set where natOutgoing of Calico's pool is off. By default it is on,
	// and it is why pods on the node with the card reach pods with hostNetwork, who
	// have no route back to a pod there.
	natOff bool
}

// configured is Calico with an autodetection method, and the time from one of
// its looks for the address to the next.
func configured(method string, poll time.Duration) calico.Calico {
	return calico.Calico{Version: version, PodCIDR: podCIDR, Method: method, Poll: poll}
}

// plugIn is the fault: the card, and nothing else.
func (s *story) plugIn(r *framework.Run) fault.Fault {
	f := fault.PlugNIC(r.Lab, r.Cluster, s.nic)
	inject := f.Inject
	f.Inject = func(ctx context.Context) error {
		err := inject(ctx)
		s.plugged = time.Now()
		return err
	}
	return f
}

// common is what all variants do.
func (s *story) common(c calico.Calico) framework.Script {
	return framework.Script{
		Install:   func(ctx context.Context, r *framework.Run) error { return s.install(ctx, r, c) },
		Ends:      ends(),
		Probes:    probes(),
		Detectors: []detect.Detector{detect.NodeAddress{}},
		Baseline: []framework.Check{
			{Name: "CoreDNS runs on " + coreDNSNode + " and nowhere else", Holds: coreDNSIsThere},
			{Name: "Calico's addresses are the Nodes' InternalIPs, and every session is up", Reads: addressing, Holds: s.recorded("before", allIsWell)},
		},
		Fault:   s.plugIn,
		Hurt:    hurt(),
		Observe: observe,
	}
}

// factsHold are the facts of the incident, one by one.
func factsHold() []framework.Check {
	var checks []framework.Check
	for i, f := range facts {
		checks = append(checks, framework.Check{
			Name: fmt.Sprintf("fact %d: %s", i+1, f.name), Holds: f.holds, Bound: 10 * time.Second,
		})
	}
	return checks
}

func affectedScript(nic fault.NIC) framework.Script {
	s := &story{nic: nic}
	script := s.common(configured(calico.FirstFound, calico.DefaultPoll))
	script.HurtWithin = looksWithin
	script.Named = []framework.Finding{s.finding(detect.WrongAddress, detect.Active)}
	script.Aftermath = append(factsHold(),
		framework.Check{Name: "Calico speaks for " + coreDNSNode + " from the card's address, and no session with it is up", Reads: addressing, Holds: s.recorded("during", s.addressMoved)},
		framework.Check{Name: "calico-node was not restarted", Holds: s.notRestarted},
		s.cardIsNamed(),
	)
	script.Remedies = []framework.Remedy{
		{
			Name: "restart calico-node",
			Apply: func(ctx context.Context, r *framework.Run) error {
				if err := calico.Restart(ctx, r.Lab, r.Cluster.Nodes()...); err != nil {
					return err
				}
				return birdRuns(ctx, r)
			},
		},
		{
			Name: "restart kube-proxy",
			Apply: func(ctx context.Context, r *framework.Run) error {
				return kubeadm.KubeProxy.Restart(ctx, r.Cluster, r.Cluster.Nodes(), time.Minute, client.GracePeriodSeconds(0))
			},
		},
		{
			Name: "take the card away", Helps: true, Bound: 2 * time.Minute,
			Apply: s.takeAway,
		},
	}
	return script
}

// takeAway takes the card away again, and nothing else. calico-node, restarted
// before and not ready since, finds the old address at its next look.
func (s *story) takeAway(ctx context.Context, r *framework.Run) error {
	if not, saw, err := notReady(ctx, r); err != nil || !not {
		return cmp.Or(err, fmt.Errorf("calico-node on %s is ready before the card is away: %s", coreDNSNode, saw))
	}
	before, err := agents(ctx, r)
	if err != nil {
		return err
	}
	if err := s.plugIn(r).Undo(ctx); err != nil {
		return err
	}
	if err := calico.Agent.Ready(ctx, r.Cluster, r.Cluster.Nodes(), looksWithin); err != nil {
		return err
	}
	now, err := agents(ctx, r)
	if err == nil && !maps.Equal(now, before) {
		err = fmt.Errorf("calico-node was restarted in between: before: %v, now: %v", before, now)
	}
	return err
}

// restartedScript is the second form: Calico does not look by itself for as
// long as the run lasts, and takes the card when calico-node is restarted for
// whatever other reason.
func restartedScript(nic fault.NIC) framework.Script {
	s := &story{nic: nic}
	script := s.common(configured(calico.FirstFound, never))
	script.Forms = []framework.LesserForm{{
		Name: "the card is there, and Calico has not looked yet", Fault: s.plugIn,
		Named:  []framework.Finding{s.finding(detect.NextAddress, detect.Latent)},
		Within: time.Second,
	}}
	script.Fault = func(r *framework.Run) fault.Fault {
		return fault.Fault{
			Name:   "restart calico-node on " + coreDNSNode,
			Inject: func(ctx context.Context) error { return calico.Restart(ctx, r.Lab, coreDNSNode) },
			Held: func(ctx context.Context) (bool, string, error) {
				same, _, err := s.notRestarted(ctx, r)
				return !same, "the old pod runs", err
			},
			Undo: func(context.Context) error { return nil },
		}
	}
	script.Hurt = restartedHurt()
	script.Named = []framework.Finding{s.finding(detect.WrongAddress, detect.Active)}
	script.Aftermath = []framework.Check{
		{Name: "Calico speaks for " + coreDNSNode + " from the card's address, and no session with it is up", Reads: addressing, Holds: s.addressMoved, Bound: 5 * time.Second},
		{Name: "calico-node on " + coreDNSNode + " is not ready, for want of BGP sessions", Holds: notReady, Bound: 15 * time.Second},
	}
	method := "can-reach=" + gateway.String()
	script.Remedies = []framework.Remedy{
		{
			Name: calico.InternalIP, Helps: true, Bound: 2 * time.Minute,
			Apply: func(ctx context.Context, r *framework.Run) error { return s.move(ctx, r, calico.InternalIP) },
			Undo:  breakAgain,
		},
		{
			Name: method, Helps: true, Bound: 2 * time.Minute,
			Apply: func(ctx context.Context, r *framework.Run) error { return s.move(ctx, r, method) },
		},
	}
	return script
}

// breakAgain takes the card's address again, from a state that is well. Changing the
// method rolls calico-node on every node; each new BIRD is told to restart
// gracefully, and keeps for 240 s what routes are there. Those to the node with
// the card are removed instead of waited for.
func breakAgain(ctx context.Context, r *framework.Run) error {
	if err := configured(calico.FirstFound, never).Apply(ctx, r.Lab); err != nil {
		return err
	}
	if err := calico.Agent.Started(ctx, r.Cluster, r.Cluster.Nodes(), time.Minute); err != nil {
		return err
	}
	if err := birdRuns(ctx, r); err != nil {
		return err
	}
	address, _ := lab.AddressOn(coreDNSNode, "nodes")
	others := slices.DeleteFunc(r.Cluster.Nodes(), func(n string) bool { return n == coreDNSNode })
	return r.Lab.EachNode(ctx, others, func(ctx context.Context, node *kindlab.Node) error {
		_, err := node.Exec(ctx, "ip", "-4", "route", "flush", "proto", fmt.Sprint(unix.RTPROT_BIRD), "via", address.String())
		return err
	})
}

// restartedHurt are the probes that the second form hurts. The node's own way
// to the others' pods is not among them: the new BIRD is told to restart
// gracefully (-R), and no route was seen to go within a run. By its default it
// gives the sessions up after 240 s, which no run waits for.
func restartedHurt() []probe.Probe {
	return slices.DeleteFunc(hurt(), func(p probe.Probe) bool { return p.From == hostWorker1.Name })
}

func fixedScript(nic fault.NIC) framework.Script {
	s := &story{nic: nic, natOff: true}
	script := s.common(configured(calico.InternalIP, poll))
	install := script.Install
	script.Install = func(ctx context.Context, r *framework.Run) error {
		parts, partsCtx := errgroup.WithContext(ctx)
		parts.Go(func() (err error) {
			s.method, err = calico.MethodOf(partsCtx, r.Cluster, nodeInternalIP)
			return err
		})
		parts.Go(func() error { return install(partsCtx, r) })
		if err := parts.Wait(); err != nil {
			return err
		}
		return podsRouted(ctx, r, true)
	}
	// A flow that is there keeps what was done to its first packet: each connection
	// of this probe is a new one.
	script.Probes = append(script.Probes, byTCP(besideDNS, hostWorker2))
	script.Detectors = append(script.Detectors, detect.SNAT{})
	script.Baseline = append(script.Baseline, framework.Check{
		Name:  "the operator writes an Installation's " + nodeInternalIP + " as " + calico.InternalIP,
		Holds: s.operatorAgrees,
	})
	script.Forms = []framework.LesserForm{{
		Name: "natOutgoing of the pool is switched on, and the router knows the way to the pods", Fault: natOutgoing, TakenBack: true,
		Named: []framework.Finding{{
			Detector: detect.SNAT{}.Name(), Kind: detect.HiddenSource, State: detect.Active,
			Object: detect.Named("rule in cali-nat-outgoing"), Owner: coreDNSNode, Routers: []string{lab.Routers[0].Name},
		}},
	}}
	script.Aftermath = []framework.Check{
		{Name: "Calico has looked for the address of " + coreDNSNode + " with the card there", Holds: s.lookedAgain, Bound: 2 * poll},
		{Name: "Calico's addresses are the Nodes' InternalIPs, and every session is up", Reads: addressing, Holds: s.recorded("during", allIsWell)},
	}
	return script
}

// install puts kube-proxy, CoreDNS, Calico and the workloads into the lab,
// from whatever state an earlier variant or run has left.
func (s *story) install(ctx context.Context, r *framework.Run, c calico.Calico) error {
	if err := s.plugIn(r).Undo(ctx); err != nil { // of a run that was killed
		return err
	}
	if err := podsRouted(ctx, r, false); err != nil {
		return err
	}
	if s.natOff {
		// CoreDNS keeps a connection to the API server, and that its translation.
		if err := kubeadm.CoreDNS.Delete(ctx, r.Cluster); err != nil {
			return err
		}
	}
	if err := c.Apply(ctx, r.Lab); err != nil { // first: it takes longest to come up
		return err
	}
	if err := calico.NATOutgoing(ctx, r.Cluster, !s.natOff); err != nil {
		return err
	}
	if err := kubeadm.ApplyKubeProxy(ctx, r.Lab); err != nil {
		return err
	}
	if err := workload.Apply(ctx, r.Cluster, servicesYAML); err != nil {
		return err
	}
	// A pod that comes earlier is tried again only after 10 s and more.
	if err := calico.PodsCanStart(ctx, r.Lab); err != nil {
		return err
	}
	if err := kubeadm.ApplyAddons(ctx, r.Lab, coreDNSNode); err != nil {
		return err
	}
	starts, startsCtx := errgroup.WithContext(ctx)
	starts.Go(func() error { return calico.Agent.Ready(startsCtx, r.Cluster, r.Cluster.Nodes(), sessionsWithin) })
	starts.Go(func() error { return kubeadm.AddonsReady(startsCtx, r.Cluster) })
	starts.Go(func() error { return workload.StartProbes(startsCtx, r.Cluster, workloads) })
	if err := starts.Wait(); err != nil {
		return err
	}
	var err error
	s.before = nil
	s.agents, err = agents(ctx, r)
	return err
}

// move changes the autodetection method, rolls calico-node, and keeps what
// came of it.
func (s *story) move(ctx context.Context, r *framework.Run, method string) error {
	if err := configured(method, poll).Apply(ctx, r.Lab); err != nil {
		return err
	}
	if err := calico.Agent.Ready(ctx, r.Cluster, r.Cluster.Nodes(), time.Minute); err != nil {
		return err
	}
	return s.record(ctx, r, "after")
}

// record keeps what BIRD and the Nodes' annotations say at a moment, and what
// has changed in the rendered configuration of BIRD since the first one.
func (s *story) record(ctx context.Context, r *framework.Run, when string) error {
	now, err := calico.Read(ctx, r.Lab)
	if err != nil {
		return err
	}
	r.Evidence("bird-"+when, now.BIRD())
	r.Evidence("annotations-"+when, now.Annotations)
	if s.before == nil {
		s.before = &now
		for _, node := range now.Nodes {
			r.Evidence("bird.cfg-"+node+"-"+when, now.Config[node])
		}
		return nil
	}
	changes, err := now.Changes(*s.before, when)
	if err != nil {
		return err
	}
	r.Evidence("bird.cfg-changes-"+when, changes)
	return nil
}

// recorded is a check that also keeps the evidence of the moment at which it
// holds.
func (s *story) recorded(when string, holds func(context.Context, *framework.Run) (bool, string, error)) func(context.Context, *framework.Run) (bool, string, error) {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		held, saw, err := holds(ctx, r)
		if held && err == nil {
			err = s.record(ctx, r, when)
		}
		return held, saw, err
	}
}

// nodeInternalIP is the other spelling of the remedy: nodeAddressAutodetectionV4 of
// the operator's Installation.
const nodeInternalIP = "{kubernetes: NodeInternalIP}"

// operatorAgrees asserts that both spellings are the same to calico-node.
func (s *story) operatorAgrees(context.Context, *framework.Run) (bool, string, error) {
	return s.method == calico.InternalIP, fmt.Sprintf("the operator writes %q", s.method), nil
}

// lookedAgain asserts that calico-node -monitor-addresses has looked for the
// node's address since the card was plugged in: only then has it passed the
// card over.
func (s *story) lookedAgain(ctx context.Context, r *framework.Run) (bool, string, error) {
	last, err := calico.LastLook(ctx, r.Lab.Node(coreDNSNode))
	return last.After(s.plugged), fmt.Sprintf("the card is there since %s, the last look was at %s",
		s.plugged.Format(time.TimeOnly), last.Format(time.TimeOnly)), err
}

// agents are calico-node's pods by node, and how often each was restarted.
func agents(ctx context.Context, r *framework.Run) (map[string]string, error) {
	list, err := calico.Agent.Pods.List(ctx, r.Cluster)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, p := range list {
		for _, c := range p.Status.ContainerStatuses {
			all[p.Spec.NodeName] = fmt.Sprintf("%s with %d restarts", p.Name, c.RestartCount)
		}
	}
	return all, nil
}

// notReady asserts that a restarted calico-node is up, and says that it is not ready
// because its sessions are not. Kubelet has come to the same.
func notReady(ctx context.Context, r *framework.Run) (bool, string, error) {
	why, err := calico.NotReady(ctx, r.Lab.Node(coreDNSNode))
	if err != nil {
		return false, "", err
	}
	list, err := calico.Agent.Pods.List(ctx, r.Cluster)
	if err != nil {
		return false, "", err
	}
	ready := slices.ContainsFunc(list, func(p corev1.Pod) bool { return p.Spec.NodeName == coreDNSNode && workload.Ready(p) })
	return strings.Contains(why, "BGP not established") && !ready, fmt.Sprintf("it says %q; its pod is ready: %v", why, ready), nil
}

func (s *story) notRestarted(ctx context.Context, r *framework.Run) (bool, string, error) {
	now, err := agents(ctx, r)
	return maps.Equal(now, s.agents), fmt.Sprintf("before: %v, now: %v", s.agents, now), err
}

func coreDNSIsThere(ctx context.Context, r *framework.Run) (bool, string, error) {
	list, err := kubeadm.CoreDNS.Pods.List(ctx, r.Cluster)
	if err != nil {
		return false, "", err
	}
	var on []string
	for _, p := range list {
		on = append(on, p.Spec.NodeName)
	}
	return slices.Equal(on, []string{coreDNSNode}), fmt.Sprintf("it runs on %v", on), nil
}

// birdRuns waits until every node's BIRD has neighbours again: until then a
// restarted calico-node has not told what it makes of the network.
func birdRuns(ctx context.Context, r *framework.Run) error {
	restarted := time.Now()
	return await.Until(ctx, "BIRD to run on every node", 100*time.Millisecond, 30*time.Second,
		func(context.Context) (bool, string, error) {
			var without framework.Mismatches
			at := r.Snapshot()
			if !at.Time.After(restarted) || len(at.NodeNetworks) == 0 {
				return false, "no look at the nodes since", nil
			}
			for _, n := range at.NodeNetworks {
				if len(mesh(n)) == 0 {
					without.Addf("no neighbour on %s", n.Node)
				}
			}
			return without.Result()
		})
}

// mesh are the BGP sessions of a node, up or not.
func mesh(n snapshot.NodeNetwork) []snapshot.BIRDProtocol {
	return slices.DeleteFunc(slices.Clone(n.BIRD.Items), func(p snapshot.BIRDProtocol) bool { return !p.Neighbor.IsValid() })
}

// addressOf is Calico's address of a node.
func addressOf(s snapshot.Snapshot, node string) netip.Addr {
	for _, n := range s.Nodes.Items {
		if n.Name == node {
			return n.Calico.Address.Addr()
		}
	}
	return netip.Addr{}
}

// addressing are the sources that hold Calico's addresses and BIRD's sessions.
var addressing = []snapshot.Source{snapshot.Nodes, snapshot.NodeNetworks}

// allIsWell asserts that Calico has the declared addresses, and that BIRD has
// an established session with each of them.
func allIsWell(_ context.Context, r *framework.Run) (bool, string, error) {
	at := r.Snapshot()
	var wrong framework.Mismatches
	up := 0
	for _, n := range at.NodeNetworks {
		want, _ := lab.AddressOn(n.Node, "nodes")
		if got := addressOf(at, n.Node); got != want {
			wrong.Addf("%s has %s, not %s", n.Node, got, want)
		}
		for _, p := range mesh(n) {
			if p.BGPState != snapshot.Established {
				wrong.Addf("on %s, %s is %s", n.Node, p.Name, p.BGPState)
				continue
			}
			up++
		}
	}
	nodes := len(lab.Clusters[0].Nodes)
	if all := nodes * (nodes - 1); up != all {
		wrong.Addf("%d ends of sessions are up, not %d", up, all)
	}
	return wrong.Result()
}

// addressMoved asserts what the card has done: Calico's address, and the
// sessions of its node. Those of the others among themselves are up.
func (s *story) addressMoved(_ context.Context, r *framework.Run) (bool, string, error) {
	at := r.Snapshot()
	if got := addressOf(at, coreDNSNode); got != s.nic.Address.Addr() {
		return false, fmt.Sprintf("Calico's address is %s", got), nil
	}
	var wrong framework.Mismatches
	for _, n := range at.NodeNetworks {
		if len(mesh(n)) == 0 {
			wrong.Addf("%s has no neighbour", n.Node)
		}
		for _, p := range mesh(n) {
			moved := n.Node == coreDNSNode || p.Neighbor == s.nic.Address.Addr()
			if up := p.BGPState == snapshot.Established; up == moved {
				wrong.Addf("on %s, %s is %s", n.Node, p.Name, p.BGPState)
			}
		}
	}
	return wrong.Result()
}

// finding is one about the node with the card, and the card's address.
func (s *story) finding(kind string, state detect.State) framework.Finding {
	return framework.Finding{
		Detector: detect.NodeAddress{}.Name(), Kind: kind, State: state, Object: detect.Named(coreDNSNode),
		Owner: coreDNSNode, Announcer: s.nic.Address.Addr().String(),
	}
}

// cardIsNamed asserts that an engineer who reads the finding knows what to look
// at.
func (s *story) cardIsNamed() framework.Check {
	named := s.finding(detect.WrongAddress, detect.Active)
	named.Words = []string{coreDNSNode, s.nic.Address.Addr().String(), " " + s.nic.Name + ",", "appeared after boot"}
	return framework.DetectorsSay("the detector names the node, the address, the interface, and that this appeared after boot", named)
}

// factOver is for how long traffic is looked at to tell whether a fact holds.
const factOver = time.Second

// holds asserts the fact over a second of traffic, all of it after the
// incident has reached every probe that it hurts.
func (f fact) holds(_ context.Context, r *framework.Run) (bool, string, error) {
	timelines := map[string]probe.Timeline{}
	for _, t := range r.Timelines() {
		timelines[t.Probe.Name] = t
	}
	var reached time.Time
	for _, p := range hurt() {
		t := timelines[p.Name]
		loss, lost := t.FirstLoss(time.Time{})
		if !lost {
			return false, p.Name + " has lost nothing yet", nil
		}
		if loss.At.After(reached) {
			reached = loss.At
		}
	}
	var wrong framework.Mismatches
	see := func(p probe.Probe, what string, as func(probe.Counts) bool) {
		t := timelines[p.Name]
		end := t.Reported.Add(-p.Timeout) // whether later packets were lost is not known yet
		began := end.Add(-factOver)
		counts := t.Between(began, end)
		switch {
		case !began.After(reached):
			wrong.Addf("too early to tell of %s", p.Name)
		case counts.Sent == 0 || !as(counts):
			wrong.Addf("%s: %d of %d packets lost, not %s", p.Name, counts.Lost, counts.Sent, what)
		}
	}
	for _, p := range f.lost {
		see(p, "all", func(c probe.Counts) bool {
			return c.Lost == c.Sent && (p.Protocol != probe.DNS || c.Unresolved == c.Lost)
		})
	}
	for _, p := range f.fine {
		see(p, "none", func(c probe.Counts) bool { return c.Received == c.Sent })
	}
	return wrong.Result()
}
