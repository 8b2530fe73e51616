package framework

import (
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Fact is a statement from the reports of an incident, with the steps of a run that assert it.
type Fact struct {
	Says string
	// By are the steps that assert it: if it did not hold, at least one of them would fail.
	By []Assertion
	// Not says why no step asserts the fact, or only a part of it.
	Not string
}

// Assertion is a step of a variant that asserts something.
type Assertion struct {
	Variant string
	Step    StepID
}

// Assertions are steps of one variant or of several.
type Assertions []Assertion

// By lists steps of a variant.
func By(variant string, steps ...StepID) Assertions { return Assertions(nil).And(variant, steps...) }

// And adds steps of another variant.
func (a Assertions) And(variant string, steps ...StepID) Assertions {
	return slices.Concat(a, each.Of(steps, func(step StepID) Assertion { return Assertion{Variant: variant, Step: step} }))
}

// Step describes the step of a precursor.
func (f Precursor) Step() string { return "harmless precursor: " + f.Name }

// Step describes the step of a remedy.
func (r Remedy) Step() string {
	if r.Helps {
		return "remedy: " + r.Name
	}
	return "ineffective remedy: " + r.Name
}

// asserting lists the steps of a variant that can assert a fact, in the order in which they run.
func (v Variant) asserting() []StepID {
	s := v.Script()
	steps := []StepID{StepBaseline}
	for _, c := range s.Baseline {
		steps = append(steps, StepBefore(c.ID))
	}
	for _, f := range s.Precursors {
		steps = append(steps, StepPrecursor(f.ID))
	}
	if v.Role == Affected {
		steps = append(steps, StepSymptom)
	}
	if len(s.Expected) > 0 {
		steps = append(steps, StepFindings)
	}
	for _, c := range s.Aftermath {
		steps = append(steps, StepAfter(c.ID))
	}
	steps = append(steps, StepObserve)
	for _, r := range s.Remedies {
		steps = append(steps, StepRemedy(r.ID))
	}
	if v.Refused {
		steps = append(steps, StepVerdict)
	}
	return steps
}

// facts checks that each fact is asserted by an existing step, or that Not says why none does.
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
			v, there := s.variant(by.Variant)
			if !there {
				p.add("there is no variant %q", by.Variant)
			}
			if v.Script == nil {
				continue
			}
			steps := each.Of(v.asserting(), StepID.String)
			if id := by.Step.String(); !slices.Contains(steps, id) {
				p.add("%s has no step %q%s", by.Variant, id, topology.Nearest(id, steps))
			}
		}
	}
}

func (s Scenario) variant(name string) (Variant, bool) {
	return each.First(s.Variants, func(v Variant) bool { return v.Name == name })
}
