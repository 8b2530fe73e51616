package qualify

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/report/stored"
)

// Known is the result of a run: a line of a file of results, as JSON. With an Incident it is the verdict of the
// incident's script, and From and To are one version unless the upgrade itself causes the incident.
// Without one it is the verdict of a qualification.
type Known struct {
	Component string `json:"component"`
	From      string `json:"from"`
	To        string `json:"to"`
	When      string `json:"when"` // the day, as in 2026-11-27; empty: it is the record's, and proven by each run of the scenario
	Verdict   string `json:"verdict"`
	Under     string `json:"under,omitempty"` // settings of the qualification that the verdict depends on
	Incident  string `json:"incident,omitempty"`
	Remedy    string `json:"remedy,omitempty"`
	Report    string `json:"report"` // the run's folder, below the folder of reports
}

func (k Known) key() [5]string { return [5]string{k.Component, k.From, k.To, k.Incident, k.Under} }

// compare orders results: by component, incident and versions.
func (k Known) compare(o Known) int {
	return cmp.Or(cmp.Compare(k.Component, o.Component), cmp.Compare(k.Incident, o.Incident), bisect.Compare(k.From, o.From),
		bisect.Compare(k.To, o.To), cmp.Compare(k.Under, o.Under))
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
	return text + " on " + k.When + ", " + k.Report
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
		if !semver.IsValid("v"+k.From) || !semver.IsValid("v"+k.To) || k.Component == "" || k.Verdict == "" {
			return nil, fmt.Errorf("result %d: expected a component, two versions (from, to) and a verdict", len(all)+1)
		}
		all = append(all, k)
	}
}

// Merge adds results: of two of the same versions, incident and settings the later one stays.
func Merge(all []Known, more ...Known) []Known {
	newest := map[[5]string]Known{}
	for _, k := range slices.Concat(all, more) {
		if was, there := newest[k.key()]; !there || was.When <= k.When {
			newest[k.key()] = k
		}
	}
	merged := make([]Known, 0, len(newest))
	for _, k := range newest {
		merged = append(merged, k)
	}
	slices.SortFunc(merged, Known.compare)
	return merged
}

// Collect reads the results of all qualifications and bisections in a folder of reports.
func Collect(dir string) (all []Known, err error) {
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		run, name := filepath.Split(path)
		report, err := filepath.Rel(dir, run)
		if err != nil {
			return err
		}
		switch name {
		case FileJSON:
			q, err := Read(run)
			if err != nil {
				return err
			}
			all = append(all, q.known(report)...)
		case bisect.FileJSON:
			var b bisect.Record
			if err := stored.Read(run, bisect.FileJSON, bisect.Schema, &b); err != nil {
				return err
			}
			written, err := os.Stat(path)
			if err != nil {
				return err
			}
			for _, step := range b.Steps {
				if step.Outcome != bisect.Skipped {
					all = append(all, Known{b.Component, step.Version, step.Version, written.ModTime().UTC().Format("2006-01-02"), step.Verdict,
						"", b.Scenario, "", report})
				}
			}
		}
		return nil
	})
	return all, err
}

func (q Qualification) known(report string) []Known {
	in := q.Inputs
	under := []string{in.Mode, in.Under}
	if in.Values != nil || in.Configuration.Source != "" {
		// Other values may have another verdict: a part of their digest tells them apart.
		under = append(under, fmt.Sprintf("with a user's configuration, %.8s", in.Settings))
	}
	base := Known{Component: in.Component, From: in.From, To: in.To, When: q.Began.UTC().Format("2006-01-02"), Report: report}
	edge := base
	edge.Verdict, edge.Under = string(q.Verdict), strings.Join(slices.DeleteFunc(under, func(s string) bool { return s == "" }), ", ")
	for _, r := range q.Rows {
		if r.State == Fails && edge.Remedy == "" {
			edge.Remedy = r.Remedy
		}
	}
	var all []Known
	if q.Verdict != Unknown { // which is no knowledge: it may have been interrupted
		all = append(all, edge)
	}
	for _, i := range in.Incidents {
		for version, seen := range map[string]Seen{in.From: i.From, in.To: i.To} {
			if seen.Outcome != bisect.Affected && seen.Outcome != bisect.Unaffected {
				continue
			}
			k := base
			k.Incident, k.Verdict = i.Name, seen.Verdict
			if k.Remedy = ""; seen.Outcome == bisect.Affected {
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

// Advice is what is known of an upgrade without a run. It is no verdict.
type Advice struct {
	Component, From, To string
	Qualified           []Known // the upgrade as a whole; none: it was never qualified
	Incidents           []Advised
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
	if needs := t.scenario.NeedsValue; values != nil && needs != "" {
		if on, _ := chart.Get(values.values, needs); on == false || on == nil {
			a.Impossible = "it needs " + needs
		}
	}
	i := Incident{OfUpgrade: t.old != ""}
	component, _ := t.scenario.Find(t.varied)
	for _, k := range Merge(t.recorded(component.Component()), results...) {
		if k.Component != component.Component() || k.Incident != a.Name {
			continue
		}
		outcome := bisect.Unaffected
		if k.Verdict == string(framework.Reproduced) || k.Verdict == string(framework.Missed) {
			outcome = bisect.Affected
		}
		switch from, to := k.From == t.from, k.To == t.to; {
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

// Lines are the results that the advice rests on.
func (a Advice) Lines() []Known {
	all := slices.Clone(a.Qualified)
	for _, i := range a.Incidents {
		all = append(all, i.Here...)
	}
	return all
}

// Write prints the advice.
func (a Advice) Write(out io.Writer) {
	fmt.Fprintf(out, "%s %s to %s: what is known without a run. It is no verdict: relapse qualify %[1]s %[2]s %[3]s gives one.\n",
		a.Component, a.From, a.To)
	if len(a.Qualified) == 0 {
		fmt.Fprintln(out, "\nThis upgrade was never qualified, as far as is known.")
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
