package framework

import (
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestExpected(t *testing.T) {
	for role, want := range map[Role]Verdict{Affected: Reproduced, Fixed: Prevented, Workaround: Prevented} {
		must.Equal(t, role, want, (Variant{Role: role}).Expected())
	}
}

func TestUnclassifiedScenario(t *testing.T) {
	s := Scenario{
		Incident:     Incident{Name: "drift", Facts: []Fact{{Says: "it drifts"}}},
		Variants:     []Variant{{Name: "old", Role: Affected}},
		MinMemoryGiB: 8, Small: &Scenario{},
		Tested: []Tested{{Name: "cilium.from", Default: "1.8.1"}, {Name: "cilium.to", Default: "1.11.1", Varied: true}},
		At: func(versions map[string]string) Variant {
			return Variant{Name: versions["cilium.from"] + " to " + versions["cilium.to"], Role: Fixed, Refused: true}
		},
	}
	for _, test := range []struct {
		name   string
		chosen map[string]string
		want   string // the variant's name, or the error
	}{
		{"the defaults", nil, "1.8.1 to 1.11.1"},
		{"both", map[string]string{"cilium.from": "1.8.2", "cilium.to": "1.12.0-rc1"}, "1.8.2 to 1.12.0-rc1"},
		{"the component's name is the varied one", map[string]string{"cilium": "1.12.0"}, "1.8.1 to 1.12.0"},
		{"twice", map[string]string{"cilium": "1.12.0", "cilium.to": "1.12.0"}, "cilium and cilium.to are the same: choose one version"},
		{"another component", map[string]string{"cillium.to": "1.12.0"}, `scenario "drift" tests no component "cillium.to"; nearest is "cilium.to"`},
		{"no version", map[string]string{"cilium.to": "1.12"}, `cilium.to: "1.12" is no version: expected one such as 1.11.1`},
		{"a v before it", map[string]string{"cilium.to": "v1.12.0"}, `cilium.to: "v1.12.0" is no version: expected one such as 1.11.1`},
	} {
		t.Run(test.name, func(t *testing.T) {
			u, err := s.Unclassified(test.chosen)
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = u.Variants[0].Name
				if v := u.Variants[0]; len(u.Variants) != 1 || v.Role != Unclassified || v.Expected() != "" || u.MinMemoryGiB != 0 || u.Small != nil {
					t.Errorf("%+v", u)
				}
			}
			must.Equal(t, "", test.want, got)
		})
	}
}
