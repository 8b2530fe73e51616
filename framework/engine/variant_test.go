package engine

import (
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/must"
)

// A run of which something cannot be kept ends, and is no proof of anything.
func TestEvidenceThatCannotBeKept(t *testing.T) {
	e := newExecution(framework.Scenario{Variants: []framework.Variant{{Name: "v", Role: framework.Affected, Script: func() framework.Script { return framework.Script{} }}}}, nil, Options{})
	e.planLanes(e.scenario.Variants)
	e.planVariants(e.scenario.Variants)
	v := e.variants[0]
	v.evidence.Dir = "/dev/null/evidence"
	v.keep("log", "text")
	v.keep("log", "text")
	must.Equal(t, v.judge.Result.Reasons, 2, len(v.judge.Result.Reasons))
	must.Contain(t, v.judge.Result.Reasons[0], "folder of the evidence")
	must.Fail(t, v.scenario.Broken(), "the run could not be stored: ")
	must.Equal(t, "not stored", true, v.scenario.notStored)
	v.judge.Conclude(v.h.Now())
	must.Equal(t, "verdict", framework.Inconclusive, v.scenario.verdict())
}

// What installing the next variant replaces is undone in no other lab than one that is
// kept, by the last variant.
func TestReplaced(t *testing.T) {
	for _, tt := range []struct {
		name     string
		replaced bool
		keep     bool
		undone   []int // for each variant
	}{
		{"by nothing", false, false, []int{1, 0}},
		{"by nothing, in a lab that is kept", false, true, []int{1, 1}},
		{"by the next", true, false, []int{0, 0}},
		{"by the next, in a lab that is kept", true, true, []int{0, 1}},
	} {
		inBubble(t, tt.name, func(t *testing.T) {
			w, s := fakeWorld()
			undone := make([]int, len(s.Variants))
			for i := range s.Variants {
				script := s.Variants[i].Script
				s.Variants[i].Script = func() framework.Script {
					made := script()
					made.Fault.Replaced = tt.replaced
					before(&made.Fault.Undo, func() { undone[i]++ })
					return made
				}
			}
			p := play(t, w, s, &fakeLabs{cpu: CPUTime{1, 1, 1}}, Options{Keep: tt.keep})
			must.Equal(t, "undone", tt.undone, undone)
			must.Equal(t, p, [...]any{string(framework.Pass), true}, [...]any{p.report.Verdict, p.report.CPU != nil})
		})
	}
}
