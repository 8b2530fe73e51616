package masqueradedrift

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

func TestTopologyIsValid(t *testing.T) {
	if err := lab.Validate(); err != nil {
		t.Fatal(err)
	}
	if !nativeCIDR.Contains(neighbourIP) || nativeCIDR.Contains(dbAddr) {
		t.Errorf("the native CIDR %s must have the neighbour (%s) and not the database (%s) in it", nativeCIDR, neighbourIP, dbAddr)
	}
	for _, n := range all {
		if !podCIDR.Contains(rangeOf(n).Addr()) || rangeOf(n).Contains(neighbourIP) {
			t.Errorf("the pods of %s are in %s", n, rangeOf(n))
		}
	}
	if got := rangeOf("node2").String(); got != "10.20.30.32/27" {
		t.Errorf("node2 has %s", got)
	}
	// The node's address must be one that the grant does not cover.
	for _, n := range all {
		if podCIDR.Contains(addressOf(n)) {
			t.Errorf("%s (%s) is let in by the grant", n, addressOf(n))
		}
	}
}

func TestVariants(t *testing.T) {
	roles := map[string]framework.Role{}
	for _, v := range Scenario.Variants {
		roles[v.Name] = v.Role
		wantHurt := v.Name != oldCIDRKey.name
		if got := len(v.Script.Hurt) > 0; got != wantHurt {
			t.Errorf("%s: names the probes that would be hurt: %v", v.Name, got)
		}
		names := map[string]bool{}
		for _, p := range v.Script.Probes {
			if p.Name == "" {
				p.Name = p.From + "->" + p.To
			}
			names[p.Name] = true
		}
		for _, h := range v.Script.Hurt {
			if !names[h] {
				t.Errorf("%s: there is no probe %q", v.Name, h)
			}
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
	if _, there := common.with(off)["cluster-name"]; !there || len(common) == 0 || common["masquerade"] != "" {
		t.Error("with must add, and must not change what it adds to")
	}
}

// What config-drift says of each upgrade, from the ConfigMap alone, in time.
func TestWarnings(t *testing.T) {
	for _, d := range []drift{offByOldKey, defaultOn, translated, bothKeys, oldCIDRKey} {
		t.Run(d.name, func(t *testing.T) {
			if err := d.configDrift().Check(); err != nil {
				t.Fatal(err)
			}
			at := snapshot.Snapshot{}
			at.ConfigMaps.Read = true
			at.ConfigMaps.Items = []snapshot.ConfigMap{{Namespace: "kube-system", Name: "cilium-config", Data: d.then}}
			said := detect.Look([]detect.Detector{d.configDrift()}, []snapshot.Snapshot{at})
			if wrong := d.unwarned(said); len(wrong) > 0 {
				t.Error(strings.Join(wrong, "; "))
			}
			if got := d.unwarned(nil); len(got) != len(d.warns) {
				t.Errorf("without a word of it: %v", got)
			}
			d.warns = nil
			if got := d.unwarned(said); len(got) != len(said) {
				t.Errorf("findings that nobody expects: %v", got)
			}
		})
	}
}

func TestImageFollowsTheConfiguration(t *testing.T) {
	for want, d := range map[string]drift{"relapse.dev/cilium-bpf:v1.11.1": defaultOn, "relapse.dev/cilium-rules:v1.11.1": offByOldKey} {
		if got := (cilium{Version: d.to, Config: d.then}).Image(); got != want {
			t.Errorf("%s runs %s, want %s", d.name, got, want)
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
		{"hybrid", asked + "#define ENABLE_DSR_HYBRID 1\n", []string{"node1: ENABLE_DSR_HYBRID is defined: true"}},
		{"masquerading is off", strings.Replace(asked, "#define ENABLE_MASQUERADE 1\n", "", 1), []string{"node1: ENABLE_MASQUERADE is defined: false"}},
		{"no BPF NodePort", "#define MTU 1500\n", []string{
			"node1: ENABLE_DSR is defined: false", "node1: ENABLE_MASQUERADE is defined: false", "node1: ENABLE_NODEPORT is defined: false",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := notAsked("node1", test.header); !slices.Equal(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestGrants(t *testing.T) {
	text := grants()
	if !strings.Contains(text, "'app'@'10.20.30.0/255.255.255.128'") {
		t.Errorf("the application is not let in from the pod range:\n%s", text)
	}
	if strings.Contains(text, "'app'@'%'") {
		t.Errorf("the application is let in from everywhere:\n%s", text)
	}
}

func TestDeniedTo(t *testing.T) {
	const log = `2026-11-20 13:00:01 4 [Warning] Access denied for user 'app'@'10.20.28.12' (using password: YES)
2026-11-20 13:00:02 5 [Warning] Access denied for user 'root'@'10.20.28.12' (using password: NO)
2026-11-20 13:00:03 6 [Warning] Access denied for user 'app'@'10.20.28.120' (using password: YES)
`
	got := deniedTo(log, netip.MustParseAddr("10.20.28.12"))
	if len(got) != 1 || !strings.HasPrefix(got[0], "2026-11-20 13:00:01") {
		t.Errorf("%q", got)
	}
}

func TestManifest(t *testing.T) {
	text, err := cilium{Version: "1.11.1", Config: offByOldKey.then, Restart: "again"}.manifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`masquerade: "false"`, `native-routing-cidr: "10.20.30.0/24"`, "image: relapse.dev/cilium-rules:v1.11.1",
		`value: "10.20.28.11"`, `relapse.dev/restarted: "again"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

func TestAgent(t *testing.T) {
	const refusal = `level=info msg="Cilium" subsys=config
level=fatal msg="Failed to populate masquerading settings" error="--enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive" subsys=config`
	a := agent{pod: corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}, log: refusal}
	if a.wrote() || !strings.Contains(a.fatal(), bothKeys.refuses) {
		t.Errorf("wrote %v, fatal %q", a.wrote(), a.fatal())
	}
	a.log = `level=info msg="The iptables rules are installed" subsys=slice`
	if !a.wrote() || a.fatal() != "" {
		t.Errorf("wrote %v, fatal %q", a.wrote(), a.fatal())
	}
}

func TestMasquerade(t *testing.T) {
	saved, err := os.ReadFile("../../framework/snapshot/testdata/cilium-1.11.1-nat.iptables-save")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := snapshot.ParseRules(string(saved), snapshot.NATTable)
	if err != nil {
		t.Fatal(err)
	}
	if _, there := masquerade(rules, rangeOf("node2")); !there {
		t.Error("node2's rule is not found")
	}
	if rule, there := masquerade(rules, rangeOf("node1")); there {
		t.Errorf("%q is taken for node1's", rule.Text)
	}
	for i := range rules {
		rules[i].Destination.Range = podCIDR
	}
	if rule, there := masquerade(rules, rangeOf("node2")); there {
		t.Errorf("%q is taken for one with the native CIDR", rule.Text)
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
		if p.Name == "" {
			p.Name = p.From + "->" + p.To
		}
		line := probe.Timeline{Probe: p}
		seen, given := sources[p.Name]
		if !given && slices.Contains(all, p.From) {
			seen = []string{podOn(at, p.From).String()}
		}
		for _, s := range seen {
			line.Sources = append(line.Sources, probe.Source{Address: netip.MustParseAddr(s), First: time.Now(), Packets: 1})
		}
		lines = append(lines, line)
	}
	return &framework.Run{
		Snapshot:  func() snapshot.Snapshot { return at.Only(pods...) },
		Timelines: func() []probe.Timeline { return lines },
	}
}

func TestAppIsDenied(t *testing.T) {
	r := run(nil)
	if holds, saw, _ := appIsDenied(t.Context(), r); holds || !strings.Contains(saw, "app on node1->db") {
		t.Errorf("holds %v, %q, although nobody was turned away", holds, saw)
	}
	lines := r.Timelines()
	for i := range lines {
		if lines[i].Probe.To == dbServer {
			lines[i].Sources = append(lines[i].Sources, probe.Source{Address: addressOf(lines[i].Probe.From), Packets: 3, Denied: 3})
		}
	}
	if holds, saw, err := appIsDenied(t.Context(), r); !holds || err != nil {
		t.Errorf("%q, %v", saw, err)
	}
}

func TestOldFlowsAreHidden(t *testing.T) {
	r := run(nil)
	if hidden := hiddenFlows(r); len(hidden) != 0 {
		t.Errorf("%v are hidden, although all are seen as themselves", hidden)
	}
	r = run(map[string][]string{"node1->db": {"10.20.30.3", "10.20.28.11"}, "node2->db": {"10.20.30.35", "10.20.28.11"}})
	if hidden := hiddenFlows(r); !slices.Equal(hidden, []string{"node1"}) {
		t.Errorf("%v are hidden behind their own node, want node1", hidden)
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
		{"nobody has seen it", map[string][]string{"node1->db": {}}, "", "nobody has seen node1->db"},
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
