package main

import (
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
)

func TestPrintReport(t *testing.T) {
	var out strings.Builder
	printReport(&out, report.Report{
		Scenario: "node-drain", Run: "2026-01-02T03-04-00Z", Verdict: "fail",
		Variants: []report.Variant{
			{
				Name: "cilium-1.11.6", Role: "affected", Form: "slice", Expected: "reproduced", Verdict: "missed",
				Reasons:    []string{"outside->master2 were hurt, and no detector said why"},
				ProbesHurt: []string{"outside->master2", "master2->outside"},
				Packets:    report.Packets{Sent: 4210, Lost: 388},
				Findings: []report.Finding{
					{Kind: "wrong-announcer", State: "latent", Says: "Swapped."},
					{Kind: "unannounced", State: "active", Says: "Nobody announces it.", TimeToDetectMS: new(int64(412))},
				},
				Remedies: []report.Remedy{
					{Name: "restart", Expected: "does-not-help", Verdict: "does-not-help"},
					{Name: "fixed speaker", Expected: "recovers", Verdict: "recovers", TimeToRecoverMS: new(int64(2300))},
				},
				ElapsedMS: 61234,
			},
			{
				Name: "cilium-1.12.0", Role: "fixed", Form: "slice", Expected: "prevented", Verdict: "prevented",
				Packets: report.Packets{Sent: 9000}, ElapsedMS: 31000,
			},
			{
				Name: "cilium-1.13.0", Role: "fixed", Form: "slice", Expected: "prevented", Verdict: "unknown",
				Reasons: []string{"the variant did not run"},
			},
		},
		NotRun:  []report.NotRun{{Name: "cilium-1.9.0", Reason: "only with --images=upstream: it is no Go module"}},
		Timings: report.Timings{Images: 120, Lab: 26000, Total: 118000},
	}, "reports")
	golden(t, "report", out.String())
}

func TestPrintRepeats(t *testing.T) {
	var out strings.Builder
	printReport(&out, report.Report{
		Scenario: "ipvs-deadlock", Run: "2026-01-02T03-04-00Z", Verdict: "inconclusive",
		Variants: []report.Variant{{
			Name: "kube-proxy-1.13.0", Role: "affected", Form: "whole", Expected: "reproduced", Verdict: "vacuous", ElapsedMS: 30100,
			Repeats: &report.Repeats{
				Expected: report.NewRate(2, 2),
				Runs: []report.Repeat{
					{Verdict: "reproduced", ElapsedMS: 81000, OnsetMS: new(int64(60500))},
					{Verdict: "vacuous", ElapsedMS: 30100},
					{Verdict: "reproduced", ElapsedMS: 79000, OnsetMS: new(int64(58400))},
				},
			},
		}},
		Timings: report.Timings{Images: 120, Lab: 26000, Total: 118000},
	}, "reports")
	golden(t, "repeats", out.String())
}
