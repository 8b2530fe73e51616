package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/compare"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Judgement is what today's engine, scenario and detectors make of a stored run.
type Judgement struct {
	// Report is as the run's would be, had they judged it.
	Report report.Report
	// Differences are those to the stored report: the stored one is A.
	Differences compare.Result
	// Looks are the looks in which detectors find something else than then, of each
	// variant the first one and how many there are.
	Looks []OtherLook
	// NotOnRecord is what the engine would do today, and the stored run did not.
	NotOnRecord []string
}

// Same tells whether all is as it was judged then.
func (j Judgement) Same() bool {
	return len(j.Differences.Verdicts) == 0 && len(j.Differences.Findings) == 0 && len(j.Looks) == 0
}

// OtherLook is a look in which detectors find something else today.
type OtherLook struct {
	Variant string
	At      time.Time
	// SinceFault is the time from the fault; zero before it.
	SinceFault time.Duration
	// Number is that of the look, from 1; All how many looks there are; Differ in
	// how many the findings differ.
	Number, All, Differ int
	Then, Now           string // what is found in one of them only
}

// NotJudgeableError says why a stored run cannot be judged again.
type NotJudgeableError struct{ error }

func (e *NotJudgeableError) Unwrap() error { return e.error }

// NotJudgeable is the error that says so for a reason.
func NotJudgeable(why error) error { return &NotJudgeableError{why} }

// Prepared is a stored run whose evidence can be judged.
type Prepared struct {
	dir     string
	stored  report.Report
	restore func([]byte) []byte
	begin   beginEntry
}

// Open reads what a run's folder says of how it was run. Restore puts the scenario's own
// addresses and names back into a line of the record; nil where nobody has replaced
// them. The error is a *NotJudgeableError where the evidence does not hold what judging
// takes.
func Open(dir string, stored report.Report, restore func([]byte) []byte) (Prepared, error) {
	if restore == nil {
		restore = func(line []byte) []byte { return line }
	}
	p := Prepared{dir: dir, stored: stored, restore: restore}
	none := true
	for _, v := range stored.Variants {
		folders := []string{v.EvidenceDir}
		if v.Repeats != nil {
			folders = repeatsOf(v)
		}
		for _, folder := range folders {
			if !filepath.IsLocal(folder) {
				return p, fmt.Errorf("judging %s: the evidence of %s is in %q, which is not below it", dir, v.Name, folder)
			}
			entries, err := readRecord(filepath.Join(dir, folder, recordName), 1, restore)
			switch {
			case errors.Is(err, fs.ErrNotExist) && !isThere(filepath.Join(dir, folder)): // it never began
			case errors.Is(err, fs.ErrNotExist):
				return p, &NotJudgeableError{fmt.Errorf(
					"judging %s: there is no %s: the run is of before runs kept what judging takes, or has lost it",
					dir, filepath.Join(folder, recordName))}
			case err != nil:
				return p, err
			default:
				p.begin, none = *entries[0].Begin, false
			}
		}
	}
	if none {
		return p, &NotJudgeableError{fmt.Errorf("judging %s: no variant has run", dir)}
	}
	return p, nil
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Parameters are those that the scenario was given.
func (p Prepared) Parameters() map[string]string { return p.begin.Parameters }

// Versions are those of components that the scenario was given to run on; none for
// those of its variants.
func (p Prepared) Versions() map[string]string { return p.begin.Versions }

// repeatsOf are the folders of a variant that ran several times.
func repeatsOf(v report.Variant) []string {
	var folders []string
	for i := range v.Repeats.Runs {
		folders = append(folders, filepath.Join(filepath.Dir(v.EvidenceDir), fmt.Sprintf("run-%02d", i+1)))
	}
	return folders
}

// Judge judges a stored run again, from its evidence alone: the same steps as in a
// run go through what the record holds, at the moments that it tells. Probes, looks
// and findings are judged anew; what was done to the lab, and what checks have seen
// that do not ask detectors, is taken as it was.
func (p Prepared) Judge(s framework.Scenario) (Judgement, error) {
	var chosen []framework.Variant
	repeat := 1
	for _, v := range p.stored.Variants {
		i := slices.IndexFunc(s.Variants, func(w framework.Variant) bool { return w.Name == v.Name })
		if i < 0 {
			return Judgement{}, &NotJudgeableError{fmt.Errorf("judging %s: %s has no variant %q any more", p.dir, s.Incident.Name, v.Name)}
		}
		if !slices.ContainsFunc(chosen, func(w framework.Variant) bool { return w.Name == v.Name }) {
			chosen = append(chosen, s.Variants[i])
		}
		if v.Repeats != nil {
			repeat = len(v.Repeats.Runs)
		}
	}
	e := newExecution(s, nil, Options{
		Ablate: Part(p.stored.Ablated), Repeat: repeat, Wait: p.begin.Wait, Brief: p.begin.Brief, Machine: p.stored.Machine, Relapse: p.stored.Relapse,
	})
	e.lab = storedLab{}
	e.report.Run, e.report.Started, e.report.Command, e.report.Guests = p.stored.Run, p.stored.Started, p.stored.Command, p.stored.Guests
	e.planVariants(chosen)
	for _, v := range e.variants {
		played, err := newPlayer(filepath.Join(p.dir, v.result.EvidenceDir), p.restore)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Judgement{}, err
		}
		if err != nil { // it never began
			v.ended = true
			continue
		}
		v.isPlayed(played)
	}
	for _, step := range e.steps {
		_ = step.Run(context.Background()) // the execution knows what became of it
	}
	j := Judgement{}
	for _, v := range e.variants {
		e.report.Variants = append(e.report.Variants, v.conclude(context.Background()))
		if v.player != nil {
			if look, other := v.player.otherLook(v); other {
				j.Looks = append(j.Looks, look)
			}
			for _, what := range v.player.missing {
				j.NotOnRecord = append(j.NotOnRecord, v.label+": "+what)
			}
		}
	}
	if e.options.Repeat > 1 {
		e.report.Variants = mergeRepeats(e.variants, e.report.Variants)
	}
	for _, step := range p.stored.Steps { // what was wrong with the lab is not judged
		if step.Scope == labScope && step.Failed != "" {
			e.breaks(fmt.Errorf("%s: %s", step.Name, step.Failed))
		}
	}
	e.report.Verdict = string(e.verdict())
	j.Report = e.report
	var err error
	j.Differences, err = compare.Reports(p.stored, j.Report, nil)
	return j, err
}

// otherLook compares what detectors find today with what they found then, look by
// look.
func (p *player) otherLook(v *variantRun) (OtherLook, bool) {
	if p.watch == nil {
		return OtherLook{}, false
	}
	first := OtherLook{Variant: v.label, All: len(p.watch.looks)}
	for i, l := range p.watch.looks {
		then, now := without(p.looks[i].Look.Findings, l.findings), without(l.findings, p.looks[i].Look.Findings)
		if len(then)+len(now) == 0 {
			continue
		}
		if first.Differ++; first.Differ > 1 {
			continue
		}
		first.At, first.Number = l.ended, i+1
		first.Then, first.Now = framework.DescribeFindings(then), framework.DescribeFindings(now)
		if !v.faulted.IsZero() && l.ended.After(v.faulted) {
			first.SinceFault = l.ended.Sub(v.faulted)
		}
	}
	return first, first.Differ > 0
}

// without are the findings that are none of the others.
func without(findings, others []detect.Finding) []detect.Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f detect.Finding) bool {
		return slices.ContainsFunc(others, func(o detect.Finding) bool { return keyOf(o) == keyOf(f) })
	})
}

// String tells a person where the judgement differs from what is stored.
func (j Judgement) String() string {
	var b strings.Builder
	for _, l := range j.Looks {
		when := "before the fault"
		if l.SinceFault > 0 {
			when = l.SinceFault.Round(time.Millisecond).String() + " after the fault"
		}
		fmt.Fprintf(&b, "  %s: %d of %d looks find something else, the first at %s (look %d, %s)\n    then alone: %s\n    now alone:  %s\n",
			l.Variant, l.Differ, l.All, l.At.Format("15:04:05.000"), l.Number, when, l.Then, l.Now)
	}
	return b.String()
}

// Texts are those in which a scenario names addresses, beside its topology: the names
// of its steps, and the findings that it expects.
func Texts(s framework.Scenario) []string {
	e := newExecution(s, nil, Options{})
	e.planVariants(s.Variants)
	texts := []string{s.Incident.Symptom, s.Incident.Cause, s.Incident.Reproduction}
	for _, c := range s.Topology.Clusters {
		texts = append(texts, c.PodCIDR.String(), c.ServiceCIDR.String())
	}
	for _, step := range e.steps {
		texts = append(texts, step.Name)
	}
	for _, v := range s.Variants {
		if v.Script == nil {
			continue
		}
		script := v.Script()
		expected := slices.Concat(script.Latent, script.Named, script.Passing)
		for _, form := range script.Forms {
			expected = slices.Concat(expected, form.Named, form.Passing)
		}
		for _, f := range expected {
			texts = append(texts, fmt.Sprintf("%+v", f))
		}
	}
	return texts
}

// storedLab is that of a run that is judged again: there is none.
type storedLab struct{}

func (storedLab) Attach(*framework.Run) {}

func (storedLab) Dial(context.Context, *framework.Run, []framework.End) ([]probe.End, error) {
	return nil, errNotOnRecord
}

func (storedLab) Open(context.Context, []snapshot.Source, []string) (Reader, error) {
	return nil, errNotOnRecord
}
func (storedLab) Guests(context.Context) ([]report.Guest, error) { return nil, nil }
func (storedLab) CPUTime(context.Context) (CPUTime, error)       { return CPUTime{}, nil }
func (storedLab) Logs(context.Context, time.Time, []string) (map[string]string, error) {
	return nil, nil
}
func (storedLab) Release()                   {}
func (storedLab) Down(context.Context) error { return nil }
