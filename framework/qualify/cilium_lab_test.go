//go:build lab

package qualify

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/agents"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/tabulate"
	"github.com/relapse-dev/relapse/images"
)

// The agents read the incident's ConfigMap, without a lab.
func TestAgentsAreAsked(t *testing.T) {
	catalogue, err := images.Open("../..")
	if err != nil {
		t.Fatal(err)
	}
	step := func(name string) func(error) { t.Log(name); return func(error) {} }
	for _, test := range []struct {
		name, from, to string
		data           map[string]string
		refuses        string // what the new version says
		drift          configdrift.Drift
	}{
		{
			"the incident's", "1.8.1", "1.11.1", map[string]string{"masquerade": "false"}, "",
			configdrift.Drift{Key: "masquerade", Kind: configdrift.NotRead, Decides: "enable-ipv4-masquerade", Before: "false", After: "true"},
		},
		{
			"an old key for the native CIDR", "1.11.1", "1.12.0", map[string]string{}, "native routing cidr must be configured",
			configdrift.Drift{Key: "native-routing-cidr", Kind: configdrift.NotRead, Decides: "ipv4-native-routing-cidr", Before: "10.20.30.0/24"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.data["tunnel"], test.data["enable-ipv6"], test.data["native-routing-cidr"] = "disabled", "false", "10.20.30.0/24"
			in := Inputs{From: test.from, To: test.to}
			c, err := ciliumReader{}.Read(t.Context(), catalogue, in, ConfigMap{Name: "cilium-config", Data: test.data}, step)
			if err != nil || c.NotAsked != "" || c.RefusedFrom != "" || !strings.Contains(c.RefusedTo, test.refuses) || (c.RefusedTo == "") != (test.refuses == "") {
				t.Fatalf("%v, %+v", err, c)
			}
			found := false
			for _, d := range c.Drifts {
				d.Says = ""
				found = found || d == test.drift
			}
			if !found {
				t.Errorf("%+v is not among %+v", test.drift, c.Drifts)
			}
			t.Logf("%d fields differ: %v", len(c.Effective), c.Effective)
		})
	}
}

// A table that was made for two versions on demand agrees with the one that go generate
// made for all.
func TestTableOnDemand(t *testing.T) {
	catalogue, err := images.Open("../..")
	if err != nil {
		t.Fatal(err)
	}
	built, err := agents.Build(t.Context(), catalogue, t.TempDir(), []string{"1.8.1", "1.11.1"})
	if err != nil {
		t.Fatal(err)
	}
	others := *configdrift.Cilium().OfAgents()
	others.Versions = slices.DeleteFunc(slices.Clone(others.Versions), func(v configdrift.Version) bool { return v.Version == "1.8.1" || v.Version == "1.11.1" })
	table, err := tabulate.Cilium(t.Context(), catalogue, built, &others, func(version string) { t.Log("asking", version) })
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]map[string]string{
		"the old keys": {"tunnel": "disabled", "enable-ipv6": "false", "masquerade": "false", "native-routing-cidr": "10.20.30.0/24"},
		"the new keys": {"tunnel": "disabled", "enable-ipv6": "false", "enable-ipv4-masquerade": "false", "ipv4-native-routing-cidr": "10.20.30.0/24"},
		"nothing":      {},
	} {
		compare := func(t *configdrift.Table) ([]configdrift.Drift, error) {
			return t.Compare(configdrift.Setup{Version: "1.8.1", Config: data}, configdrift.Setup{Version: "1.11.1", Config: data})
		}
		got, err := compare(table)
		if err != nil {
			t.Fatal(err)
		}
		want, err := compare(configdrift.Cilium().OfAgents())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-go generate +on demand):\n%s", name, diff)
		}
	}
}
