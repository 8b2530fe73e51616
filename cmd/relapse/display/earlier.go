package display

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/compare"
)

// Timing is when the steps of a stored run began and ended, relative to the run's start.
type Timing struct {
	steps map[stepKey]span
	total time.Duration
}

type span struct{ began, ended time.Duration }

// fewRuns is how many earlier runs the remaining time is estimated from: the newest ones,
// because images and machines change.
const fewRuns = 3

// EarlierIn finds the newest stored runs of a scenario in a folder of reports that ran the
// same variants on a machine like this one, which machine describes as reports do.
func EarlierIn(output string, machine any) func(scenario string, steps []engine.Step) []Timing {
	return func(scenario string, steps []engine.Step) []Timing {
		entries, err := os.ReadDir(filepath.Join(output, scenario))
		if err != nil {
			return nil // there are none
		}
		here := report.Report{Machine: asStored(machine)}
		var found []Timing
		for _, e := range slices.Backward(entries) { // their names are times
			if !e.IsDir() || len(found) == fewRuns {
				continue
			}
			r, err := report.Read(filepath.Join(output, scenario, e.Name(), "report.json"))
			if err != nil || r.Unfinished != nil || r.Verdict == string(framework.Inconclusive) {
				continue
			}
			r.Guests = nil // not known before the run
			if compare.SameMachine(r, here) && slices.Equal(scopesOf(r.Steps, recordedScope), scopesOf(steps, plannedScope)) {
				found = append(found, timingOf(r))
			}
		}
		return found
	}
}

// asStored is the description of a machine as it is read from a report.
func asStored(machine any) any {
	text, err := json.Marshal(machine)
	if err != nil {
		return nil
	}
	var stored any
	if json.Unmarshal(text, &stored) != nil {
		return nil
	}
	return stored
}

func recordedScope(s report.Step) string { return s.Scope }
func plannedScope(s engine.Step) string  { return s.Scope }

// scopesOf are the scopes of steps, sorted: the variants that ran, how often, and without
// which part.
func scopesOf[S any](steps []S, scope func(S) string) []string {
	var scopes []string
	for _, s := range steps {
		scopes = append(scopes, scope(s))
	}
	slices.Sort(scopes)
	return slices.Compact(scopes)
}

func timingOf(r report.Report) Timing {
	t := Timing{steps: map[stepKey]span{}}
	for _, s := range r.Steps {
		if s.Ended == nil {
			continue
		}
		key := keyOfRecorded(s)
		if _, twice := t.steps[key]; !twice {
			t.steps[key] = span{s.Began.Sub(r.Started), s.Ended.Sub(r.Started)}
		}
		t.total = max(t.total, s.Ended.Sub(r.Started))
	}
	return t
}

// of is when a planned step ran.
func (t Timing) of(s *plannedStep) (when span, there bool) {
	if when, there = t.steps[s.across]; !there { // by name, in reports of older versions
		when, there = t.steps[s.key]
	}
	return when, there
}

// left is how much longer the run takes: the median of what earlier runs took after the
// same moment.
func (b *board) left(now time.Time) (text string, known bool) {
	var all []time.Duration
	for _, t := range b.earlier {
		if d, known := b.leftOf(t, now); known {
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return "", false
	}
	slices.Sort(all)
	d := all[len(all)/2]
	switch {
	case d < 10*time.Second:
		return "a few seconds left", true
	case d < 2*time.Minute:
		return "about " + d.Round(5*time.Second).String() + " left", true
	}
	return "about " + d.Round(10*time.Second).String() + " left", true
}

// leftOf is how much longer the run takes by one earlier run: from the running steps on,
// the slowest of them if variants run in parallel, or from the end of the last one.
func (b *board) leftOf(t Timing, now time.Time) (left time.Duration, known bool) {
	var last *plannedStep
	for _, s := range b.steps {
		then, there := t.of(s)
		switch {
		case !there:
		case s.state == running:
			passed := min(now.Sub(s.began), then.ended-then.began)
			left, known = max(left, t.total-then.began-passed), true
		case (s.state == done || s.state == failed) && (last == nil || s.ended.After(last.ended)):
			last = s
		}
	}
	if known || b.ended() {
		return left, known
	}
	if last == nil {
		return t.total, b.begun() || len(b.steps) > 0
	}
	then, _ := t.of(last)
	return t.total - then.ended, true
}
