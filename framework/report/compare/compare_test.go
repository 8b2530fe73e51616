package compare

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// run is a report of a run that passes, but for what change does to it.
func run(name string, change func(*report.Report)) report.Report {
	fault := began.Add(20 * time.Second)
	r := report.Report{
		Schema: report.Schema, Scenario: "node-drain", Run: name, Verdict: "pass", Started: began,
		Command: "relapse run node-drain", Machine: map[string]any{"cpus": 2.0, "memory_gib": 24.0, "kernel": "6.18"},
		Variants: []report.Variant{
			{Name: "old", Role: "affected", Components: map[string]string{"cilium": "1.11.6"}, Expected: "reproduced", Verdict: "reproduced",
				Fault: &report.Fault{Began: fault}, Onset: new(fault.Add(100 * time.Millisecond)), ElapsedMS: 100_000,
				Findings: []report.Finding{
					{Finding: detect.Finding{Detector: "routes", Kind: "lost", State: "settling", Object: detect.Prefix(netip.MustParsePrefix("10.0.0.0/24"))}, During: "fault"},
					{Finding: detect.Finding{Detector: "routes", Kind: "lost", State: "active", Object: detect.Prefix(netip.MustParsePrefix("10.0.0.0/24")), Owner: "node1", Routers: []string{"tor2", "tor1"}}, During: "fault", TimeToDetectMS: new(int64(300))},
				},
				Remedies: []report.Remedy{{ID: "upgrade", Name: "upgrade", Expected: "recovers", Verdict: "recovers", TimeToRecoverMS: new(int64(7000)), TimeToQuietMS: new(int64(7400))}},
				Checks:   []report.Check{{ID: "gone", Name: "the routes are gone", Holds: true}}},
			{Name: "new", Role: "fixed", Components: map[string]string{"cilium": "1.12.0"}, Expected: "prevented", Verdict: "prevented", ElapsedMS: 40_000},
		},
	}
	if change != nil {
		change(&r)
	}
	return r
}

func TestReports(t *testing.T) {
	for _, test := range []struct {
		name string
		b    func(*report.Report)
		// what is different, as many as there are of each
		verdicts, findings, times, conditions int
	}{
		{name: "the same"},
		{name: "a verdict, with a reason", verdicts: 2, b: func(r *report.Report) { r.Verdict = "fail"; r.Variants[0].Verdict = "missed" }},
		{name: "a remedy", verdicts: 1, b: func(r *report.Report) { r.Variants[0].Remedies[0].Verdict = "does-not-help" }},
		{name: "a remedy that was not tried", b: func(r *report.Report) { r.Variants[0].Remedies = nil }},
		{name: "a check", verdicts: 1, b: func(r *report.Report) { r.Variants[0].Checks[0].Holds = false }},
		{name: "a check that could not be determined", verdicts: 1, b: func(r *report.Report) {
			r.Variants[0].Checks[0] = report.Check{ID: "gone", Name: "the routes are gone", Unknown: true}
		}},
		{name: "a check and a remedy in other words", b: func(r *report.Report) {
			r.Variants[0].Checks[0].Name, r.Variants[0].Remedies[0].Name = "no route is left", "Cilium 1.12.0"
		}},
		{name: "findings: another owner, in another order, and none that settles", findings: 2,
			b: func(r *report.Report) {
				r.Variants[0].Findings = r.Variants[0].Findings[1:]
				r.Variants[0].Findings[0].Routers = []string{"tor1", "tor2"}
				r.Variants[0].Findings[0].Owner = "node2"
			}},
		{name: "a time", times: 1, b: func(r *report.Report) { r.Variants[0].ElapsedMS = 160_000 }},
		{name: "a variant and a version", conditions: 2, b: func(r *report.Report) {
			r.Variants = r.Variants[:1]
			r.Variants[0].Components = map[string]string{"cilium": "1.11.7"}
		}},
		{name: "another relapse, and another image", conditions: 2, b: func(r *report.Report) {
			r.Relapse, r.Images = "v1.2.3", map[string]string{"relapse.dev/node:1": "sha256:2"}
		}},
		{name: "another machine", conditions: 2,
			b: func(r *report.Report) { r.Machine = map[string]any{"cpus": 4.0, "memory_gib": 24.0, "kernel": "6.1"} }},
	} {
		got := must.Get(Reports(run("a", nil), run("b", test.b)))(t)
		must.Equal(t, test.name, [4]int{test.verdicts, test.findings, test.times, test.conditions},
			[4]int{len(got.Verdicts), len(got.Findings), len(got.Times), len(got.Conditions)})
	}
}

func TestReportsThatDoNotCompare(t *testing.T) {
	for says, change := range map[string]func(*report.Report){
		"the reports are of different scenarios, node-drain and added-nic": func(r *report.Report) { r.Scenario = "added-nic" },
		"no variant of node-drain ran in both":                             func(r *report.Report) { r.Variants[0].Name, r.Variants[1].Ablated = "x", "fault" },
	} {
		must.Fail(t, must.Err(Reports(run("a", nil), run("b", change))), says)
	}
}

func TestPrint(t *testing.T) {
	b := run("b", func(r *report.Report) {
		r.Verdict = "fail"
		v := &r.Variants[0]
		v.Verdict, v.Reasons, v.ElapsedMS = "missed", []string{"p lost packets, and no detector reported why"}, 160_000
		v.Findings, v.Remedies[0].TimeToRecoverMS = nil, new(int64(7100))
		*v.Remedies[0].TimeToQuietMS = 6900
		r.Variants = append(r.Variants[:1], report.Variant{Name: "way", Verdict: "prevented"})
	})
	var out bytes.Buffer
	must.Get(Reports(run("a", nil), b))(t).Print(&out)
	goldentest.Compare(t, "diff.txt", out.String())
}

// Two runs on different subnets say so, and compare otherwise.
func TestSubnetsAreConditions(t *testing.T) {
	on := func(subnet string) report.Report {
		return run(subnet, func(r *report.Report) {
			r.Topology = &report.Topology{Networks: []report.Network{
				{Name: "nodes", Subnet: netip.MustParsePrefix(subnet)}, {Name: "uplink", Subnet: netip.MustParsePrefix("10.4.36.0/24")},
			}}
		})
	}
	result := must.Get(Reports(on("10.4.94.0/24"), on("10.200.0.0/24")))(t)
	must.Equal(t, "", []Difference{{What: "subnet of nodes", A: "10.4.94.0/24", B: "10.200.0.0/24"}}, result.Conditions)
	must.Equal(t, "verdicts", 0, len(result.Verdicts))
	for _, a := range []report.Report{on("10.200.0.0/24"), run("without a topology", nil)} {
		must.Equal(t, a.Run, 0, len(must.Get(Reports(a, on("10.200.0.0/24")))(t).Conditions))
	}
}
