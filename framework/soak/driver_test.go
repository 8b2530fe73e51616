package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/keptlab"
	"github.com/relapse-dev/relapse/framework/report"
)

// fakeLab is a lab on which runs have the results that run makes of them.
type fakeLab struct {
	dir  string
	runs int
	up   bool
	run  func(number int, r *keptlab.Run)
}

func (l *fakeLab) Run(_ context.Context, s framework.Scenario, _ string, keep bool) keptlab.Run {
	l.runs++
	r := keptlab.Run{Dir: filepath.Join(l.dir, s.Incident.Name, fmt.Sprint(l.runs)), Reported: true}
	r.Report = report.Report{Scenario: s.Incident.Name, Run: fmt.Sprint(l.runs), Verdict: string(framework.Pass)}
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		r.Left = err
	}
	if l.run != nil {
		l.run(l.runs, &r)
	}
	l.up = keep && r.Broken == nil
	return r
}

func (l *fakeLab) Up() bool                      { return l.up }
func (l *fakeLab) Down(framework.Scenario) error { l.up = false; return nil }

// fakeCounter counts nothing.
type fakeCounter struct{}

func (fakeCounter) Program() (map[string]int64, error)                { return nil, nil }
func (fakeCounter) Machine(context.Context) (map[string]int64, error) { return nil, nil }
func (fakeCounter) Lab(context.Context) (map[string]int64, []string, error) {
	return map[string]int64{"lab: containers": 3}, []string{"containers: 3"}, nil
}

func TestRun(t *testing.T) {
	broken := func(number int, r *keptlab.Run) {
		if number > 1 {
			r.Report.Verdict, r.Broken = string(framework.Inconclusive), errors.New("no node")
		}
	}
	for _, test := range []struct {
		name    string
		fresh   int
		keep    bool
		run     func(number int, r *keptlab.Run)
		err     string
		stored  string // lab and run on it, of each run
		reports string // those that are kept
		stopped string
	}{
		{name: "one lab", stored: "1.1 1.2 1.3 1.4", reports: "4"},
		{name: "new labs", fresh: 3, keep: true, stored: "1.1 1.2 1.3 2.1", reports: "1 2 3 4"},
		{name: "runs that break", run: broken, err: "no node", stored: "1.1 1.2 2.1", reports: "1 2 3", stopped: "it could not continue: no node"},
		{
			name: "one run that breaks", stored: "1.1 1.2 2.1 2.2", reports: "2 4",
			run: func(number int, r *keptlab.Run) {
				if number == 2 {
					broken(number, r)
				}
			},
		},
		{
			name: "a lab that does not go down", run: func(_ int, r *keptlab.Run) { r.Left = errors.New("busy") },
			err: "busy", reports: "1", stopped: "it could not continue: busy",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			s := Soak{
				Scenario: framework.Scenario{Incident: framework.Incident{Name: "drain"}}, Runs: 4, FreshEvery: test.fresh, KeepReports: test.keep,
				Dir: dir, Lab: &fakeLab{dir: dir, run: test.run}, Counter: fakeCounter{}, Note: func(string) {},
			}
			result, err := s.Run(t.Context())
			if (err == nil) != (test.err == "") || err != nil && err.Error() != test.err || result.Stopped != test.stopped {
				t.Errorf("%v, stopped: %q", err, result.Stopped)
			}
			runs, err := Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			var stored, reports []string
			for _, run := range runs {
				stored = append(stored, fmt.Sprintf("%d.%d", run.Lab, run.OnLab))
				if gone := len(run.Left) > 0; gone == run.Kept || run.Counts["lab: containers"] != 3 {
					t.Errorf("run %d: kept %t, left %q, counts %v", run.Number, run.Kept, run.Left, run.Counts)
				}
			}
			entries, err := os.ReadDir(filepath.Join(dir, "drain"))
			for _, e := range entries {
				reports = append(reports, e.Name())
			}
			if got := strings.Join(reports, " "); err != nil || strings.Join(stored, " ") != test.stored || got != test.reports {
				t.Errorf("%v, stored %q, reports %s\nwant %s, reports %s", err, stored, got, test.stored, test.reports)
			}
		})
	}
}

// An interrupt ends the soak; the run that it cut short is not counted.
func TestRunIsInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	dir := t.TempDir()
	s := Soak{
		Scenario: framework.Scenario{Incident: framework.Incident{Name: "drain"}}, Dir: dir, Counter: fakeCounter{}, Note: func(string) {},
		Lab: &fakeLab{dir: dir, run: func(number int, _ *keptlab.Run) {
			if number == 3 {
				interrupt()
			}
		}},
	}
	result, err := s.Run(ctx)
	if err != nil || result.Runs != 2 || result.Stopped != "it was interrupted" || result.Verdict != framework.Fail {
		t.Errorf("%v, %d runs, %s, stopped: %q", err, result.Runs, result.Verdict, result.Stopped)
	}
}
