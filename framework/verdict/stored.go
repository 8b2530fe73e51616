package verdict

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/compare"
	"github.com/relapse-dev/relapse/topology/each"
)

// Judgement is the result of judging a stored run again.
type Judgement struct {
	// Report is the stored report with today's results.
	Report report.Report
	// Differences compare the stored report (A) with Report.
	Differences compare.Result
	// Polls has, for each variant, the first poll whose findings differ, and the number of such polls.
	Polls []OtherPoll
	// NotOnRecord are steps that the stored run lacks.
	NotOnRecord []string
}

// Same reports whether verdicts and findings are as in the stored report.
func (j Judgement) Same() bool {
	return len(j.Differences.Verdicts) == 0 && len(j.Differences.Findings) == 0 && len(j.Polls) == 0
}

// OtherPoll is the first poll of a variant whose findings differ.
type OtherPoll struct {
	Variant string
	// SinceFault is the time since the fault; zero before the fault.
	SinceFault time.Duration
	history.OtherPolls
}

// NotJudgeableError is why a stored run cannot be judged again.
type NotJudgeableError struct{ error }

func (e *NotJudgeableError) Unwrap() error { return e.error }

func NotJudgeable(why error) error { return &NotJudgeableError{why} }

// Stored is a stored run whose evidence can be judged.
type Stored struct {
	dir    string
	report report.Report
	begin  history.Begin
}

// Open reads the options of a stored run. The error is a *NotJudgeableError if the evidence does not suffice.
func Open(dir string, stored report.Report) (Stored, error) {
	s := Stored{dir: dir, report: stored}
	none := true
	for _, v := range stored.Variants {
		folders := []string{v.EvidenceDir}
		if v.Repeats != nil {
			folders = nil
			for i := range v.Repeats.Runs {
				folders = append(folders, filepath.Join(filepath.Dir(v.EvidenceDir), repeatFolder(i)))
			}
		}
		for _, folder := range folders {
			if !filepath.IsLocal(folder) {
				return s, fmt.Errorf("judging %s: the evidence of %s is in %q, which is not below it", dir, v.Name, folder)
			}
			begin, err := history.ReadBegin(filepath.Join(dir, folder))
			_, gone := os.Stat(filepath.Join(dir, folder))
			switch {
			case errors.Is(err, fs.ErrNotExist) && gone != nil: // the variant never began
			case errors.Is(err, fs.ErrNotExist):
				return s, &NotJudgeableError{fmt.Errorf(
					"judging %s: there is no %s: the run is of before runs kept what judging takes, or has lost it",
					dir, filepath.Join(folder, history.FileName))}
			case errors.As(err, new(*history.OtherSchemaError)):
				return s, &NotJudgeableError{fmt.Errorf("judging %s: %w", dir, err)}
			case err != nil:
				return s, err
			default:
				s.begin, none = begin, false
			}
		}
	}
	if none {
		return s, &NotJudgeableError{fmt.Errorf("judging %s: no variant has run", dir)}
	}
	return s, nil
}

func (s Stored) Parameters() map[string]string { return s.begin.Parameters }

// Versions are the chosen versions of components; empty if the variants' own versions ran.
func (s Stored) Versions() map[string]string { return s.begin.Versions }

// Judge judges a stored run again. It runs the detectors on the stored snapshots. Results of actions and of checks
// that do not ask detectors are taken from the record.
func (s Stored) Judge(scenario framework.Scenario) (Judgement, error) {
	o := Options{Ablate: Part(s.report.Ablated), Wait: s.begin.Wait}
	var chosen []framework.Variant
	for _, v := range s.report.Variants {
		i := slices.IndexFunc(scenario.Variants, func(w framework.Variant) bool { return w.Name == v.Name })
		if i < 0 {
			err := fmt.Errorf("judging %s: %s has no variant %q any more", s.dir, scenario.Incident.Name, v.Name)
			return Judgement{}, &NotJudgeableError{err}
		}
		if !slices.ContainsFunc(chosen, func(w framework.Variant) bool { return w.Name == v.Name }) {
			chosen = append(chosen, scenario.Variants[i])
		}
		if v.Repeats != nil {
			o.Repeat = len(v.Repeats.Runs)
		}
	}
	var j Judgement
	var all []*Judge
	for _, v := range chosen {
		for _, c := range Cases(v, o) {
			one, err := s.judge(scenario, c, all, &j)
			if err != nil {
				return Judgement{}, err
			}
			all = append(all, one)
		}
	}
	j.Report = s.rejudged(all, o)
	var err error
	j.Differences, err = compare.Reports(s.report, j.Report)
	j.Differences.Verdicts = append(j.Differences.Verdicts, repeatsDiffer(s.report, j.Report)...)
	return j, err
}

// repeatsDiffer are the runs of --repeat that are judged differently. The variant's verdict may be the same.
func repeatsDiffer(then, now report.Report) []compare.Difference {
	var differ []compare.Difference
	for i, v := range now.Variants {
		if v.Repeats == nil || then.Variants[i].Repeats == nil {
			continue
		}
		for n, run := range v.Repeats.Runs[:min(len(v.Repeats.Runs), len(then.Variants[i].Repeats.Runs))] {
			if before := then.Variants[i].Repeats.Runs[n]; before.Verdict != run.Verdict {
				differ = append(differ, compare.Difference{Variant: run.Scope, What: "verdict", A: before.Verdict, B: run.Verdict})
			}
		}
	}
	return differ
}

func (s Stored) rejudged(all []*Judge, o Options) report.Report {
	r := s.report
	r.Variants = append([]report.Variant{}, each.Of(all, func(one *Judge) report.Variant { return one.Result })...)
	if o.Repeat > 1 {
		r.Variants = MergeRepeats(all)
	}
	var broken error
	if s.report.Unfinished != nil {
		broken = errors.New("the run did not end")
	}
	for _, one := range all {
		if one.restoreFailed != nil {
			broken = one.restoreFailed
		}
	}
	for _, step := range s.report.Steps { // failures of the lab are taken as they were
		if (step.Scope == report.LabScope || step.Scope == report.SecondLabScope) && step.Failed != "" {
			broken = fmt.Errorf("%s: %s", step.Name, step.Failed)
		}
	}
	r.Verdict = string(Run(broken, all...))
	return r
}

func (s Stored) judge(scenario framework.Scenario, c Case, before []*Judge, j *Judgement) (*Judge, error) {
	d := &history.Detection{Every: c.Every(), Scope: ScopeOf(scenario, c.Variant)}
	if c.Ablate != AblateDetector {
		d.Detectors = c.Script.Detectors
	}
	h, others, err := history.Read(filepath.Join(s.dir, c.Evidence), d)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	setting := Setting{Accelerator: report.Accelerator(s.report), Images: s.report.Images}
	one := NewJudge(c, h, setting, scenario.LabelsOf(c.Variant))
	var affected []framework.Outcome
	for _, other := range before {
		if other.Variant.Role == framework.Affected && other.trialOutcome != nil {
			affected = append(affected, *other.trialOutcome)
		}
	}
	one.Due = func() int { return one.TrialsDue(affected, false) }
	if err != nil { // the variant never began
		one.Conclude(time.Time{})
		return one, nil
	}
	var ended time.Time
	for _, step := range c.Steps() {
		part, there := h.Step(step.ID)
		if there {
			ended = part.Ended
		}
		switch step.ID {
		case framework.StepVerdict:
			one.Verdict(ended)
		case framework.StepRestore:
			if part.Error != "" {
				one.restoreFailed = errors.New(part.Error)
			}
		default:
			if !one.Ended() {
				_ = one.Step(step) // the result has the error
			}
		}
	}
	one.Conclude(ended)
	if others.Differ > 0 {
		p := OtherPoll{Variant: c.Label, OtherPolls: others}
		if !one.faulted.IsZero() {
			p.SinceFault = max(0, others.At.Sub(one.faulted))
		}
		j.Polls = append(j.Polls, p)
	}
	for _, id := range one.missing {
		j.NotOnRecord = append(j.NotOnRecord, c.Label+": "+id.String())
	}
	return one, nil
}

// ScopeOf is the part of the lab that belongs to a variant.
func ScopeOf(s framework.Scenario, v framework.Variant) history.Scope {
	scope := history.Scope{Own: v.Nodes}
	for _, other := range s.Variants {
		if other.Name != v.Name {
			scope.Others = append(scope.Others, other.Nodes...)
		}
	}
	return scope
}

func (j Judgement) String() string {
	var b strings.Builder
	for _, p := range j.Polls {
		when := "before the fault"
		if p.SinceFault > 0 {
			when = p.SinceFault.Round(time.Millisecond).String() + " after the fault"
		}
		fmt.Fprintf(&b, "  %s: %d of %d polls find something else, the first at %s (poll %d, %s)\n    then alone: %s\n    now alone:  %s\n",
			p.Variant, p.Differ, p.All, p.At.Format("15:04:05.000"), p.Number, when,
			framework.DescribeFindings(p.Then), framework.DescribeFindings(p.Now))
	}
	return b.String()
}
