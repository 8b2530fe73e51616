package masqueradedrift

import (
	"context"
	"fmt"
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
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
)

const (
	node1 = "node1"
	node2 = "node2"
)

var (
	// nativeCIDR is the incident's native-routing-cidr: what goes to it is never
	// masqueraded. Pods have one half of it, other machines the other.
	nativeCIDR = netip.MustParsePrefix("10.20.30.0/24")
	podCIDR    = netip.MustParsePrefix("10.20.30.0/25")

	nodes = []string{node1, node2}
	// rangeOf is the range that kube-controller-manager gives to a node's pods: the
	// first free one, in the order of the nodes.
	rangeOf = map[string]netip.Prefix{node1: netip.MustParsePrefix("10.20.30.0/27"), node2: netip.MustParsePrefix("10.20.30.32/27")}

	nodeNet = topology.NewNetwork("nodes", "10.20.28.0/24")
	outside = topology.NewNetwork("outside", "10.20.29.0/24")
	inside  = topology.Network{
		Name: "inside", Subnet: netip.MustParsePrefix("10.20.30.128/25"), Fixed: "it is a half of the incident's native CIDR",
	}
	dbHost        = database(outside.Host("db", 10))
	neighbourHost = database(inside.Host("neighbour", 200))
)

// lab is the cluster that Record draws: routable pods, and two databases that grant to the pod
// range only. The incident's cluster used BGP. Here the ToR has a static route to each node's
// range: what matters is that it has one, so that no pod needs masquerading.
//
// The neighbour shows what the upgrade does not change: the same client, the same
// grant, the same router, but an address in the native CIDR.
var lab = topology.Topology{
	Name: "masquerade-drift", Networks: []topology.Network{nodeNet, outside, inside}, Hosts: []topology.Host{dbHost, neighbourHost},
	Clusters: []topology.Cluster{{
		PodCIDR: podCIDR, NodeMask: 27, Nodes: []topology.Node{nodeNet.Node(node1, 11), nodeNet.Node(node2, 12)},
	}},
}.Behind(topology.Static(topology.OneToR(nodeNet, outside, inside)))

func database(h topology.Host) topology.Host {
	h.Image = mariadb.Image
	return h
}

// Scenario is masquerade-drift.
var Scenario = framework.Scenario{
	Incident: Record,
	Owner:    framework.Maintainers,
	Labels:   []framework.Label{framework.Masquerade, framework.Upgrade},
	Budget:   framework.Budget{Whole: 180 * time.Second, Lab: 45 * time.Second, Detect: time.Second},
	OnlyOwnLab: "its hosts are databases, with an image that relapse builds, and Cilium leaves BPF programs on nodes, " +
		"which are not known to come back",
	Topology: lab,
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
		return unclassified(versions["cilium.from"], versions["cilium.to"]).variant(framework.Unclassified)
	},
}

// unclassified is an upgrade with the configuration of off-by-old-key, which the slices of most
// versions can run with, in the keys that the old version reads: otherwise it would hide the pods
// already. 1.11 is the first that does not read masquerade, 1.12 that does not read
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

// drift is an upgrade of Cilium with a configuration.
type drift struct {
	name     string
	from, to string // versions
	// before is the ConfigMap while the old version starts, and then the ConfigMap that the new
	// version finds: it may have been translated in between.
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
	// offByOldKey: masquerading was switched off, and 1.11, silently, does not know the key
	// any more.
	offByOldKey = drift{
		name: "off-by-old-key", from: "1.8.1", to: "1.11.1", before: offByIPTables, then: offByIPTables,
		warns: slices.Concat(warnings(configdrift.NotRead, "masquerade"), hints(configdrift.Deprecated, "native-routing-cidr")),
	}
	// defaultOn: the incident's own. Masquerading is on, by BPF, and a bug of 1.8.1 prevented it.
	// No key of masquerading changes its meaning, so that config-drift cannot warn of it.
	defaultOn = drift{
		name: "default-on", from: "1.8.1", to: "1.11.1", bpf: true, before: onByBPF, then: onByBPF,
		warns: slices.Concat(hints(configdrift.NotRead, "masquerade"), hints(configdrift.Deprecated, "native-routing-cidr"), newlyReadByBPF),
	}
	// translated: the same upgrade, after the new keys were added to the ConfigMap.
	// The old ones stay for as long as an old agent may start. The native CIDR keeps
	// its old key, which 1.11 reads: it refuses both.
	translated = drift{
		name: "translated", from: "1.8.1", to: "1.11.1", before: offByIPTables, then: offByIPTables.With(translatedOff),
		warns: slices.Concat(hints(configdrift.NotRead, "masquerade"), hints(configdrift.NewlyRead, "enable-ipv4-masquerade"),
			hints(configdrift.Deprecated, "native-routing-cidr")),
	}
	// translatedBPF: the incident's own upgrade, after masquerading was switched off
	// in the new keys. 1.8.1, which reads the one of BPF, starts before that.
	translatedBPF = drift{
		name: "translated-bpf", from: "1.8.1", to: "1.11.1", bpf: true, before: onByBPF, then: onByBPF.With(translatedOff),
		// It is to change, and it does: with 1.11.1 nothing masquerades.
		warns: slices.Concat(warnings(configdrift.NotRead, "masquerade"), warnings(configdrift.NewlyRead, "enable-ipv4-masquerade"),
			hints(configdrift.Deprecated, "native-routing-cidr"), newlyReadByBPF),
	}
	// bothKeys: the same ConfigMap with 1.10, which knows both keys and does not choose
	// between them.
	bothKeys = drift{
		name: "1.10-both-keys", from: "1.8.1", to: "1.10.0", before: offByIPTables, then: offByIPTables.With(translatedOff),
		warns: append(warnings(configdrift.Conflict, "masquerade", "enable-ipv4-masquerade"),
			warnings(configdrift.DefaultChanged, "bpf-compile-debug", "hubble-flow-buffer-size")...),
		refuses: "--enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive",
	}
	// oldCIDRKey: masquerading is on and is wanted, but 1.12 does not know the key of
	// the range to exclude.
	oldCIDRKey = drift{
		name: "1.12-old-cidr-key", from: "1.11.1", to: "1.12.0", before: cilium.Native.With(native), then: cilium.Native.With(native),
		masquerades: true,
		warns: slices.Concat(warnings(configdrift.Missing, "ipv4-native-routing-cidr"), warnings(configdrift.NotRead, "native-routing-cidr"),
			warnings(configdrift.DefaultChanged, "agent-health-port", "annotate-k8s-node", "enable-icmp-rules", "endpoint-interface-name-prefix",
				"prometheus-serve-addr",
				// The operator's keys.
				"azure-use-primary-address", "nodes-gc-interval", "operator-prometheus-serve-addr")),
		refuses: "native routing cidr must be configured with option --ipv4-native-routing-cidr",
	}

	newlyReadByBPF = warnings(configdrift.NewlyRead, "enable-host-legacy-routing", "enable-svc-source-range-check")
)

// warnings are findings of config-drift about keys, and hints are findings about keys whose
// effective value stays.
func warnings(kind configdrift.Kind, keys ...string) []framework.Finding {
	return drifted(detect.Latent, kind, keys)
}
func hints(kind configdrift.Kind, keys ...string) []framework.Finding {
	return drifted(detect.Hint, kind, keys)
}

func drifted(state detect.State, kind configdrift.Kind, keys []string) []framework.Finding {
	return each.Of(keys, func(key string) framework.Finding {
		return framework.Finding{
			Detector: configdrift.Detector{}.Name(), Kind: string(kind), State: state,
			Object: detect.Named("ConfigMap " + cilium.ConfigMap + ", " + key),
		}
	})
}

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
func (d drift) cured() cilium.Cilium {
	base := cilium.Native
	if d.bpf {
		base = cilium.DSR
	}
	return d.cilium(d.to, base.With(translatedOff).With(translatedNative)).Restarted("with the new keys")
}

func (d drift) variant(role framework.Role) framework.Variant {
	v := framework.Variant{
		Name: d.name, Role: role, Form: framework.Slice, Refused: d.refuses != "",
		Components: map[string]string{"cilium": d.to, "cilium before the upgrade": d.from, "mariadb": mariadb.Version},
		Images:     []string{d.old().Agent, d.next().Agent, workload.ProbeImage},
		Script:     func() framework.Script { return d.script(role) },
	}
	if d.bpf {
		v.Labels = []framework.Label{framework.BPF}
	}
	return v
}

var (
	pod1, pod2      = framework.PodOn(node1), framework.PodOn(node2)
	db, neighbour   = framework.HostEndpoint(dbHost), framework.HostEndpoint(neighbourHost)
	dbServer        = server(db)
	neighbourServer = server(neighbour)
)

func server(host framework.Endpoint) framework.Endpoint {
	return framework.Server("MariaDB on "+host.Name, func(r *framework.Run) netip.AddrPort {
		return netip.AddrPortFrom(r.Address(host.Name), mariadb.Port)
	})
}

// app is the application's account. The grants admit it from the pod range alone. The account
// of monitoring is for any address: without one the server would deny unknown addresses before
// it asks for the user.
var app = probe.Login{User: "app", Password: "only-from-the-pod-range", Database: "app"}

const grants = `
CREATE DATABASE IF NOT EXISTS app;
CREATE USER IF NOT EXISTS 'app'@'10.20.30.0/255.255.255.128' IDENTIFIED BY 'only-from-the-pod-range';
GRANT ALL ON app.* TO 'app'@'10.20.30.0/255.255.255.128';
CREATE USER IF NOT EXISTS 'monitor'@'%' IDENTIFIED BY 'from-anywhere';
`

// logins are the application in each pod, which logs in again and again to the server on a host.
func logins(server, host framework.Endpoint) []probe.Probe {
	return each.Of(nodes, func(n string) probe.Probe {
		return probe.Probe{Name: "app on " + n + "->" + host.Name, From: n, To: server.Name, Protocol: probe.MySQL, Login: &app}.WithDefaults()
	})
}

func (d drift) script(role framework.Role) framework.Script {
	var starts cilium.Starts // of the new version's agents
	s := framework.Script{
		Install: framework.InOrder(
			framework.AtOnce(
				mariadb.Started(db.Name, grants), mariadb.Started(neighbour.Name, grants), cilium.Uninstalled(nodes, podCIDR)),
			workload.Routed(nodes...), d.old().WriteRules(nodes...),
			// Only now: a pod without a CNI configuration is retried only after a while.
			workload.ProbesOn(nodes...),
			// The old agents do not notice.
			d.next().Configure,
		),
		Endpoints: []framework.Endpoint{pod1, pod2, db, neighbour, dbServer, neighbourServer},
		// The neighbour admits the application at its pod's address alone, and so does the database.
		Probes:    slices.Concat(db.Both(pod1, pod2), logins(neighbourServer, neighbour), pod1.Both(pod2)),
		Detectors: []detect.Detector{detect.SNAT{}, d.configDrift()},
		Latent:    d.warns,
		Baseline:  []framework.Check{rules("no rule masquerades", false)},
		Fault:     d.upgrade(&starts),
		Refuses: func(ctx context.Context, r *framework.Run) (string, error) {
			return d.next().Refusals(ctx, r, nodes, &starts)
		},
		Observe: 5 * time.Second,
		Aftermath: []framework.Check{{
			ID: "inside-untouched", Name: "inside the native CIDR pods are seen with their own addresses",
			Reads: podAddresses, Holds: seenAs(neighbourServer.Name, node1, node2),
		}},
	}
	if d.masquerades {
		s.Baseline = []framework.Check{rules("the rules of Cilium "+d.from+" masquerade, but for the native CIDR", true)}
		// Without the detector snat: this configuration asks for masquerading.
		s.Detectors = []detect.Detector{d.configDrift()}
	} else {
		s.Impacted = logins(dbServer, db)
		s.Probes = append(s.Probes, s.Impacted...)
	}
	switch {
	case role == framework.Unclassified:
		s.Expected = hiddenSources()
	case d.refuses != "":
		s.Aftermath = append(s.Aftermath, rules("the rules of Cilium "+d.from+" are still there", d.masquerades))
	case role == framework.Fixed:
		s.Aftermath = append(s.Aftermath, rules("no rule masquerades", false))
		if d.bpf {
			s.Aftermath = append(s.Aftermath, configured(d.to+" are configured not to masquerade by BPF", false))
		}
	case d.bpf:
		s.Expected = hiddenSources()
		s.Baseline = append(s.Baseline, configured(d.from+" are configured to masquerade by BPF", true))
		s.Aftermath = append(s.Aftermath, rules("no rule masquerades", false), configured(d.to+" are configured the same", true), denied,
			framework.Check{
				ID: "old-flows", Name: "flows from before the upgrade lose their address with their next " +
					"packet", Holds: flowsAreHidden, Bound: restartedWithin,
			})
		// The programs translate each packet separately: no connection has to be forgotten.
		s.Remedies = []framework.Remedy{newKeys("", d.cured().WriteRules(nodes...))}
	default:
		s.Expected = hiddenSources("CILIUM_POST_nat", "cilium masquerade non-cluster", "MASQUERADE")
		s.Aftermath = append(s.Aftermath, denied, framework.Check{
			ID: "old-flows", Name: "a flow from before the upgrade keeps its address until it is a new flow to the kernel",
			Reads: podAddresses, Holds: oldFlowsKeepTheirAddress,
		})
		s.Remedies = []framework.Remedy{
			// Not in default-on: with BPF it changed nothing either, in a separate run.
			{ID: "restart-agents", Name: "restart every agent", Apply: d.next().Restarted("by the operator").WriteRules(nodes...)},
			newKeys(", translated connections forgotten", framework.InOrder(d.cured().WriteRules(nodes...), forgetTranslated)),
		}
	}
	return s
}

// hiddenSources say of each node that the router sees its pods under another address, in these words.
func hiddenSources(words ...string) []framework.Finding {
	return each.Of(nodes, func(n string) framework.Finding {
		return framework.Finding{
			Detector: detect.SNAT{}.Name(), Kind: detect.HiddenSource, State: detect.Active,
			Object: detect.Prefix(rangeOf[n]), Owner: n, Routers: []string{"tor"}, Words: words,
		}
	})
}

// newKeys is the remedy that helps. Pods take 1 to 17 s on two CPUs, and 36 s beside another lab,
// to be seen under their own addresses once the agents are restarted: BPF programs are compiled in
// that time.
func newKeys(more string, apply framework.Action) framework.Remedy {
	return framework.Remedy{ID: "new-keys", Name: "the new keys, agents restarted" + more, Helps: true, Bound: 2 * time.Minute, Apply: apply}
}

// upgrade gives the DaemonSet another image, as `helm upgrade --reuse-values` does. The
// ConfigMap stays.
func (d drift) upgrade(starts *cilium.Starts) framework.Fault {
	next := d.next()
	return framework.Fault{
		Name: fmt.Sprintf("upgrade Cilium %s to %s", d.from, d.to),
		Inject: func(ctx context.Context, r *framework.Run) error {
			if err := next.Try(nodes, starts)(ctx, r); err != nil {
				return err
			}
			said, err := next.Refusals(ctx, r, nodes, starts)
			if said != "" {
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
		Undo: d.old().WriteRules(nodes...), Replaced: true,
	}
}

// forgetTranslated ends the translations that the kernel would keep without a rule.
func forgetTranslated(ctx context.Context, r *framework.Run) error {
	// New connections are not translated any more. Those from before are.
	err := await.Until(ctx, "the detectors to report flows that are still translated", 50*time.Millisecond, 5*time.Second,
		func(context.Context) (bool, string, error) {
			return slices.ContainsFunc(r.Findings(),
				func(f detect.Finding) bool { return f.Kind == detect.StaleTranslation }), "no such finding", nil
		})
	if err != nil {
		return err
	}
	return forget(ctx, r, "--orig-src", "--src-nat")
}
