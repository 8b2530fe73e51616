package masqueradedrift

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/mariadb"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/await"
)

// Scenario is masquerade-drift.
var Scenario = framework.Scenario{
	Incident:   Record,
	Owner:      framework.Maintainers,
	Labels:     []framework.Label{framework.Masquerade, framework.Upgrade},
	Budget:     framework.Budget{Whole: 180 * time.Second, Lab: 45 * time.Second, Detect: time.Second},
	OnlyOwnLab: "its hosts are databases, with an image that relapse builds, and Cilium leaves BPF programs on nodes, which are not known to come back",
	Topology:   lab,
	Variants: []framework.Variant{
		offByOldKey.variant(framework.Affected),
		defaultOn.variant(framework.Affected),
		translated.variant(framework.Fixed),
		translatedBPF.variant(framework.Fixed),
		bothKeys.variant(framework.Workaround),
		oldCIDRKey.variant(framework.Workaround),
	},
	// Today's Cilium is whole, and the script runs slices.
	AnsweredBy: upgrade.SourcePath,
	Tested: []framework.Tested{
		{Name: "cilium.from", Default: offByOldKey.from},
		{Name: "cilium.to", Default: offByOldKey.to, Varied: true},
	},
	At: func(versions map[string]string) framework.Variant {
		d := unclassified(versions["cilium.from"], versions["cilium.to"])
		v := d.variant(framework.Unclassified)
		v.Script = func() framework.Script {
			s := d.script()
			s.Expected = hiddenSources()
			return s
		}
		return v
	},
}

// unclassified is an upgrade with the configuration of off-by-old-key, which the slices of most
// versions can run with, in the keys that the old version reads: with others the old version would
// hide the pods already. 1.11 is the first that does not read masquerade, 1.12 that does not read
// native-routing-cidr.
func unclassified(from, to string) drift {
	d := offByOldKey
	d.name, d.from, d.to = fmt.Sprintf("cilium-%s-to-%s", from, to), from, to
	minor := semver.MajorMinor("v" + from)
	switched, cidr := off, native
	if semver.Compare(minor, "v1.11") >= 0 {
		switched = translatedOff
	}
	if semver.Compare(minor, "v1.12") >= 0 {
		cidr = translatedNative
	}
	d.before = cilium.Native.With(switched).With(cidr)
	d.then = d.before
	return d
}

// drift is an upgrade of Cilium and the configuration that it meets.
type drift struct {
	name     string
	from, to string // versions
	// before is what the ConfigMap says while the old version starts, and
	// then what the new one finds: it may have been translated in between.
	before, then cilium.Config
	// bpf is whether BPF programs masquerade, and not iptables.
	bpf bool
	// masquerades is whether the old version hides the pods already. Then the databases outside
	// would refuse the application from the start, and no probe logs in there.
	masquerades bool
	// warns are all findings of config-drift while the old version runs.
	warns []framework.Finding
	// refuses is what the new version's agent says when it does not start.
	refuses string
}

// Parts of Cilium's configuration.
var (
	// native is the native CIDR under its old key, and translatedNative under
	// the one that 1.10 introduced.
	native           = cilium.Config{"native-routing-cidr": nativeCIDR.String()}
	translatedNative = cilium.Config{"ipv4-native-routing-cidr": nativeCIDR.String()}
	// on is what the incident's ConfigMap said. off switches masquerading off
	// under the old key, translatedOff under the new ones.
	on            = cilium.Config{"masquerade": "true"}
	off           = cilium.Config{"masquerade": "false"}
	translatedOff = cilium.Config{"enable-ipv4-masquerade": "false", "enable-bpf-masquerade": "false"}

	onByBPF       = cilium.DSR.With(on).With(native)
	offByIPTables = cilium.Native.With(off).With(native)
)

var (
	// offByOldKey: masquerading was switched off, and 1.11 does not know the key any
	// more. It logs no message about it.
	offByOldKey = drift{
		name: "off-by-old-key", from: "1.8.1", to: "1.11.1",
		before: offByIPTables, then: offByIPTables,
		warns: []framework.Finding{
			warning(configdrift.NotRead, "masquerade"),
			hint(configdrift.Deprecated, "native-routing-cidr"),
		},
	}
	// defaultOn: the incident's own. Masquerading is on, by BPF, and a bug of 1.8.1 prevented it.
	// No key of masquerading changes its meaning, so that config-drift cannot warn of it.
	defaultOn = drift{
		name: "default-on", from: "1.8.1", to: "1.11.1", bpf: true,
		before: onByBPF, then: onByBPF,
		warns: []framework.Finding{
			hint(configdrift.NotRead, "masquerade"),
			hint(configdrift.Deprecated, "native-routing-cidr"),
			warning(configdrift.NewlyRead, "enable-host-legacy-routing"),
			warning(configdrift.NewlyRead, "enable-svc-source-range-check"),
		},
	}
	// translated: the same upgrade, after the new keys were added to the ConfigMap.
	// The old ones stay for as long as an old agent may start. The native CIDR keeps
	// its old key, which 1.11 reads: it refuses both.
	translated = drift{
		name: "translated", from: "1.8.1", to: "1.11.1",
		before: offByIPTables, then: offByIPTables.With(translatedOff),
		warns: []framework.Finding{
			hint(configdrift.NotRead, "masquerade"),
			hint(configdrift.NewlyRead, "enable-ipv4-masquerade"),
			hint(configdrift.Deprecated, "native-routing-cidr"),
		},
	}
	// translatedBPF: the incident's own upgrade, after masquerading was switched off
	// in the new keys. 1.8.1, which reads the one of BPF, starts before that.
	translatedBPF = drift{
		name: "translated-bpf", from: "1.8.1", to: "1.11.1", bpf: true,
		before: onByBPF, then: onByBPF.With(translatedOff),
		// It is to change, and it does: with 1.11.1 nothing masquerades.
		warns: []framework.Finding{
			warning(configdrift.NotRead, "masquerade"),
			warning(configdrift.NewlyRead, "enable-ipv4-masquerade"),
			hint(configdrift.Deprecated, "native-routing-cidr"),
			warning(configdrift.NewlyRead, "enable-host-legacy-routing"),
			warning(configdrift.NewlyRead, "enable-svc-source-range-check"),
		},
	}
	// bothKeys: the same ConfigMap with 1.10, which knows both keys and does not choose
	// between them.
	bothKeys = drift{
		name: "1.10-both-keys", from: "1.8.1", to: "1.10.0",
		before: offByIPTables, then: offByIPTables.With(translatedOff),
		warns: []framework.Finding{
			warning(configdrift.Conflict, "masquerade"), warning(configdrift.Conflict, "enable-ipv4-masquerade"),
			warning(configdrift.DefaultChanged, "bpf-compile-debug"), warning(configdrift.DefaultChanged, "hubble-flow-buffer-size"),
		},
		refuses: "--enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive",
	}
	// oldCIDRKey: masquerading is on and is wanted, but 1.12 does not know the key of
	// the range to exclude.
	oldCIDRKey = drift{
		name: "1.12-old-cidr-key", from: "1.11.1", to: "1.12.0",
		before: cilium.Native.With(native), then: cilium.Native.With(native),
		masquerades: true,
		warns: []framework.Finding{
			warning(configdrift.Missing, "ipv4-native-routing-cidr"), warning(configdrift.NotRead, "native-routing-cidr"),
			warning(configdrift.DefaultChanged, "agent-health-port"), warning(configdrift.DefaultChanged, "annotate-k8s-node"),
			warning(configdrift.DefaultChanged, "enable-icmp-rules"), warning(configdrift.DefaultChanged, "endpoint-interface-name-prefix"),
			warning(configdrift.DefaultChanged, "prometheus-serve-addr"),
			// The operator's keys.
			warning(configdrift.DefaultChanged, "azure-use-primary-address"), warning(configdrift.DefaultChanged, "nodes-gc-interval"),
			warning(configdrift.DefaultChanged, "operator-prometheus-serve-addr"),
		},
		refuses: "native routing cidr must be configured with option --ipv4-native-routing-cidr",
	}
)

// warning is a finding of config-drift about a key, and hint one about a key whose
// value in force stays.
func warning(kind configdrift.Kind, key string) framework.Finding {
	return drifted(kind, key, detect.Latent)
}
func hint(kind configdrift.Kind, key string) framework.Finding {
	return drifted(kind, key, detect.Hint)
}

func drifted(kind configdrift.Kind, key string, state detect.State) framework.Finding {
	return framework.Finding{Detector: configdrift.Detector{}.Name(), Kind: string(kind), State: state, Object: objectOf(key)}
}

func objectOf(key string) detect.Object {
	return detect.Named("ConfigMap " + cilium.ConfigMap + ", " + key)
}

// harmless are keys that every version reads in the same way.
var harmless = slices.Sorted(maps.Keys(cilium.Native))

// silentOnHarmless asserts that config-drift has no finding about them. That it has
// findings at all is asserted by the baseline.
func silentOnHarmless(_ context.Context, r *framework.Run) (bool, string, error) {
	var said framework.Mismatches
	of := configdrift.Detector{}.Name()
	for _, f := range r.Findings() {
		if f.Detector == of && slices.ContainsFunc(harmless, func(key string) bool { return f.Object == objectOf(key) }) {
			said.Addf("%s", f.Says)
		}
	}
	return said.Result()
}

// configDrift is the detector that compares what the old version runs with
// and what the new one will read.
func (d drift) configDrift() configdrift.Detector {
	return configdrift.Detector{
		Before:  configdrift.Setup{Version: d.from, Config: d.before},
		Version: d.to, ConfigMap: cilium.ConfigMap,
	}
}

// cilium is a version with a configuration: the slice that only writes rules,
// or the one that attaches BPF programs as well.
func (d drift) cilium(version string, config cilium.Config) cilium.Cilium {
	agent := cilium.Rules
	if d.bpf {
		agent = cilium.BPF
	}
	return cilium.Cilium{Agent: agent(version), Config: config}
}

func (d drift) old() cilium.Cilium  { return d.cilium(d.from, d.before) }
func (d drift) next() cilium.Cilium { return d.cilium(d.to, d.then) }

// cured is the new version with the keys that it reads. Its agents are restarted,
// because they read their keys when they start.
func (d drift) cured(base cilium.Config) cilium.Cilium {
	c := d.cilium(d.to, base.With(translatedOff).With(translatedNative))
	c.Restart = "with the new keys"
	return c
}

func (d drift) variant(role framework.Role) framework.Variant {
	var labels []framework.Label
	if d.bpf {
		labels = []framework.Label{framework.BPF}
	}
	return framework.Variant{
		Name: d.name, Role: role, Form: framework.Slice, Refused: d.refuses != "", Labels: labels,
		Components: map[string]string{"cilium": d.to, "cilium before the upgrade": d.from, "mariadb": mariadb.Version},
		Images:     []string{d.old().Agent, d.next().Agent, workload.ProbeImage},
		Script: func() framework.Script {
			script := d.script()
			if role == framework.Affected {
				d.affected(&script)
			}
			return script
		},
	}
}

// The endpoints of the probes: a pod on each node, the hosts with the databases, and
// the database servers themselves.
var (
	pod1, pod2      = framework.PodOn(node1), framework.PodOn(node2)
	db, neighbour   = framework.HostEndpoint(dbHost), framework.HostEndpoint(neighbourHost)
	dbServer        = server(db)
	neighbourServer = server(neighbour)
)

func server(host framework.Endpoint) framework.Endpoint {
	return framework.Server("MariaDB on "+host.Name, func(r *framework.Run) netip.AddrPort {
		return netip.AddrPortFrom(addressOf(r, host.Name), mariadb.Port)
	})
}

// appOn is the application in a pod, which logs in again and again to the server on a host.
func appOn(pod, server, host framework.Endpoint) probe.Probe {
	return probe.Probe{
		Name: "app on " + pod.Name + "->" + host.Name, From: pod.Name, To: server.Name, Protocol: probe.MySQL, Login: &app,
	}.WithDefaults()
}

var untouched = framework.Check{
	ID: "inside-untouched", Name: "inside the native CIDR pods are seen with their own addresses",
	Reads: podAddresses, Holds: insideIsUntouched,
}

func (d drift) script() framework.Script {
	var starts cilium.Starts // of the new version's agents
	s := framework.Script{
		Install: framework.InOrder(
			framework.AtOnce(startDatabases, uninstall), route, writeRules(d.old()),
			// Only now: a pod without a CNI configuration is retried only after a while.
			workload.ProbesOn(nodes...),
			// The old agents do not notice.
			func(ctx context.Context, r *framework.Run) error {
				return d.next().Configure(ctx, labaccess.Cluster(r))
			},
		),
		Endpoints: []framework.Endpoint{pod1, pod2, db, neighbour, dbServer, neighbourServer},
		Probes: slices.Concat(db.Both(pod1, pod2),
			[]probe.Probe{appOn(pod1, neighbourServer, neighbour), appOn(pod2, neighbourServer, neighbour)},
			pod1.Both(pod2)),
		Detectors: []detect.Detector{detect.SNAT{}, d.configDrift()},
		Baseline: []framework.Check{
			untouched,
			{ID: "harmless-keys", Name: "config-drift has no finding about " + strings.Join(harmless, ", "), Holds: silentOnHarmless},
		},
		Fault:     d.upgrade(&starts),
		Refuses:   func(ctx context.Context, r *framework.Run) (string, error) { return d.refusal(ctx, r, &starts) },
		Observe:   5 * time.Second,
		Aftermath: []framework.Check{untouched},
	}
	rules := framework.Check{ID: "rules", Name: "no rule masquerades", Holds: masquerading(false)}
	if d.masquerades {
		rules = framework.Check{ID: "rules", Name: "the rules of Cilium " + d.from + " masquerade, but for the native CIDR", Holds: masquerading(true)}
		// Without the detector snat: this configuration asks for masquerading.
		s.Detectors = []detect.Detector{d.configDrift()}
	} else {
		s.Impacted = []probe.Probe{appOn(pod1, dbServer, db), appOn(pod2, dbServer, db)}
		s.Probes = append(s.Probes, s.Impacted...)
		s.Baseline = append(s.Baseline, framework.Check{ID: "database-sees-pods", Name: "the database outside sees the pods' own addresses", Reads: podAddresses, Holds: outsideSeesPods})
	}
	s.Latent = d.warns
	s.Baseline = append(s.Baseline, rules)
	if d.refuses != "" {
		s.Aftermath = append(s.Aftermath, framework.Check{ID: "rules", Name: "the rules of Cilium " + d.from + " are still there", Holds: rules.Holds})
	} else {
		s.Aftermath = append(s.Aftermath, rules, framework.Check{ID: "no-denied-login", Name: "the server has denied no login", Holds: serverAdmits})
		if d.bpf {
			s.Aftermath = append(s.Aftermath, framework.Check{ID: "bpf-masquerade", Name: "the agents of Cilium " + d.to + " are configured not to masquerade by BPF", Holds: configuredToMasquerade(false)})
		}
	}
	return s
}

// hiddenSources say of each node that the router sees its pods under another address.
func hiddenSources() []framework.Finding {
	var hidden []framework.Finding
	for _, n := range nodes {
		hidden = append(hidden, framework.Finding{
			Detector: detect.SNAT{}.Name(), Kind: detect.HiddenSource, State: detect.Active,
			Object: detect.Prefix(rangeOf[n]), Owner: n, Routers: []string{tor},
		})
	}
	return hidden
}

// curedWithin bounds how long pods take to be seen under their own addresses once
// the agents are restarted: 1 to 17 s on two CPUs, 36 s beside another lab. BPF
// programs are compiled in that time.
const curedWithin = 2 * time.Minute

// affected is what the incident adds.
func (d drift) affected(s *framework.Script) {
	s.Expected = hiddenSources()
	denied := []framework.Check{
		{ID: "denied-by-error", Name: "the application is denied at the nodes' addresses, by the error that it gets", Holds: appIsDenied, Bound: 2 * time.Second},
		{ID: "denied-by-log", Name: "the server's log denies the application at the nodes' addresses", Holds: serverDenies, Bound: 5 * time.Second},
		untouched,
	}
	if d.bpf {
		s.Baseline = append(s.Baseline, framework.Check{ID: "bpf-masquerade", Name: "the agents of Cilium " + d.from + " are configured to masquerade by BPF", Holds: configuredToMasquerade(true)})
		s.Aftermath = slices.Concat([]framework.Check{
			{ID: "rules", Name: "no rule masquerades", Holds: masquerading(false)},
			{ID: "bpf-masquerade", Name: "the agents of Cilium " + d.to + " are configured the same", Holds: configuredToMasquerade(true)},
			{ID: "old-flows", Name: "flows from before the upgrade lose their address with their next packet", Holds: oldFlowsAreHidden, Bound: restartedWithin},
		}, denied)
		cured := d.cured(cilium.DSR)
		s.Remedies = []framework.Remedy{{
			ID: "new-keys", Name: "the new keys, agents restarted", Helps: true, Bound: curedWithin,
			// The programs translate each packet separately: no connection has to be forgotten.
			Apply: framework.InOrder(writeRules(cured), func(ctx context.Context, r *framework.Run) error {
				_, err := nodeHeaders(ctx, r)
				return err
			}),
		}}
		return
	}
	s.Aftermath = slices.Concat(
		[]framework.Check{
			{ID: "rules", Name: "the vendor's rule masquerades on every node", Holds: masquerading(true)},
			ruleIsReported(s.Expected),
		}, denied,
		[]framework.Check{{ID: "old-flows", Name: "a flow from before the upgrade keeps its address until it is a new flow to the kernel", Reads: podAddresses, Holds: oldFlowsKeepTheirAddress}},
	)
	cured, again := d.cured(cilium.Native), d.next()
	again.Restart = "by the operator"
	s.Remedies = []framework.Remedy{
		{
			// Not in default-on: with BPF it changed nothing either, in a separate run.
			ID: "restart-agents", Name: "restart every agent",
			Apply: writeRules(again),
		},
		{
			ID: "new-keys", Name: "the new keys, agents restarted, translated connections forgotten", Helps: true, Bound: curedWithin,
			Apply: framework.InOrder(writeRules(cured), forgetTranslated),
		},
	}
}

// ruleIsReported asserts that the detector names, for each of these findings, the
// vendor's rule: its chain, the node's range, its comment and its target.
func ruleIsReported(hidden []framework.Finding) framework.Check {
	named := slices.Clone(hidden)
	for i, f := range named {
		named[i].Words = []string{"CILIUM_POST_nat", f.Object.String(), "cilium masquerade non-cluster", "MASQUERADE"}
	}
	return framework.DetectorsSay("rule-reported", "the detector names chain, rule and comment", named...)
}

func uninstall(ctx context.Context, r *framework.Run) error {
	return cilium.Uninstall(ctx, labaccess.Lab(r), labaccess.Cluster(r), nodes, podCIDR)
}

// route gives the ToR a route to the pods of each node.
func route(ctx context.Context, r *framework.Run) error {
	for _, n := range nodes {
		if _, err := workload.Route(ctx, labaccess.Lab(r), n); err != nil {
			return err
		}
	}
	return nil
}

// writeRules brings the agents to a state, with their rules written.
func writeRules(c cilium.Cilium) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		return c.WriteRules(ctx, labaccess.Cluster(r), nodes)
	}
}

// upgrade gives the DaemonSet another image, as `helm upgrade --reuse-values` does. The
// ConfigMap stays.
func (d drift) upgrade(starts *cilium.Starts) framework.Fault {
	next := d.next()
	return framework.Fault{
		Name: fmt.Sprintf("upgrade Cilium %s to %s", d.from, d.to),
		Inject: func(ctx context.Context, r *framework.Run) error {
			if err := next.Try(ctx, labaccess.Cluster(r), nodes, starts); err != nil {
				return err
			}
			said, err := d.refusal(ctx, r, starts)
			if said != "" {
				r.Evidence("refusal", said+"\n")
				r.Note("the agents refuse to start: " + said)
			}
			return err
		},
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			logs, err := next.Logs(ctx, labaccess.Cluster(r), nodes)
			if err != nil {
				return false, "", err
			}
			var wrong framework.Mismatches
			for _, n := range nodes {
				if log, there := logs[n]; !there {
					wrong.Addf("the agent of %s is not of %s", n, d.to)
				} else if !strings.Contains(log.End().Says, d.refuses) { // any message, where none is expected
					wrong.Addf("%s: %s, without %q", n, log, d.refuses)
				}
			}
			return wrong.Result()
		},
		Undo: writeRules(d.old()), Replaced: true,
	}
}

// refusal is what the new version's agents say that do not start.
func (d drift) refusal(ctx context.Context, r *framework.Run, starts *cilium.Starts) (string, error) {
	return d.next().Refusals(ctx, labaccess.Cluster(r), nodes, starts)
}

// forgetTranslated ends the translations that the kernel would keep without a rule.
func forgetTranslated(ctx context.Context, r *framework.Run) error {
	// New connections are not translated any more. Those from before are.
	err := await.Until(ctx, "the detectors to report flows that are still translated", 50*time.Millisecond, 5*time.Second,
		func(context.Context) (bool, string, error) {
			return slices.ContainsFunc(r.Findings(), func(f detect.Finding) bool { return f.Kind == detect.StaleTranslation }), "no such finding", nil
		})
	if err != nil {
		return err
	}
	r.Evidence("findings-before-connections-are-forgotten", r.Findings())
	if err := forget(ctx, r, "--src-nat"); err != nil {
		return err
	}
	return masqueradingEvidence(ctx, r, "after-the-remedy")
}
