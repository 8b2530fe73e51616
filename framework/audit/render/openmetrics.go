package render

import (
	_ "embed"
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/detect"
)

const (
	build      = "relapse_build_info"
	complete   = "relapse_audit_complete"
	findings   = "relapse_audit_findings"
	oneFinding = "relapse_audit_finding"
	onRouter   = "relapse_audit_finding_router"
	suppressed = "relapse_audit_suppressed"
	gapCount   = "relapse_audit_gaps"
	unread     = "relapse_audit_unread"
	unrun      = "relapse_audit_not_run"
	nodes      = "relapse_audit_nodes"
	routers    = "relapse_audit_router"
	readCount  = "relapse_audit_reads"
	end        = "relapse_audit_end_timestamp_seconds"
)

// Rules is a file of alerting rules for Prometheus on these metrics. A Grafana dashboard is beside it.
//
//go:embed rules.yaml
var Rules string

var families = []family{
	{name: build, help: "1, with the version of relapse that audited."},
	{name: complete, help: "1 if all was read, all has settled and nothing is left open; " +
		"0: no finding does not mean that nothing is there."},
	{name: findings, help: "Findings by state; once: of one of the last two reads alone. Suppressed ones are counted apart."},
	{name: oneFinding, help: "1 for each finding that is not suppressed."},
	{name: onRouter, help: "1 for each router that a finding is about, by the id of the finding."},
	{name: suppressed, help: "1 for each suppressed finding."},
	{name: gapCount, help: "What was not read, not run and not judged; open: not judged, and possibly a fault; " +
		"unused: suppressions that match nothing."},
	{name: unread, help: "1 for each source that was not read."},
	{name: unrun, help: "1 for each detector that did not run, or not with all that it reads."},
	{name: nodes, help: "Nodes of the cluster."},
	{name: routers, help: "1 for each router that was asked."},
	{name: readCount, help: "How often all was read."},
	{name: end, help: "When the last read ended.", unit: "seconds"},
}

// OpenMetrics writes a result as gauges. Counts of 0 are written, so that an alert can distinguish no finding from no
// audit. A label is a name or a word and never a sentence, so that a series continues while its subject is the same.
func OpenMetrics(to io.Writer, r audit.Result) error {
	r, err := shown(r)
	if err != nil {
		return err
	}
	g := newGauges(families)
	g.add(build, 1, "version", r.Relapse)
	g.add(complete, number(!r.Open()))
	count := map[string]int{"suppressed": len(r.Suppressed)}
	for _, f := range all(r) {
		count[f.State]++
		g.add(oneFinding, 1, labels(f)...)
		for _, router := range f.Routers {
			g.add(onRouter, 1, "id", f.ID, "router", router)
		}
	}
	for _, state := range []detect.State{detect.Active, detect.Pending, once, detect.Latent, detect.Hint, "suppressed"} {
		g.add(findings, float64(count[string(state)]), "state", string(state))
	}
	for _, s := range r.Suppressed {
		g.add(suppressed, 1, append(labels(stated{s.Finding, string(s.State)}), "expires", s.By.Expires)...)
	}
	open := 0
	for _, gap := range r.NotJudged {
		open += int(number(gap.Open))
	}
	for _, gap := range []struct {
		name string
		n    int
	}{{"not_read", len(r.Unread)}, {"not_run", len(r.NotRun)}, {"not_judged", len(r.NotJudged)}, {"open", open}, {"unused", len(r.Unused)}} {
		g.add(gapCount, float64(gap.n), "gap", gap.name)
	}
	for _, m := range r.Unread {
		g.add(unread, 1, "source", m.Source) // without the reason, which may differ from audit to audit
	}
	for _, n := range r.NotRun {
		g.add(unrun, 1, "detector", n.Detector, "part", n.Part)
	}
	g.add(nodes, float64(r.Nodes))
	for _, router := range r.Routers {
		g.add(routers, 1, "router", router)
	}
	g.add(readCount, float64(r.Reads))
	g.add(end, float64(r.Ended.UnixMilli())/1000)
	return g.write(to)
}

func labels(f stated) []string {
	return []string{
		"id", f.ID, "detector", f.Detector, "kind", f.Kind, "state", f.State,
		"object", f.Object.String(), "owner", f.Owner, "announcer", f.Announcer,
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

type family struct{ name, help, unit string }

// gauges are the values of metrics, and are written in the order of their families.
type gauges struct {
	order []family
	by    map[string]*dto.MetricFamily
	seen  map[string]bool
}

func newGauges(families []family) gauges {
	g := gauges{families, map[string]*dto.MetricFamily{}, map[string]bool{}}
	for _, f := range families {
		g.by[f.name] = &dto.MetricFamily{Name: &f.name, Help: &f.help, Type: dto.MetricType_GAUGE.Enum()}
		if f.unit != "" {
			g.by[f.name].Unit = &f.unit
		}
	}
	return g
}

// add adds a value, with labels as alternating names and values. A series keeps its first value.
func (g gauges) add(name string, value float64, labels ...string) {
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

func (g gauges) write(out io.Writer) error {
	for _, f := range g.order {
		if len(g.by[f.name].Metric) == 0 {
			continue
		}
		if _, err := expfmt.MetricFamilyToOpenMetrics(out, g.by[f.name], expfmt.WithUnit()); err != nil {
			return fmt.Errorf("encoding the metric %s: %w", f.name, err)
		}
	}
	_, err := expfmt.FinalizeOpenMetrics(out)
	return err
}
