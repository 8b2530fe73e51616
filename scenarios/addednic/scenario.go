package addednic

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

const (
	version           = "3.28.5"
	kubernetesVersion = "1.34.4"
	coreDNSVersion    = "1.12.1"
)

// Scenario is the incident on a lab.
var Scenario = scenario(fault.NIC{Node: coreDNSNode, Name: "eth1", Address: netip.MustParsePrefix("10.51.7.21/24")})

// coreDNSNode runs CoreDNS, and gets the card.
const coreDNSNode = "worker1"

// scenario is the incident with a card.
func scenario(nic fault.NIC) framework.Scenario {
	variant := func(name string, role framework.Role, script framework.Script) framework.Variant {
		return framework.Variant{
			Name: name, Role: role, Form: framework.Whole, Components: components, Images: images, Script: script,
		}
	}
	return framework.Scenario{
		Incident: Record,
		Topology: lab,
		Variants: []framework.Variant{
			variant(firstFound, framework.Affected, affectedScript(nic)),
			variant(firstFound+"-restarted", framework.Affected, restartedScript(nic)),
			variant(internalIP, framework.Fixed, fixedScript(nic)),
		},
		Parameters: []framework.Parameter{
			{Name: "nic", Default: nic.Name, About: "the card's name: none that Calico passes over"},
			{Name: "address", Default: nic.Address.String(), About: "its address: none that other nodes reach, or have"},
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
		"calico": version, "bird": "1.6.8", "kube-proxy": kubernetesVersion, "coredns": coreDNSVersion,
	}
	images = []string{
		"docker.io/calico/node:v" + version,
		"docker.io/calico/cni:v" + version,
		manifestImage,
		"registry.k8s.io/kube-proxy:v" + kubernetesVersion,
		"registry.k8s.io/coredns/coredns:v" + coreDNSVersion,
		workload.ProbeImage,
	}
)

const (
	// poll is how often Calico looks for its address, where it is to find the
	// card by itself: often enough for a run, and seldom enough for the
	// detector to be first.
	poll = 5 * time.Second
	// never is longer than a run.
	never = 10 * time.Minute
	// observe is two looks of Calico, and time for what follows.
	observe = 2*poll + 2*time.Second
)

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
func (s *story) common(c calico) framework.Script {
	return framework.Script{
		Install:   func(ctx context.Context, r *framework.Run) error { return s.install(ctx, r, c) },
		Ends:      ends,
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
	script := s.common(calico{Method: firstFound, Poll: poll})
	script.Named = []framework.Finding{{Kind: detect.WrongAddress, Object: detect.Named(coreDNSNode)}}
	script.Aftermath = append(factsHold(),
		framework.Check{Name: "Calico speaks for " + coreDNSNode + " from the card's address, and no session with it is up", Reads: addressing, Holds: s.recorded("during", s.addressMoved)},
		framework.Check{Name: "calico-node was not restarted", Holds: s.notRestarted},
		framework.Check{
			Name:  "the detector names the node, the address, the interface, and that this appeared after boot",
			Holds: s.cardIsNamed, AsksDetectors: true,
		},
	)
	script.Remedies = []framework.Remedy{
		{
			Name: "restart calico-node",
			Apply: func(ctx context.Context, r *framework.Run) error {
				if err := restart(ctx, r, agent); err != nil {
					return err
				}
				return birdRuns(ctx, r)
			},
		},
		{
			Name:  "restart kube-proxy",
			Apply: func(ctx context.Context, r *framework.Run) error { return restart(ctx, r, "kube-proxy") },
		},
		{
			Name: internalIP, Helps: true, Bound: time.Minute,
			Apply: func(ctx context.Context, r *framework.Run) error { return s.move(ctx, r, internalIP) },
		},
	}
	return script
}

// restartedScript is the second form: Calico does not look by itself for as
// long as the run lasts, and takes the card when calico-node is restarted for
// whatever other reason.
func restartedScript(nic fault.NIC) framework.Script {
	s := &story{nic: nic}
	script := s.common(calico{Method: firstFound, Poll: never})
	script.Forms = []framework.LesserForm{{
		Name: "the card is there, and Calico has not looked yet", Fault: s.plugIn,
		Named:  []framework.Finding{{Kind: detect.NextAddress, Object: detect.Named(coreDNSNode)}},
		Within: time.Second,
	}}
	script.Fault = func(r *framework.Run) fault.Fault {
		return fault.Fault{
			Name:   "restart calico-node on " + coreDNSNode,
			Inject: func(ctx context.Context) error { return restart(ctx, r, agent, coreDNSNode) },
			Held: func(ctx context.Context) (bool, string, error) {
				same, _, err := s.notRestarted(ctx, r)
				return !same, "the old pod runs", err
			},
			Undo: func(context.Context) error { return nil },
		}
	}
	script.Probes, script.Hurt = restartedProbes(), restartedHurt()
	script.Named = []framework.Finding{{Kind: detect.WrongAddress, Object: detect.Named(coreDNSNode)}}
	script.Aftermath = []framework.Check{
		{Name: "Calico speaks for " + coreDNSNode + " from the card's address, and no session with it is up", Reads: addressing, Holds: s.addressMoved, Bound: 5 * time.Second},
	}
	method := "can-reach=" + gateway.String()
	script.Remedies = []framework.Remedy{{
		Name: method, Helps: true, Bound: time.Minute,
		Apply: func(ctx context.Context, r *framework.Run) error { return s.move(ctx, r, method) },
	}}
	return script
}

// restartedHurt names the probes that the second form hurts. The node's own way
// to the others' pods is not among them yet: the new BIRD is told to restart
// gracefully (-R), and seems to leave the kernel's routes alone until it gives
// the sessions up; by its default that takes 240 s, which no run waits for.
func restartedHurt() []string {
	return slices.DeleteFunc(hurt(), func(name string) bool { return strings.HasPrefix(name, "host-"+coreDNSNode) })
}

// restartedProbes are those that tell of the address and not of the restart,
// around which the node's pods lose packets for some 150 ms. Why was not
// traced; felix starts then.
func restartedProbes() []probe.Probe {
	hurt := restartedHurt()
	return slices.DeleteFunc(probes(), func(p probe.Probe) bool {
		i := slices.IndexFunc(workloads, func(w workload.ProbePod) bool { return w.Name == p.From })
		return workloads[i].Node == coreDNSNode && !workloads[i].HostNetwork && !slices.Contains(hurt, nameOf(p))
	})
}

func fixedScript(nic fault.NIC) framework.Script {
	s := &story{nic: nic}
	script := s.common(calico{Method: internalIP, Poll: poll})
	script.Aftermath = []framework.Check{
		{Name: "Calico has looked for the address of " + coreDNSNode + " with the card there", Holds: s.lookedAgain, Bound: 2 * poll},
		{Name: "Calico's addresses are the Nodes' InternalIPs, and every session is up", Reads: addressing, Holds: s.recorded("during", allIsWell)},
	}
	return script
}

// install puts kube-proxy, CoreDNS, Calico and the workloads into the lab,
// from whatever state an earlier variant or run has left.
func (s *story) install(ctx context.Context, r *framework.Run, c calico) error {
	if err := s.plugIn(r).Undo(ctx); err != nil { // of a run that was killed
		return err
	}
	both, bothCtx := errgroup.WithContext(ctx)
	both.Go(func() error { return applyServices(bothCtx, r) })
	both.Go(func() error { return c.apply(bothCtx, r) })
	if err := both.Wait(); err != nil {
		return err
	}
	// A pod that comes earlier is tried again only after a while.
	if err := podsCanStart(ctx, r); err != nil {
		return err
	}
	all, allCtx := errgroup.WithContext(ctx)
	// Ready means, to calico-node, that BIRD has every session.
	all.Go(func() error { return ready(allCtx, r, agent, 2*time.Minute) })
	all.Go(func() error { return servicesReady(allCtx, r) })
	all.Go(func() error { return workload.StartProbes(allCtx, r.Cluster, workloads) })
	if err := all.Wait(); err != nil {
		return err
	}
	var err error
	s.configs = nil
	s.agents, err = agents(ctx, r)
	return err
}

// move changes the autodetection method, rolls calico-node, and keeps what
// came of it.
func (s *story) move(ctx context.Context, r *framework.Run, method string) error {
	if err := (calico{Method: method, Poll: poll}).apply(ctx, r); err != nil {
		return err
	}
	if err := ready(ctx, r, agent, time.Minute); err != nil {
		return err
	}
	return s.record(ctx, r, "after")
}

// recorded keeps the evidence of a moment when what is asserted of it holds.
func (s *story) recorded(when string, holds func(context.Context, *framework.Run) (bool, string, error)) func(context.Context, *framework.Run) (bool, string, error) {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		yes, saw, err := holds(ctx, r)
		if yes && err == nil {
			err = s.record(ctx, r, when)
		}
		return yes, saw, err
	}
}

// lookedAgain asserts that calico-node -monitor-addresses has looked for the
// node's address since the card was plugged in: only then has it passed the
// card over.
func (s *story) lookedAgain(ctx context.Context, r *framework.Run) (bool, string, error) {
	log, err := r.Lab.Node(coreDNSNode).Exec(ctx, "sh", "-c", "cat /var/log/pods/kube-system_"+agent+"-*/"+agent+"/*.log")
	if err != nil {
		return false, "", err
	}
	last, err := lastLook(log)
	return last.After(s.plugged), fmt.Sprintf("the card is there since %s, the last look was at %s",
		s.plugged.Format(time.TimeOnly), last.Format(time.TimeOnly)), err
}

// lastLook is when calico-node -monitor-addresses has last found the node's
// InternalIP on an interface, by its log as the kubelet keeps it; zero for
// never.
func lastLook(log string) (time.Time, error) {
	var last time.Time
	for line := range strings.Lines(log) {
		stamp, text, _ := strings.Cut(line, " ")
		if !strings.Contains(text, "monitor-addresses/") || !strings.Contains(text, "Including CIDR information from host interface") {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			return last, fmt.Errorf("reading %s's log: %w", agent, err)
		}
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}

// agents are calico-node's pods by node, and how often each was restarted.
func agents(ctx context.Context, r *framework.Run) (map[string]string, error) {
	list, err := pods(ctx, r, agent)
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

func (s *story) notRestarted(ctx context.Context, r *framework.Run) (bool, string, error) {
	now, err := agents(ctx, r)
	return maps.Equal(now, s.agents), fmt.Sprintf("before: %v, now: %v", s.agents, now), err
}

func coreDNSIsThere(ctx context.Context, r *framework.Run) (bool, string, error) {
	list, err := pods(ctx, r, "kube-dns")
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
	return await.Until(ctx, "BIRD to run on every node", 100*time.Millisecond, 30*time.Second,
		func(context.Context) (bool, string, error) {
			var without []string
			for _, n := range r.Snapshot().NodeNetworks {
				if len(mesh(n)) == 0 {
					without = append(without, n.Node)
				}
			}
			return len(without) == 0, "no neighbour on " + strings.Join(without, ", "), nil
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

// addressing is what tells of Calico's addresses and of BIRD's sessions.
var addressing = []snapshot.Source{snapshot.Nodes, snapshot.NodeNetworks}

// allIsWell asserts that Calico has the declared addresses, and that BIRD has
// an established session with each of them.
func allIsWell(_ context.Context, r *framework.Run) (bool, string, error) {
	at := r.Snapshot()
	var wrong []string
	up := 0
	for _, n := range at.NodeNetworks {
		want, _ := lab.AddressOn(n.Node, "nodes")
		if got := addressOf(at, n.Node); got != want {
			wrong = append(wrong, fmt.Sprintf("%s has %s, not %s", n.Node, got, want))
		}
		for _, p := range mesh(n) {
			if p.BGPState != snapshot.Established {
				wrong = append(wrong, fmt.Sprintf("on %s, %s is %s", n.Node, p.Name, p.BGPState))
				continue
			}
			up++
		}
	}
	nodes := len(lab.Clusters[0].Nodes)
	if all := nodes * (nodes - 1); len(wrong) == 0 && up != all {
		wrong = append(wrong, fmt.Sprintf("%d ends of sessions are up, not %d", up, all))
	}
	return len(wrong) == 0, strings.Join(wrong, "; "), nil
}

// addressMoved asserts what the card has done: Calico's address, and the
// sessions of its node. Those of the others among themselves are up.
func (s *story) addressMoved(_ context.Context, r *framework.Run) (bool, string, error) {
	at := r.Snapshot()
	if got := addressOf(at, coreDNSNode); got != s.nic.Address.Addr() {
		return false, fmt.Sprintf("Calico's address is %s", got), nil
	}
	var wrong []string
	for _, n := range at.NodeNetworks {
		if len(mesh(n)) == 0 {
			wrong = append(wrong, n.Node+" has no neighbour")
		}
		for _, p := range mesh(n) {
			moved := n.Node == coreDNSNode || p.Neighbor == s.nic.Address.Addr()
			if up := p.BGPState == snapshot.Established; up == moved {
				wrong = append(wrong, fmt.Sprintf("on %s, %s is %s", n.Node, p.Name, p.BGPState))
			}
		}
	}
	return len(wrong) == 0, strings.Join(wrong, "; "), nil
}

// cardIsNamed asserts that an engineer who reads the finding knows what to look
// at.
func (s *story) cardIsNamed(_ context.Context, r *framework.Run) (bool, string, error) {
	var said []string
	for _, f := range r.Findings() {
		if f.Kind != detect.WrongAddress || f.Object != detect.Named(coreDNSNode) {
			continue
		}
		missing := slices.DeleteFunc([]string{coreDNSNode, s.nic.Address.Addr().String(), " " + s.nic.Name + ",", "appeared after boot"},
			func(word string) bool { return strings.Contains(f.Says, word) })
		if len(missing) == 0 {
			return true, "", nil
		}
		said = append(said, f.Says)
	}
	return false, "it says: " + strings.Join(said, "; "), nil
}

// factOver is how much traffic tells whether a fact holds.
const factOver = time.Second

// holds asserts the fact over a second of traffic, all of it after the
// incident has reached every probe that it hurts.
func (f fact) holds(_ context.Context, r *framework.Run) (bool, string, error) {
	timelines := map[string]probe.Timeline{}
	for _, t := range r.Timelines() {
		timelines[t.Probe.Name] = t
	}
	var reached time.Time
	for _, name := range hurt() {
		t := timelines[name]
		loss, lost := t.FirstLoss(time.Time{})
		if !lost {
			return false, name + " has lost nothing yet", nil
		}
		if loss.At.After(reached) {
			reached = loss.At
		}
	}
	var wrong []string
	see := func(p probe.Probe, what string, as func(probe.Counts) bool) {
		t := timelines[nameOf(p)]
		end := t.Reported.Add(-probe.DefaultTimeout) // of what came later the fate is open
		began := end.Add(-factOver)
		counts := t.Between(began, end)
		switch {
		case !began.After(reached):
			wrong = append(wrong, "too early to tell of "+nameOf(p))
		case counts.Sent == 0 || !as(counts):
			wrong = append(wrong, fmt.Sprintf("%s: %d of %d packets lost, not %s", nameOf(p), counts.Lost, counts.Sent, what))
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
	return len(wrong) == 0, strings.Join(wrong, "; "), nil
}
