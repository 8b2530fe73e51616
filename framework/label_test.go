package framework

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// labelled has a variant with a guest for itself, and one without.
func labelled() Scenario {
	return Scenario{
		Incident: Incident{Name: "drain"}, Labels: []Label{"bgp"}, Slow: true,
		Tested: []Tested{{Name: "cilium.from"}, {Name: "cilium.to", Varied: true}},
		Topology: topology.Topology{Clusters: []topology.Cluster{{Nodes: []topology.Node{
			{Name: "master"}, {Name: "edge", Kernel: "6.1"}, {Name: "other"},
		}}}},
		Variants: []Variant{
			{Name: "old", Nodes: []string{"edge"}},
			{Name: "new", Nodes: []string{"other"}, Labels: []Label{"bgp", "bpf"}},
		},
	}
}

func TestLabelsOf(t *testing.T) {
	s := labelled()
	for i, want := range []string{"bgp cilium guest slow", "bgp bpf cilium slow"} {
		must.Equal(t, s.Variants[i].Name, want, strings.Join(s.LabelsOf(s.Variants[i]), " "))
	}
}

func TestSelection(t *testing.T) {
	for _, test := range []struct{ expression, want string }{
		{"cilium", "old new"},
		{"guest", "old"},
		{"cilium && !guest", "new"},
		{"guest, bpf", "old new"},
		{"bgp && (guest || bpf)", "old new"},
		{"calico", ""},
	} {
		selection, err := ParseSelection(test.expression)
		if err != nil {
			t.Errorf("%s: %v", test.expression, err)
			continue
		}
		got := each.Of(selection.Variants(labelled()), func(v Variant) string { return v.Name })
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %q, want %q", test.expression, got, test.want)
		}
	}
	if got, _ := ParseSelection("!slow && (cilium||bgp)"); !slices.Equal(got.Words(), []string{"slow", "cilium", "bgp"}) {
		t.Errorf("words: %q", got.Words())
	}
}

func TestNoSelection(t *testing.T) {
	for expression, says := range map[string]string{
		"":            `"" is no expression of labels: expected one such as "cilium && !slow"`,
		"cilium &&":   `"cilium &&" is no expression of labels: expected one such as "cilium && !slow"`,
		"(slow":       `"(slow" is no expression of labels: expected one such as "cilium && !slow"`,
		"slow cilium": `"slow cilium" is no label: expected an expression such as "cilium && !slow"`,
		"/ci.*/":      `"/ci.*/" is no label: expected an expression such as "cilium && !slow"`,
		"Cilium":      `"Cilium" is no label: expected an expression such as "cilium && !slow"`,
	} {
		if _, err := ParseSelection(expression); err == nil || err.Error() != says {
			t.Errorf("%q: %v, want %s", expression, err, says)
		}
	}
}

func TestLabelsThatMakeNoSense(t *testing.T) {
	s := labelled()
	s.Labels = []Label{"slow", "bgp", "guest"}
	s.Variants[0].Labels = []Label{"Two Words"}
	p := &problems{found: new([]error)}
	p.labels(s)
	want := "label \"slow\": it is derived from the scenario itself\n" +
		"label \"guest\": it is derived from the scenario itself\n" +
		`variant "old": label "Two Words": want small letters and digits, with hyphens or dots between them`
	must.Equal(t, "", want, errors.Join(*p.found...).Error())
}
