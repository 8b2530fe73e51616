package engine

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

// twoLabs is the fake scenario with three variants, each in a world of its own, and its second lab.
func twoLabs() (first framework.Scenario, second *framework.Scenario, worlds map[string]*world) {
	first, worlds = sideBySide()
	for i := range first.Variants {
		first.Variants[i].Nodes = nil
	}
	first.Topology = topology.Topology{Name: "fake"}
	other := first
	other.Topology.Name = "fake-2"
	return first, &other, worlds
}

// The affected variant has as many steps as the two others: they run on the second lab, at the same time.
func TestTwoLabs(t *testing.T) {
	took := map[bool]time.Duration{}
	for _, two := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, second, worlds := twoLabs()
			o := Options{}
			if two {
				o.Second = second
			}
			began := time.Now()
			p := play(t, newWorld(), s, &fakeLabs{beside: worlds}, o)
			took[two] = time.Since(began)
			r, _ := p.Report()
			must.Equal(t, p, 0, p.status())
			labs, onSecond := []string{"fake"}, []string(nil)
			if two {
				labs, onSecond = []string{"fake", "fake-2"}, []string{"new", "way"}
			}
			name := func(v report.Variant) string { return v.Name }
			moved := each.Where(r.Variants, func(v report.Variant) bool { return v.Topology != nil })
			must.Equal(t, "labs", labs, p.labs.names)
			must.Equal(t, "removed", len(labs), p.labs.removed)
			must.Equal(t, "on the second", onSecond, each.Of(moved, name))
			must.Equal(t, "in the report", []string{"old", "new", "way"}, each.Of(r.Variants, name))
		})
	}
	must.Equal(t, took, true, took[true] <= took[false]*3/4)
}

// What a scenario or a run asks of its only lab excludes a second one.
func TestOneLab(t *testing.T) {
	nodes, _ := sideBySide()
	for name, o := range map[string]Options{
		"kept": {Keep: true}, "reused": {Reuse: true}, "foreign": {Foreign: true}, "one variant": {Variants: []string{"old"}}, "own nodes": {},
	} {
		s, second, _ := twoLabs()
		if name == "own nodes" {
			s = nodes
		}
		o.Second, o.Output = second, t.TempDir()
		must.Equal(t, name, false, New(s, &fakeLabs{}, o).HasSecondLab())
	}
}

// The first lab goes on, and both are taken down.
func TestSecondLabFails(t *testing.T) {
	for name, labs := range map[string]*fakeLabs{
		"no images": {noImages: errBroken}, "not up": {noSecond: errBroken}, "held": {noSecond: &kindlab.HeldError{Lab: "fake-2"}},
		"panic": {panics: true}, "not down": {noDown: errBroken},
	} {
		inBubble(t, name, func(t *testing.T) {
			s, second, worlds := twoLabs()
			labs.beside = worlds
			p := play(t, newWorld(), s, labs, Options{Second: second})
			r, there := p.Report()
			must.Equal(t, p, [...]any{4, true, true}, [...]any{p.status(), p.Broken() != nil, there})
			must.Equal(t, "all labs are removed", true, labs.removed >= labs.made)
			for _, v := range r.Variants {
				want := string(framework.Unknown)
				if v.Name == "old" || labs.noDown != nil {
					want = v.Expected
				}
				must.Equal(t, v.Name, want, v.Verdict)
			}
		})
	}
}

func TestSecondLabJudges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, second, worlds := twoLabs()
		w := worlds["node2"]
		second.Variants = slices.Clone(second.Variants)
		second.Variants[1].Script = func() framework.Script { return w.common(func() { w.breaks(outToA) }) }
		o := Options{Second: second, Output: t.TempDir()}
		labs := &fakeLabs{world: newWorld(), beside: worlds}
		e := New(s, labs, o)
		e.Run(t.Context(), UndoWithin)
		r, _ := e.Report()
		must.Equal(t, r.Variants, string(framework.Fail), r.Verdict)
		const prevented = string(framework.Prevented)
		must.Equal(t, "the third is", prevented, r.Variants[2].Verdict)
		must.Equal(t, "the second is", false, r.Variants[1].Verdict == prevented)
	})
}

// A page and a judge take a variant's own networks.
func TestTopologyOfAVariant(t *testing.T) {
	lab, second := report.Topology{}, report.Topology{}
	r := report.Report{Topology: &lab}
	must.Equal(t, "of the lab", true, r.TopologyOf(report.Variant{}) == &lab)
	must.Equal(t, "of the variant", true, r.TopologyOf(report.Variant{Topology: &second}) == &second)
}

// A run beside other work says so.
func TestCPU(t *testing.T) {
	for name, c := range map[string]struct {
		labs   fakeLabs
		hasCPU bool
		others float64
		slowed bool
	}{
		"an idle machine":                           {fakeLabs{cpu: CPUTime{50 * time.Second, 70 * time.Second, 100 * time.Second}}, true, 0.2, false},
		"other work beside it":                      {fakeLabs{cpu: CPUTime{40 * time.Second, 90 * time.Second, 100 * time.Second}}, true, 0.5, true},
		"a lab that has used more than the machine": {fakeLabs{cpu: CPUTime{40 * time.Second, 30 * time.Second, 100 * time.Second}}, true, 0, false},
		"it is not known":                           {fakeLabs{cpu: CPUTime{time.Second, time.Second, time.Second}, noCPU: errBroken}, false, 0, false},
	} {
		e, l := newExecution(framework.Scenario{}, &c.labs, Options{}), &lane{lab: &fakeLab{fakeLabs: &c.labs}}
		e.startCPU(t.Context(), l)
		e.measureCPU(t.Context(), l)
		cpu := e.report.CPU
		must.Equal(t, name, [...]bool{c.hasCPU, c.slowed}, [...]bool{cpu != nil, cpu.Slowed()})
		must.Equal(t, name, true, cpu == nil || cpu.Others == c.others)
	}
}
