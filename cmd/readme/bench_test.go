package main

import (
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// A run counts if it is complete, passed, ran alone on its machine, and is of the newest program and machine.
func TestFiguresOf(t *testing.T) {
	run := func(total int64, change func(*report.Report)) report.Report {
		r := report.Report{
			Scenario: "node-drain", Verdict: "pass", Command: "relapse run node-drain", Relapse: "v2",
			Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			Machine: map[string]any{"cpus": 2.0, "memory_gib": 24.0, "kernel": "6.18.3", "docker": "20.10.24"},
			Timings: report.Timings{Total: total + 1000, Images: 1000, Lab: 9000},
			Variants: []report.Variant{{Name: "new", Role: "fixed", Remedies: []report.Remedy{
				{Name: "upgrade", TimeToRecoverMS: new(int64(3000))}, {Name: "restart"},
			}}},
		}
		if change != nil {
			change(&r)
		}
		return r
	}
	got := figuresOf([]report.Report{
		run(100_000, nil), run(120_000, func(r *report.Report) { r.Started = r.Started.Add(24 * time.Hour) }),
		run(1, func(r *report.Report) { r.Verdict = "fail" }),
		run(1, func(r *report.Report) { r.Command += " --variant=new" }),
		run(1, func(r *report.Report) { r.CPU = &report.CPU{Others: 1} }),
		run(1, func(r *report.Report) { r.Unfinished = &report.Unfinished{} }),
		run(1, func(r *report.Report) { r.Relapse = "v1" }),
		run(1, func(r *report.Report) { r.Machine = map[string]any{"cpus": 4.0} }),
		run(1, func(r *report.Report) { r.Scenario, r.Command = "none", "relapse run none" }),
	})
	want := "Measured on 2 CPUs, 24 GiB of memory, Linux 6.18, Docker 20.10.\n\n" +
		"| incident | figure | median | budget | on |\n|---|---|---|---|---|\n" +
		"| node-drain | all variants | 110 s (100 to 120, 2 samples) | 90 s, **over** | 2026-01-03 |\n" +
		"| node-drain | lab is up | 9 s (9 to 9, 2 samples) | 14 s | 2026-01-03 |\n" +
		"| node-drain | packets lost with new | 0 packets (0 to 0, 2 samples) | 0 packets | 2026-01-03 |\n" +
		"| node-drain | time to recover: upgrade | 3 s (3 to 3, 2 samples) |  | 2026-01-03 |\n"
	must.Equal(t, "", want, figureTable(got))
}
