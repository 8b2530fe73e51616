package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/each"
)

func (e *Execution) beginStep(scope string, id framework.StepID, name string) (ends func(error)) {
	e.mu.Lock()
	number := len(e.report.Steps)
	e.report.Steps = append(e.report.Steps, report.Step{Scope: scope, Name: name, ID: id.String(), Kind: string(id.Kind), Began: e.now()})
	e.mu.Unlock()
	e.publish() // before Progress shows the step
	done := e.options.Progress.Step(scope, name)
	return func(err error) {
		e.mu.Lock()
		s := &e.report.Steps[number]
		s.Ended = new(e.now())
		if err != nil {
			s.Failed, s.Broke = err.Error(), !errors.Is(err, verdict.ErrNotAsExpected)
		}
		e.mu.Unlock()
		done(err)
	}
}

func (v *variantRun) publish() {
	text, err := json.Marshal(v.judge.Result)
	if err != nil {
		v.scenario.options.Log.Warn("the preliminary report is incomplete", "error", err)
		return
	}
	v.scenario.mu.Lock()
	defer v.scenario.mu.Unlock()
	v.soFar = text
}

// publish writes the preliminary report and page, so that a killed run has them.
func (e *Execution) publish() {
	if e.dir == "" || e.over {
		return
	}
	e.writing.Lock()
	defer e.writing.Unlock()
	r, err := e.reportSoFar()
	err = errors.Join(err, r.Write(e.dir))
	if !e.withoutPage {
		err = errors.Join(err, page.Write(e.dir, e.histories()))
	}
	e.setNotStored(err)
}

func (e *Execution) histories() map[string]*history.History {
	all := map[string]*history.History{}
	for _, v := range e.variants {
		all[v.c.Evidence] = v.h
	}
	return all
}

func (e *Execution) reportSoFar() (report.Report, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.report
	r.Verdict = string(framework.Inconclusive)
	r.Unfinished = &report.Unfinished{At: e.now()}
	r.Timings.Total = time.Since(e.began).Milliseconds()
	r.Steps = slices.Clone(r.Steps)
	open := each.Where(r.Steps, func(s report.Step) bool { return s.Ended == nil })
	r.Unfinished.Steps = each.Of(open, func(s report.Step) string { return s.Scope + ": " + s.Name })
	r.Variants = []report.Variant{}
	var errs []error
	for _, v := range e.variants {
		if v.soFar != nil {
			var one report.Variant
			errs = append(errs, json.Unmarshal(v.soFar, &one))
			r.Variants = append(r.Variants, one)
		}
	}
	return r, errors.Join(errs...)
}

func incidentOf(i framework.Incident) *report.Incident {
	r := &report.Incident{
		Title: i.Title, Source: i.Source, Symptom: i.Symptom, Cause: i.Cause, Affected: i.Affected, Fixed: i.Fixed,
		Remedies: i.Remedies, Reproduction: i.Reproduction,
	}
	for _, f := range i.Facts {
		if f.Not != "" {
			r.NotAsserted = append(r.NotAsserted, fmt.Sprintf("%s: %s", f.Says, f.Not))
		}
	}
	return r
}
