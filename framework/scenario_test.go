package framework

import (
	"context"
	"errors"
	"slices"
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

func TestStepIDText(t *testing.T) {
	for text, id := range map[string]StepID{
		"symptom": StepSymptom, "before/proxy-mode": StepBefore("proxy-mode"), "remedy/static-route": StepRemedy("static-route"),
	} {
		var read StepID
		if err := read.UnmarshalText([]byte(text)); err != nil || read != id || id.String() != text {
			t.Errorf("%q is read as %v, %v; %v is written as %q", text, read, err, id, id)
		}
	}
	var id StepID
	if err := id.UnmarshalText([]byte("/route")); err == nil {
		t.Error("a step without a kind is read")
	}
}

// In order no action follows one that fails. At once it ends the others.
func TestActions(t *testing.T) {
	broken := errors.New("broken")
	fails := func(context.Context, *Run) error { return broken }
	var done []string
	notes := func(name string) Action {
		return func(context.Context, *Run) error { done = append(done, name); return nil }
	}
	if err := InOrder(notes("a"), notes("b"), fails, notes("c"))(t.Context(), nil); !errors.Is(err, broken) || !slices.Equal(done, []string{"a", "b"}) {
		t.Errorf("done %q, %v", done, err)
	}
	waits := func(ctx context.Context, _ *Run) error { <-ctx.Done(); return ctx.Err() }
	if err := AtOnce(waits, fails)(t.Context(), nil); !errors.Is(err, broken) {
		t.Errorf("%v, want the first error", err)
	}
	must.NoError(t, AtOnce()(t.Context(), nil))
}
