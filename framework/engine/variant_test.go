package engine

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/must"
)

// A run whose evidence cannot be stored ends, and proves nothing.
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

// A fault that the next variant's installation replaces is undone only by the last variant, if the lab is kept.
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

// The fault comes to all variants at the same moment, and no run of one begins while another is at its run before.
func TestVariantsMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, worlds := sideBySide()
		var mu sync.Mutex
		times := map[string][]time.Time{}
		note := func(what, name string) {
			mu.Lock()
			defer mu.Unlock()
			times[what+name] = append(times[what+name], time.Now())
		}
		for i, v := range s.Variants {
			s.Variants[i].Script = func() framework.Script {
				script := v.Script()
				then(&script.Install, func() error {
					note("installed", v.Name)
					time.Sleep(time.Duration(i) * 10 * time.Second)
					return nil
				})
				inject := script.Fault.Inject
				script.Fault.Inject = func(ctx context.Context, r *framework.Run) error {
					note("faulted", v.Name)
					time.Sleep(time.Duration(3-i) * 10 * time.Second)
					if err := r.Meet(ctx); err != nil {
						return err
					}
					note("ready", v.Name)
					return inject(ctx, r)
				}
				return script
			}
		}
		p := play(t, newWorld(), s, &fakeLabs{beside: worlds}, Options{Repeat: 2})
		must.Equal(t, p, 0, p.status())
		for _, what := range []string{"installed", "faulted", "ready"} {
			for _, v := range s.Variants {
				must.Equal(t, what+" is "+v.Name, times[what+"old"], times[what+v.Name])
			}
			must.Equal(t, what, 2, len(times[what+"old"]))
		}
	})
}

// The lab goes down only after a variant has undone its fault.
func TestFinishWaitsForVariants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, worlds := sideBySide()
		s.Variants[2].Script = func() framework.Script {
			script := worlds["node3"].common(func() {})
			script.Install = func(ctx context.Context, _ *framework.Run) error {
				<-ctx.Done()
				time.Sleep(time.Minute)
				return ctx.Err()
			}
			return script
		}
		labs := &fakeLabs{world: newWorld(), beside: worlds}
		e := New(s, labs, Options{Output: t.TempDir()})
		for _, step := range e.steps[:2] {
			must.NoError(t, step.Run(t.Context()))
		}
		finishes(t, e, labs, func() error { return e.steps[2].Run(t.Context()) }, func() {})
	})
}
