package configdrift

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// native is native routing without IPv6, as in the incident's cluster.
func native(more map[string]string) map[string]string {
	config := map[string]string{"ipam": "kubernetes", "tunnel": "disabled", "enable-ipv4": "true", "enable-ipv6": "false"}
	maps.Copy(config, more)
	return config
}

// brief is what tests compare of a Drift, beside its sentence.
type brief struct {
	Key           string
	Kind          Kind
	Before, After string
}

func TestCompare(t *testing.T) {
	const cidr = "10.20.30.0/24"
	oldKeys := native(map[string]string{"masquerade": "false", "native-routing-cidr": cidr})
	newKeys := native(map[string]string{"enable-ipv4-masquerade": "false", "ipv4-native-routing-cidr": cidr})
	for _, tt := range []struct {
		name     string
		from, to string
		config   map[string]string
		then     map[string]string // what the new version finds, if it is not the same
		want     []brief           // without keys that are neither set nor about masquerading
		says     string            // of the first
	}{
		{
			name: "off by the old key", from: "v1.8.1", to: "v1.11.1", config: oldKeys,
			want: []brief{
				{"masquerade", NotRead, "false", "true"},
				{"native-routing-cidr", Deprecated, cidr, cidr},
			},
			says: `masquerade is set to "false", which 1.11.1 does not read; there enable-ipv4-masquerade has effect, and is not set: false with 1.8.1, true with 1.11.1.`,
		},
		{
			name: "translated before the upgrade", from: "1.8.1", to: "1.11.1", config: oldKeys, then: newKeys,
			want: []brief{
				{"enable-ipv4-masquerade", NewlyRead, "false", "false"},
				{"ipv4-native-routing-cidr", NewlyRead, cidr, cidr},
			},
			says: `enable-ipv4-masquerade is set to "false", which 1.8.1 does not read and 1.11.1 does: false, as before.`,
		},
		{
			name: "the new keys, and the old version has always had them", from: "1.8.1", to: "1.11.1", config: newKeys,
			want: []brief{
				{"enable-ipv4-masquerade", NewlyRead, "true", "false"},
				{"ipv4-native-routing-cidr", NewlyRead, "", cidr},
			},
		},
		{
			name: "old and new keys, agreeing", from: "1.8.1", to: "1.11.1",
			config: native(map[string]string{"masquerade": "false", "enable-ipv4-masquerade": "false", "native-routing-cidr": cidr}),
			want: []brief{
				{"masquerade", NotRead, "false", "false"},
				{"enable-ipv4-masquerade", NewlyRead, "false", "false"},
				{"native-routing-cidr", Deprecated, cidr, cidr},
			},
			says: `masquerade is set to "false", which 1.11.1 does not read; there enable-ipv4-masquerade has effect, and is set to "false": false, as before.`,
		},
		{
			name: "old and new keys, 1.10", from: "1.8.1", to: "1.10.0",
			config: native(map[string]string{"masquerade": "false", "enable-ipv4-masquerade": "false", "native-routing-cidr": cidr}),
			want: []brief{
				{"enable-ipv4-masquerade", Conflict, "false", Refused},
				{"masquerade", Conflict, "false", Refused},
			},
			says: `enable-ipv4-masquerade is set to "false", and masquerade to "false": 1.10.0 does not start with both ` +
				`("Failed to populate masquerading settings: --enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive").`,
		},
		{
			name: "the old name of the native CIDR, 1.12", from: "1.11.1", to: "1.12.0",
			config: native(map[string]string{"native-routing-cidr": cidr}),
			want: []brief{
				{"ipv4-native-routing-cidr", Missing, cidr, Refused},
				{"native-routing-cidr", NotRead, cidr, ""},
			},
		},
		{
			name: "the same, with masquerading off", from: "1.11.1", to: "1.12.0",
			config: native(map[string]string{"native-routing-cidr": cidr, "enable-ipv4-masquerade": "false"}),
			want:   []brief{{"native-routing-cidr", NotRead, cidr, ""}},
			says:   `native-routing-cidr is set to "10.20.30.0/24", which 1.12.0 does not read; there ipv4-native-routing-cidr has effect, and is not set: 10.20.30.0/24 with 1.11.1, nothing with 1.12.0.`,
		},
		{
			name: "a slip of the pen", from: "1.11.1", to: "1.12.0",
			config: native(map[string]string{"enable-ipv4-masquerad": "false", "ipv4-native-routing-cidr": cidr}),
			want:   []brief{{"enable-ipv4-masquerad", Unknown, "", ""}},
			says:   `enable-ipv4-masquerad is set to "false", which neither 1.11.1 nor 1.12.0 reads; the nearest key that 1.12.0 reads is enable-ipv4-masquerade.`,
		},
		{
			name: "a key of another version", from: "1.11.1", to: "1.12.0",
			config: native(map[string]string{"masquerade": "false", "ipv4-native-routing-cidr": cidr}),
			want:   []brief{{"masquerade", Unknown, "", ""}},
			says:   `masquerade is set to "false", which neither 1.11.1 nor 1.12.0 reads, but 1.8.1, 1.8.2, 1.10.0 do.`,
		},
		{
			name: "a switch that is none", from: "1.10.0", to: "1.11.1",
			config: native(map[string]string{"enable-ipv4-masquerade": "nein", "native-routing-cidr": cidr}),
			want: []brief{
				{"enable-ipv4-masquerade", BadValue, "false", Refused},
				{"native-routing-cidr", Deprecated, cidr, cidr},
			},
			says: `enable-ipv4-masquerade is set to "nein", which is not of type bool: false with 1.10.0, and 1.11.1 does not start.`,
		},
		{
			name: "an empty switch", from: "1.11.1", to: "1.12.0",
			config: native(map[string]string{"enable-ipv4-masquerade": "", "ipv4-native-routing-cidr": cidr}),
			want:   []brief{{"enable-ipv4-masquerade", BadValue, "false", Refused}},
			says:   `enable-ipv4-masquerade is set to "", which is not of type bool: false with 1.11.1, and 1.12.0 does not start.`,
		},
		{name: "no change of version", from: "1.11.1", to: "1.11.1", config: newKeys},
		{
			name: "back again", from: "1.11.1", to: "1.8.1", config: newKeys,
			want: []brief{
				{"native-routing-cidr", Missing, cidr, Refused},
				{"enable-ipv4-masquerade", NotRead, "false", "true"},
				{"ipv4-native-routing-cidr", NotRead, cidr, ""},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			then := tt.config
			if tt.then != nil {
				then = tt.then
			}
			drifts, err := Cilium().Compare(Setup{tt.from, tt.config}, Setup{tt.to, then})
			if err != nil {
				t.Fatal(err)
			}
			var got []brief
			var first string
			for _, d := range drifts {
				if _, set := then[d.Key]; d.Kind == DefaultChanged && !set && !strings.Contains(d.Key, "ipv4-masquerade") && !strings.Contains(d.Key, "native-routing") {
					continue
				}
				if first == "" {
					first = d.Says
				}
				got = append(got, brief{d.Key, d.Kind, d.Before, d.After})
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tt.says != "" && first != tt.says {
				t.Errorf("says  %s\nwants %s", first, tt.says)
			}
		})
	}
}

// TestDefaultChanged looks at keys that nobody has set.
func TestDefaultChanged(t *testing.T) {
	drifts, err := Cilium().Compare(Setup{"1.8.1", nil}, Setup{"1.11.1", nil})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]brief{}
	for _, d := range drifts {
		if d.Kind != DefaultChanged {
			t.Errorf("nothing is set, and yet %+v", d)
		}
		got[d.Key] = brief{d.Key, d.Kind, d.Before, d.After}
	}
	want := brief{"ipam", DefaultChanged, "hostscope-legacy", "cluster-pool"}
	if got["ipam"] != want {
		t.Errorf("got %+v, want %+v", got["ipam"], want)
	}
	if _, ok := got["enable-ipv4-masquerade"]; ok {
		t.Error("masquerading was on by default under its old name, too")
	}
}

func TestUnknownVersion(t *testing.T) {
	for _, tt := range []struct{ version, nearest string }{
		{"1.11.9", "1.11.6"}, {"v1.9.4", "1.8.2"}, {"1.10.5", "1.10.0"}, {"1.16.1", "1.12.0"}, {"2", "1.12.4"}, {"nonsense", "1.8.1"}, {"", "1.8.1"},
	} {
		for _, pair := range [][2]string{{tt.version, "1.11.1"}, {"1.11.1", tt.version}} {
			_, err := Cilium().Compare(Setup{pair[0], nil}, Setup{pair[1], nil})
			var unknown *UnknownVersionError
			if !errors.As(err, &unknown) {
				t.Fatalf("%q: error %v", tt.version, err)
			}
			if unknown.Nearest != tt.nearest || !strings.Contains(err.Error(), "1.8.1, 1.8.2") {
				t.Errorf("%q: %v; the nearest is %s", tt.version, err, tt.nearest)
			}
		}
	}
}

func TestDetector(t *testing.T) {
	config := native(map[string]string{"masquerade": "false", "native-routing-cidr": "10.20.30.0/24"})
	d := Detector{
		Before: Setup{"1.8.1", config}, Version: "1.11.1", ConfigMap: "kube-system/cilium-config",
	}
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	with := func(data map[string]string) []snapshot.Snapshot {
		s := snapshot.Snapshot{}
		s.ConfigMaps.Read = true
		s.ConfigMaps.Items = []snapshot.ConfigMap{{Namespace: "kube-system", Name: "cilium-config", Data: data}}
		return []snapshot.Snapshot{s}
	}
	look := func(history []snapshot.Snapshot) []detect.Finding { return detect.Run([]detect.Detector{d}, history) }
	expect := func(data map[string]string, want ...string) {
		t.Helper()
		var got []string
		for _, f := range look(with(data)) {
			got = append(got, fmt.Sprintf("%s: %s %s", f.Object, f.State, f.Kind))
			if f.Says == "" || f.Detector != "config-drift" {
				t.Errorf("%+v", f)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	expect(config, "ConfigMap kube-system/cilium-config, masquerade: latent not-read",
		"ConfigMap kube-system/cilium-config, native-routing-cidr: hint deprecated")
	expect(native(map[string]string{"masquerade": "false", "enable-ipv4-masquerade": "false", "ipv4-native-routing-cidr": "10.20.30.0/24"}),
		"ConfigMap kube-system/cilium-config, masquerade: hint not-read",
		"ConfigMap kube-system/cilium-config, enable-ipv4-masquerade: hint newly-read",
		"ConfigMap kube-system/cilium-config, ipv4-native-routing-cidr: hint newly-read")
	if found := look([]snapshot.Snapshot{{}}); found != nil {
		t.Errorf("without the ConfigMap: found %+v", found)
	}
	if found := d.Detect(nil); found != nil {
		t.Errorf("without a snapshot: found %+v", found)
	}
	d.Version = "1.99"
	if err := d.Check(); err == nil {
		t.Error("no error for a version that is not in the table")
	}
}

// FuzzCompare: whatever a ConfigMap says, there is an answer.
func FuzzCompare(f *testing.F) {
	f.Add("masquerade", "false")
	f.Add("", "")
	f.Add("ipam\x00", "\xff")
	f.Fuzz(func(t *testing.T, key, value string) {
		for _, d := range must(Cilium().Compare(Setup{"1.8.1", native(nil)}, Setup{"1.12.0", native(map[string]string{key: value})})) {
			if d.Says == "" || d.Kind == "" {
				t.Errorf("%q=%q: %+v", key, value, d)
			}
		}
	})
}

func must(drifts []Drift, err error) []Drift {
	if err != nil {
		panic(err)
	}
	return drifts
}

// BenchmarkCompare judges a ConfigMap of a hundred keys, unknown ones among
// them: those take longest. The budget is 50 ms.
func BenchmarkCompare(b *testing.B) {
	config := map[string]string{}
	for key, versions := range Cilium().Keys {
		if o, ok := versions["1.8.1"]; ok && len(config) < 80 {
			config[key] = o.Default
		}
	}
	for i := range 20 {
		config["enable-nothing-of-the-kind-"+string(rune('a'+i))] = "true"
	}
	for b.Loop() {
		must(Cilium().Compare(Setup{"1.8.1", config}, Setup{"1.12.0", config}))
	}
}
