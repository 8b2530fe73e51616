package metrics

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 500_000_000, time.UTC)

// drain is a run of node-drain that began some hours later than the first.
func drain(hours int, verdict string) report.Report {
	return report.Report{
		Schema: report.Schema, Scenario: "node-drain", Owner: "@net", Verdict: verdict, Started: began.Add(time.Duration(hours) * time.Hour),
		Timings: report.Timings{Total: 203_250},
		Variants: []report.Variant{
			{
				Name: "old", Role: "affected", Expected: "reproduced", Verdict: "reproduced", ElapsedMS: 129_000,
				Findings: []report.Finding{{TimeToDetectMS: new(int64(900))}, {}, {TimeToDetectMS: new(int64(258))}},
				Remedies: []report.Remedy{{Name: `a "static" route`, TimeToRecoverMS: new(int64(12))}, {Name: "restart"}},
			},
			{Name: "new", Role: "fixed", Expected: "prevented", Verdict: "prevented", ElapsedMS: 51_000},
		},
	}
}

func nights() []report.Report {
	ablated := drain(9, "pass")
	ablated.Ablated = "all"
	version := drain(-2, "pass")
	version.Scenario = "added-nic"
	version.Variants = []report.Variant{{Name: "calico-3.29.0", Role: "unclassified", Verdict: "reproduced"}}
	return []report.Report{drain(2, "fail"), drain(1, "pass"), drain(0, "pass"), ablated, version}
}

func text(t *testing.T, runs []report.Report) string {
	t.Helper()
	var out bytes.Buffer
	must.NoError(t, Write(&out, runs, nil))
	return out.String()
}

func TestWrite(t *testing.T) {
	got := text(t, nights())
	goldentest.Compare(t, "metrics.prom", got)
	if !strings.HasSuffix(got, "# EOF\n") {
		t.Error("OpenMetrics ends with # EOF")
	}
}

// TestPartialRuns is of runs that do not judge their scenario: half a pair, and a version
// without an expectation. What their variants came to is there.
func TestPartialRuns(t *testing.T) {
	half, version, down := drain(3, "pass"), drain(3, "pass"), drain(4, "inconclusive")
	half.Variants = half.Variants[1:]
	version.Variants = []report.Variant{{Name: "cilium-1.11.4", Role: "unclassified", Verdict: "reproduced"}}
	down.Variants = nil // the lab did not come up
	for _, test := range []struct {
		name    string
		runs    []report.Report
		verdict string  // the scenario's; empty: none
		success float64 // zero: none
	}{
		{"whole", []report.Report{drain(2, "pass")}, "pass", seconds(ended(drain(2, "pass")))},
		{"half a pair alone", []report.Report{half}, "", 0},
		{"a version alone", []report.Report{version}, "", 0},
		{"half a pair after a failure", []report.Report{drain(0, "pass"), drain(2, "fail"), half}, "fail", seconds(ended(drain(0, "pass")))},
		{"a version after a failure", []report.Report{drain(2, "fail"), version}, "fail", 0},
		{"no lab after a success", []report.Report{drain(2, "pass"), down}, "inconclusive", seconds(ended(drain(2, "pass")))},
	} {
		t.Run(test.name, func(t *testing.T) {
			families := must.Get(parse(text(t, test.runs)))(t)
			verdict, success := "", 0.0
			for _, m := range families[Verdict].GetMetric() {
				if m.GetGauge().GetValue() == 1 {
					verdict += m.Label[2].GetValue()
				}
			}
			for _, m := range families[LastSuccess].GetMetric() {
				success = m.GetGauge().GetValue()
			}
			if verdict != test.verdict || success != test.success {
				t.Errorf("verdict %q, last success %f; want %q, %f", verdict, success, test.verdict, test.success)
			}
			newest := test.runs[len(test.runs)-1]
			must.Equal(t, "", len(newest.Variants), len(families[VariantVerdict].GetMetric()))
		})
	}
}

func parse(text string) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(strings.NewReader(text))
}

func TestUpdate(t *testing.T) {
	output := t.TempDir()
	goesOn := drain(3, "inconclusive")
	goesOn.Unfinished = &report.Unfinished{}
	for _, r := range append(nights(), goesOn) {
		must.NoError(t, r.Write(must.Get(report.NewRun(output, r.Scenario, r.Started))(t)))
	}
	older := must.Get(report.NewRun(output, "node-drain", began.Add(5*time.Hour)))(t)
	must.Write(t, filepath.Join(older, "report.json"), `{"schema":"relapse.report/v1"}`)
	for range 2 { // the second time over the first
		must.NoError(t, Update(output))
	}
	got, err := os.ReadFile(filepath.Join(output, Name))
	if err != nil || string(got) != text(t, nights()) {
		t.Errorf("%v, %s", err, got)
	}
	entries, err := os.ReadDir(output)
	if err != nil || len(entries) != 3 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestLastSuccessIsRemembered removes the runs that have passed.
func TestLastSuccessIsRemembered(t *testing.T) {
	output := t.TempDir()
	store := func(r report.Report) string {
		dir := must.Get(report.NewRun(output, r.Scenario, r.Started))(t)
		must.NoError(t, r.Write(dir))
		must.NoError(t, Update(output))
		return dir
	}
	success := func() float64 { return must.Get(successes(filepath.Join(output, Name)))(t)["node-drain"] }
	passed := store(drain(0, "pass"))
	first := success()
	must.Equal(t, "", seconds(ended(drain(0, "pass"))), first)
	store(drain(1, "fail"))
	must.NoError(t, os.RemoveAll(passed))
	store(drain(2, "fail"))
	must.Equal(t, "", first, success())
	store(drain(3, "pass"))
	must.Equal(t, "", first+3*3600, success())
	must.Write(t, filepath.Join(output, Name), "not metrics")
	must.Fail(t, Update(output), "reading the metrics in "+output)
}

// An alarm ahead of the first lost packet is no later than one after it.
func TestTimeToDetect(t *testing.T) {
	onset := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(state detect.State, after time.Duration) report.Finding {
		f := report.Finding{Finding: detect.Finding{State: state}, During: "fault", At: new(onset.Add(after))}
		if state == "active" && after > 0 {
			f.TimeToDetectMS = new(after.Milliseconds())
		}
		return f
	}
	for _, test := range []struct {
		name     string
		findings []report.Finding
		took     time.Duration
		known    bool
	}{
		{"none", nil, 0, false},
		{"latent ones are no alarm", []report.Finding{at(detect.Latent, -time.Second)}, 0, false},
		{"the first of two", []report.Finding{at(detect.Active, 8*time.Second), at(detect.Active, 2*time.Second)}, 2 * time.Second, true},
		{"one before the loss, and one after it", []report.Finding{at(detect.Active, 8*time.Second), at(detect.Active, -time.Second)}, 0, true},
	} {
		took, known := TimeToDetectOf(report.Variant{Onset: &onset, Findings: test.findings})
		if took != test.took || known != test.known {
			t.Errorf("%s: %s, %t; want %s, %t", test.name, took, known, test.took, test.known)
		}
	}
}
