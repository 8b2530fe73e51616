package render

import (
	"io"
	"strconv"
	"strings"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report/metrics"
)

// Names of the metrics.
const (
	complete   = "relapse_audit_complete"
	findings   = "relapse_audit_findings"
	oneFinding = "relapse_audit_finding"
	suppressed = "relapse_audit_suppressed"
	gapCount   = "relapse_audit_gaps"
	unread     = "relapse_audit_unread"
	unrun      = "relapse_audit_not_run"
	unjudged   = "relapse_audit_not_judged"
	nodes      = "relapse_audit_nodes"
	routers    = "relapse_audit_routers"
	readCount  = "relapse_audit_reads"
	end        = "relapse_audit_end_timestamp_seconds"
)

var families = []metrics.Family{
	{Name: complete, Help: "1 if all was read, all has settled and nothing is left open; 0: no finding does not mean that nothing is there."},
	{Name: findings, Help: "Findings by state; once: of one of the last two reads alone. Suppressed ones are counted apart."},
	{Name: oneFinding, Help: "1 for each finding that is not suppressed."},
	{Name: suppressed, Help: "1 for each suppressed finding."},
	{Name: gapCount, Help: "What was not read, not run and not judged; open: not judged, and possibly a fault; unused: suppressions that match nothing."},
	{Name: unread, Help: "1 for each source that was not read."},
	{Name: unrun, Help: "1 for each detector that did not run, or not with all that it reads."},
	{Name: unjudged, Help: "1 for each gap between what routers have and what they are expected to have."},
	{Name: nodes, Help: "Nodes of the cluster."},
	{Name: routers, Help: "Routers that were asked."},
	{Name: readCount, Help: "How often all was read."},
	{Name: end, Help: "When the last read ended.", Unit: "seconds"},
}

// OpenMetrics writes a result as gauges. Counts are there when they are 0, so that an alert can tell
// nothing found from no audit.
func OpenMetrics(to io.Writer, r audit.Result) error {
	r, err := shown(r)
	if err != nil {
		return err
	}
	g := metrics.NewGauges(families)
	g.Add(complete, number(!r.Open()))
	count := map[string]int{"suppressed": len(r.Suppressed)}
	for _, f := range all(r) {
		count[f.State]++
		g.Add(oneFinding, 1, labels(f)...)
	}
	for _, state := range []string{string(detect.Active), string(detect.Pending), once, string(detect.Latent), string(detect.Hint), "suppressed"} {
		g.Add(findings, float64(count[state]), "state", state)
	}
	for _, s := range r.Suppressed {
		g.Add(suppressed, 1, append(labels(stated{s.Finding, string(s.State)}), "expires", s.By.Expires, "reason", s.By.Reason)...)
	}
	open := 0
	for _, gap := range r.NotJudged {
		open += int(number(gap.Open))
		g.Add(unjudged, 1, "says", gap.Says, "open", strconv.FormatBool(gap.Open))
	}
	for _, gap := range []struct {
		name string
		n    int
	}{{"not_read", len(r.Unread)}, {"not_run", len(r.NotRun)}, {"not_judged", len(r.NotJudged)}, {"open", open}, {"unused", len(r.Unused)}} {
		g.Add(gapCount, float64(gap.n), "gap", gap.name)
	}
	for _, m := range r.Unread {
		g.Add(unread, 1, "source", m.Source) // the reason may change from audit to audit
	}
	for _, n := range r.NotRun {
		g.Add(unrun, 1, "detector", n.Detector, "part", n.Part, "lacks", n.Lacks)
	}
	g.Add(nodes, float64(r.Nodes))
	g.Add(routers, float64(len(r.Routers)))
	g.Add(readCount, float64(r.Reads))
	g.Add(end, float64(r.Ended.UnixMilli())/1000)
	return g.Write(to)
}

func labels(f stated) []string {
	return []string{
		"id", f.ID, "detector", f.Detector, "kind", f.Kind, "state", f.State,
		"object", f.Object.String(), "owner", f.Owner, "announcer", f.Announcer, "routers", strings.Join(f.Routers, ", "),
	}
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
