package verdict

import (
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/must"
)

// A fact names the steps as a run does.
func TestFactText(t *testing.T) {
	up := framework.Check{ID: "up", Name: "all links are up"}
	s := framework.Scenario{Variants: []framework.Variant{
		{Name: "old", Role: framework.Affected, Script: func() framework.Script {
			return framework.Script{
				Baseline: []framework.Check{up}, Impacted: []probe.Probe{{From: "a", To: "b"}},
				Expected: []framework.Finding{{Detector: "said", Kind: "lost"}}, Observe: time.Second,
				Remedies: []framework.Remedy{{ID: "route", Name: "static route", Helps: true}, {ID: "wait", Name: "wait"}},
			}
		}},
		{Name: "new", Role: framework.Fixed, Script: func() framework.Script { return framework.Script{Observe: time.Second} }},
	}}
	type fact = framework.Fact
	by := framework.By
	for want, f := range map[string]fact{
		"+ a is gone\n    old, symptom: a->b lose packets": {Says: "a is gone", By: by("old", framework.StepSymptom)},
		"+ a was reached\n    old, before: all links are up\n    new, no probe loses packets for at least 1s from the fault, and there is no active finding for 5s": {
			Says: "a was reached", By: by("old", framework.StepBefore(up.ID)).And("new", framework.StepObserve)},
		"+ it helps\n    old, remedy: static route\n    old, ineffective remedy: wait":                   {Says: "it helps", By: by("old", framework.StepRemedy("route"), framework.StepRemedy("wait"))},
		"- it rained\n    not asserted: no step reads the weather":                                       {Says: "it rained", Not: "no step reads the weather"},
		"+ a is gone\n    old, detectors report the expected finding\n    only in part: b is not probed": {Says: "a is gone", By: by("old", framework.StepFindings), Not: "b is not probed"},
		"+ a is gone\n    old, after/anything\n    gone, after/anything":                                 {Says: "a is gone", By: by("old", framework.StepAfter("anything")).And("gone", framework.StepAfter("anything"))},
	} {
		must.Equal(t, "", want, FactText(s, f))
	}
}
