package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestPage(t *testing.T) {
	dir := t.TempDir()
	for n, run := range []string{"2026-01-02T03-04-00Z", "2026-01-02T04-04-00Z"} {
		r := report.Report{Schema: report.Schema, Scenario: "node-drain", Run: run, Verdict: "pass", Started: time.Date(2026, 1, 2, 3+n, 4, 0, 0, time.UTC)}
		must.NoError(t, r.Write(filepath.Join(dir, "node-drain", run)))
	}
	one := filepath.Join("node-drain", "2026-01-02T03-04-00Z")
	for _, test := range []struct {
		name, arg string
		wrote     []string
	}{
		{"one run", one, []string{filepath.Join(one, "report.html")}},
		{"all of them", "", []string{filepath.Join(one, "report.html"), "node-drain/2026-01-02T04-04-00Z/report.html", "index.html"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := ""
			_, out, complained := output(t, "page", filepath.Join(dir, test.arg))
			for _, name := range test.wrote {
				want += filepath.Join(dir, name) + "\n"
				must.Get(os.Stat(filepath.Join(dir, name)))(t)
			}
			must.Equal(t, "output", want, out+complained)
		})
	}
}
