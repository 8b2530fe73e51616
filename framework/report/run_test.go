package report_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newRun(t *testing.T, output string, began time.Time) string {
	t.Helper()
	return must.Get(report.NewRun(output, "node-drain", began))(t)
}

func TestNewRun(t *testing.T) {
	output := filepath.Join(t.TempDir(), "reports") // is made
	east := time.FixedZone("east", 3*60*60)
	for _, test := range []struct {
		name  string
		began time.Time
		want  string
	}{
		{"in UTC", noon, "2026-03-01T12-00-00Z"},
		{"in the same second", noon.Add(time.Millisecond), "2026-03-01T12-00-00Z-2"},
		{"the third of it", noon, "2026-03-01T12-00-00Z-3"},
		{"a second later, on a clock that says 15:00", noon.Add(time.Second).In(east), "2026-03-01T12-00-01Z"},
	} {
		must.Equal(t, test.name, filepath.Join(output, "node-drain", test.want), newRun(t, output, test.began))
	}
}

func TestNewRunThatFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	must.Fail(t, must.Err(report.NewRun(file, "node-drain", noon)), `the runs of "node-drain"`)
}

func TestLatest(t *testing.T) {
	output := t.TempDir()
	first, second := newRun(t, output, noon), newRun(t, output, noon.Add(time.Minute))
	link := report.Latest(output, "node-drain")
	must.Is(t, must.Err(os.Stat(link)), fs.ErrNotExist) // before any run has ended
	for _, run := range []string{first, second, second} {
		must.NoError(t, stored(t, "full").Write(run))
		must.NoError(t, report.SetLatest(run))
		// Relative: the reports can be moved, and uploaded, as a whole.
		must.Equal(t, "latest", filepath.Base(run), must.Get(os.Readlink(link))(t))
		must.Get(report.Read(filepath.Join(link, "report.json")))(t)
	}
	must.Fail(t, report.SetLatest(filepath.Join(output, "no-such", "run")), "no-such")
}

func TestPruneRuns(t *testing.T) {
	for _, test := range []struct {
		name string
		keep report.Keep
		want []string // what is left, beside what is no run
	}{
		{"all are within bounds", report.Keep{Runs: 3, Bytes: 300}, []string{"2026-03-01T12-00-00Z", "2026-03-01T12-00-00Z-2", "2026-03-01T12-01-00Z"}},
		{"too many", report.Keep{Runs: 2, Bytes: 300}, []string{"2026-03-01T12-00-00Z-2", "2026-03-01T12-01-00Z"}},
		{"too large", report.Keep{Runs: 3, Bytes: 299}, []string{"2026-03-01T12-00-00Z-2", "2026-03-01T12-01-00Z"}},
		{"the newest alone is too large", report.Keep{Runs: 3, Bytes: 1}, []string{"2026-03-01T12-01-00Z"}},
		{"none is to be kept", report.Keep{}, []string{"2026-03-01T12-01-00Z"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			output := t.TempDir()
			for _, began := range []time.Time{noon, noon, noon.Add(time.Minute)} {
				must.Write(t, filepath.Join(newRun(t, output, began), "evidence", "cilium-1.11.6", "01-snapshot.json"), strings.Repeat("x", 100))
			}
			notRuns := []string{"evidence", "2026-03-01T11-00-00Zzz", "2026-03-01"}
			for _, name := range notRuns {
				must.NoError(t, os.Mkdir(filepath.Join(output, "node-drain", name), 0o755))
			}
			removed := must.Get(report.PruneRuns(output, "node-drain", test.keep))(t)
			for _, r := range removed {
				if r.Bytes != 100 || filepath.Dir(r.Dir) != filepath.Join(output, "node-drain") {
					t.Errorf("removed %+v", r)
				}
			}
			must.Equal(t, "told as removed", 3-len(test.want), len(removed))
			left := each.Of(must.Get(os.ReadDir(filepath.Join(output, "node-drain")))(t), fs.DirEntry.Name)
			must.Equal(t, "left", slices.Sorted(slices.Values(append(notRuns, test.want...))), left)
		})
	}
}
