package masqueradedrift

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

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
			config := []snapshot.ConfigMap{{Namespace: "kube-system", Name: "cilium-config", Data: d.then}}
			at := snapshot.Snapshot{ConfigMaps: snapshot.List[snapshot.ConfigMap]{Read: true, Items: config}}
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

// run makes a run in which far ends have seen probes from these addresses.
func run(sources map[string][]string) *framework.Run {
	at := snapshot.Snapshot{}
	at.Pods.Items = []snapshot.Pod{
		{Name: "probe-node1", Node: "node1", IP: netip.MustParseAddr("10.20.30.3")},
		{Name: "probe-node2", Node: "node2", IP: netip.MustParseAddr("10.20.30.35")},
	}
	var lines []probe.Timeline
	for _, p := range offByOldKey.script(framework.Affected).Probes {
		line := probe.Timeline{Record: probe.Record{Probe: p}}
		seen, given := sources[p.Name]
		if !given && slices.Contains(nodes, p.From) {
			seen = []string{map[string]string{node1: "10.20.30.3", node2: "10.20.30.35"}[p.From]}
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

// answer is what a check says.
func answer(holds bool, saw string, err error) string {
	return fmt.Sprintf("%t %q %v", holds, saw, err)
}

func TestFlowsAreHidden(t *testing.T) {
	for _, test := range []struct {
		name    string
		sources map[string][]string
		saw     string // empty: they are
	}{
		{"as themselves", nil, "node1->db is not seen as 10.20.28.11; node2->db is not seen as 10.20.28.12"},
		{"one behind another node", map[string][]string{"node1->db": {"10.20.30.3", "10.20.28.11"}, "node2->db": {"10.20.30.35", "10.20.28.11"}},
			"node2->db is not seen as 10.20.28.12"},
		{"both", map[string][]string{"node1->db": {"10.20.28.11"}, "node2->db": {"10.20.28.12"}}, ""},
	} {
		must.Equal(t, test.name, answer(test.saw == "", test.saw, nil), answer(flowsAreHidden(t.Context(), run(test.sources))))
	}
	none := &framework.Run{Topology: lab, Timelines: func() []probe.Timeline { return nil }}
	holds, _, _ := flowsAreHidden(t.Context(), none)
	must.Equal(t, "holds without a flow", false, holds)
}

func TestSeenAs(t *testing.T) {
	for _, test := range []struct {
		name    string
		sources map[string][]string
		to      []string
		saw     string // empty: it holds
	}{
		{"as they are", nil, []string{neighbourServer.Name, node1, node2}, ""},
		{"the database sees a node", map[string][]string{"node2->db": {"10.20.30.35", "10.20.28.12"}}, []string{db.Name}, "node2->db is seen as 10.20.28.12"},
		{"no packet arrived", map[string][]string{"node1->db": {}}, []string{db.Name}, "node1->db did not arrive"},
		{"another endpoint's", map[string][]string{"node2->db": {"10.20.28.12"}}, []string{node1, node2}, ""},
		{"no probe", nil, []string{"nowhere"}, "no such probe runs"},
	} {
		must.Equal(t, test.name, answer(test.saw == "", test.saw, nil), answer(seenAs(test.to...)(t.Context(), run(test.sources))))
	}
}
