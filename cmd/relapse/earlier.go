package main

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

// timing is when the steps of a stored run began and ended, from the run's beginning.
type timing struct {
	steps map[stepKey]span
	total time.Duration
}

type stepKey struct{ scope, name string }

type span struct{ began, ended time.Duration }

// fewRuns is of how many earlier runs the time that is left is told: the newest ones,
// for images and machines change.
const fewRuns = 3

// earlierIn finds the newest stored runs of a scenario, below a folder of reports, that
// ran the same variants on a machine like this one, whose report is what machine says.
func earlierIn(output string, machine any) func(scenario string, steps []engine.Step) []timing {
	return func(scenario string, steps []engine.Step) []timing {
		entries, err := os.ReadDir(filepath.Join(output, scenario))
		if err != nil {
			return nil // there are none
		}
		here := report.Report{Machine: asStored(machine)}
		var found []timing
		for _, e := range slices.Backward(entries) { // their names are times
			if !e.IsDir() || len(found) == fewRuns {
				continue
			}
			r, err := report.Read(filepath.Join(output, scenario, e.Name(), "report.json"))
			if err != nil || r.Unfinished != nil || r.Verdict == string(framework.Inconclusive) {
				continue
			}
			r.Guests = nil // what the guests will run on is not known beforehand
			if compare.SameMachine(r, here) && slices.Equal(scopesOf(r.Steps), scopesOf(planned(steps))) {
				found = append(found, timingOf(r))
			}
		}
		return found
	}
}

// asStored is what a report says of a machine, as it is read again.
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

func planned(steps []engine.Step) []report.Step {
	var all []report.Step
	for _, s := range steps {
		all = append(all, report.Step{Scope: s.Scope, Name: s.Name})
	}
	return all
}

// scopesOf are the scopes of steps, sorted: the variants that ran, how often, and
// without which part.
func scopesOf(steps []report.Step) []string {
	var scopes []string
	for _, s := range steps {
		scopes = append(scopes, s.Scope)
	}
	slices.Sort(scopes)
	return slices.Compact(scopes)
}

func timingOf(r report.Report) timing {
	t := timing{steps: map[stepKey]span{}}
	for _, s := range r.Steps {
		if s.Ended == nil {
			continue
		}
		key := stepKey{s.Scope, s.Name}
		if _, twice := t.steps[key]; !twice {
			t.steps[key] = span{s.Began.Sub(r.Started), s.Ended.Sub(r.Started)}
		}
		t.total = max(t.total, s.Ended.Sub(r.Started))
	}
	return t
}

// left says how long the run takes yet, if it goes on as earlier ones did: the median of
// what came after the same moment in them.
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

// leftOf is what is left by one earlier run: from the steps under way on, the slowest of
// them where variants run side by side, or from the end of the last one.
func (b *board) leftOf(t timing, now time.Time) (left time.Duration, known bool) {
	var last *plannedStep
	for _, s := range b.steps {
		then, there := t.steps[stepKey{s.scope, s.name}]
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
	return t.total - t.steps[stepKey{last.scope, last.name}].ended, true
}
