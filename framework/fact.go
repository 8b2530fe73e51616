package framework

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/topology"
)

// Fact is something that the reports of an incident tell, and what becomes of
// it in a run.
type Fact struct {
	// Says is the fact, in a sentence.
	Says string
	// By are the steps that assert it: if it did not hold, one of them at least
	// would not be as expected.
	By []Assertion
	// Not says why no step asserts the fact, or only a part of it.
	Not string
}

// Assertion is a step of a variant that asserts something.
type Assertion struct {
	Variant string
	// Step is the step's name in a run, as `run --dry-run` prints it, or one of
	// the constants below.
	Step string
}

// By lists steps of a variant.
func By(variant string, steps ...string) []Assertion {
	var by []Assertion
	for _, step := range steps {
		by = append(by, Assertion{Variant: variant, Step: step})
	}
	return by
}

func (a Assertion) String() string { return a.Variant + ", " + a.Step }

// Steps whose names in a run tell more than a fact needs.
const (
	// StepSymptom is that the probes of Script.Hurt are hurt.
	StepSymptom = "symptom"
	// StepNothingElse is that no others are, and no other alarm is raised.
	StepNothingElse = "nothing else is hurt"
	// StepUnhurt is that no probe is hurt, and no alarm raised.
	StepUnhurt = "no probe is hurt"
	// StepFindings is that the detectors come to the findings of Script.Named.
	StepFindings = "detectors"
	// StepBaseline is that the detectors come to the findings of Script.Latent
	// before the fault, and that no probe is hurt then.
	StepBaseline = "baseline"
	// StepRefused is that the component under test does not start, and says why.
	StepRefused = "verdict is refused"
)

// Before names the step of a check of Script.Baseline.
func (c Check) Before() string { return "before: " + c.Name }

// After names the step of a check of Script.Aftermath.
func (c Check) After() string { return "after: " + c.Name }

// Step names the step of a lesser form.
func (f LesserForm) Step() string { return "lesser form: " + f.Name }

// Step names the step of a remedy.
func (r Remedy) Step() string {
	if r.Helps {
		return "remedy: " + r.Name
	}
	return "no remedy: " + r.Name
}

// assertions names the steps of a variant that can assert a fact.
func (v Variant) assertions() []string {
	s := v.Script()
	steps := []string{StepBaseline}
	for _, c := range s.Baseline {
		steps = append(steps, c.Before())
	}
	for _, f := range s.Forms {
		steps = append(steps, f.Step())
	}
	if v.Role == Affected {
		steps = append(steps, StepSymptom, StepNothingElse)
	} else {
		steps = append(steps, StepUnhurt)
	}
	if len(s.Named) > 0 {
		steps = append(steps, StepFindings)
	}
	for _, c := range s.Aftermath {
		steps = append(steps, c.After())
	}
	for _, r := range s.Remedies {
		steps = append(steps, r.Step())
	}
	if v.Refused {
		steps = append(steps, StepRefused)
	}
	return steps
}

// facts checks that each fact is asserted by a step that there is, or told not
// to be.
func (p *problems) facts(s Scenario) {
	for _, f := range s.Incident.Facts {
		p := p.at("fact %q", f.Says)
		if f.Says == "" || strings.HasSuffix(f.Says, ".") {
			p.add("it must be a sentence, without a full stop")
		}
		if len(f.By) == 0 && f.Not == "" {
			p.add("no step asserts it, and nothing says why")
		}
		for _, by := range f.By {
			i := slices.IndexFunc(s.Variants, func(v Variant) bool { return v.Name == by.Variant })
			if i < 0 {
				p.add("there is no variant %q", by.Variant)
				continue
			}
			if v := s.Variants[i]; v.Script != nil {
				if steps := v.assertions(); !slices.Contains(steps, by.Step) {
					p.add("%s has no step %q%s", by.Variant, by.Step, topology.Nearest(by.Step, steps))
				}
			}
		}
	}
}

// String is the fact as `describe` prints it, with the steps that assert it or
// the reason why none does.
func (f Fact) String() string {
	var text strings.Builder
	mark, not := "+", "only in part: "
	if len(f.By) == 0 {
		mark, not = "-", "not asserted: "
	}
	fmt.Fprintf(&text, "%s %s", mark, f.Says)
	for _, by := range f.By {
		fmt.Fprintf(&text, "\n    %s", by)
	}
	if f.Not != "" {
		fmt.Fprintf(&text, "\n    %s%s", not, f.Not)
	}
	return text.String()
}
