package report_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// stored is a report of testdata: full has every field set, and bare is a run that came to nothing.
func stored(t *testing.T, name string) report.Report {
	t.Helper()
	return must.Get(report.Read(filepath.Join("testdata", name+".json")))(t)
}

func TestGolden(t *testing.T) {
	for _, name := range []string{"full", "bare"} {
		t.Run(name, func(t *testing.T) {
			r := stored(t, name)
			dir := filepath.Join(t.TempDir(), "reports", r.Scenario) // is made
			must.NoError(t, r.Write(dir))
			goldentest.Compare(t, name+".json", string(must.Read(t, filepath.Join(dir, "report.json"))))
			back := must.Get(report.Read(filepath.Join(dir, "report.json")))(t)
			must.Equal(t, "read back", r, back)
			must.Equal(t, "report.json alone", 1, len(must.Get(os.ReadDir(dir))(t)))
		})
	}
}

func TestEvidenceOf(t *testing.T) {
	for name, want := range map[string][2]string{
		"03-snapshot-after-fault.json": {"snapshot", "after-fault"}, "12-probes.json": {"", ""},
		"09-probes-observed.txt": {}, "09-pulls.json": {}, "snapshot-baseline.json": {}, "09-snapshots.json": {},
	} {
		kind, moment := report.EvidenceOf(name)
		must.Equal(t, name, want, [2]string{kind, moment})
	}
}

func TestReadRefuses(t *testing.T) {
	for name, test := range map[string]struct{ text, says string }{
		"half a report":      {`{"schema":"relapse.report/v2","scenario":`, "unexpected end of JSON input"},
		"no JSON":            {"PASS", "invalid character"},
		"empty":              {"", "unexpected end of JSON input"},
		"another's JSON":     {`{"kind":"List"}`, `its schema is "", not "relapse.report/v2"`},
		"an earlier schema":  {`{"schema":"relapse.report/v1"}`, `its schema is "relapse.report/v1", not "relapse.report/v2"`},
		"a field's type":     {`{"schema":"relapse.report/v2","variants":"none"}`, "variants"},
		"two reports in one": {`{"schema":"relapse.report/v2"}{"schema":"relapse.report/v2"}`, "after top-level value"},
	} {
		t.Run(name, func(t *testing.T) {
			path := must.Write(t, filepath.Join(t.TempDir(), "report.json"), test.text)
			must.Fail(t, must.Err(report.Read(path)), test.says, path)
		})
	}
	t.Run("no file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "report.json")
		if _, err := report.Read(path); err == nil || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v; want it to say that %s is not there", err, path)
		}
	})
}

func TestWriteThatFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	must.Fail(t, stored(t, "full").Write(filepath.Join(file, "reports")), "the report's folder")
	r := stored(t, "full")
	r.Machine = func() {}
	must.Fail(t, r.Write(t.TempDir()), `"node-drain"`)
}

func TestTimeToDetect(t *testing.T) {
	onset := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(state detect.State, delay time.Duration) report.Finding {
		f := report.Finding{Finding: detect.Finding{State: state}, During: "fault", At: new(onset.Add(delay))}
		if state == detect.Active && delay > 0 {
			f.TimeToDetectMS = new(delay.Milliseconds())
		}
		return f
	}
	for _, test := range []struct {
		name     string
		findings []report.Finding
		took     time.Duration
		found    bool
	}{
		{"none", nil, 0, false},
		{"latent ones are no alarm", []report.Finding{at(detect.Latent, -time.Second)}, 0, false},
		{"the first of two", []report.Finding{at(detect.Active, 8*time.Second), at(detect.Active, 2*time.Second)}, 2 * time.Second, true},
		{"one before the loss, and one after it", []report.Finding{at(detect.Active, 8*time.Second), at(detect.Active, -time.Second)}, 0, true},
	} {
		took, found := report.Variant{Onset: &onset, Findings: test.findings}.TimeToDetect()
		must.Equal(t, test.name, []any{test.took, test.found}, []any{took, found})
	}
}

// The intervals are method 3 of table I in R. G. Newcombe, "Two-sided confidence intervals for the
// single proportion", Statistics in Medicine 17 (1998).
func TestNewRate(t *testing.T) {
	for _, c := range []struct {
		count, runs int
		low, high   float64
	}{
		{81, 263, 0.2553, 0.3662},
		{15, 148, 0.0624, 0.1605},
		{0, 20, 0, 0.1611},
		{1, 29, 0.0061, 0.1718},
		{20, 20, 0.8389, 1}, // the mirror image of none
		{1, 1, 0.2065, 1},
	} {
		r := report.NewRate(c.count, c.runs)
		if r.Runs != c.runs || r.Count != c.count || math.Abs(r.Low-c.low) > 0.00005 || math.Abs(r.High-c.high) > 0.00005 {
			t.Errorf("%d of %d: %+v, want %.4f to %.4f", c.count, c.runs, r, c.low, c.high)
		}
	}
}

// A race that showed in 19 of 20 runs may show as seldom as three times in four.
func ExampleNewRate() {
	rate := report.NewRate(19, 20)
	fmt.Printf("%d of %d, 95%% interval: %.0f to %.0f%%\n", rate.Count, rate.Runs, rate.Low*100, rate.High*100)
	// Output:
	// 19 of 20, 95% interval: 76 to 99%
}
