package masqueradedrift

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestTopology(t *testing.T) {
	r := run(nil)
	neighbourIP, dbAddr := addressOf(r, neighbour.Name), addressOf(r, db.Name)
	if !nativeCIDR.Contains(neighbourIP) || nativeCIDR.Contains(dbAddr) {
		t.Errorf("the native CIDR %s must have the neighbour (%s) and not the database (%s) in it", nativeCIDR, neighbourIP, dbAddr)
	}
	for _, n := range nodes {
		if !podCIDR.Contains(rangeOf[n].Addr()) || rangeOf[n].Contains(neighbourIP) {
			t.Errorf("the pods of %s are in %s", n, rangeOf[n])
		}
	}
	if mask := lab.Clusters[0].NodeMask; rangeOf["node1"] != netip.PrefixFrom(podCIDR.Addr(), mask) || rangeOf["node2"].Bits() != mask {
		t.Errorf("the ranges %v are not the first of %s, cut into /%d", rangeOf, podCIDR, mask)
	}
	// The node's address must be one that the grant does not cover.
	for _, n := range nodes {
		if podCIDR.Contains(addressOf(r, n)) {
			t.Errorf("%s (%s) is let in by the grant", n, addressOf(r, n))
		}
	}
}

func TestVariants(t *testing.T) {
	roles := map[string]framework.Role{}
	for _, v := range Scenario.Variants {
		roles[v.Name] = v.Role
		wantHurt := v.Name != oldCIDRKey.name
		if got := len(v.Script().Impacted) > 0; got != wantHurt {
			t.Errorf("%s: names the probes that would lose packets: %v", v.Name, got)
		}
	}
	want := map[string]framework.Role{
		"off-by-old-key": framework.Affected, "default-on": framework.Affected, "translated": framework.Fixed,
		"1.10-both-keys": framework.Workaround, "1.12-old-cidr-key": framework.Workaround,
	}
	for name, role := range want {
		if roles[name] != role {
			t.Errorf("%s is %q, want %q", name, roles[name], role)
		}
	}
}

// What the upgrade finds differs between the pair in the keys alone.
func TestPairDiffersInTheKeysAlone(t *testing.T) {
	if offByOldKey.from != translated.from || offByOldKey.to != translated.to {
		t.Error("the versions differ")
	}
	if offByOldKey.then["masquerade"] != "false" || translated.then["enable-ipv4-masquerade"] != "false" {
		t.Error("both must want no masquerading")
	}
	if translated.then["masquerade"] != "false" {
		t.Error("an old agent that starts with the translated ConfigMap would masquerade")
	}
	if offByOldKey.then["cluster-name"] == "" || cilium.Native["masquerade"] != "" {
		t.Error("With must add, and must not change what it adds to")
	}
}

// What config-drift says of each upgrade, from the ConfigMap alone, in time.
// Each version that is upgraded must be configured not to masquerade in keys that
// it reads, and the ConfigMap stays as it is.
func TestUnclassifiedStartsUnhidden(t *testing.T) {
	for version, want := range map[string]cilium.Config{
		"1.8.1": off.With(native), "1.10.20": off.With(native), "1.11.0-rc1": translatedOff.With(native), "1.11.6": translatedOff.With(native),
		"1.12.0": translatedOff.With(translatedNative),
	} {
		d := unclassified(version, "1.12.4")
		if want = cilium.Native.With(want); !maps.Equal(d.before, want) || !maps.Equal(d.then, want) || d.from != version || d.to != "1.12.4" {
			t.Errorf("%s: %v, then %v; want %v", version, d.before, d.then, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	for _, d := range []drift{offByOldKey, defaultOn, translated, bothKeys, oldCIDRKey} {
		t.Run(d.name, func(t *testing.T) {
			must.NoError(t, d.configDrift().Check())
			at := snapshot.Snapshot{}
			at.ConfigMaps.Read = true
			at.ConfigMaps.Items = []snapshot.ConfigMap{{Namespace: "kube-system", Name: "cilium-config", Data: d.then}}
			said := detect.Run([]detect.Detector{d.configDrift()}, []snapshot.Snapshot{at})
			if missing := framework.Missing(d.warns, said); len(missing) > 0 {
				t.Errorf("it does not say %v", missing)
			}
			if more := framework.Unexpected(said, d.warns...); len(more) > 0 {
				t.Errorf("unexpected findings: %v", more)
			}
		})
	}
}

func TestImageFollowsTheConfiguration(t *testing.T) {
	for want, d := range map[string]drift{"relapse.dev/cilium-bpf:v1.11.1": defaultOn, "relapse.dev/cilium-rules:v1.11.1": offByOldKey} {
		if got := d.next().Agent; got != want {
			t.Errorf("%s runs %s, want %s", d.name, got, want)
		}
	}
}

// Agents read their keys when they start: a remedy that starts none cures nothing.
func TestRemediesRestartTheAgents(t *testing.T) {
	for _, d := range []drift{offByOldKey, defaultOn} {
		if cured := d.cured(cilium.Native); cured.Agent != d.next().Agent || cured.Restart == d.next().Restart {
			t.Errorf("%s: the agents that are cured (%s, %q) are not restarted", d.name, cured.Agent, cured.Restart)
		}
	}
}

func TestNotAsked(t *testing.T) {
	const asked = "#define EVENTS_MAP cilium_events\n#define ENABLE_DSR 1\n#define ENABLE_MASQUERADE 1\n#define ENABLE_NODEPORT 1\n#define MTU 1500\n"
	for _, test := range []struct {
		name, header string
		want         []string
	}{
		{"as the incident has it", asked, nil},
		{"hybrid", asked + "#define ENABLE_DSR_HYBRID 1\n", []string{"ENABLE_DSR_HYBRID is defined: true"}},
		{"masquerading is off", strings.Replace(asked, "#define ENABLE_MASQUERADE 1\n", "", 1), []string{"ENABLE_MASQUERADE is defined: false"}},
		{"no BPF NodePort", "#define MTU 1500\n", []string{
			"ENABLE_DSR is defined: false", "ENABLE_MASQUERADE is defined: false", "ENABLE_NODEPORT is defined: false",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := notAsked(test.header, true); !slices.Equal(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestGrants(t *testing.T) {
	for _, want := range []string{
		"'app'@'" + podCIDR.Addr().String() + "/255.255.255.128'", app.Database, "'" + app.User + "'", "'" + app.Password + "'",
	} {
		if !strings.Contains(grants, want) {
			t.Errorf("there is no %s:\n%s", want, grants)
		}
	}
	if podCIDR.Bits() != 25 {
		t.Errorf("the netmask is not that of %s", podCIDR)
	}
	if strings.Contains(grants, "'app'@'%'") {
		t.Errorf("the application is admitted from everywhere:\n%s", grants)
	}
}

// run makes a run in which far ends have seen probes from these addresses.
func run(sources map[string][]string) *framework.Run {
	at := snapshot.Snapshot{}
	at.Pods.Items = []snapshot.Pod{
		{Name: "probe-node1", Node: "node1", IP: netip.MustParseAddr("10.20.30.3")},
		{Name: "probe-node2", Node: "node2", IP: netip.MustParseAddr("10.20.30.35")},
	}
	var lines []probe.Timeline
	for _, p := range offByOldKey.script().Probes {
		line := probe.Timeline{Probe: p}
		seen, given := sources[p.Name]
		if !given && slices.Contains(nodes, p.From) {
			seen = []string{podOn(at, p.From).String()}
		}
		for _, s := range seen {
			line.Sources = append(line.Sources, probe.Source{Address: netip.MustParseAddr(s), First: time.Now(), Packets: 1})
		}
		lines = append(lines, line)
	}
	return &framework.Run{
		Topology:  lab,
		Snapshot:  func() snapshot.Snapshot { return at.Only(podAddresses...) },
		Timelines: func() []probe.Timeline { return lines },
	}
}

func TestAppIsDenied(t *testing.T) {
	none := &framework.Run{Topology: lab, Timelines: func() []probe.Timeline { return nil }}
	if holds, _, _ := appIsDenied(t.Context(), none); holds {
		t.Error("it holds, although there is no login")
	}
	r := run(nil)
	if holds, saw, _ := appIsDenied(t.Context(), r); holds || !strings.Contains(saw, "app on node1->db") {
		t.Errorf("holds %v, %q, although no login was denied", holds, saw)
	}
	lines := r.Timelines()
	for i := range lines {
		if lines[i].Probe.To == dbServer.Name {
			lines[i].Sources = append(lines[i].Sources, probe.Source{Address: addressOf(r, lines[i].Probe.From), Packets: 3, Denied: 3})
		}
	}
	if holds, saw, err := appIsDenied(t.Context(), r); !holds || err != nil {
		t.Errorf("%q, %v", saw, err)
	}
}

func TestFlowsAreHidden(t *testing.T) {
	for _, test := range []struct {
		name    string
		sources map[string][]string
		saw     string // empty: they are
	}{
		{"as themselves", nil, "the flow from node1 is not seen as 10.20.28.11; the flow from node2 is not seen as 10.20.28.12"},
		{
			"one behind another node", map[string][]string{"node1->db": {"10.20.30.3", "10.20.28.11"}, "node2->db": {"10.20.30.35", "10.20.28.11"}},
			"the flow from node2 is not seen as 10.20.28.12",
		},
		{"both", map[string][]string{"node1->db": {"10.20.28.11"}, "node2->db": {"10.20.28.12"}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if holds, saw, err := flowsAreHidden(run(test.sources)); err != nil || holds != (test.saw == "") || saw != test.saw {
				t.Errorf("%v, %q, %v; want %q", holds, saw, err, test.saw)
			}
		})
	}
	none := &framework.Run{Topology: lab, Timelines: func() []probe.Timeline { return nil }}
	if holds, _, _ := flowsAreHidden(none); holds {
		t.Error("holds without a flow")
	}
}

func TestSeenAs(t *testing.T) {
	for _, test := range []struct {
		name            string
		sources         map[string][]string
		inside, outside string // what is wrong; empty: nothing
	}{
		{"as they are", nil, "", ""},
		{
			"the database sees a node", map[string][]string{"app on node2->db": {"10.20.30.35", "10.20.28.12"}},
			"", "app on node2->db is seen as 10.20.28.12",
		},
		{
			"the neighbour sees a node", map[string][]string{"app on node1->neighbour": {"10.20.28.11"}},
			"app on node1->neighbour is seen as 10.20.28.11", "",
		},
		{"a pod sees a node", map[string][]string{"node1->node2": {"10.20.28.11"}}, "node1->node2 is seen as 10.20.28.11", ""},
		{"no packet arrived", map[string][]string{"node1->db": {}}, "", "node1->db did not arrive"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := run(test.sources)
			for what, c := range map[string]struct {
				holds func() (bool, string, error)
				want  string
			}{
				"inside":  {func() (bool, string, error) { return insideIsUntouched(t.Context(), r) }, test.inside},
				"outside": {func() (bool, string, error) { return outsideSeesPods(t.Context(), r) }, test.outside},
			} {
				holds, saw, err := c.holds()
				if err != nil || holds != (c.want == "") || saw != c.want {
					t.Errorf("%s: %v, %q, %v; want %q", what, holds, saw, err, c.want)
				}
			}
		})
	}
}

// A detector that does not say by which rule is not enough.
func TestRuleIsReported(t *testing.T) {
	script := offByOldKey.variant(framework.Affected).Script()
	check := ruleIsReported(script.Expected)
	say := func(by string) []detect.Finding {
		var said []detect.Finding
		for _, f := range script.Expected {
			said = append(said, detect.Finding{
				Detector: f.Detector, Kind: f.Kind, State: f.State, Object: f.Object, Owner: f.Owner, Routers: f.Routers,
				Says: "db sees " + f.Owner + ", by " + strings.ReplaceAll(by, "RANGE", f.Object.String()),
			})
		}
		return said
	}
	const rule = `-A CILIUM_POST_nat -s RANGE -m comment --comment "cilium masquerade non-cluster" -j MASQUERADE`
	for _, test := range []struct {
		by    string
		holds bool
	}{
		{rule, true},
		{strings.Replace(rule, "CILIUM_POST_nat", "POSTROUTING", 1), false},
		{strings.Replace(rule, "RANGE", "10.0.0.0/8", 1), false},
		{"an unknown rule", false},
	} {
		run := &framework.Run{Findings: func() []detect.Finding { return say(test.by) }}
		if holds, saw, _ := check.Holds(t.Context(), run); holds != test.holds {
			t.Errorf("%s: %v, %s", test.by, holds, saw)
		}
	}
}
