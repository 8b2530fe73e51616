package page

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/rundir"
)

// IndexName is the file of the index.
const IndexName = "index.html"

var (
	//go:embed index.gohtml
	indexText     string
	indexTemplate = template.Must(template.New("index").Funcs(functions).Parse(indexText))
)

// Runs finds the folders of runs: dir itself, or those below it that hold a report,
// in order of their paths. Links, such as latest, are not followed.
func Runs(dir string) ([]string, error) {
	runs, err := rundir.Find(dir, "report.json", "evidence")
	if err != nil {
		return nil, fmt.Errorf("looking for runs: %w", err)
	}
	return runs, nil
}

type incident struct {
	Name, Title string
	// Versions are the versions under test, each with its last result.
	Versions []outcome
	Runs     []stripRun // oldest first
	Earlier  int        // runs before those
	Changes  []string   // from the last run but one to the last
}

type outcome struct {
	Version, Variant, Role, Verdict, Expected, Page string
	Runs                                            int
}

// stripRun is a run in the strip of a scenario's last ones.
type stripRun struct {
	Page, Run, Verdict string
	Started            time.Time
}

// stripLength is how many runs a strip shows.
const stripLength = 30

// WriteIndex writes dir/index.html over some runs, which are folders below it.
func WriteIndex(dir string, runs []string) error {
	byScenario := map[string][]indexed{}
	for _, run := range runs {
		r, err := report.Read(filepath.Join(run, "report.json"))
		if err != nil {
			return err
		}
		link, err := filepath.Rel(dir, filepath.Join(run, Name))
		if err != nil {
			return fmt.Errorf("writing the index of %s: %w", dir, err)
		}
		byScenario[r.Scenario] = append(byScenario[r.Scenario], indexed{r, filepath.ToSlash(link)})
	}
	var all []incident
	for name, runs := range byScenario {
		slices.SortFunc(runs, func(a, b indexed) int { return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.page, b.page)) })
		all = append(all, newIncident(name, runs))
	}
	slices.SortFunc(all, func(a, b incident) int { return cmp.Compare(a.Name, b.Name) })
	var text bytes.Buffer
	if err := indexTemplate.Execute(&text, all); err != nil {
		return fmt.Errorf("rendering the index of %s: %w", dir, err)
	}
	if err := rundir.Replace(filepath.Join(dir, IndexName), text.Bytes()); err != nil {
		return fmt.Errorf("writing the index: %w", err)
	}
	return nil
}

type indexed struct {
	report.Report
	page string
}

// newIncident summarises the runs of a scenario, oldest first.
func newIncident(name string, runs []indexed) incident {
	i := incident{Name: name}
	index := map[string]int{}
	for n, r := range runs {
		if r.Incident != nil {
			i.Title = r.Incident.Title
		}
		if n >= len(runs)-stripLength {
			i.Runs = append(i.Runs, stripRun{r.page, r.Run, verdictOf(r.Report), r.Started})
		}
		for _, v := range r.Variants {
			if v.Ablated != "" {
				continue // its verdict is of the harness, not of the version
			}
			at, there := index[v.Name]
			if !there {
				at, index[v.Name] = len(i.Versions), len(i.Versions)
				i.Versions = append(i.Versions, outcome{})
			}
			i.Versions[at] = outcome{
				versions(v.Components), v.Name, v.Role, cmp.Or(v.Verdict, "not judged"), v.Expected, r.page, i.Versions[at].Runs + 1,
			}
		}
	}
	i.Earlier = len(runs) - len(i.Runs)
	// Only runs of the same kind compare.
	last := runs[len(runs)-1]
	for _, before := range slices.Backward(runs[:len(runs)-1]) {
		if before.Ablated == last.Ablated {
			i.Changes = changes(before.Report, last.Report)
			break
		}
	}
	return i
}

func verdictOf(r report.Report) string {
	if r.Unfinished != nil {
		return "unfinished"
	}
	return r.Verdict
}

// changes say what differs in the later of two runs of a scenario: verdicts, impacted
// probes, findings, what remedies do. Times always differ: a difference is reported if
// one time is more than twice the other and more than 5 s longer.
func changes(before, after report.Report) []string {
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if a, b := verdictOf(before), verdictOf(after); a != b {
		say("verdict: %s → %s", a, b)
	}
	was := map[string]report.Variant{}
	for _, v := range before.Variants {
		was[v.Title()] = v
	}
	for _, v := range after.Variants {
		old, there := was[v.Title()]
		if delete(was, v.Title()); !there {
			say("%s ran; it did not run before", v.Title())
			continue
		}
		if a, b := versions(old.Components), versions(v.Components); a != b {
			say("%s: %s → %s", v.Title(), a, b)
		}
		if old.Verdict != v.Verdict {
			say("%s: %s → %s", v.Title(), cmp.Or(old.Verdict, "not judged"), cmp.Or(v.Verdict, "not judged"))
		}
		less, more := apart(old.ProbesHurt, v.ProbesHurt)
		sayMoved(say, v.Title(), "impacted", less, more)
		less, more = apart(findingsOf(old), findingsOf(v))
		sayMoved(say, v.Title(), "found", less, more)
		for _, r := range v.Remedies {
			i := slices.IndexFunc(old.Remedies, func(o report.Remedy) bool { return o.Same(r) })
			switch {
			case i < 0:
				say("%s: remedy %q was tried; it was not tried before", v.Title(), r.Name)
			case old.Remedies[i].Verdict != r.Verdict:
				say("%s: remedy %q: %s → %s", v.Title(), r.Name, old.Remedies[i].Verdict, r.Verdict)
			case old.Remedies[i].TimeToRecoverMS != nil && r.TimeToRecoverMS != nil:
				a, b := *old.Remedies[i].TimeToRecoverMS, *r.TimeToRecoverMS
				if low, high := min(a, b), max(a, b); high > 2*low && high-low > 5000 {
					say("%s: remedy %q: %s → %s", v.Title(), r.Name, seconds(a), seconds(b))
				}
			}
		}
	}
	for _, v := range before.Variants {
		if _, left := was[v.Title()]; left {
			say("%s did not run; it ran before", v.Title())
		}
	}
	return all
}

func sayMoved(say func(string, ...any), variant, what string, less, more []string) {
	if len(more) > 0 {
		say("%s: now also %s: %s", variant, what, strings.Join(more, ", "))
	}
	if len(less) > 0 {
		say("%s: no longer %s: %s", variant, what, strings.Join(less, ", "))
	}
}

func findingsOf(v report.Variant) []string {
	var all []string
	for _, f := range v.Findings {
		if name := f.Kind + " " + f.Object.String(); f.State == detect.Active && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// apart is what is in one list and not in the other.
func apart(a, b []string) (onlyA, onlyB []string) {
	without := func(all, others []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(others, s) })
	}
	return without(a, b), without(b, a)
}
