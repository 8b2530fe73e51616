// Package metrics writes the results of stored runs as an OpenMetrics text file, for
// node_exporter's textfile collector or a Pushgateway.
//
// All metrics are gauges of the newest run of each scenario; LastSuccess is of the newest
// run that passed. Runs with --ablate test the harness and are left out. A partial run
// judges variants and not its scenario: half a pair, or a version without an expectation
// (--with). It sets neither Verdict nor LastSuccess.
package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/topology/each"
)

// Name is the file of the metrics, in the folder of the reports.
const Name = "metrics.prom"

// Names of the metrics. Times are in seconds; moments in seconds since 1970.
const (
	// Verdict of the newest run that is not partial: 1 for its verdict, 0 for the others.
	Verdict = "relapse_run_verdict"
	// Duration of a run, including the build of images.
	Duration = "relapse_run_duration_seconds"
	// Ended is when a run ended.
	Ended = "relapse_run_end_timestamp_seconds"
	// LastSuccess is when the newest run that passed and was not partial ended. A scenario
	// that never passed has none.
	LastSuccess = "relapse_last_success_timestamp_seconds"
	// VariantVerdict is 1, with the verdict of a variant and the one that was expected.
	VariantVerdict = "relapse_variant_verdict"
	// VariantDuration is a variant's, from its installation to its verdict.
	VariantDuration = "relapse_variant_duration_seconds"
	// TimeToDetect runs from the first lost packet to the first active finding after it.
	TimeToDetect = "relapse_time_to_detect_seconds"
	// TimeToRecover runs from the start of a remedy to the first window without loss.
	TimeToRecover = "relapse_time_to_recover_seconds"
)

// help is the help text of each metric, in the order of the file.
var help = []Family{
	{Verdict, "Verdict of the newest run of a scenario with an affected and a fixed variant: 1 for its verdict, 0 for the others.", ""},
	{Duration, "Duration of the newest run of a scenario, including the build of images.", "seconds"},
	{Ended, "When the newest run of a scenario ended.", "seconds"},
	{LastSuccess, "When the newest run of a scenario that passed with an affected and a fixed variant ended.", "seconds"},
	{VariantVerdict, "Verdict of each variant of the newest run, beside the expected one.", ""},
	{VariantDuration, "Duration of a variant, from its installation to its verdict.", "seconds"},
	{TimeToDetect, "From the first lost packet to the first active finding after it.", "seconds"},
	{TimeToRecover, "From the start of a remedy to the first window without loss.", "seconds"},
}

// Update writes output/metrics.prom from all runs that are stored below output, without those that
// have not ended or whose report cannot be read. The success of a run that was removed since is
// taken from the existing file: an alert on its age must not end because old runs are removed.
func Update(output string) error {
	path := filepath.Join(output, Name)
	remembered, err := successes(path)
	if err != nil {
		return err
	}
	dirs, err := page.Runs(output)
	if err != nil {
		return err
	}
	var runs []report.Report
	for _, dir := range dirs {
		r, err := report.Read(filepath.Join(dir, "report.json"))
		if err == nil && r.Unfinished == nil { // one may be removed at this moment, by a run that ends
			runs = append(runs, r)
		}
	}
	var text bytes.Buffer
	if err := Write(&text, runs, remembered); err != nil {
		return err
	}
	// Several processes may write it at once. A reader never sees half of it.
	if err := rundir.Replace(path, text.Bytes()); err != nil {
		return fmt.Errorf("writing the metrics: %w", err)
	}
	return nil
}

// successes are the values of LastSuccess in a file, by scenario; none without the file.
func successes(path string) (map[string]float64, error) {
	text, err := rundir.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the existing metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("reading the metrics in %s (remove the file to create it from the stored runs): %w", path, err)
	}
	at := map[string]float64{}
	for _, m := range families[LastSuccess].GetMetric() {
		for _, l := range m.Label {
			if l.GetName() == "scenario" {
				at[l.GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return at, nil
}

// Write writes the metrics of runs, as OpenMetrics text. Remembered are successes, in
// seconds since 1970, of scenarios without a run.
func Write(out io.Writer, runs []report.Report, remembered map[string]float64) error {
	newest, whole, passed := map[string]report.Report{}, map[string]report.Report{}, map[string]report.Report{}
	later := func(in map[string]report.Report, r report.Report) {
		if last, there := in[r.Scenario]; !there || r.Started.After(last.Started) {
			in[r.Scenario] = r
		}
	}
	for _, r := range runs {
		if r.Ablated != "" {
			continue
		}
		later(newest, r)
		if partial(r) {
			continue
		}
		later(whole, r)
		if r.Verdict == string(framework.Pass) {
			later(passed, r)
		}
	}
	g := NewGauges(help)
	for _, scenario := range slices.Sorted(maps.Keys(newest)) {
		if r, there := whole[scenario]; there {
			verdictOf(g, r)
		}
		runOf(g, newest[scenario])
		at, ever := remembered[scenario]
		if r, stored := passed[scenario]; stored {
			at, ever = max(at, seconds(ended(r))), true
		}
		if ever {
			g.Add(LastSuccess, at, "scenario", scenario)
		}
	}
	return g.Write(out)
}

// Family is a metric: its name, its help text and its unit, which may be empty.
type Family struct{ Name, Help, Unit string }

// Gauges are the values of metrics.
type Gauges struct {
	order []Family
	by    map[string]*dto.MetricFamily
	seen  map[string]bool
}

// NewGauges makes metrics without values, which are written in their order.
func NewGauges(families []Family) Gauges {
	g := Gauges{families, map[string]*dto.MetricFamily{}, map[string]bool{}}
	for _, f := range families {
		g.by[f.Name] = &dto.MetricFamily{Name: &f.Name, Help: &f.Help, Type: dto.MetricType_GAUGE.Enum()}
		if f.Unit != "" {
			g.by[f.Name].Unit = &f.Unit
		}
	}
	return g
}

// Add adds a value, with labels as name and value in turn. A series counts once: its first value stays.
func (g Gauges) Add(name string, value float64, labels ...string) {
	series := fmt.Sprintf("%s %q", name, labels)
	if g.seen[series] {
		return
	}
	g.seen[series] = true
	m := &dto.Metric{Gauge: &dto.Gauge{Value: &value}}
	for i := 0; i < len(labels); i += 2 {
		m.Label = append(m.Label, &dto.LabelPair{Name: &labels[i], Value: &labels[i+1]})
	}
	g.by[name].Metric = append(g.by[name].Metric, m)
}

// Write writes the metrics that have values, as OpenMetrics text.
func (g Gauges) Write(out io.Writer) error {
	for _, f := range g.order {
		if len(g.by[f.Name].Metric) == 0 {
			continue
		}
		if _, err := expfmt.MetricFamilyToOpenMetrics(out, g.by[f.Name], expfmt.WithUnit()); err != nil {
			return fmt.Errorf("encoding the metric %s: %w", f.Name, err)
		}
	}
	_, err := expfmt.FinalizeOpenMetrics(out)
	return err
}

func verdictOf(g Gauges, r report.Report) {
	for _, verdict := range []framework.RunVerdict{framework.Pass, framework.Fail, framework.Inconclusive} {
		is := 0.0
		if r.Verdict == string(verdict) {
			is = 1
		}
		g.Add(Verdict, is, "scenario", r.Scenario, "owner", r.Owner, "verdict", string(verdict))
	}
}

func runOf(g Gauges, r report.Report) {
	g.Add(Duration, milliseconds(r.Timings.Total), "scenario", r.Scenario)
	g.Add(Ended, seconds(ended(r)), "scenario", r.Scenario)
	for _, v := range r.Variants {
		of := []string{"scenario", r.Scenario, "variant", v.Name}
		with := func(more ...string) []string { return slices.Concat(of, more) }
		g.Add(VariantVerdict, 1, with("role", v.Role, "verdict", v.Verdict, "expected", v.Expected)...)
		g.Add(VariantDuration, milliseconds(v.ElapsedMS), of...)
		if detected, known := TimeToDetectOf(v); known {
			g.Add(TimeToDetect, detected.Seconds(), of...)
		}
		for _, m := range v.Remedies {
			if m.TimeToRecoverMS != nil {
				g.Add(TimeToRecover, milliseconds(*m.TimeToRecoverMS), with("remedy", m.Name)...)
			}
		}
	}
}

// TimeToDetectOf is the time from the first lost packet to the first active finding: zero
// if the finding came first. Known is false if there was no active finding.
func TimeToDetectOf(v report.Variant) (took time.Duration, known bool) {
	for _, f := range v.Findings {
		if f.State == detect.Active && f.During == "fault" && f.At != nil && v.Onset != nil && !f.At.After(*v.Onset) {
			return 0, true
		}
		if f.TimeToDetectMS == nil {
			continue
		}
		if one := time.Duration(*f.TimeToDetectMS) * time.Millisecond; !known || one < took {
			took, known = one, true
		}
	}
	return took, known
}

// partial says whether a run judges only a part of its scenario. One without any variant has
// not come that far, and its verdict says so.
func partial(r report.Report) bool {
	roles := each.Of(r.Variants, func(v report.Variant) framework.Role { return framework.Role(v.Role) })
	return slices.Contains(roles, framework.Unclassified) || len(roles) > 0 && framework.Half(roles...) != ""
}

func ended(r report.Report) time.Time {
	return r.Started.Add(time.Duration(r.Timings.Total) * time.Millisecond)
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func milliseconds(n int64) float64 { return float64(n) / 1000 }
