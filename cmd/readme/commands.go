package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/figures"
	"github.com/relapse-dev/relapse/framework/report/stored"
)

// commands are measured beside the scenarios: build, bisect and qualify run on versions that no
// variant has, and detectors on snapshots that no lab could give.
var commands = map[string]func(*measurement, context.Context) error{
	"build": (*measurement).build, "bisect": (*measurement).bisect,
	"qualify": (*measurement).qualify, "detectors": (*measurement).detectors,
}

// Budgets of the commands.
const (
	buildOfVersion = 90 * time.Second // one more version of a Cilium slice
	stepOfBisect   = 45 * time.Second // on a running lab, with its images built
	detection      = time.Second      // of all detectors of an audit, over one read of a large cluster
	detectionMiB   = 1 << 10          // of all memory that this allocates, so that the heap is less
)

// qualifications are the upgrades whose qualification is measured, with all images built.
var qualifications = []struct {
	component, from, to string
	budget              time.Duration
}{
	{"kube-router", "1.5.1", "2.1.0", 6 * time.Minute},
	{"cilium", "1.11.6", "1.12.0", 8 * time.Minute},
}

// build measures building a version that is not catalogued, with an empty cache of images.
func (m *measurement) build(ctx context.Context) error {
	const image = "quay.io/cilium/cilium@1.11.5"
	goCache, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("asking for Go's build cache: %w", err)
	}
	caches := []string{"XDG_CACHE_HOME=" + filepath.Join(m.output, "cache"), "GOCACHE=" + strings.TrimSpace(string(goCache))}
	took, _, err := relapse(ctx, 0, caches, "images", "build", image)
	if err != nil {
		return err
	}
	m.sample(figures.Figure{
		Name: image + ", of which the catalogue has none, built", Unit: "s",
		Budget: new(buildOfVersion.Seconds()), Note: "Go's build cache warm",
	}, took.Seconds())
	return nil
}

// bisect measures the steps of a bisection, without the first, which brings up the lab.
func (m *measurement) bisect(ctx context.Context) error {
	const scenario, component = "node-drain", "cilium"
	const onlyRange = 4 // only a range is left, because versions in it are not published
	_, _, err := relapse(ctx, onlyRange, nil, "bisect", scenario, component, "--from", "1.11.6", "--to", "1.12.0", "--output", m.output)
	if err != nil {
		return err
	}
	records, err := filepath.Glob(filepath.Join(m.output, "bisect", scenario+"-"+component, "*", "bisect.json"))
	if err != nil || len(records) != 1 {
		return fmt.Errorf("looking for the bisection's record: %q, %v", records, err)
	}
	var record bisect.Record
	if err := stored.Read(filepath.Dir(records[0]), bisect.FileJSON, bisect.Schema, &record); err != nil {
		return err
	}
	ran := slices.DeleteFunc(record.Steps, func(s bisect.Step) bool { return s.Verdict == "" })
	for _, step := range ran[min(len(ran), 1):] {
		m.sample(figures.Figure{
			Scenario: scenario, Name: "a step of bisect on a running lab", Unit: "s", Budget: new(stepOfBisect.Seconds()),
		}, milliseconds(step.TookMS).Seconds())
	}
	return nil
}

// judged is a line of the benchmark of a large cluster: its name, time, bytes of the snapshot, and
// bytes allocated.
var judged = regexp.MustCompile(`(?m)^BenchmarkLargeCluster/5000-nodes/(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op.*?\s([\d.]+) B/op`)

// detectors measures the detectors of an audit over a cluster of 5,000 nodes and two routers of a
// million routes, which is made for it. It has no faults, or twenty.
func (m *measurement) detectors(ctx context.Context) error {
	line := []string{"test", "-run", "^$", "-bench", "^BenchmarkLargeCluster$/^5000-nodes$", "-benchtime", "3x", "./framework/audit"}
	fmt.Println("go " + strings.Join(line, " "))
	out, err := exec.CommandContext(ctx, "go", line...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(line, " "), err, out)
	}
	all := judged.FindAllSubmatch(out, -1)
	if len(all) == 0 {
		return fmt.Errorf("go %s: no benchmark of 5,000 nodes in its output:\n%s", strings.Join(line, " "), out)
	}
	for _, found := range all {
		nanoseconds, err := strconv.ParseFloat(string(found[2]), 64)
		if err != nil {
			return err
		}
		bytes, err := strconv.ParseFloat(string(found[3]), 64)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("detectors over 5,000 nodes and two routers of 1,000,000 routes, %s", found[1])
		m.sample(figures.Figure{Name: name, Unit: "s", Budget: new(detection.Seconds())}, nanoseconds/1e9)
		m.sample(figures.Figure{Name: name + ": memory allocated", Unit: "MiB", Budget: new(float64(detectionMiB))}, bytes/(1<<20))
	}
	return nil
}

// qualify measures qualifications. UNKNOWN counts as a failure.
func (m *measurement) qualify(ctx context.Context) error {
	const noGo = 1
	for _, q := range qualifications {
		took, _, err := relapse(ctx, noGo, nil, "qualify", q.component, q.from, q.to, "--output", m.output)
		if err != nil {
			return err
		}
		m.sample(figures.Figure{
			Name: fmt.Sprintf("qualify %s %s %s", q.component, q.from, q.to), Unit: "s", Budget: new(q.budget.Seconds()),
		}, took.Seconds())
	}
	return nil
}
