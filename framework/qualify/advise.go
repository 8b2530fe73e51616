package qualify

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/framework/report/stored"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/each"
)

// Known is the result of a run: a line of a file of results, as JSON. With an Incident it is the verdict of the
// incident's script, and From and To are one version unless the upgrade itself causes the incident.
// Without one it is the verdict of a qualification.
type Known struct {
	Component string `json:"component"`
	From      string `json:"from"`
	To        string `json:"to"`
	// When is a day or a time, as in RFC 3339. Empty: it is the record's, and proven by each run of the scenario.
	When     string `json:"when"`
	Verdict  string `json:"verdict"`
	Under    string `json:"under,omitempty"` // settings that the verdict depends on
	Incident string `json:"incident,omitempty"`
	Remedy   string `json:"remedy,omitempty"`
	Report   string `json:"report"` // the run's folder, below the folder of reports, or a document
}

// usersOwn stands for the settings of a user. Two results with these words may have different settings.
const usersOwn = "a user's configuration"

// key is equal for two results if the later one replaces the earlier one.
func (k Known) key() [6]string {
	key := [6]string{k.Component, k.From, k.To, k.Incident, k.Under}
	if strings.Contains(k.Under, usersOwn) {
		key[5] = k.Report
	}
	return key
}

// compare orders results: by component, incident and versions, and by time.
func (k Known) compare(o Known) int {
	return cmp.Or(cmp.Compare(k.Component, o.Component), cmp.Compare(k.Incident, o.Incident), bisect.Compare(k.From, o.From),
		bisect.Compare(k.To, o.To), cmp.Compare(k.Under, o.Under), cmp.Compare(k.When, o.When))
}

// String says the result and where it is from.
func (k Known) String() string {
	text := k.Verdict
	if k.Under != "" {
		text += " (" + k.Under + ")"
	}
	if k.When == "" {
		return text + ", by the record"
	}
	day, _, _ := strings.Cut(k.When, "T")
	return text + " on " + day + ", " + k.Report
}

// check returns an error for what no run has had as its result.
func (k Known) check() error {
	day, _, _ := strings.Cut(k.When, "T")
	_, err := time.Parse(time.DateOnly, day)
	verdict := slices.Contains([]Verdict{Go, NoGo, Unknown}, Verdict(k.Verdict))
	if k.Incident != "" {
		verdict = bisect.OutcomeOf(framework.Verdict(k.Verdict)) != bisect.Skipped
	}
	switch {
	case k.Component == "", !semver.IsValid("v" + k.From), !semver.IsValid("v" + k.To):
		return errors.New("expected a component and two versions (from, to)")
	case err != nil:
		return fmt.Errorf("when: %q: expected a day such as 2026-11-27, or a time", k.When)
	case !verdict:
		return fmt.Errorf("verdict: %q: expected GO, NO-GO or UNKNOWN, or of an incident reproduced, missed, prevented or refused", k.Verdict)
	}
	return nil
}

//go:embed known.jsonl
var builtIn []byte

// Recorded are the results that this relapse was built with.
func Recorded() ([]Known, error) { return ReadKnown(bytes.NewReader(builtIn)) }

// ReadKnown reads a file of results.
func ReadKnown(from io.Reader) (all []Known, err error) {
	for lines := json.NewDecoder(from); ; {
		var k Known
		if err := lines.Decode(&k); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("result %d: %w", len(all)+1, err)
		}
		if err := k.check(); err != nil {
			return nil, fmt.Errorf("result %d: %w", len(all)+1, err)
		}
		all = append(all, k)
	}
}

// Merge adds results: of two of the same versions, incident and settings the later one stays.
func Merge(all []Known, more ...Known) []Known {
	newest := map[[6]string]Known{}
	for _, k := range slices.Concat(all, more) {
		if was, there := newest[k.key()]; !there || was.When <= k.When {
			newest[k.key()] = k
		}
	}
	return slices.SortedFunc(maps.Values(newest), Known.compare)
}

// Collect reads the results of all qualifications and bisections in a folder of reports. A bisection is of one of
// the scenarios.
func Collect(dir string, scenarios []framework.Scenario) (all []Known, err error) {
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // it may be the link latest
		return nil, err
	}
	var errs []error
	each := func(file string, read func(run, report string) ([]Known, error)) {
		runs, err := rundir.Find(dir, file, "evidence")
		errs = append(errs, err)
		for _, run := range runs {
			report, _ := filepath.Rel(dir, run)
			more, err := read(run, report)
			all, errs = append(all, more...), append(errs, err)
		}
	}
	each(FileJSON, func(run, report string) ([]Known, error) {
		q, err := Read(run)
		if err != nil {
			return nil, err
		}
		return q.known(report), nil
	})
	each(bisect.FileJSON, func(run, report string) ([]Known, error) {
		var b bisect.Record
		if err := stored.Read(run, bisect.FileJSON, bisect.Schema, &b); err != nil {
			return nil, err
		}
		written, err := os.Stat(filepath.Join(run, bisect.FileJSON))
		if err != nil {
			return nil, err
		}
		return bisected(b, written.ModTime(), report, scenarios), nil
	})
	return all, errors.Join(errs...)
}

// bisected are the results of a bisection. Where the upgrade causes the incident, one version was given with it.
func bisected(b bisect.Record, when time.Time, report string, scenarios []framework.Scenario) (all []Known) {
	of, there := each.First(scenarios, func(s framework.Scenario) bool { return s.Incident.Name == b.Scenario })
	if !there {
		return nil
	}
	varied, _ := of.Find(b.Component)
	base := Known{Component: varied.Component(), When: when.UTC().Format(time.RFC3339), Incident: b.Scenario, Report: report}
	var under []string
	for _, t := range of.Tested {
		version := cmp.Or(b.With[t.Name], t.Default)
		switch {
		case t.Name == varied.Name:
		case t.Component() == varied.Component():
			base.From = version
		case b.With[t.Name] != "":
			under = append(under, t.Name+" "+version)
		}
	}
	base.Under = strings.Join(under, ", ")
	for _, step := range b.Steps {
		if step.Outcome != bisect.Skipped {
			k := base
			k.From, k.To, k.Verdict = cmp.Or(base.From, step.Version), step.Version, step.Verdict
			if step.Outcome == bisect.Affected {
				k.Remedy = joined(of.Incident.Remedies)
			}
			all = append(all, k)
		}
	}
	return all
}

// known are the results of a qualification. UNKNOWN is one only where two settings have a verdict each.
func (q Qualification) known(report string) (all []Known) {
	in := q.Inputs
	base := Known{Component: in.Component, From: in.From, To: in.To, When: q.Began.UTC().Format(time.RFC3339), Report: report}
	settings := []Inputs{in}
	if in.Otherwise != nil {
		other := in
		other.Under, other.Upgrade = in.Otherwise.Under, in.Otherwise.Upgrade
		settings = append(settings, other)
	}
	for _, each := range settings {
		edge, judged := base, judge(each, q.Thresholds, q.Command)
		if judged.Verdict == Unknown {
			continue
		}
		edge.Verdict, edge.Under = string(judged.Verdict), each.under(q.Thresholds)
		if i := slices.IndexFunc(judged.Rows, func(r Row) bool { return r.State == Fails && r.Remedy != "" }); i >= 0 {
			edge.Remedy = judged.Rows[i].Remedy
		}
		all = append(all, edge)
	}
	for _, i := range in.Incidents {
		for version, seen := range map[string]Seen{in.From: i.From, in.To: i.To} {
			if bisect.OutcomeOf(framework.Verdict(seen.Verdict)) == bisect.Skipped {
				continue
			}
			k := base
			k.Incident, k.Verdict = i.Name, seen.Verdict
			if in.Family != "" {
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

// under are the settings that a verdict depends on.
func (in Inputs) under(t Thresholds) string {
	all := []string{in.Mode, in.Under}
	if in.Family != "" {
		all = append(all, withBoth)
	}
	if in.Values != nil || in.Configuration.Source != "" {
		all = append(all, usersOwn)
	}
	if t != DefaultThresholds {
		all = append(all, fmt.Sprintf("at most %s and %s lost", duration(t.MaxGapMS), percent(t.MaxLost)))
	}
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), ", ")
}

// Advice is what is known of an upgrade without a run. It is no verdict.
type Advice struct {
	Component, From, To string
	// Qualified are verdicts of the upgrade as a whole, each under settings that need not be the user's; none: it was
	// never qualified. Told are sentences about values that were not read.
	Qualified []Known
	Told      []string
	Incidents []Advised
}

// Advised is what is known of an incident of the component.
type Advised struct {
	framework.Incident
	// Impossible is why it cannot happen with the user's values; empty if it may.
	Impossible string
	// Here are the results of the versions that were asked about, Others those of other versions.
	Here, Others []Known
	// Outcome follows from Here. NotJudgeable: a version never ran.
	Outcome Outcome
}

// Advise looks an upgrade up in results and in the records of scenarios. The user's values, nil if none are given,
// rule out incidents.
func Advise(all []framework.Scenario, results []Known, component, from, to string, values *Given) (Advice, error) {
	trials, err := trialsOf(all, component, from, to)
	a := Advice{Component: component, From: from, To: to}
	if values != nil {
		a.Told = values.Told
	}
	for _, k := range results {
		if k.Component == component && k.Incident == "" && k.From == from && k.To == to {
			a.Qualified = append(a.Qualified, k)
		}
	}
	for _, t := range trials {
		a.Incidents = append(a.Incidents, t.advised(results, values))
	}
	return a, err
}

func (t trial) advised(results []Known, values *Given) Advised {
	a := Advised{Incident: t.scenario.Incident}
	if values != nil && len(values.Told) == 0 { // or some were not read
		a.Impossible = t.impossible(values.values)
	}
	i := Incident{OfUpgrade: t.old != ""}
	component, _ := t.scenario.Find(t.varied)
	for _, k := range Merge(t.recorded(component.Component()), results...) {
		if k.Component != component.Component() || k.Incident != a.Name {
			continue
		}
		outcome := bisect.OutcomeOf(framework.Verdict(k.Verdict))
		switch from, to := k.From == t.from, k.To == t.to; {
		case k.Under != "":
			a.Others = append(a.Others, k)
			continue
		case i.OfUpgrade && from && to, !i.OfUpgrade && to:
			i.To.Outcome = outcome
		case !i.OfUpgrade && from:
			i.From.Outcome = outcome
		default:
			a.Others = append(a.Others, k)
			continue
		}
		a.Here = append(a.Here, k)
	}
	a.Outcome = i.outcome()
	return a
}

// impossible says why the incident cannot happen with values of a chart; empty: it may.
func (t trial) impossible(values map[string]any) string {
	needs := t.scenario.NeedsValue
	on, _ := chart.Get(values, needs)
	further, _ := chart.Get(values, "extraConfig") // of the agent, past the values
	if needs == "" || on != nil && on != false || further != nil {
		return ""
	}
	return "it needs " + needs
}

// recorded are the results that the scenario's own variants stand for. A version that is affected in
// one configuration and not in another stands for none.
func (t trial) recorded(component string) (all []Known) {
	roles := map[[2]string]framework.Role{}
	for _, v := range t.scenario.Variants {
		from, to := cmp.Or(v.Components[t.old], v.Components[t.varied]), v.Components[t.varied]
		pair := [2]string{from, to}
		if !semver.IsValid("v"+from) || !semver.IsValid("v"+to) {
			continue
		}
		if was, there := roles[pair]; there && was != v.Role || v.Role == framework.Workaround {
			all = slices.DeleteFunc(all, func(k Known) bool { return k.From == from && k.To == to })
			roles[pair] = framework.Workaround
			continue
		}
		roles[pair] = v.Role
		all = append(all, Known{Component: component, From: from, To: to, Verdict: string(v.Expected()), Incident: t.scenario.Incident.Name})
	}
	return all
}

// NeverQualified is the verdict of an upgrade that no qualification is known of.
const NeverQualified = "never qualified"

// Lines are the results that the advice rests on.
func (a Advice) Lines() []Known {
	all := slices.Clone(a.Qualified)
	if len(all) == 0 {
		all = append(all, Known{Component: a.Component, From: a.From, To: a.To, Verdict: NeverQualified})
	}
	for _, i := range a.Incidents {
		if i.Impossible == "" {
			all = append(all, i.Here...)
		}
	}
	return all
}

// Write prints the advice.
func (a Advice) Write(out io.Writer) {
	verdict := fmt.Sprintf("relapse qualify %s %s %s gives one", a.Component, a.From, a.To)
	if _, err := upgrade.Of(a.Component, a.From, a.To, upgrade.Settings{}); err != nil {
		verdict = "relapse has no lab for one"
	}
	fmt.Fprintf(out, "%s %s to %s: what is known without a run. It is no verdict on your settings: %s.\n", a.Component, a.From, a.To, verdict)
	if len(a.Qualified) == 0 {
		fmt.Fprintln(out, "\nThis upgrade was never qualified, as far as is known.")
	}
	for _, told := range a.Told {
		fmt.Fprintf(out, "\nvalues: %s\n", told)
	}
	for _, k := range a.Qualified {
		fmt.Fprintf(out, "\nqualified: %s\n", k)
		if k.Remedy != "" {
			fmt.Fprintf(out, "  remedy    %s\n", k.Remedy)
		}
	}
	for _, i := range a.Incidents {
		fmt.Fprintf(out, "\n%s: %s\n", i.Name, i.Title)
		line := func(name, text string) { fmt.Fprintf(out, "  %-9s %s\n", name, text) }
		if i.Impossible != "" {
			line("values", "it cannot happen with your values: "+i.Impossible)
			continue
		}
		line("outcome", map[bool]string{true: "not known", false: string(i.Outcome)}[i.Outcome == NotJudgeable])
		for _, k := range i.Here {
			line("ran", k.versions()+": "+k.String())
		}
		if i.Outcome == NotJudgeable {
			for _, k := range i.Others {
				line("elsewhere", k.versions()+": "+k.String())
			}
		}
		line("affected", i.Affected)
		line("fixed", i.Fixed)
		if i.Outcome == Fixed || i.Outcome == NeverThere {
			continue
		}
		for _, remedy := range i.Remedies {
			line("remedy", remedy)
		}
	}
}

func (k Known) versions() string {
	if k.From == k.To {
		return k.To
	}
	return k.From + " to " + k.To
}
