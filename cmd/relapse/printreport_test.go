package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
)

func rendered(r report.Report) string {
	var out strings.Builder
	r.Run, r.Timings = "2026-01-02T03-04-00Z", report.Timings{Images: 120, Lab: 26000, Total: 118000}
	printReport(&out, r, "reports")
	return out.String()
}

func TestPrintReportOfAnyVersion(t *testing.T) {
	golden(t, "report-unclassified", rendered(report.Report{
		Scenario: "node-drain", Verdict: "observed",
		Variants: []report.Variant{{
			Name: "cilium-1.11.4", Role: "unclassified", Form: "slice", Verdict: "prevented",
			Packets: report.Packets{Sent: 9000}, ElapsedMS: 31000,
			Reasons: []string{"no probe lost packets, and there was no active finding"},
		}},
	}))
}

func TestPrintReport(t *testing.T) {
	onset := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	golden(t, "report", rendered(report.Report{
		Scenario: "node-drain", Verdict: "fail", CPU: &report.CPU{Lab: 0.31, Others: 0.52},
		Variants: []report.Variant{
			{
				Name: "cilium-1.11.6", Role: "affected", Form: "slice", Expected: "reproduced", Verdict: "missed", Onset: &onset,
				Fault:      &report.Fault{Began: onset.Add(-time.Second)},
				Reasons:    []string{"outside->master2 lost packets, and no detector reported active unannounced 10.5.115.0/24 of master2"},
				ProbesHurt: []string{"outside->master2", "master2->outside"},
				Packets:    report.Packets{Sent: 4210, Lost: 388},
				Probes: []report.Probe{
					{Name: "outside->master2", Due: 1000, Sent: 950, Answered: 562, Lost: 388},
					{Name: "master2->outside", Due: 1000, Sent: 800, Answered: 300, Lost: 388, NotJudged: 112},
					{Name: "outside->master1", Due: 1000, Sent: 850, Answered: 850},
				},
				Findings: []report.Finding{
					{Finding: detect.Finding{Kind: "wrong-announcer", Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")), Owner: "master2", State: "latent", Says: "Swapped."}, During: "baseline"},
					{Finding: detect.Finding{Kind: "absent-node", Object: detect.Named("master2"), State: "active", Says: "Its node is gone."}, During: "the Node object is deleted", CameMS: new(int64(310))},
					{Finding: detect.Finding{Kind: "wrong-announcer", Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")), Owner: "master2", State: "active", Says: "Another node announces it."}, During: "fault", CameMS: new(int64(120))},
					{Finding: detect.Finding{Kind: "unannounced", Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")), Owner: "master2", State: "settling", Says: "No node announces it for 10 ms."}, During: "fault", CameMS: new(int64(900))},
					{Finding: detect.Finding{Kind: "unannounced", Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")), Owner: "master2", State: "active", Says: "No node announces it."}, During: "fault", CameMS: new(int64(1412)), TimeToDetectMS: new(int64(412))},
				},
				Remedies: []report.Remedy{
					{Name: "restart", Expected: "does-not-help", Verdict: "does-not-help"},
					{Name: "fixed speaker", Expected: "recovers", Verdict: "recovers", TimeToRecoverMS: new(int64(2300)), TimeToQuietMS: new(int64(4100))},
					{Name: "static route", Expected: "recovers", Verdict: "unknown", Reason: "the symptom is not there any more"},
				},
				ElapsedMS: 61234,
			},
			{
				Name: "cilium-1.12.0", Role: "fixed", Form: "slice", Expected: "prevented", Verdict: "unknown",
				Packets: report.Packets{Sent: 9000}, ElapsedMS: 31000,
				Probes: []report.Probe{{Name: "outside->master1", Due: 9010, Sent: 9000, Answered: 8990, NotJudged: 10}},
				// No probe lost packets: there is no first lost packet to count from.
				Findings: []report.Finding{{Finding: detect.Finding{Kind: "unannounced", Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")), Owner: "master2", State: "active", Says: "No node announces it."}, During: "fault", CameMS: new(int64(1412))}},
				Reasons:  []string{"there is an active finding, but no probe lost packets"},
			},
			{Name: "1.10-both-keys", Role: "workaround", Form: "slice", Expected: "refused", Verdict: "refused",
				Packets: report.Packets{Sent: 9000}, ElapsedMS: 31000, Refuses: "node1: keys exclude each other"},
			{Name: "cilium-1.13.0", Role: "fixed", Form: "slice", Expected: "prevented", Verdict: "unknown",
				Reasons: []string{"the variant did not run"}},
		},
		NotRun: []report.NotRun{{Name: "cilium-1.9.0", Reason: "only with --images=upstream: it is no Go module"}},
	}))
}

func TestPrintRepeats(t *testing.T) {
	golden(t, "repeats", rendered(report.Report{
		Scenario: "ipvs-deadlock", Verdict: "inconclusive",
		Variants: []report.Variant{
			{
				Name: "kube-proxy-1.13.0", Role: "affected", Form: "whole", Expected: "reproduced", Verdict: "vacuous", ElapsedMS: 30100,
				Repeats: &report.Repeats{
					Expected: report.NewRate(2, 3), OfJudged: new(report.NewRate(2, 2)), NotJudged: []int{2},
					Runs: []report.Repeat{
						{Verdict: "reproduced", ElapsedMS: 81000, OnsetMS: new(int64(60500))},
						{Verdict: "vacuous", ElapsedMS: 30100},
						{Verdict: "reproduced", ElapsedMS: 79000, OnsetMS: new(int64(58400))},
					},
				},
			},
			{
				Name: "kube-proxy-1.13.2", Role: "fixed", Form: "whole", Expected: "prevented", Verdict: "prevented", ElapsedMS: 61000,
				Repeats: &report.Repeats{
					Expected: report.NewRate(2, 2), OfJudged: new(report.NewRate(2, 2)),
					Runs: []report.Repeat{{Verdict: "prevented", ElapsedMS: 60000}, {Verdict: "prevented", ElapsedMS: 61000}},
				},
			},
			{
				Name: "kube-proxy-1.13.0-iptables", Role: "workaround", Form: "whole", Expected: "prevented", Verdict: "unknown", ElapsedMS: 900,
				Repeats: &report.Repeats{
					Expected: report.NewRate(0, 2), NotJudged: []int{1, 2},
					Runs: []report.Repeat{{Verdict: "unknown", ElapsedMS: 800}, {Verdict: "unknown", ElapsedMS: 900}},
				},
			},
		},
	}))
}

// The limits of a verdict are printed next to it.
func TestVerdictLine(t *testing.T) {
	for _, test := range []struct {
		name   string
		report report.Report
		want   string
	}{
		{"a pair", report.Report{Verdict: "pass"}, "node-drain: PASS\n"},
		{"half a pair", report.Report{Verdict: "pass", Half: "no fixed variant ran"}, "node-drain: PASS (half a pair: no fixed variant ran)\n"},
		{"without a part", report.Report{Verdict: "fail", Ablated: "detector"}, "node-drain: FAIL (without detector)\n"},
		{
			"every part in turn",
			report.Report{Verdict: "pass", Ablated: "all", Variants: []report.Variant{
				{Name: "old", Ablated: "fault", Role: "affected", Expected: "vacuous", Verdict: "vacuous"},
			}},
			"node-drain: PASS (each part is switched off in turn, and must change the verdict)\n" +
				"  outcome    Nothing was measured of old without fault\n  verdict    ✔ old without fault  affected    vacuous as expected, 0 ms\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.report.Scenario = "node-drain"
			if got := rendered(test.report); !strings.HasPrefix(got, "\n"+test.want) {
				t.Errorf("printed %q, want it to begin with %q", got, test.want)
			}
		})
	}
}
