package engine

import (
	"errors"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
)

func TestJudge(t *testing.T) {
	wayAndBack := []string{"outside->a", "a->outside"}
	for _, test := range []struct {
		name string
		saw  observation
		want framework.Verdict
		why  string
	}{
		{
			"the symptom, and a detector that names it",
			observation{expected: wayAndBack, hurt: wayAndBack, active: 1},
			framework.Reproduced, "outside->a, a->outside were hurt, and detectors said why",
		},
		{
			"the symptom, and no word of a detector",
			observation{expected: wayAndBack, hurt: wayAndBack},
			framework.Missed, "outside->a, a->outside were hurt, and no detector said why",
		},
		{
			"nobody hurt, no alarm",
			observation{expected: wayAndBack},
			framework.Prevented, "no probe was hurt, and no detector raised an alarm",
		},
		{
			"nobody hurt, but an alarm",
			observation{expected: wayAndBack, active: 2},
			framework.Unknown, "detectors raised an alarm, but no probe was hurt",
		},
		{
			"the symptom, and another finding than the named one",
			observation{expected: wayAndBack, hurt: wayAndBack, active: 1, missing: "said: active lost a"},
			framework.Missed, "outside->a, a->outside were hurt, and no detector said said: active lost a",
		},
		{
			"the symptom, and a source that says nothing",
			observation{expected: wayAndBack, hurt: wayAndBack, missing: "said: active lost a", blind: "Nodes: no answer"},
			framework.Unknown, "outside->a, a->outside were hurt, and whether a detector would have said why is not known: Nodes: no answer",
		},
		{
			"a source that said nothing for a moment, and every finding",
			observation{expected: wayAndBack, hurt: wayAndBack, active: 1, blind: "Nodes: no answer"},
			framework.Reproduced, "outside->a, a->outside were hurt, and detectors said why",
		},
		{
			"nobody hurt, and a source that says nothing",
			observation{expected: wayAndBack, blind: "Nodes: no answer"},
			framework.Unknown, "no probe was hurt, but Nodes: no answer",
		},
		{
			"nobody hurt, and something on its way",
			observation{expected: wayAndBack, loud: "settling lost a"},
			framework.Unknown, "no probe was hurt, but settling lost a",
		},
		{
			"nobody hurt, for the component does not start",
			observation{expected: wayAndBack, refuses: "keys exclude each other"},
			framework.Refused, "it does not start, and no probe was hurt: keys exclude each other",
		},
		{
			"too little traffic to tell",
			observation{expected: wayAndBack, traffic: "of 500 packets none was sent"},
			framework.Unknown, "of 500 packets none was sent",
		},
		{
			"half of the symptom",
			observation{expected: wayAndBack, hurt: wayAndBack[:1], active: 1},
			framework.Unknown, "the fault hurt outside->a, but not a->outside",
		},
		{
			"more than the symptom",
			observation{expected: wayAndBack, hurt: wayAndBack, others: []string{"outside->b"}, active: 1},
			framework.Unknown, "probes were hurt that should not be: outside->b",
		},
		{
			"something else than the symptom",
			observation{expected: wayAndBack, others: []string{"outside->b"}},
			framework.Unknown, "probes were hurt that should not be: outside->b",
		},
		{
			"bad baseline",
			observation{expected: wayAndBack, baseline: "outside->b lost 3 packets"},
			framework.Vacuous, "the baseline was bad: outside->b lost 3 packets",
		},
		{
			"no fault",
			observation{expected: wayAndBack, held: "the node is running"},
			framework.Vacuous, "the fault never took hold: the node is running",
		},
		{
			"a bad baseline outweighs what came of the fault",
			observation{expected: wayAndBack, baseline: "loss", held: "no", hurt: wayAndBack, active: 1},
			framework.Vacuous, "the baseline was bad: loss",
		},
		{
			"a fault that did not take hold outweighs what was hurt",
			observation{expected: wayAndBack, held: "no", hurt: wayAndBack, active: 1},
			framework.Vacuous, "the fault never took hold: no",
		},
		{
			"a breakdown outweighs all",
			observation{expected: wayAndBack, broken: errors.New("no lab"), baseline: "loss", held: "no", hurt: wayAndBack, active: 1},
			framework.Unknown, "no lab",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, why := judge(test.saw)
			if got != test.want || why != test.why {
				t.Errorf("%s, %q; want %s, %q", got, why, test.want, test.why)
			}
		})
	}
}

func TestRunVerdict(t *testing.T) {
	as := func(role framework.Role, verdict framework.Verdict, reasons ...string) *variantRun {
		v := framework.Variant{Role: role}
		return &variantRun{variant: v, failures: len(reasons), result: report.Variant{
			Expected: string(v.Expected()), Verdict: string(verdict), Reasons: reasons,
		}}
	}
	remedied := func(verdict string, reasons ...string) *variantRun {
		v := as(framework.Affected, framework.Reproduced, reasons...)
		v.result.Remedies = []report.Remedy{{Expected: recovers, Verdict: verdict}}
		return v
	}
	for _, test := range []struct {
		name     string
		variants []*variantRun
		broken   error
		want     framework.RunVerdict
	}{
		{"all as expected", []*variantRun{as(framework.Affected, framework.Reproduced), as(framework.Fixed, framework.Prevented), as(framework.Workaround, framework.Prevented)}, nil, framework.Pass},
		{"the affected version is not affected", []*variantRun{as(framework.Affected, framework.Prevented), as(framework.Fixed, framework.Prevented)}, nil, framework.Fail},
		{"the fixed version is affected", []*variantRun{as(framework.Affected, framework.Reproduced), as(framework.Fixed, framework.Reproduced)}, nil, framework.Fail},
		{"the workaround does not work", []*variantRun{as(framework.Workaround, framework.Reproduced)}, nil, framework.Fail},
		{"no detector spoke", []*variantRun{as(framework.Affected, framework.Missed)}, nil, framework.Fail},
		{"the verdict is right, but a remedy did not help", []*variantRun{as(framework.Affected, framework.Reproduced, "no recovery")}, nil, framework.Fail},
		{"a remedy could not be judged", []*variantRun{remedied(notJudged), as(framework.Fixed, framework.Prevented)}, nil, framework.Inconclusive},
		{"a remedy could not be judged, and something failed", []*variantRun{remedied(notJudged, "a fact does not hold")}, nil, framework.Fail},
		{"it refuses where it should start", []*variantRun{as(framework.Affected, framework.Reproduced), as(framework.Fixed, framework.Refused)}, nil, framework.Fail},
		{"a variant proves nothing", []*variantRun{as(framework.Affected, framework.Vacuous), as(framework.Fixed, framework.Prevented)}, nil, framework.Inconclusive},
		{"a variant broke", []*variantRun{as(framework.Affected, framework.Reproduced), as(framework.Fixed, framework.Unknown)}, nil, framework.Inconclusive},
		{"a failure outweighs what proves nothing, before it", []*variantRun{as(framework.Affected, framework.Vacuous), as(framework.Fixed, framework.Reproduced)}, nil, framework.Fail},
		{"a failure outweighs what proves nothing, after it", []*variantRun{as(framework.Fixed, framework.Reproduced), as(framework.Affected, framework.Unknown)}, nil, framework.Fail},
		{"no lab", nil, errors.New("no lab"), framework.Inconclusive},
		{"the lab broke after a pass", []*variantRun{as(framework.Affected, framework.Reproduced)}, errors.New("not put back"), framework.Inconclusive},
		{"the lab broke after a failure", []*variantRun{as(framework.Affected, framework.Missed)}, errors.New("not put back"), framework.Fail},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &Execution{variants: test.variants, broken: test.broken}
			if got := s.verdict(); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}
