package verdict

import (
	"errors"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestJudge(t *testing.T) {
	bothDirections := []string{"outside->a", "a->outside"}
	for _, test := range []struct {
		name string
		saw  observation
		want framework.Verdict
		why  string
	}{
		{"the symptom, and a detector that names it", observation{expected: bothDirections, impacted: bothDirections, active: 1},
			framework.Reproduced, "outside->a, a->outside lost packets, and detectors reported why"},
		{"the symptom, and no detector reports it", observation{expected: bothDirections, impacted: bothDirections},
			framework.Missed, "outside->a, a->outside lost packets, and no detector reported why"},
		{"no loss, no alarm", observation{expected: bothDirections},
			framework.Prevented, "no probe lost packets, and there was no active finding"},
		{"no loss, but an alarm", observation{expected: bothDirections, active: 2},
			framework.Unknown, "there is an active finding, but no probe lost packets"},
		{"the symptom, and another finding than the named one",
			observation{expected: bothDirections, impacted: bothDirections, active: 1, missing: "said: active lost a"},
			framework.Missed, "outside->a, a->outside lost packets, and no detector reported said: active lost a"},
		{"the symptom, and a source that says nothing",
			observation{expected: bothDirections, impacted: bothDirections, missing: "said: active lost a", unavailable: "Nodes: no answer"},
			framework.Unknown, "outside->a, a->outside lost packets; whether a detector would have reported why is unknown: Nodes: no answer"},
		{"a source that said nothing for a moment, and every finding",
			observation{expected: bothDirections, impacted: bothDirections, active: 1, unavailable: "Nodes: no answer"},
			framework.Reproduced, "outside->a, a->outside lost packets, and detectors reported why"},
		{"no loss, and a source that says nothing", observation{expected: bothDirections, unavailable: "Nodes: no answer"},
			framework.Unknown, "no probe lost packets, but Nodes: no answer"},
		{"no loss, and a pending finding", observation{expected: bothDirections, stillActive: "settling lost a"},
			framework.Unknown, "no probe lost packets, but settling lost a"},
		{"no loss, because the component does not start", observation{expected: bothDirections, refuses: "keys exclude each other"},
			framework.Refused, "the component does not start, and no probe lost packets: keys exclude each other"},
		{"too little traffic to judge", observation{expected: bothDirections, traffic: "of 500 packets none was sent"},
			framework.Unknown, "of 500 packets none was sent"},
		{"half of the symptom", observation{expected: bothDirections, impacted: bothDirections[:1], active: 1},
			framework.Unknown, "outside->a lost packets, but a->outside did not"},
		{"more than the symptom",
			observation{expected: bothDirections, impacted: bothDirections, unaffected: []string{"outside->b"}, active: 1},
			framework.Unknown, "probes lost packets that must not: outside->b"},
		{"something else than the symptom", observation{expected: bothDirections, unaffected: []string{"outside->b"}},
			framework.Unknown, "probes lost packets that must not: outside->b"},
		{"bad baseline", observation{expected: bothDirections, baseline: "outside->b lost 3 packets"},
			framework.Vacuous, "the baseline was bad: outside->b lost 3 packets"},
		{"no fault", observation{expected: bothDirections, noEffect: "the node is running"},
			framework.Vacuous, "the fault did not take effect: the node is running"},
		{"a bad baseline outweighs what came of the fault",
			observation{expected: bothDirections, baseline: "loss", noEffect: "no", impacted: bothDirections, active: 1},
			framework.Vacuous, "the baseline was bad: loss"},
		{"a fault that did not take effect outweighs loss",
			observation{expected: bothDirections, noEffect: "no", impacted: bothDirections, active: 1},
			framework.Vacuous, "the fault did not take effect: no"},
		{"a breakdown outweighs all",
			observation{expected: bothDirections, broken: errors.New("no lab"), baseline: "loss", noEffect: "no", impacted: bothDirections, active: 1},
			framework.Unknown, "no lab"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, why := judge(test.saw)
			must.Equal(t, "", [...]string{string(test.want), test.why}, [...]string{string(got), why})
		})
	}
}

func TestRunVerdict(t *testing.T) {
	as := func(role framework.Role, verdict framework.Verdict, reasons ...string) *Judge {
		v := framework.Variant{Role: role}
		return &Judge{Case: Case{Variant: v}, failures: len(reasons), Result: report.Variant{
			Expected: string(v.Expected()), Verdict: string(verdict), Reasons: reasons,
		}}
	}
	remedied := func(verdict string, reasons ...string) *Judge {
		j := as(framework.Affected, framework.Reproduced, reasons...)
		j.Result.Remedies = []report.Remedy{{Expected: Recovers, Verdict: verdict}}
		return j
	}
	for _, test := range []struct {
		name     string
		variants []*Judge
		broken   error
		want     framework.RunVerdict
	}{
		{"all as expected", []*Judge{as(framework.Affected, framework.Reproduced), as(framework.Fixed, framework.Prevented), as(framework.Workaround, framework.Prevented)}, nil, framework.Pass},
		{"the affected version is not affected", []*Judge{as(framework.Affected, framework.Prevented), as(framework.Fixed, framework.Prevented)}, nil, framework.Fail},
		{"the fixed version is affected", []*Judge{as(framework.Affected, framework.Reproduced), as(framework.Fixed, framework.Reproduced)}, nil, framework.Fail},
		{"the workaround does not work", []*Judge{as(framework.Workaround, framework.Reproduced)}, nil, framework.Fail},
		{"no detector spoke", []*Judge{as(framework.Affected, framework.Missed)}, nil, framework.Fail},
		{"the verdict is right, but a remedy did not help", []*Judge{as(framework.Affected, framework.Reproduced, "no recovery")}, nil, framework.Fail},
		{"a remedy could not be judged", []*Judge{remedied(Unjudged), as(framework.Fixed, framework.Prevented)}, nil, framework.Inconclusive},
		{"a remedy could not be judged, and something failed", []*Judge{remedied(Unjudged, "a fact does not hold")}, nil, framework.Fail},
		{"it refuses where it should start", []*Judge{as(framework.Affected, framework.Reproduced), as(framework.Fixed, framework.Refused)}, nil, framework.Fail},
		{"a variant proves nothing", []*Judge{as(framework.Affected, framework.Vacuous), as(framework.Fixed, framework.Prevented)}, nil, framework.Inconclusive},
		{"a variant broke", []*Judge{as(framework.Affected, framework.Reproduced), as(framework.Fixed, framework.Unknown)}, nil, framework.Inconclusive},
		{"a failure outweighs what proves nothing, before it", []*Judge{as(framework.Affected, framework.Vacuous), as(framework.Fixed, framework.Reproduced)}, nil, framework.Fail},
		{"a failure outweighs what proves nothing, after it", []*Judge{as(framework.Fixed, framework.Reproduced), as(framework.Affected, framework.Unknown)}, nil, framework.Fail},
		{"no lab", nil, errors.New("no lab"), framework.Inconclusive},
		{"the lab broke after a pass", []*Judge{as(framework.Affected, framework.Reproduced)}, errors.New("not put back"), framework.Inconclusive},
		{"the lab broke after a failure", []*Judge{as(framework.Affected, framework.Missed)}, errors.New("not put back"), framework.Fail},
	} {
		t.Run(test.name, func(t *testing.T) { must.Equal(t, "", test.want, Run(test.broken, test.variants...)) })
	}
}

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
