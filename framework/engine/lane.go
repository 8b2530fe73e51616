package engine

import (
	"context"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/each"
)

// lane is a lab of an execution with its variants. A second lab comes up after the first one, so that images that only
// the second lab needs are built while variants run on the first one.
type lane struct {
	scope    string             // of the lab's steps
	scenario framework.Scenario // with the lab's name and networks
	variants []framework.Variant
	lab      Lab  // nil while it is not up
	busy     bool // another process uses a lab of that name
	// runs are steps that run in parallel with others, nil if none do: the steps of all the lane's variants if there are
	// two lanes, else the steps of the last planned variant.
	runs *parallelRun
}

func (l *lane) isSecond() bool { return l.scope == report.SecondLabScope }

func (l *lane) variant(name string) framework.Variant {
	return l.variants[slices.IndexFunc(l.variants, func(v framework.Variant) bool { return v.Name == name })]
}

func (e *Execution) planLanes(chosen []framework.Variant) {
	first := &lane{scope: report.LabScope, scenario: e.scenario, variants: chosen}
	e.lanes = []*lane{first}
	switch {
	case len(chosen) > 1 && len(chosen[0].Nodes) > 0:
		e.parallel = newParallel()
	case e.sideBySide(chosen):
		second := &lane{scope: report.SecondLabScope, scenario: *e.options.Second}
		first.variants, second.variants = e.divide(chosen)
		for i, v := range second.variants {
			hasName := func(o framework.Variant) bool { return o.Name == v.Name }
			second.variants[i] = second.scenario.Variants[slices.IndexFunc(second.scenario.Variants, hasName)]
		}
		e.parallel = newParallel()
		e.parallel.apart = true
		e.lanes = append(e.lanes, second)
		for _, l := range e.lanes {
			l.runs = e.parallel.add()
		}
	}
}

// HasSecondLab reports whether variants run in two labs.
func (e *Execution) HasSecondLab() bool { return len(e.lanes) > 1 }

// sideBySide reports whether variants can run in two labs. Trials exclude it: an unaffected variant's trials wait for
// the affected variant's.
func (e *Execution) sideBySide(chosen []framework.Variant) bool {
	o := e.options
	return o.Second != nil && len(chosen) > 1 && !o.Keep && !o.Reuse && !o.Foreign &&
		!slices.ContainsFunc(chosen, func(v framework.Variant) bool { return v.Script().Trials != nil })
}

// divide divides variants among two labs, with about the same number of steps. The first variant is on the first lab.
// The order is kept.
func (e *Execution) divide(chosen []framework.Variant) (first, second []framework.Variant) {
	steps := func(v framework.Variant) int {
		all := 0
		for _, c := range verdict.Cases(v, e.options.cases()) {
			all += len(c.Steps())
		}
		return all
	}
	longest := slices.SortedStableFunc(slices.Values(chosen), func(a, b framework.Variant) int { return steps(b) - steps(a) })
	onFirst, balance := map[string]bool{}, 0
	for _, v := range longest {
		if onFirst[v.Name] = balance <= 0; balance <= 0 {
			balance += steps(v)
		} else {
			balance -= steps(v)
		}
	}
	isFirst := func(v framework.Variant) bool { return onFirst[v.Name] == onFirst[chosen[0].Name] }
	return each.Where(chosen, isFirst), each.Where(chosen, func(v framework.Variant) bool { return !isFirst(v) })
}

func (e *Execution) laneOf(v framework.Variant) *lane {
	return e.lanes[slices.IndexFunc(e.lanes, func(l *lane) bool {
		return slices.ContainsFunc(l.variants, func(o framework.Variant) bool { return o.Name == v.Name })
	})]
}

func (l *lane) isLast(v *variantRun) bool {
	for _, other := range slices.Backward(v.scenario.variants) {
		if other.lane == l {
			return other == v
		}
	}
	return false
}

// topology is the second lab's topology. It is nil for the first lab, whose topology the report has.
func (l *lane) topology() *report.Topology {
	if !l.isSecond() {
		return nil
	}
	return report.TopologyOf(l.scenario.TopologyFor(l.variants))
}

type cpuUse struct {
	began   CPUTime                 // when the first lab was up
	labs    map[*lane]time.Duration // what each lab had used before
	used    float64                 // what the ended labs have used since
	unknown bool
}

func (e *Execution) startCPU(ctx context.Context, l *lane) {
	now, err := l.lab.CPUTime(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.options.Log.Warn("the CPU time of the lab is unknown", "error", err)
		e.cpu.unknown = true
		return
	}
	if e.cpu.labs == nil {
		e.cpu.began, e.cpu.labs = now, map[*lane]time.Duration{}
	}
	e.cpu.labs[l] = now.Lab
	if l.isSecond() { // it had used nothing when the first lab was up
		e.cpu.labs[l] = 0
	}
}

// measureCPU notes the shares of the CPU time since the first lab was up. An error changes no verdict.
func (e *Execution) measureCPU(ctx context.Context, l *lane) {
	now, err := l.lab.CPUTime(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	before, found := e.cpu.labs[l]
	if e.cpu.unknown || !found {
		return // the lab did not come up, or its CPU time was unknown
	}
	all := float64(now.All - e.cpu.began.All)
	if err != nil || all <= 0 {
		e.options.Log.Warn("the CPU time of the lab is unknown", "error", err)
		e.cpu.unknown, e.report.CPU = true, nil
		return
	}
	// A restarted container counts from zero.
	e.cpu.used += float64(max(0, now.Lab-before))
	e.report.CPU = &report.CPU{
		Lab: e.cpu.used / all, Others: max(0, float64(now.Machine-e.cpu.began.Machine)-e.cpu.used) / all,
	}
}
