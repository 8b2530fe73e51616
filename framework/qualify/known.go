package qualify

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/framework/report/stored"
	"github.com/relapse-dev/relapse/topology/each"
)

// Collect reads the results of all qualifications and bisections in a folder of reports.
func Collect(dir string, scenarios []framework.Scenario) (all []advise.Known, err error) {
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // it may be the link latest
		return nil, err
	}
	var errs []error
	each := func(file string, read func(run, report string) ([]advise.Known, error)) {
		runs, err := rundir.Find(dir, file, "evidence")
		errs = append(errs, err)
		for _, run := range runs {
			report, _ := filepath.Rel(dir, run)
			if report == "." {
				report = filepath.Join(filepath.Base(filepath.Dir(run)), filepath.Base(run))
			}
			more, err := read(run, report)
			all, errs = append(all, more...), append(errs, err)
		}
	}
	each(FileJSON, func(run, report string) ([]advise.Known, error) {
		q, err := Read(run)
		if err != nil {
			return nil, err
		}
		return q.results(report), nil
	})
	each(bisect.FileJSON, func(run, report string) ([]advise.Known, error) {
		var b bisect.Record
		if err := stored.Read(run, bisect.FileJSON, bisect.Schema, &b); err != nil {
			return nil, err
		}
		return bisected(b, report, scenarios), nil
	})
	return all, errors.Join(errs...)
}

// bisected are the results of a bisection, if it has a time. If the upgrade causes the incident, the bisection searched
// one of both versions, and Record.With has the other, under a name of the component as in relapse run --with.
func bisected(b bisect.Record, report string, scenarios []framework.Scenario) (all []advise.Known) {
	scenario, there := each.First(scenarios, func(s framework.Scenario) bool { return s.Incident.Name == b.Scenario })
	if !there || b.Began.IsZero() {
		return nil
	}
	searched, _ := scenario.Find(b.Component)
	base := advise.Known{Component: searched.Component(), When: b.Began.Format(time.RFC3339), Incident: b.Scenario, Report: report}
	with := map[string]string{}
	for name, version := range b.With {
		given, _ := scenario.Find(name)
		with[given.Name] = version
	}
	var under []string
	other := ""
	for _, t := range scenario.Tested {
		version := cmp.Or(with[t.Name], t.Default)
		switch {
		case t.Name == searched.Name:
		case t.Component() == searched.Component():
			other = version
		case with[t.Name] != "":
			under = append(under, t.Name+" "+version)
		}
	}
	base.Under = strings.Join(under, ", ")
	for _, step := range b.Steps {
		if step.Outcome != bisect.Skipped {
			k := base
			k.From, k.To, k.Verdict = cmp.Or(other, step.Version), step.Version, step.Verdict
			if !searched.Varied {
				k.From, k.To = k.To, k.From
			}
			if step.Outcome == bisect.Affected {
				k.Remedy = joined(scenario.Incident.Remedies)
			}
			all = append(all, k)
		}
	}
	return all
}

// results are the results of a qualification: for each setting a verdict other than UNKNOWN, unless only earlier runs
// prove it, and the incidents that ran.
func (q Qualification) results(report string) (all []advise.Known) {
	inputs := q.Inputs
	base := advise.Known{Component: inputs.Component, From: inputs.From, To: inputs.To, Report: report}
	base.When = q.Began.UTC().Format(time.RFC3339)
	settings := []Inputs{inputs}
	if inputs.Otherwise != nil {
		other := inputs
		other.Under, other.Upgrade = inputs.Otherwise.Under, inputs.Otherwise.Upgrade
		settings = append(settings, other)
	}
	for _, each := range settings {
		edge, judged := base, judge(each, q.Thresholds, q.Command)
		ran := each
		ran.Incidents = slices.DeleteFunc(slices.Clone(each.Incidents), Incident.isKnown)
		if judged.Verdict == Unknown || judge(ran, q.Thresholds, q.Command).Verdict == Unknown {
			continue
		}
		edge.Verdict, edge.Under = string(judged.Verdict), each.under(q.Thresholds)
		if i := slices.IndexFunc(judged.Rows, func(r Row) bool { return r.State == Fails && r.Remedy != "" }); i >= 0 {
			edge.Remedy = judged.Rows[i].Remedy
		}
		all = append(all, edge)
	}
	for _, i := range inputs.Incidents {
		for version, seen := range map[string]Seen{inputs.From: i.From, inputs.To: i.To} {
			if seen.Known || bisect.OutcomeOf(framework.Verdict(seen.Verdict)) == bisect.Skipped {
				continue
			}
			k := base
			if !seen.When.IsZero() { // a resumed qualification has begun long before
				k.When = seen.When.Format(time.RFC3339)
			}
			k.Incident, k.Verdict = i.Name, seen.Verdict
			if inputs.Family != "" {
				k.Under = withBoth
			}
			if seen.Outcome == bisect.Affected {
				k.Remedy = joined(i.Remedies)
			}
			if !i.OfUpgrade {
				k.From, k.To = version, version
			}
			all = append(all, k)
		}
	}
	return all
}

func (inputs Inputs) under(t Thresholds) string {
	all := []string{inputs.Mode, inputs.Under}
	if inputs.Family != "" {
		all = append(all, withBoth)
	}
	if inputs.Values != nil || inputs.Configuration.Source != "" {
		all = append(all, advise.UsersOwn)
	}
	if t != DefaultThresholds {
		all = append(all, fmt.Sprintf("at most %s and %s lost", duration(t.MaxGapMS), percent(t.MaxLost)))
	}
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), ", ")
}
