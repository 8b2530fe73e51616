// Package verdict judges a variant by its history alone. The same functions judge a live run and a stored one.
package verdict

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/each"
)

const (
	// PollEvery is the time from one poll of the detectors to the next, unless a script has another. A finding must
	// come within a second of the first lost packet, whose loss is known only some 0.4 s after it was sent.
	PollEvery = 200 * time.Millisecond
	// NoFindingsFor is how long there must be no active findings, BaselineFor how long no active findings and no loss.
	NoFindingsFor = 5 * time.Second
	BaselineFor   = NoFindingsFor
	// recoveredFor is how long probes must lose no packets after a remedy, unless the incident has longer lulls.
	recoveredFor = time.Second
)

// RecoveredFor is how long the probes of a script must lose no packets after a remedy.
func RecoveredFor(s framework.Script) time.Duration { return max(recoveredFor, s.Lull) }

// Part is a part of the harness that can be switched off, to show that the verdict changes.
type Part string

const (
	AblateFault    Part = "fault"    // the fault is not injected
	AblateDetector Part = "detector" // the detectors do not run
	AblateRemedy   Part = "remedy"   // the remedies are not applied
)

// AblateAll switches off one part after the other, on one lab: in each variant the fault, and in an affected one also
// the detectors and the remedies that help. The run passes if each has changed the verdict.
const AblateAll Part = "all"

// Parts lists what Options.Ablate takes.
var Parts = []Part{AblateDetector, AblateRemedy, AblateFault, AblateAll}

// Options are the options of a run that change what its variants do.
type Options struct {
	// Ablate switches off a part, or all of them in turn. It excludes Repeat.
	Ablate Part
	// Repeat is how often each variant runs on one lab; zero: once. More often omits precursors and remedies.
	Repeat int
	// Wait is how long an affected variant is left alone before any remedy: it must not recover. It excludes Repeat.
	Wait time.Duration
}

// Case is one run of a variant, with its expected verdict.
type Case struct {
	Variant framework.Variant
	Script  framework.Script // the variant's, without the parts that the case omits
	// Label is the variant's name, with the number of a repeat or the part that is switched off. Evidence is the
	// folder of its evidence, relative to the run's.
	Label, Evidence string
	// Number counts the runs of the variant, from 0.
	Number int
	// Ablate is the part that is switched off; empty: none.
	Ablate Part
	// Expected is the expected verdict; empty if there is no expectation.
	Expected framework.Verdict
	// MustChange is set if the run must show that the verdict changes without the part.
	MustChange bool
}

// Cases are the runs of a variant, in order.
func Cases(v framework.Variant, o Options) []Case {
	switch {
	case o.Ablate == AblateAll:
		return ablations(v, o)
	case o.Ablate != "":
		return []Case{newCase(v, o).without(o.Ablate)}
	}
	var all []Case
	for i := range max(1, o.Repeat) {
		c := newCase(v, o)
		c.Number = i
		if o.Repeat > 1 {
			c.Label = fmt.Sprintf("%s %d/%d", v.Name, i+1, o.Repeat)
			c.Evidence = filepath.Join(c.Evidence, repeatFolder(i))
			c.Script.Precursors, c.Script.Remedies = nil, nil
		}
		all = append(all, c)
	}
	return all
}

func repeatFolder(number int) string { return fmt.Sprintf("run-%02d", number+1) }

func newCase(v framework.Variant, o Options) Case {
	script := v.Script()
	if v.Role == framework.Unclassified {
		script.Latent, script.Precursors, script.Aftermath, script.Remedies = nil, nil, nil, nil
	}
	if o.Wait > 0 && v.Role == framework.Affected {
		script.Remedies = slices.Insert(slices.Clone(script.Remedies), 0, waiting(o.Wait))
	}
	return Case{Variant: v, Script: script, Label: v.Name, Evidence: filepath.Join("evidence", v.Name), Expected: v.Expected()}
}

func waiting(watch time.Duration) framework.Remedy {
	return framework.Remedy{
		ID: "wait", Name: "wait " + watch.String(), Watch: watch,
		Apply: func(context.Context, *framework.Run) error { return nil },
	}
}

func (c Case) without(p Part) Case {
	c.Ablate = p
	switch p {
	case AblateFault:
		c.Script.Precursors = nil // they are faults, too
	case AblateRemedy:
		// Without a remedy that does not help, the verdict stays the same.
		c.Script.Remedies = slices.DeleteFunc(slices.Clone(c.Script.Remedies), func(r framework.Remedy) bool { return !r.Helps })
	}
	return c
}

// ablations are the runs of a variant that show that the verdict changes without a part.
func ablations(v framework.Variant, o Options) []Case {
	var all []Case
	without := func(p Part, becomes framework.Verdict) Case {
		c := newCase(v, o).without(p)
		c.MustChange, c.Expected = true, becomes
		c.Label = v.Name + " without " + string(p)
		c.Evidence = filepath.Join(c.Evidence, "without-"+string(p))
		c.Number = len(all)
		return c
	}
	all = append(all, without(AblateFault, framework.Vacuous))
	if v.Role != framework.Affected {
		return all // there is nothing to detect and nothing to remedy
	}
	all = append(all, without(AblateDetector, framework.Missed))
	// The incident occurs, and no remedy helps.
	if c := without(AblateRemedy, framework.Reproduced); len(c.Script.Remedies) > 0 {
		all = append(all, c)
	}
	return all
}

// Classified reports whether the variant has an expectation. Without one, to differ from other variants is no failure.
func (c Case) Classified() bool { return c.Variant.Role != framework.Unclassified }

// MayReproduce reports whether the run waits for the incident's symptom.
func (c Case) MayReproduce() bool { return c.Variant.Role == framework.Affected || !c.Classified() }

// Every is the time from one poll of the detectors to the next.
func (c Case) Every() time.Duration { return cmp.Or(c.Script.PollEvery, PollEvery) }

// Impacted names the probes that lose packets in the incident.
func (c Case) Impacted() []string {
	return each.Of(c.Script.Impacted, func(p probe.Probe) string { return p.WithDefaults().Name })
}

// NothingExpected reports whether there is no finding to wait for: none is expected, or detectors or faults are off.
func (c Case) NothingExpected(expected []framework.Finding) bool {
	return len(expected) == 0 || c.Ablate == AblateDetector || c.Ablate == AblateFault
}

// IsGone reports whether the fault removes an endpoint of a probe.
func (c Case) IsGone(p probe.Probe) bool {
	return slices.ContainsFunc(c.Script.Gone, func(e framework.Endpoint) bool { return e.Name == p.From || e.Name == p.To })
}

// Step is a step of a case. Name describes it in a sentence.
type Step struct {
	ID   framework.StepID
	Name string
}

// Steps are the steps of the case, in the order in which they run.
func (c Case) Steps() []Step {
	var all []Step
	add := func(id framework.StepID, format string, args ...any) {
		all = append(all, Step{id, fmt.Sprintf(format, args...)})
	}
	s := c.Script
	add(framework.StepInstall, "components are installed")
	add(framework.StepBaseline, "baseline: for %s %d probes lose no packet, and detectors find %s",
		BaselineFor, len(s.Probes), orNothing(s.Latent))
	for _, check := range s.Baseline {
		add(framework.StepBefore(check.ID), "before: %s", check.Name)
	}
	for _, form := range s.Precursors {
		add(framework.StepPrecursor(form.ID), "%s", form.Step())
	}
	add(framework.StepFault, "fault is injected")
	symptom := strings.Join(c.Impacted(), ", ") + " lose packets"
	switch c.Variant.Role {
	case framework.Affected:
		add(framework.StepSymptom, "symptom: %s", symptom)
	case framework.Unclassified:
		add(framework.StepSymptom, "symptom or none: whether %s", symptom)
	}
	if len(s.Expected) > 0 {
		add(framework.StepFindings, "detectors report %s", number(s.Expected))
	}
	for _, check := range s.Aftermath {
		add(framework.StepAfter(check.ID), "after: %s", check.Name)
	}
	if c.MayReproduce() {
		add(framework.StepObserve, "no other probe loses packets, and there is no unexpected finding, for at least %s from the fault",
			s.Observe)
	} else {
		add(framework.StepObserve, "no probe loses packets for at least %s from the fault, and there is no active finding for %s",
			s.Observe, NoFindingsFor)
	}
	for _, remedy := range s.Remedies {
		add(framework.StepRemedy(remedy.ID), "%s", remedy.Step())
	}
	// The verdict is a step of its own, so that every report has it.
	add(framework.StepVerdict, "verdict is %s", cmp.Or(string(c.Expected), "determined"))
	add(framework.StepRestore, "lab is restored")
	return all
}

func (c Case) Check(id framework.StepID) framework.Check {
	from := c.Script.Baseline
	if id.Kind == framework.KindAfter {
		from = c.Script.Aftermath
	}
	return from[slices.IndexFunc(from, func(c framework.Check) bool { return c.ID == id.Part })]
}

func (c Case) Precursor(id framework.StepID) framework.Precursor {
	i := slices.IndexFunc(c.Script.Precursors, func(f framework.Precursor) bool { return f.ID == id.Part })
	return c.Script.Precursors[i]
}

func (c Case) Remedy(id framework.StepID) framework.Remedy {
	i := slices.IndexFunc(c.Script.Remedies, func(r framework.Remedy) bool { return r.ID == id.Part })
	return c.Script.Remedies[i]
}

func orNothing(latent []framework.Finding) string {
	if len(latent) == 0 {
		return "nothing"
	}
	if len(latent) == 1 {
		return "nothing but the finding that is expected before the fault"
	}
	return fmt.Sprintf("nothing but the %d findings that are expected before the fault", len(latent))
}

func number(findings []framework.Finding) string {
	if len(findings) == 1 {
		return "the expected finding"
	}
	return fmt.Sprintf("the %d expected findings", len(findings))
}

func list(findings []framework.Finding) string {
	return each.Joined(findings, "; ", framework.Finding.String)
}

// FactText is a fact as `describe` prints it: with the names of the steps that assert it, or why no step does.
func FactText(s framework.Scenario, f framework.Fact) string {
	var text strings.Builder
	mark, not := "+", "only in part: "
	if len(f.By) == 0 {
		mark, not = "-", "not asserted: "
	}
	fmt.Fprintf(&text, "%s %s", mark, f.Says)
	for _, by := range f.By {
		fmt.Fprintf(&text, "\n    %s, %s", by.Variant, stepName(s, by))
	}
	if f.Not != "" {
		fmt.Fprintf(&text, "\n    %s%s", not, f.Not)
	}
	return text.String()
}

func stepName(s framework.Scenario, a framework.Assertion) string {
	for _, v := range s.Variants {
		if v.Name != a.Variant || v.Script == nil {
			continue
		}
		steps := newCase(v, Options{}).Steps()
		if i := slices.IndexFunc(steps, func(step Step) bool { return step.ID == a.Step }); i >= 0 {
			return steps[i].Name
		}
	}
	return a.Step.String()
}
