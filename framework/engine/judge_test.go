package engine

import (
	"errors"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
)

func TestJudge(t *testing.T) {
	both := []string{"outside->a", "a->outside"}
	for _, test := range []struct {
		name string
		saw  observation
		want Verdict
		why  string
	}{
		{
			"the symptom, and a detector that names it",
			observation{expected: both, hurt: both, active: 1},
			Reproduced, "outside->a, a->outside were hurt, and detectors said why",
		},
		{
			"the symptom, and no word of a detector",
			observation{expected: both, hurt: both},
			Missed, "outside->a, a->outside were hurt, and no detector said why",
		},
		{
			"nobody hurt, no alarm",
			observation{expected: both},
			Prevented, "no probe was hurt, and no detector raised an alarm",
		},
		{
			"nobody hurt, but an alarm",
			observation{expected: both, active: 2},
			Unknown, "detectors raised an alarm, but no probe was hurt",
		},
		{
			"half of the symptom",
			observation{expected: both, hurt: both[:1], active: 1},
			Unknown, "the fault hurt outside->a, but not a->outside",
		},
		{
			"more than the symptom",
			observation{expected: both, hurt: append([]string{"outside->b"}, both...), active: 1},
			Unknown, "the fault hurt probes that it should not: outside->b, outside->a, a->outside",
		},
		{
			"something else than the symptom",
			observation{expected: both, hurt: []string{"outside->b"}},
			Unknown, "the fault hurt probes that it should not: outside->b",
		},
		{
			"bad baseline",
			observation{expected: both, baseline: "outside->b lost 3 packets"},
			Vacuous, "the baseline was bad: outside->b lost 3 packets",
		},
		{
			"no fault",
			observation{expected: both, held: "the node is running"},
			Vacuous, "the fault never took hold: the node is running",
		},
		{
			"a bad baseline outweighs what came of the fault",
			observation{expected: both, baseline: "loss", held: "no", hurt: both, active: 1},
			Vacuous, "the baseline was bad: loss",
		},
		{
			"a fault that did not take hold outweighs what was hurt",
			observation{expected: both, held: "no", hurt: both, active: 1},
			Vacuous, "the fault never took hold: no",
		},
		{
			"a breakdown outweighs all",
			observation{expected: both, broken: errors.New("no lab"), baseline: "loss", held: "no", hurt: both, active: 1},
			Unknown, "no lab",
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
	as := func(role Role, verdict Verdict, reasons ...string) *variantRun {
		v := Variant{Role: role}
		return &variantRun{variant: v, result: report.Variant{
			Expected: string(v.Expected()), Verdict: string(verdict), Reasons: reasons,
		}}
	}
	for _, test := range []struct {
		name     string
		variants []*variantRun
		broken   error
		want     RunVerdict
	}{
		{"all as expected", []*variantRun{as(Affected, Reproduced), as(Fixed, Prevented), as(Workaround, Prevented)}, nil, Pass},
		{"the affected version is not affected", []*variantRun{as(Affected, Prevented), as(Fixed, Prevented)}, nil, Fail},
		{"the fixed version is affected", []*variantRun{as(Affected, Reproduced), as(Fixed, Reproduced)}, nil, Fail},
		{"the workaround does not work", []*variantRun{as(Workaround, Reproduced)}, nil, Fail},
		{"no detector spoke", []*variantRun{as(Affected, Missed)}, nil, Fail},
		{"the verdict is right, but a remedy did not help", []*variantRun{as(Affected, Reproduced, "no recovery")}, nil, Fail},
		{"a variant proves nothing", []*variantRun{as(Affected, Vacuous), as(Fixed, Prevented)}, nil, Inconclusive},
		{"a variant broke", []*variantRun{as(Affected, Reproduced), as(Fixed, Unknown)}, nil, Inconclusive},
		{"a failure outweighs what proves nothing, before it", []*variantRun{as(Affected, Vacuous), as(Fixed, Reproduced)}, nil, Fail},
		{"a failure outweighs what proves nothing, after it", []*variantRun{as(Fixed, Reproduced), as(Affected, Unknown)}, nil, Fail},
		{"no lab", nil, errors.New("no lab"), Inconclusive},
		{"the lab broke after a pass", []*variantRun{as(Affected, Reproduced)}, errors.New("not put back"), Inconclusive},
		{"the lab broke after a failure", []*variantRun{as(Affected, Missed)}, errors.New("not put back"), Fail},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &scenarioRun{variants: test.variants, broken: test.broken}
			if got := s.verdict(); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}
