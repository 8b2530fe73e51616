package configdrift

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// keys is a ConfigMap of keys, each followed by its value.
func keys(all ...string) map[string]string {
	config := map[string]string{}
	for pair := range slices.Chunk(all, 2) {
		config[pair[0]] = pair[1]
	}
	return config
}

// native is native routing without IPv6, as in the incident's cluster, and more keys.
func native(more ...string) map[string]string {
	return keys(slices.Concat([]string{"ipam", "kubernetes", "tunnel", "disabled", "enable-ipv4", "true", "enable-ipv6", "false"}, more)...)
}

type brief struct {
	Key           string
	Kind          Kind
	Before, After string
}

func TestCompare(t *testing.T) {
	const cidr = "10.20.30.0/24"
	oldKeys := native("masquerade", "false", "native-routing-cidr", cidr)
	newKeys := native("enable-ipv4-masquerade", "false", "ipv4-native-routing-cidr", cidr)
	for _, tt := range []struct {
		name     string
		from, to string
		config   map[string]string
		then     map[string]string // what the new version finds, if it is not the same
		want     []brief           // without keys that are neither set nor about masquerading
		says     string            // of the first
	}{
		{name: "off by the old key", from: "v1.8.1", to: "v1.11.1", config: oldKeys,
			want: []brief{{"masquerade", NotRead, "false", "true"}, {"native-routing-cidr", Deprecated, cidr, cidr}},
			says: `masquerade is set to "false", which 1.11.1 does not read; there enable-ipv4-masquerade has effect, and is not set: false with 1.8.1, true with 1.11.1.`},
		{name: "translated before the upgrade", from: "1.8.1", to: "1.11.1", config: oldKeys, then: newKeys,
			want: []brief{{"enable-ipv4-masquerade", NewlyRead, "false", "false"}, {"ipv4-native-routing-cidr", NewlyRead, cidr, cidr}},
			says: `enable-ipv4-masquerade is set to "false", which 1.8.1 does not read and 1.11.1 does: false, as before.`},
		{name: "the new keys, and the old version has always had them", from: "1.8.1", to: "1.11.1", config: newKeys,
			want: []brief{{"enable-ipv4-masquerade", NewlyRead, "true", "false"}, {"ipv4-native-routing-cidr", NewlyRead, "", cidr}}},
		{name: "old and new keys, agreeing", from: "1.8.1", to: "1.11.1",
			config: native("masquerade", "false", "enable-ipv4-masquerade", "false", "native-routing-cidr", cidr),
			want: []brief{
				{"masquerade", NotRead, "false", "false"},
				{"enable-ipv4-masquerade", NewlyRead, "false", "false"},
				{"native-routing-cidr", Deprecated, cidr, cidr},
			},
			says: `masquerade is set to "false", which 1.11.1 does not read; there enable-ipv4-masquerade has effect, and is set to "false": false, as before.`},
		{name: "old and new keys, 1.10", from: "1.8.1", to: "1.10.0",
			config: native("masquerade", "false", "enable-ipv4-masquerade", "false", "native-routing-cidr", cidr),
			want:   []brief{{"enable-ipv4-masquerade", Conflict, "false", Refused}, {"masquerade", Conflict, "false", Refused}},
			says: `enable-ipv4-masquerade is set to "false", and masquerade to "false": 1.10.0 does not start with both ` +
				`("Failed to populate masquerading settings: --enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive").`},
		{name: "the old name of the native CIDR, 1.12", from: "1.11.1", to: "1.12.0", config: native("native-routing-cidr", cidr),
			want: []brief{{"ipv4-native-routing-cidr", Missing, cidr, Refused}, {"native-routing-cidr", NotRead, cidr, ""}}},
		{name: "the same, with masquerading off", from: "1.11.1", to: "1.12.0",
			config: native("native-routing-cidr", cidr, "enable-ipv4-masquerade", "false"),
			want:   []brief{{"native-routing-cidr", NotRead, cidr, ""}},
			says:   `native-routing-cidr is set to "10.20.30.0/24", which 1.12.0 does not read; there ipv4-native-routing-cidr has effect, and is not set: 10.20.30.0/24 with 1.11.1, nothing with 1.12.0.`},
		{name: "a slip of the pen", from: "1.11.1", to: "1.12.0",
			config: native("enable-ipv4-masquerad", "false", "ipv4-native-routing-cidr", cidr),
			want:   []brief{{"enable-ipv4-masquerad", Unknown, "", ""}},
			says:   `enable-ipv4-masquerad is set, which neither 1.11.1 nor 1.12.0 reads; the nearest key that 1.12.0 reads is enable-ipv4-masquerade.`},
		{name: "a key of another version", from: "1.11.1", to: "1.12.0",
			config: native("masquerade", "false", "ipv4-native-routing-cidr", cidr), want: []brief{{"masquerade", Unknown, "", ""}},
			says: `masquerade is set, which neither 1.11.1 nor 1.12.0 reads, but the reference of 1.8.1 to 1.9.18 has it.`},
		{name: "a switch that is none", from: "1.10.0", to: "1.11.1",
			config: native("enable-ipv4-masquerade", "nein", "native-routing-cidr", cidr),
			want:   []brief{{"enable-ipv4-masquerade", BadValue, "false", Refused}, {"native-routing-cidr", Deprecated, cidr, cidr}},
			says:   `enable-ipv4-masquerade is set to "nein", which is not of type bool: false with 1.10.0, and 1.11.1 does not start.`},
		{name: "an empty switch", from: "1.11.1", to: "1.12.0", config: native("enable-ipv4-masquerade", "", "ipv4-native-routing-cidr", cidr),
			want: []brief{{"enable-ipv4-masquerade", BadValue, "false", Refused}},
			says: `enable-ipv4-masquerade is set to "", which is not of type bool: false with 1.11.1, and 1.12.0 does not start.`},
		{name: "no change of version", from: "1.11.1", to: "1.11.1", config: newKeys},
		{name: "a key that a version that was not asked does not read", from: "1.18.4", to: "1.19.5",
			config: keys("enable-node-port", "true", "kube-proxy-replacement", "true"),
			want:   []brief{{"enable-node-port", NotRead, "true", NotKnown}},
			says:   `enable-node-port is set to "true", which 1.19.5 does not read: true with 1.18.4, and what comes of it with 1.19.5 is not known.`},
		{name: "a text that is no switch any more", from: "1.13.0", to: "1.19.5", config: keys("kube-proxy-replacement", "strict"),
			want: []brief{{"kube-proxy-replacement", BadValue, "strict", Refused}}},
		{name: "a word that is refused", from: "1.15.19", to: "1.18.4",
			config: keys("kube-proxy-replacement", "disabled", "datapath-mode", "lb-only"),
			want:   []brief{{"datapath-mode", BadValue, "lb-only", Refused}, {"kube-proxy-replacement", BadValue, "disabled", Refused}},
			says:   `datapath-mode is set to "lb-only", which is none of veth, netkit, netkit-l2: lb-only with 1.15.19, and 1.18.4 does not start.`},
		{name: "a word that two asked agents read in another way", from: "1.8.2", to: "1.10.0",
			config: keys("ipam", "hostscope-legacy"), want: []brief{{"ipam", BadValue, "hostscope-legacy", Refused}}},
		{name: "a word that is gone", from: "1.14.19", to: "1.15.0", config: keys("ipam", "cluster-pool-v2beta"),
			want: []brief{{"ipam", BadValue, "cluster-pool-v2beta", Refused}}},
		{name: "a new word, back again", from: "1.14.0", to: "1.13.18", config: keys("ipam", "multi-pool"),
			want: []brief{{"ipam", BadValue, "multi-pool", Refused}}},
		{name: "a word within a minor", from: "1.12.0", to: "1.12.1", config: keys("datapath-mode", "ipvlan"),
			want: []brief{{"datapath-mode", BadValue, "ipvlan", Refused}}},
		{name: "words that stay", from: "1.16.0", to: "1.18.4",
			config: keys("datapath-mode", "veth", "ipam", "multi-pool", "routing-mode", "native", "identity-allocation-mode", "crd")},
		{name: "a word that means something else", from: "1.16.0", to: "1.17.0", config: keys("datapath-mode", "lb-only"),
			want: []brief{{"datapath-mode", Noted, "lb-only", NotKnown}}},
		{name: "a deprecated key without effect", from: "1.15.19", to: "1.16.0", config: keys("enable-runtime-device-detection", "false"),
			want: []brief{{"enable-runtime-device-detection", Deprecated, "false", "true"}}},
		{name: "the same, as the new version does anyway", from: "1.15.19", to: "1.16.0",
			config: keys("enable-runtime-device-detection", "true")},
		{name: "without effect before and after", from: "1.16.0", to: "1.16.19",
			config: keys("enable-runtime-device-detection", "false")},
		{name: "an old name", from: "1.17.17", to: "1.18.4", config: keys("node-port-mode", "dsr")},
		{name: "an old name that is gone", from: "1.19.7", to: "1.20.2", config: keys("node-port-mode", "dsr"),
			want: []brief{{"node-port-mode", NotRead, "dsr", "snat"}}},
		{name: "an old name and the new one, agreeing", from: "1.17.17", to: "1.18.4",
			config: keys("bpf-lb-mode", "dsr", "node-port-mode", "dsr"),
			want:   []brief{{"bpf-lb-mode", Conflict, "dsr", Refused}, {"node-port-mode", Conflict, "dsr", Refused}},
			says:   `bpf-lb-mode is set to "dsr", and node-port-mode to "dsr": 1.18.4 does not start with both ("both --bpf-lb-mode and --node-port-mode were set. Use --bpf-lb-mode instead.").`},
		{name: "an old name and the new one's default", from: "1.18.4", to: "1.17.17",
			config: keys("bpf-lb-mode", "snat", "node-port-mode", "dsr"),
			want:   []brief{{"bpf-lb-mode", Conflict, "dsr", Refused}, {"node-port-mode", Conflict, "dsr", Refused}}},
		{name: "a deprecated key", from: "1.18.4", to: "1.19.5", config: keys("encryption-strict-mode-cidr", "10.0.0.0/8"),
			want: []brief{{"encryption-strict-mode-cidr", Deprecated, "10.0.0.0/8", "10.0.0.0/8"}}},
		{name: "an empty number, of which no agent was asked", from: "1.18.4", to: "1.19.5", config: keys("mtu", ""),
			want: []brief{{"mtu", BadValue, NotKnown, NotKnown}},
			says: `mtu is set to "", which is not of type int; what comes of it is not known.`},
		{name: "the operator's key", from: "1.18.4", to: "1.19.5", config: keys("unmanaged-pod-watcher-interval", "15"),
			want: []brief{{"unmanaged-pod-watcher-interval", BadValue, "15", NotKnown}}},
		{name: "a key without a flag that the code asks for", from: "1.18.4", to: "1.18.5",
			config: keys("enable-source-ip-verification", "false")},
		{name: "a key of no version", from: "1.18.4", to: "1.19.5", config: keys("enable-nodes-port", "true"),
			want: []brief{{"enable-nodes-port", Unknown, "", ""}}},
		{name: "back again", from: "1.11.1", to: "1.8.1", config: newKeys, want: []brief{
			{"native-routing-cidr", Missing, cidr, Refused},
			{"enable-ipv4-masquerade", NotRead, "false", "true"},
			{"ipv4-native-routing-cidr", NotRead, cidr, ""},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			then := tt.config
			if tt.then != nil {
				then = tt.then
			}
			var got []brief
			var first string
			for _, d := range must.Get(Cilium().Compare(Setup{tt.from, tt.config}, Setup{tt.to, then}))(t) {
				if _, set := then[d.Key]; d.Kind == DefaultChanged && !set && !strings.Contains(d.Key, "ipv4-masquerade") && !strings.Contains(d.Key, "native-routing") {
					continue
				}
				first = cmp.Or(first, d.Says)
				got = append(got, brief{d.Key, d.Kind, d.Before, d.After})
			}
			must.Equal(t, "", tt.want, got)
			if first, _, _ = strings.Cut(first, " Upgrade notes of "); tt.says != "" && first != tt.says {
				t.Errorf("says  %s\nwants %s", first, tt.says)
			}
		})
	}
}

// TestMustChange has what the owners of a cluster had to change at upgrades from 1.11 to 1.14, and what
// they need not have looked at.
func TestMustChange(t *testing.T) {
	config := map[string]string{
		"ipam": "cluster-pool", "tunnel": "disabled", "enable-ipv4-masquerade": "false", "devices": "eth+", "bpf-lb-mode": "dsr",
		"cluster-id": "", "enable-host-reachable-services": "true", "bpf-lb-sock-hostns-only": "true", "install-iptables-rules": "true",
		"kube-proxy-replacement": "partial", "tofqdns-min-ttl": "1800", "disable-cnp-status-updates": "true", "custom-cni-conf": "true",
		"cni-chaining-mode": "generic-veth", "annotate-k8s-node": "true", "enable-session-affinity": "true", "nodes-gc-interval": "5m0s",
	}
	for _, tt := range []struct {
		from, to string
		want     []brief // without keys that are not set
	}{
		{"1.11.6", "1.12.4", []brief{
			{"cluster-id", BadValue, "0", Refused},
			{"enable-host-reachable-services", Deprecated, "true", "true"},
		}},
		{"1.12.11", "1.13.7", []brief{
			{"cluster-id", BadValue, Refused, NotKnown},
			{"enable-host-reachable-services", NotRead, "true", "false"},
		}},
		{"1.13.16", "1.14.14", []brief{
			{"cluster-id", BadValue, NotKnown, NotKnown},
			{"disable-cnp-status-updates", Deprecated, "true", "true"},
			{"tunnel", Deprecated, "disabled", "disabled"},
			{"kube-proxy-replacement", Noted, "partial", "partial"},
			{"tofqdns-min-ttl", Noted, "1800", NotKnown},
			{"enable-host-reachable-services", Unknown, "", ""},
		}},
		{"1.14.14", "1.15.0", []brief{
			{"cluster-id", BadValue, NotKnown, NotKnown},
			{"disable-cnp-status-updates", NotRead, "true", NotKnown},
			{"tunnel", NotRead, "native", "tunnel"},
			{"enable-host-reachable-services", Unknown, "", ""},
		}},
	} {
		t.Run(tt.from+" to "+tt.to, func(t *testing.T) {
			var got []brief
			for _, d := range must.Get(Cilium().Compare(Setup{tt.from, config}, Setup{tt.to, config}))(t) {
				if _, set := config[d.Key]; set {
					got = append(got, brief{d.Key, d.Kind, d.Before, d.After})
				}
			}
			must.Equal(t, "", tt.want, got)
		})
	}
}

// TestDefaultChanged looks at keys that nobody has set.
func TestDefaultChanged(t *testing.T) {
	got := map[string]brief{}
	for _, d := range must.Get(Cilium().Compare(Setup{"1.8.1", nil}, Setup{"1.11.1", nil}))(t) {
		must.Equal(t, d, DefaultChanged, d.Kind)
		got[d.Key] = brief{d.Key, d.Kind, d.Before, d.After}
	}
	must.Equal(t, "", brief{"ipam", DefaultChanged, "hostscope-legacy", "cluster-pool"}, got["ipam"])
	must.Equal(t, "masquerading was on by default under its old name, too", brief{}, got["enable-ipv4-masquerade"])
	for _, d := range must.Get(Cilium().Compare(Setup{"1.17.17", nil}, Setup{"1.18.4", nil}))(t) {
		must.Equal(t, "an old name without a default of its own", false, d.Key == "node-port-mode" || d.Key == "bpf-lb-mode")
	}
}

// What words a version takes is known of the minors that were read, and each list begins at a version of the table.
func TestWords(t *testing.T) {
	must.Equal(t, "words of a minor that nobody has read", nil, words("ipam", "1.21.0"))
	for _, w := range wordings {
		o, read := Cilium().option(must.Get(Cilium().find(w.from))(t), w.key)
		yes, _ := takes(w.key, w.from, o, o.Default)
		must.Equal(t, w.key+" from "+w.from+" on is read, and takes the default", [3]any{true, "string", true}, [3]any{read, o.Type, yes})
	}
}

// Each new name is a key of the version from which on the old one is retired.
func TestRetiredKeys(t *testing.T) {
	for key, r := range retiredKeys {
		if _, there := must.Get(Cilium().find(r.deprecated))(t).Keys[r.now]; r.now != "" && !there {
			t.Errorf("%s: %s has no key %s", key, r.deprecated, r.now)
		}
		for _, version := range []string{r.deprecated, cmp.Or(r.gone, r.deprecated)} {
			if o, visible := must.Get(Cilium().find(version))(t).Keys[key]; visible && o.Type != OfChart {
				t.Errorf("%s is in the reference of %s", key, version)
			}
		}
	}
}

// What is written is read again, and what is no table is an error with its line.
func TestParse(t *testing.T) {
	a, b := Option{Type: "bool", Default: "false"}, Option{Type: "string", Default: "two words"}
	note := Note{[]string{"old", "older"}, "The `old` and `older` flags have been removed."}
	table := new(Table).With(
		Reference{Version: "1.2.0", Keys: map[string]Option{"a": b, "c": {Type: OfChart}}, Notes: []Note{note}},
		Reference{Version: "1.1.0", Keys: map[string]Option{"a": a, "b": b, "old": a}},
	)
	const text = `1.1.0
a bool false
b string two words
old bool false
1.2.0
a string two words
c -
-b
-old
*old,older The ` + "`old` and `older`" + ` flags have been removed.
`
	must.Equal(t, "written", text, table.String())
	must.Equal(t, "read", text, must.Get(Parse("# a comment\n"+text))(t).String())
	for _, wrong := range []string{"a bool false\n", "1.1.0\na\n"} {
		must.Fail(t, must.Err(Parse(wrong)), "line ")
	}
}

// A version that is not listed has the keys of the last one of its minor before it.
func TestVersions(t *testing.T) {
	keys := func(key string) map[string]Option { return map[string]Option{key: {Type: "bool"}} }
	table := new(Table).With(
		Reference{Version: "1.9.0", Keys: keys("a")}, Reference{Version: "1.10.2", Keys: keys("b")}, Reference{Version: "1.10.10", Keys: keys("c")})
	for version, want := range map[string]string{"v1.9.7": "a", "1.10.0": "b", "1.10.9": "b", "1.10.5": "c", "1.10.10": "c", "1.10.99": "c", "1.10.11-rc.1": "c"} {
		r, err := table.find(version)
		if _, there := r.Keys[want]; err != nil || !there || r.Version != strings.TrimPrefix(version, "v") {
			t.Errorf("%s: %+v, %v; want %s", version, r, err, want)
		}
	}
	for _, version := range []string{"1.8.9", "1.11.0", "2", "nonsense", ""} {
		_, err := table.Compare(Setup{"1.9.0", nil}, Setup{version, nil})
		if unknown := (*UnknownVersionError)(nil); !errors.As(err, &unknown) || !strings.Contains(err.Error(), "1.9, 1.10") {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestDetector(t *testing.T) {
	config := native("masquerade", "false", "native-routing-cidr", "10.20.30.0/24")
	d := Detector{Before: Setup{"1.8.1", config}, Version: "1.11.1", ConfigMap: "kube-system/cilium-config"}
	with := func(data map[string]string) []snapshot.Snapshot {
		configMaps := []snapshot.ConfigMap{{Namespace: "kube-system", Name: "cilium-config", Data: data}}
		return []snapshot.Snapshot{{ConfigMaps: snapshot.List[snapshot.ConfigMap]{Read: true, Items: configMaps}}}
	}
	look := func(history []snapshot.Snapshot) []detect.Finding { return detect.Run([]detect.Detector{d}, history) }
	expect := func(data map[string]string, want ...string) {
		t.Helper()
		must.Equal(t, "found", want, each.Of(look(with(data)), func(f detect.Finding) string {
			if f.Says == "" || f.Detector != "config-drift" {
				t.Errorf("%+v", f)
			}
			return fmt.Sprintf("%s: %s %s", f.Object, f.State, f.Kind)
		}))
	}
	expect(config, "ConfigMap kube-system/cilium-config, masquerade: latent not-read",
		"ConfigMap kube-system/cilium-config, native-routing-cidr: hint deprecated")
	expect(native("masquerade", "false", "enable-ipv4-masquerade", "false", "ipv4-native-routing-cidr", "10.20.30.0/24"),
		"ConfigMap kube-system/cilium-config, masquerade: hint not-read",
		"ConfigMap kube-system/cilium-config, enable-ipv4-masquerade: hint newly-read",
		"ConfigMap kube-system/cilium-config, ipv4-native-routing-cidr: hint newly-read")
	// What neither version takes is set in another way where the older one runs, or it does not run.
	d = Detector{Before: Setup{"1.16.0", map[string]string{"ipam": "hostscope-legacy"}}, Version: "1.16.19", ConfigMap: d.ConfigMap}
	expect(d.Before.Config, "ConfigMap kube-system/cilium-config, ipam: latent bad-value")
	must.Equal(t, "without the ConfigMap", nil, look([]snapshot.Snapshot{{}}))
	must.Equal(t, "without a snapshot", nil, look(nil))
}

func FuzzCompare(f *testing.F) {
	f.Add("masquerade", "false")
	f.Add("", "")
	f.Add("ipam\x00", "\xff")
	f.Fuzz(func(t *testing.T, key, value string) {
		for _, d := range must.Get(Cilium().Compare(Setup{"1.8.1", native()}, Setup{"1.12.0", native(key, value)}))(t) {
			must.Equal(t, d, false, d.Says == "" || d.Kind == "")
		}
	})
}

// BenchmarkCompare judges a ConfigMap of a hundred keys. Unknown keys are among them, because these take longest. The
// budget is 50 ms.
func BenchmarkCompare(b *testing.B) {
	config := map[string]string{}
	for key, o := range must.Get(Cilium().find("1.8.1"))(b).Keys {
		if len(config) < 80 {
			config[key] = o.Default
		}
	}
	for i := range 20 {
		config["enable-nothing-of-the-kind-"+string(rune('a'+i))] = "true"
	}
	for b.Loop() {
		must.Get(Cilium().Compare(Setup{"1.8.1", config}, Setup{"1.12.0", config}))(b)
	}
}

// TestUpgradesOfCharts judges the ConfigMaps that the vendor's charts render from their own default
// values. TestConfigMaps, a lab test, makes them again.
func TestUpgradesOfCharts(t *testing.T) {
	for _, tt := range []struct{ from, to string }{{"1.18.4", "1.19.5"}, {"1.11.6", "1.19.5"}} {
		t.Run(tt.from+" to "+tt.to, func(t *testing.T) {
			text := must.Read(t, filepath.Join("testdata", tt.from+".yaml"))
			var config map[string]string
			must.NoError(t, yaml.Unmarshal(text, &config))
			var got strings.Builder
			for _, d := range must.Get(Cilium().Compare(Setup{tt.from, config}, Setup{tt.to, config}))(t) {
				state := map[bool]string{true: "latent", false: "hint"}[d.Changed()]
				fmt.Fprintf(&got, "%s %s (%s)\n  %s\n", state, d.Kind, d.Key, d.Says)
			}
			goldentest.Compare(t, tt.from+"-"+tt.to+".golden", got.String())
		})
	}
}
