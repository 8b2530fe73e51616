package page

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"path/filepath"
	"slices"
	"time"

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

// Runs finds the folders that hold a report: dir itself, or folders below it, in order of their
// paths. Links, such as latest, are not followed.
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
	Earlier  int        // runs that are older
}

type outcome struct {
	Version, Variant, Role, Verdict, Expected, Page string
	Runs                                            int
}

type stripRun struct {
	Page, Run, Verdict string
	Started            time.Time
}

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
	return i
}

func verdictOf(r report.Report) string {
	if r.Unfinished != nil {
		return "unfinished"
	}
	return r.Verdict
}
