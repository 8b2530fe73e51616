package page

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestIndex(t *testing.T) {
	dir := t.TempDir()
	for n, change := range []func(*report.Report){
		func(*report.Report) {},
		func(r *report.Report) { r.Ablated, r.Variants[0].Ablated = "fault", "fault" },
		func(r *report.Report) {
			r.Verdict, r.Variants[1].Verdict = "fail", "reproduced"
			r.Variants[1].ProbesHurt = []string{"outside->master2"}
		},
	} {
		r := drained()
		r.Started = began.Add(time.Duration(n) * time.Hour)
		r.Run = r.Started.Format("2006-01-02T15-04-05Z")
		change(&r)
		must.NoError(t, r.Write(filepath.Join(dir, "node-drain", r.Run)))
	}
	must.NoError(t, os.Symlink("2026-01-02T05-04-00Z", filepath.Join(dir, "node-drain", "latest")))
	runs := must.Get(Runs(dir))(t)
	must.Equal(t, "runs, of which a link is none", 3, len(runs))
	for _, run := range runs {
		must.NoError(t, Write(run, nil))
	}
	must.NoError(t, WriteIndex(dir, runs))
	index := parsed(t, filepath.Join(dir, IndexName))
	checkPage(t, dir, index)
	must.Equal(t, "the strip", "✔✔✘", index.first(t, ".strip").says())
	want := []string{"cilium 1.11.6 cilium-1.11.6 affected ✔ reproduced reproduced 2", "cilium 1.12.0 cilium-1.12.0 fixed ✔ reproduced prevented 3"}
	must.Equal(t, "versions", want, texts(index.first(t, "tbody").all("tr")))
}

func TestRunsThatAreNotThere(t *testing.T) {
	must.Fail(t, must.Err(Runs(filepath.Join(t.TempDir(), "no-such"))), "no-such")
}
