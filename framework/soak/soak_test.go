package soak

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/report/schema"
)

// values are n values, by their number.
func values(n int, of func(i int) int64) []int64 {
	all := make([]int64, n)
	for i := range all {
		all[i] = of(i)
	}
	return all
}

func TestSteadily(t *testing.T) {
	for _, test := range []struct {
		name         string
		values       []int64
		grows, known bool
	}{
		{"always the same", values(100, func(int) int64 { return 7 }), false, true},
		{"one more each run", values(Enough, func(i int) int64 { return int64(i) }), true, true},
		{"one more each run, of too few", values(Enough-1, func(i int) int64 { return int64(i) }), false, false},
		{"one more every tenth run of a hundred", values(100, func(i int) int64 { return int64(i / 10) }), true, true},
		{"one step", values(100, func(i int) int64 { return int64(i / 70) }), false, true},
		{"two steps", values(100, func(i int) int64 { return int64(i / 40) }), false, true},
		{"filled in the first half", values(100, func(i int) int64 { return int64(min(i, 50)) }), false, true},
		{"up and down", values(100, func(i int) int64 { return int64(i % 10) }), false, true},
		{"up with a wobble", values(100, func(i int) int64 { return int64(10*i + i*7%13) }), true, true},
		{"falls", values(100, func(i int) int64 { return int64(-i) }), false, true},
		{"the lowest alone rises", values(100, func(i int) int64 { return max(int64(i), 99*int64(i%2)) }), false, true},
	} {
		grows, known := steadily(test.values)
		if grows != test.grows || known != test.known {
			t.Errorf("%s: grows %t, known %t; want %t, %t", test.name, grows, known, test.grows, test.known)
		}
	}
}

// TestLuck sees how often values that only luck moves are taken to grow steadily.
func TestLuck(t *testing.T) {
	const times = 100_000
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{Enough, 50, 100} {
		grown := 0
		for range times {
			if grows, _ := steadily(values(n, func(int) int64 { return random.Int64() })); grows {
				grown++
			}
		}
		t.Logf("of %d runs: %d of %d", n, grown, times)
		if grown*1000 >= times {
			t.Errorf("of %d runs: %d of %d, which is 1 of 1,000 or more", n, grown, times)
		}
	}
}

func TestSlope(t *testing.T) {
	for _, test := range []struct {
		values []int64
		want   float64
	}{
		{nil, 0},
		{[]int64{5}, 0},
		{[]int64{9, 9, 1, 3}, 2},
		{values(100, func(i int) int64 { return 3 * int64(i) }), 3},
		{append(values(100, func(i int) int64 { return 3 * int64(i) }), 1_000_000), 3},
	} {
		if got := slope(test.values); got != test.want {
			t.Errorf("%v: %v, want %v", test.values, got, test.want)
		}
	}
}

// when everything began.
var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// header is that of a soak that ran to its end.
func header() Header {
	return Header{Scenario: "node-drain", Command: "relapse soak node-drain --runs 100", Began: began, Took: 61 * time.Minute}
}

// steady are runs on labs of so many, all as expected, and nothing grows.
func steady(n, onEach int) []Run {
	var runs []Run
	for i := range n {
		run := Run{
			Number: i + 1, Lab: i/onEach + 1, OnLab: i%onEach + 1, Began: began.Add(time.Duration(i) * time.Minute),
			Verdict: string(framework.Pass), TotalMS: 34000 + int64(i%7)*100, Kept: i%onEach != onEach-1,
			Variants: []Variant{{
				Name: "cilium-1.11.6", Expected: "reproduced", Verdict: "reproduced", TotalMS: 29000 + int64(i%5)*10,
				DetectMS: new(int64(200 + i%11)), RecoverMS: map[string]int64{"fixed-speaker": 2300 + int64(i%3)},
			}},
			Counts: map[string]int64{},
		}
		if run.OnLab == 1 {
			run.LabMS = new(int64(16000 + i))
		}
		for j, q := range Quantities {
			run.Counts[q.Name] = int64(j)
			if q.Unit == "bytes" {
				run.Counts[q.Name] = 5<<20 + int64(i*7919%1000)
			}
		}
		runs = append(runs, run)
	}
	return runs
}

func TestSum(t *testing.T) {
	for _, test := range []struct {
		name    string
		runs    []Run
		change  func(runs []Run, h *Header)
		verdict framework.RunVerdict
	}{
		{"nothing grows", steady(60, 25), nil, framework.Pass},
		{"too few", steady(3, 2), nil, framework.Inconclusive},
		{"goroutines grow, and a run fails", steady(60, 60), func(runs []Run, _ *Header) {
			for i := range runs {
				runs[i].Counts["relapse: goroutines"] = int64(8 + 2*i)
			}
			runs[41].Verdict, runs[41].Variants[0].Verdict = string(framework.Fail), "missed"
			runs[41].Why, runs[41].Report = []string{"cilium-1.11.6: no detector said why"}, "node-drain/2026-01-02T03-45-05Z/report.html"
		}, framework.Fail},
		{"rules grow on the second lab", steady(60, 30), func(runs []Run, _ *Header) {
			for i := range runs[30:] {
				runs[30+i].Counts["lab: rules of nftables"] += int64(3 * i)
			}
		}, framework.Fail},
		{"volumes grow from lab to lab", steady(20, 1), func(runs []Run, _ *Header) {
			for i := range runs {
				runs[i].Counts["machine: volumes"] += int64(i)
			}
		}, framework.Fail},
		{"a run is not judged", steady(20, 20), func(runs []Run, _ *Header) {
			runs[3].Verdict, runs[3].Why = string(framework.Inconclusive), []string{"the run took longer than 1h"}
			runs[3].Variants, runs[3].Counts, runs[3].NotCounted = nil, nil, "it was not"
		}, framework.Inconclusive},
		{"interrupted", steady(30, 30), func(_ []Run, h *Header) { h.Stopped = "it was interrupted" }, framework.Inconclusive},
		{"something is left", steady(40, 20), func(runs []Run, h *Header) {
			runs[19].Left, h.Left = []string{"containers: 1"}, []string{"Docker networks: 2"}
			h.Before, h.After = map[string]int64{"machine: links": 8}, map[string]int64{"machine: links": 10}
		}, framework.Fail},
		{"counting fails each time", steady(30, 30), func(runs []Run, _ *Header) {
			for i := range runs {
				runs[i].Counts, runs[i].NotCounted = nil, "counting the lab: no answer within 30s"
			}
		}, framework.Inconclusive},
		{"counted too rarely", steady(30, 30), func(runs []Run, _ *Header) {
			for i := range runs[Enough-1:] {
				runs[Enough-1+i].Counts, runs[Enough-1+i].NotCounted = nil, "counting the lab: no answer within 30s"
			}
		}, framework.Inconclusive},
		{"too few on each lab", steady(30, 5), nil, framework.Inconclusive},
		{"none has ended", nil, nil, framework.Inconclusive},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := header()
			if test.change != nil {
				test.change(test.runs, &h)
			}
			dir := t.TempDir()
			for _, run := range test.runs {
				if err := run.Append(dir); err != nil {
					t.Fatal(err)
				}
			}
			read, err := Read(dir)
			if err != nil || !cmp.Equal(read, test.runs) {
				t.Fatalf("read %v\n%s", err, cmp.Diff(test.runs, read))
			}
			result := Sum(h, read)
			if result.Verdict != test.verdict {
				t.Errorf("%s, want %s", result.Verdict, test.verdict)
			}
			if err := result.Write(dir); err != nil {
				t.Fatal(err)
			}
			meetSchemas(t, dir, len(test.runs))
			goldentest.Compare(t, strings.NewReplacer(" ", "-", ",", "").Replace(test.name)+".txt", result.Text())
		})
	}
}

// meetSchemas asserts that what is in a folder has the form that others read.
func meetSchemas(t *testing.T, dir string, runs int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, FileJSON))
	if err == nil {
		err = schema.Validate("soak", text)
	}
	if err != nil {
		t.Error(err)
	}
	text, err = os.ReadFile(filepath.Join(dir, FileRuns))
	if err != nil && runs > 0 {
		t.Fatal(err)
	}
	lines := slices.Collect(strings.Lines(string(text)))
	if len(lines) != runs {
		t.Errorf("%d lines of %d runs", len(lines), runs)
	}
	for _, line := range lines {
		if err := schema.Validate("soakrun", []byte(line)); err != nil {
			t.Errorf("%v: %s", err, line)
		}
	}
}

// TestReadOfAFullDisk reads what was kept before the disk was full.
func TestReadOfAFullDisk(t *testing.T) {
	dir := t.TempDir()
	runs := steady(3, 3)
	for _, run := range runs {
		if err := run.Append(dir); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, FileRuns)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-10); err != nil {
		t.Fatal(err)
	}
	if read, err := Read(dir); err != nil || len(read) != 2 {
		t.Errorf("%d runs, %v; want two", len(read), err)
	}
	if err := os.WriteFile(path, []byte("{\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil {
		t.Error("a line that is no run was read")
	}
}

// TestSizeOfARun bounds what a soak adds to its folder for each run.
func TestSizeOfARun(t *testing.T) {
	text, err := json.Marshal(steady(1, 1)[0])
	if err != nil || len(text) > 2000 {
		t.Errorf("%v, %d bytes: %s", err, len(text), fmt.Sprint(string(text)))
	}
}
