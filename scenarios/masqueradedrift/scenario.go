package masqueradedrift

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

// Scenario is masquerade-drift.
var Scenario = framework.Scenario{
	Incident: Record,
	Topology: lab,
	Variants: []framework.Variant{
		variant(framework.Affected, offByOldKey),
		variant(framework.Affected, defaultOn),
		variant(framework.Fixed, translated),
		variant(framework.Workaround, bothKeys),
		variant(framework.Workaround, oldCIDRKey),
	},
}

// drift is an upgrade of Cilium and the configuration that it meets.
type drift struct {
	name     string
	from, to string // versions
	// before is what the ConfigMap says while the old version starts, and
	// then what the new one finds: by then somebody may have translated it.
	before, then config
	// masquerades is whether the old version hides the pods already. Then
	// nobody outside lets the application in, and it does not try.
	masquerades bool
	// warns is what config-drift says beforehand: what is wrong with which
	// key. None where nothing changes.
	warns []framework.Finding
	// refuses is what the new version's agent says when it does not start.
	refuses string
}

// native and translatedNative are the native CIDR under the key of old, and
// under the key that 1.10 has brought.
var (
	native           = config{"native-routing-cidr": nativeCIDR.String()}
	translatedNative = config{"ipv4-native-routing-cidr": nativeCIDR.String()}
	// on is what the incident's ConfigMap said, off and translatedOff switch
	// masquerading off.
	on            = config{"masquerade": "true"}
	off           = config{"masquerade": "false"}
	translatedOff = config{"enable-ipv4-masquerade": "false", "enable-bpf-masquerade": "false"}
)

var (
	// offByOldKey: somebody has switched masquerading off, and 1.11 does not
	// know the key any more. It does not say so.
	offByOldKey = drift{
		name: "off-by-old-key", from: "1.8.1", to: "1.11.1",
		before: common.with(off).with(native), then: common.with(off).with(native),
		warns: []framework.Finding{warning(configdrift.NotRead, "masquerade")},
	}
	// defaultOn: the incident's own. Masquerading is on, by BPF, and a bug of
	// 1.8.1 has kept it from happening. No key changes its meaning, so that
	// config-drift has nothing to say.
	defaultOn = drift{
		name: "default-on", from: "1.8.1", to: "1.11.1",
		before: common.with(on).with(native).with(byBPF), then: common.with(on).with(native).with(byBPF),
	}
	// translated: the same upgrade, after the ConfigMap was given the new keys
	// as well. The old ones stay for as long as an old agent may start. The
	// native CIDR keeps its old key, which 1.11 reads: it refuses both.
	translated = drift{
		name: "translated", from: "1.8.1", to: "1.11.1",
		before: common.with(off).with(native), then: common.with(off).with(native).with(translatedOff),
	}
	// bothKeys: the same ConfigMap on the way through 1.10, which knows both
	// keys and does not choose between them.
	bothKeys = drift{
		name: "1.10-both-keys", from: "1.8.1", to: "1.10.0",
		before: common.with(off).with(native), then: common.with(off).with(native).with(translatedOff),
		warns:   []framework.Finding{warning(configdrift.Conflict, "masquerade"), warning(configdrift.Conflict, "enable-ipv4-masquerade")},
		refuses: "--enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive",
	}
	// oldCIDRKey: masquerading is on and is wanted, but 1.12 does not know
	// the key that says where not to.
	oldCIDRKey = drift{
		name: "1.12-old-cidr-key", from: "1.11.1", to: "1.12.0",
		before: common.with(native), then: common.with(native),
		masquerades: true,
		warns:       []framework.Finding{warning(configdrift.Missing, "ipv4-native-routing-cidr"), warning(configdrift.NotRead, "native-routing-cidr")},
		refuses:     "native routing cidr must be configured with option --ipv4-native-routing-cidr",
	}
)

// configMap is where the agents have their configuration from.
const configMap = "kube-system/cilium-config"

// warning is a finding of config-drift about a key.
func warning(kind configdrift.Kind, key string) framework.Finding {
	return framework.Finding{Kind: string(kind), Object: detect.Named("ConfigMap " + configMap + ", " + key)}
}

// configDrift is the detector that compares what the old version runs with
// and what the new one will read. It is asked about masquerading alone: other
// defaults change as well between versions so far apart.
func (d drift) configDrift() configdrift.Detector {
	return configdrift.Detector{
		Before:  configdrift.Setup{Version: d.from, Config: d.before},
		Version: d.to, ConfigMap: configMap,
		Keys: []string{"masquerade", "enable-bpf-masquerade", "native-routing-cidr"},
	}
}

// warned asserts that config-drift gives each of its warnings, and no other.
func (d drift) warned(_ context.Context, r *framework.Run) (bool, string, error) {
	var said []detect.Finding
	for _, f := range r.Findings() {
		if f.Detector == d.configDrift().Name() {
			said = append(said, f)
		}
	}
	r.Evidence("config-drift", said)
	wrong := d.unwarned(said)
	return len(wrong) == 0, strings.Join(wrong, "; "), nil
}

func (d drift) unwarned(said []detect.Finding) []string {
	var wrong []string
	for _, w := range d.warns {
		if !slices.ContainsFunc(said, func(f detect.Finding) bool { return f.Kind == w.Kind && f.Object == w.Object }) {
			wrong = append(wrong, fmt.Sprintf("no finding %s about %s", w.Kind, w.Object))
		}
	}
	for _, f := range said {
		if !slices.ContainsFunc(d.warns, func(w framework.Finding) bool { return f.Kind == w.Kind && f.Object == w.Object }) {
			wrong = append(wrong, f.Kind+": "+f.Says)
		}
	}
	return wrong
}

func variant(role framework.Role, d drift) framework.Variant {
	script := d.script()
	if role == framework.Affected {
		d.affected(&script)
	}
	return framework.Variant{
		Name: d.name, Role: role, Form: framework.Slice,
		Components: map[string]string{"cilium": d.to, "cilium before the upgrade": d.from, "mariadb": "10.11"},
		Images:     []string{cilium{Version: d.from, Config: d.before}.Image(), cilium{Version: d.to, Config: d.then}.Image(), workload.ProbeImage},
		Script:     script,
	}
}

// Ends of the probes, beside the pods and the hosts, whose names are their
// own.
const (
	dbServer        = "MariaDB on db"
	neighbourServer = "MariaDB on neighbour"
)

// appProbe is the application on a node, which logs in again and again.
func appProbe(node, server, host string) probe.Probe {
	return probe.Probe{Name: "app on " + node + "->" + host, From: node, To: server, Protocol: probe.MySQL, Login: &app}
}

// script is what all variants have in common.
func (d drift) script() framework.Script {
	old := cilium{Version: d.from, Config: d.before}
	s := framework.Script{
		Install: func(ctx context.Context, r *framework.Run) error { return d.install(ctx, r) },
		Ends:    ends,
		Probes: append(probe.Both("db", all...),
			appProbe("node1", neighbourServer, "neighbour"), appProbe("node2", neighbourServer, "neighbour"),
			probe.Probe{From: "node1", To: "node2"}, probe.Probe{From: "node2", To: "node1"}),
		Detectors: []detect.Detector{detect.SNAT{}, d.configDrift()},
		Baseline: []framework.Check{
			{Name: "inside the native CIDR pods are known by their own addresses", Reads: pods, Holds: insideIsUntouched},
		},
		Fault: func(r *framework.Run) fault.Fault {
			if d.refuses != "" {
				return refusedUpgrade(r, old, cilium{Version: d.to, Config: d.then}, d.refuses)
			}
			return upgrade(r, old, cilium{Version: d.to, Config: d.then})
		},
		Observe: 5 * time.Second,
		Aftermath: []framework.Check{
			{Name: "inside the native CIDR pods are known by their own addresses", Reads: pods, Holds: insideIsUntouched},
		},
	}
	rules := framework.Check{Name: "no rule masquerades", Holds: masquerading(false)}
	if d.masquerades {
		rules = framework.Check{Name: "the rules of Cilium " + d.from + " masquerade, but for the native CIDR", Holds: masquerading(true)}
		// That they hide the pods is known, and was asked for.
		s.Detectors = []detect.Detector{d.configDrift()}
	} else {
		s.Probes = append(s.Probes, appProbe("node1", dbServer, "db"), appProbe("node2", dbServer, "db"))
		s.Hurt = []string{"app on node1->db", "app on node2->db"}
		s.Baseline = append(s.Baseline, framework.Check{Name: "the database outside sees the pods' own addresses", Reads: pods, Holds: outsideSeesPods})
	}
	for _, w := range d.warns {
		s.Latent = append(s.Latent, w.Kind)
	}
	s.Baseline = append(s.Baseline, rules, framework.Check{
		Name:  "config-drift says, while the old version runs, what the upgrade will change",
		Holds: d.warned, AsksDetectors: true,
	})
	if d.refuses != "" {
		s.Aftermath = append(s.Aftermath, framework.Check{Name: "the rules of Cilium " + d.from + " are still there", Holds: rules.Holds})
	} else {
		s.Aftermath = append(s.Aftermath, rules, framework.Check{Name: "the server has turned nobody away", Holds: serverAdmits})
	}
	return s
}

// affected is what the incident adds.
func (d drift) affected(s *framework.Script) {
	for _, n := range all {
		s.Named = append(s.Named, framework.Finding{Kind: detect.HiddenSource, Object: detect.Prefix(rangeOf(n))})
	}
	denied := []framework.Check{
		{Name: "the application is denied at the nodes' addresses, by the error that it gets", Holds: appIsDenied, Bound: 2 * time.Second},
		{Name: "the server's log denies the application at the nodes' addresses", Holds: serverDenies, Bound: 5 * time.Second},
		{Name: "inside the native CIDR pods are known by their own addresses", Reads: pods, Holds: insideIsUntouched},
	}
	cured := cilium{Version: d.to, Config: common.with(translatedOff).with(translatedNative), Restart: "with the new keys"}
	remedy := framework.Remedy{
		Name: "the new keys, agents restarted, translated connections forgotten", Helps: true, Bound: 30 * time.Second,
		Apply: func(ctx context.Context, r *framework.Run) error { return cure(ctx, r, cured) },
	}
	if d.then.bpf() {
		cured.Config = common.with(byBPF).with(translatedOff).with(translatedNative)
		s.Baseline = append(s.Baseline, framework.Check{Name: "the agents of Cilium " + d.from + " were told to masquerade by BPF", Holds: toldToMasquerade})
		s.Aftermath = append([]framework.Check{
			{Name: "no rule masquerades", Holds: masquerading(false)},
			{Name: "the agents of Cilium " + d.to + " were told the same", Holds: toldToMasquerade},
			{Name: "flows from before the upgrade lose their address with their next packet", Holds: oldFlowsAreHidden, Bound: restartedWithin},
		}, denied...)
		remedy = framework.Remedy{
			Name: "the new keys, agents restarted", Helps: true, Bound: 30 * time.Second,
			Apply: func(ctx context.Context, r *framework.Run) error {
				if err := cured.run(ctx, r); err != nil {
					return err
				}
				_, err := nodeHeaders(ctx, r)
				return err
			},
		}
	} else {
		s.Aftermath = append([]framework.Check{{Name: "the vendor's rule masquerades on every node", Holds: masquerading(true)}}, denied...)
		s.Aftermath = append(s.Aftermath, framework.Check{
			Name: "a flow from before the upgrade keeps its address until it starts anew", Reads: pods, Holds: oldFlowsKeepTheirAddress,
		})
		// Once is enough: with BPF, too, it was seen to change nothing.
		s.Remedies = []framework.Remedy{{
			Name: "restart every agent",
			Apply: func(ctx context.Context, r *framework.Run) error {
				return cilium{Version: d.to, Config: d.then, Restart: "by the operator"}.run(ctx, r)
			},
		}}
	}
	s.Remedies = append(s.Remedies, remedy)
}

// install puts databases, the old version of Cilium and the pods into the lab,
// from whatever state an earlier variant or run has left.
func (d drift) install(ctx context.Context, r *framework.Run) error {
	var side errgroup.Group
	side.Go(func() error { return startDatabases(ctx, r) })
	side.Go(func() error { return workload.SystemDaemonSet("cilium").Delete(ctx, r.Cluster) })
	side.Go(func() error { return workload.StopProbes(ctx, r.Cluster) })
	if err := side.Wait(); err != nil {
		return err
	}
	if err := clean(ctx, r); err != nil {
		return err
	}
	if err := route(ctx, r); err != nil {
		return err
	}
	if err := (cilium{Version: d.from, Config: d.before}).run(ctx, r); err != nil {
		return err
	}
	// Not before: a pod that finds no CNI configuration is tried again only
	// after a while.
	if err := workload.StartProbes(ctx, r.Cluster, workload.OnEach(all...)); err != nil {
		return err
	}
	// Agents read it when they start: the old ones do not notice.
	return cilium{Version: d.from, Config: d.then}.apply(ctx, r)
}

// ends dials the pods' and the hosts' agents; the servers have none.
func ends(ctx context.Context, r *framework.Run, _ ...string) ([]probe.End, error) {
	found, err := framework.ProbeEnds(ctx, r, all, databases)
	return append(found,
		probe.End{Name: dbServer, Address: netip.AddrPortFrom(dbAddr, mysqlPort)},
		probe.End{Name: neighbourServer, Address: netip.AddrPortFrom(neighbourIP, mysqlPort)},
	), err
}

// upgrade gives the DaemonSet another image, as `helm upgrade --reuse-values`
// does. What the ConfigMap says is not touched.
func upgrade(r *framework.Run, old, next cilium) fault.Fault {
	return fault.Fault{
		Name:   fmt.Sprintf("upgrade Cilium %s to %s", old.Version, next.Version),
		Inject: func(ctx context.Context) error { return next.run(ctx, r) },
		Held: func(ctx context.Context) (bool, string, error) {
			agents, err := next.agents(ctx, r)
			return len(agents) == len(all), fmt.Sprintf("%d of %d agents are of %s", len(agents), len(all), next.Version), err
		},
		Undo: func(ctx context.Context) error { return old.run(ctx, r) },
	}
}

// refusedUpgrade is an upgrade to a version whose agents do not start, and say
// why.
func refusedUpgrade(r *framework.Run, old, next cilium, why string) fault.Fault {
	f := upgrade(r, old, next)
	f.Inject = func(ctx context.Context) error {
		if err := next.apply(ctx, r); err != nil {
			return err
		}
		said, err := next.refused(ctx, r)
		if err != nil {
			return err
		}
		r.Evidence("refusal", strings.Join(said, "\n")+"\n")
		r.Note("the agents refuse to start: " + strings.Join(said, "; "))
		return nil
	}
	f.Held = func(ctx context.Context) (bool, string, error) {
		agents, err := next.agents(ctx, r)
		if err != nil {
			return false, "", err
		}
		for _, n := range all {
			if !strings.Contains(agents[n].fatal(), why) {
				return false, fmt.Sprintf("%s: %s, without %q", n, agents[n], why), nil
			}
		}
		return true, "", nil
	}
	return f
}

// cure gives the agents the keys that they read, and ends the translations
// that the kernel would keep without a rule.
func cure(ctx context.Context, r *framework.Run, cured cilium) error {
	if err := cured.run(ctx, r); err != nil {
		return err
	}
	// New connections are well from here on. Those from before are not.
	err := await.Until(ctx, "the detectors to name flows that are still translated", 50*time.Millisecond, 5*time.Second,
		func(context.Context) (bool, string, error) {
			stale := 0
			for _, f := range r.Findings() {
				if f.Kind == detect.StaleTranslation {
					stale++
				}
			}
			return stale > 0, "no such finding", nil
		})
	if err != nil {
		return err
	}
	r.Evidence("findings-before-connections-are-forgotten", r.Findings())
	for _, n := range all {
		if _, err := r.Lab.Node(n).Exec(ctx, "conntrack", "-D", "--src-nat", "--orig-src", rangeOf(n).String()); err != nil {
			return fmt.Errorf("forgetting the translated connections of %s: %w", n, err)
		}
	}
	return masqueradingEvidence(ctx, r, "after-the-remedy")
}

// masquerading asserts whether the vendor's rule stands in each node's nat
// table, with the node's range and the native CIDR. The tables are evidence.
func masquerading(want bool) func(context.Context, *framework.Run) (bool, string, error) {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		var wrong []string
		for _, n := range all {
			saved, err := r.Lab.Node(n).Exec(ctx, "iptables-save")
			if err != nil {
				return false, "", err
			}
			r.Evidence("iptables-save-"+n, saved)
			rules, err := snapshot.ParseRules(saved, snapshot.NATTable)
			if err != nil {
				return false, "", err
			}
			if rule, there := masquerade(rules, rangeOf(n)); there != want {
				wrong = append(wrong, fmt.Sprintf("%s masquerades: %v %s", n, there, rule.Text))
			}
		}
		return len(wrong) == 0, strings.Join(wrong, "; "), nil
	}
}

// nodeHeaders are what the vendor's code has written for each node's BPF
// programs, by node. They are evidence.
func nodeHeaders(ctx context.Context, r *framework.Run) (map[string]string, error) {
	headers := map[string]string{}
	for _, n := range all {
		header, err := r.Lab.Node(n).Exec(ctx, "cat", "/var/run/cilium/state/globals/node_config.h")
		if err != nil {
			return nil, fmt.Errorf("reading the header for %s: %w", n, err)
		}
		r.Evidence("node_config-"+n, header)
		headers[n] = header
	}
	return headers, nil
}

// toldToMasquerade asserts that these headers ask for masquerading, with BPF
// NodePort in plain DSR mode.
func toldToMasquerade(ctx context.Context, r *framework.Run) (bool, string, error) {
	headers, err := nodeHeaders(ctx, r)
	if err != nil {
		return false, "", err
	}
	var wrong []string
	for _, n := range all {
		wrong = append(wrong, notAsked(n, headers[n])...)
	}
	return len(wrong) == 0, strings.Join(wrong, "; "), nil
}

// notAsked says what a node's header does not define as the incident's
// ConfigMap has it.
func notAsked(node, header string) []string {
	var wrong []string
	for define, want := range map[string]bool{"ENABLE_NODEPORT": true, "ENABLE_DSR": true, "ENABLE_DSR_HYBRID": false, "ENABLE_MASQUERADE": true} {
		if got := strings.Contains(header, "\n#define "+define+" 1\n"); got != want {
			wrong = append(wrong, fmt.Sprintf("%s: %s is defined: %v", node, define, got))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// masqueradingEvidence keeps the nodes' tables and connections.
func masqueradingEvidence(ctx context.Context, r *framework.Run, when string) error {
	for _, n := range all {
		for name, command := range map[string][]string{"iptables-save": {"iptables-save"}, "conntrack": {"conntrack", "-L"}} {
			text, err := r.Lab.Node(n).Exec(ctx, command...)
			if err != nil {
				return err
			}
			r.Evidence(fmt.Sprintf("%s-%s-%s", name, n, when), text)
		}
	}
	return nil
}

// masquerade finds Cilium's rule that hides a range from all but the native
// CIDR.
func masquerade(rules []snapshot.Rule, pods netip.Prefix) (snapshot.Rule, bool) {
	i := slices.IndexFunc(rules, func(r snapshot.Rule) bool {
		return r.Chain == "CILIUM_POST_nat" && r.Comment == "cilium masquerade non-cluster" && r.Target == "MASQUERADE" &&
			r.Source == (snapshot.Match{Range: pods}) && r.Destination == (snapshot.Match{Range: nativeCIDR, Not: true})
	})
	if i < 0 {
		return snapshot.Rule{}, false
	}
	return rules[i], true
}

// podOn is the address of the probe pod on a node, by the newest snapshot.
func podOn(at snapshot.Snapshot, node string) netip.Addr {
	for _, p := range at.Pods.Items {
		if p.Name == "probe-"+node {
			return p.IP
		}
	}
	return netip.Addr{}
}

// pods tells of the probe pods' own addresses.
var pods = []snapshot.Source{snapshot.Pods}

// seenAs lists the probes whose far end saw another source address than that
// of the probe's pod, and those of which no far end has seen a packet.
func seenAs(r *framework.Run, concerns func(probe.Probe) bool) []string {
	at := r.Snapshot()
	var wrong []string
	for _, t := range r.Timelines() {
		if !slices.Contains(all, t.Probe.From) || !concerns(t.Probe) {
			continue
		}
		if len(t.Sources) == 0 {
			wrong = append(wrong, "nobody has seen "+t.Probe.Name)
		}
		for _, s := range t.Sources {
			if s.Address != podOn(at, t.Probe.From) {
				wrong = append(wrong, fmt.Sprintf("%s is seen as %s", t.Probe.Name, s.Address))
			}
		}
	}
	return wrong
}

// insideIsUntouched asserts that no packet of a pod to another one, or to the
// neighbour, ever bore another address than the pod's.
func insideIsUntouched(_ context.Context, r *framework.Run) (bool, string, error) {
	wrong := seenAs(r, func(p probe.Probe) bool { return p.To == neighbourServer || slices.Contains(all, p.To) })
	return len(wrong) == 0, strings.Join(wrong, "; "), nil
}

// outsideSeesPods asserts the same of packets to the outside.
func outsideSeesPods(_ context.Context, r *framework.Run) (bool, string, error) {
	wrong := seenAs(r, func(p probe.Probe) bool { return p.To == dbServer || p.To == "db" })
	return len(wrong) == 0, strings.Join(wrong, "; "), nil
}

// appIsDenied asserts that the application, which the database let in at its
// pod's address, is turned away at its node's.
func appIsDenied(_ context.Context, r *framework.Run) (bool, string, error) {
	var wrong []string
	for _, t := range r.Timelines() {
		if t.Probe.To != dbServer {
			continue
		}
		i := slices.IndexFunc(t.Sources, func(s probe.Source) bool { return s.Address == addressOf(t.Probe.From) && s.Denied > 0 })
		if i < 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %+v", t.Probe.Name, t.Sources))
		}
	}
	return len(wrong) == 0, strings.Join(wrong, "; "), nil
}

// hiddenFlows names the pods whose UDP flows to the outside have been seen as
// their nodes'.
func hiddenFlows(r *framework.Run) []string {
	var hidden []string
	for _, t := range r.Timelines() {
		if t.Probe.To == "db" && slices.ContainsFunc(t.Sources, func(s probe.Source) bool { return s.Address == addressOf(t.Probe.From) }) {
			hidden = append(hidden, t.Probe.From)
		}
	}
	return hidden
}

// oldFlowsAreHidden asserts that the pods' UDP flows to the outside, which
// began before the upgrade, have lost the pods' addresses: BPF programs
// translate each packet, whatever connection tracking knows of its flow.
func oldFlowsAreHidden(ctx context.Context, r *framework.Run) (bool, string, error) {
	if hidden := hiddenFlows(r); len(hidden) != len(all) {
		return false, fmt.Sprintf("hidden are %v", hidden), nil
	}
	return true, "", masqueradingEvidence(ctx, r, "after-the-upgrade")
}

// restartedWithin bounds how long a flow takes to be seen under another
// address: its next packet makes it a new one, and the far end reports ten
// times a second.
const restartedWithin = 5 * time.Second

// oldFlowsKeepTheirAddress asserts that the pods' UDP flows to the outside,
// which began before the upgrade, still bear the pods' addresses: the kernel
// asks the rules once for each flow. Then it makes them begin anew, as a
// reboot or a silence would, and asserts that they lose them.
func oldFlowsKeepTheirAddress(ctx context.Context, r *framework.Run) (bool, string, error) {
	toDB := func(p probe.Probe) bool { return p.To == "db" }
	if wrong := seenAs(r, toDB); len(wrong) > 0 {
		return false, strings.Join(wrong, "; "), nil
	}
	for _, n := range all {
		_, err := r.Lab.Node(n).Exec(ctx, "conntrack", "-D", "--proto", "udp", "--orig-src", rangeOf(n).String(), "--orig-dst", dbAddr.String())
		if err != nil {
			return false, "", fmt.Errorf("ending the UDP flows of %s: %w", n, err)
		}
	}
	err := await.Until(ctx, "the flows to be seen as the nodes'", 50*time.Millisecond, restartedWithin,
		func(context.Context) (bool, string, error) {
			hidden := hiddenFlows(r)
			return len(hidden) == len(all), fmt.Sprintf("hidden are %v", hidden), nil
		})
	if err != nil {
		return false, err.Error(), nil
	}
	return true, "", masqueradingEvidence(ctx, r, "after-the-upgrade")
}
