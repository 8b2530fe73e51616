package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
)

// A run may be interrupted before each of its steps and at any other moment: labs go, no reader
// stays open, no variant is judged by what it has not seen, and no goroutine is left, or the
// bubble would not end.
func TestInterrupts(t *testing.T) {
	const moments = 10
	for name, scenario := range map[string]func() (framework.Scenario, *fakeLabs, Options){
		"one after the other": func() (framework.Scenario, *fakeLabs, Options) {
			w := newWorld()
			return fakeScenario(w), &fakeLabs{world: w}, Options{}
		},
		"side by side": func() (framework.Scenario, *fakeLabs, Options) {
			s, worlds := sideBySide()
			return s, &fakeLabs{world: newWorld(), beside: worlds}, Options{}
		},
		"two labs": func() (framework.Scenario, *fakeLabs, Options) {
			s, second, worlds := twoLabs()
			return s, &fakeLabs{world: newWorld(), beside: worlds}, Options{Second: second}
		},
	} {
		execution := func(t *testing.T) (*Execution, *fakeLabs) {
			s, labs, o := scenario()
			o.Output = t.TempDir()
			e := New(s, labs, o)
			e.soFar.withoutPage = true
			return e, labs
		}
		var took time.Duration
		synctest.Test(t, func(t *testing.T) {
			e, _ := execution(t)
			began := time.Now()
			e.Run(t.Context(), UndoWithin)
			took = time.Since(began)
		})
		e, _ := execution(t)
		for at := range e.steps {
			t.Run(fmt.Sprintf("%s, before step %d", name, at), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					ctx, interrupt := context.WithCancel(t.Context())
					defer interrupt()
					e, labs := execution(t)
					run := e.steps[at].Run
					e.steps[at].Run = func(ctx context.Context) error { interrupt(); return run(ctx) }
					e.Run(ctx, UndoWithin)
					checkInterrupted(t, e, labs)
					r, there := e.Report()
					for i, v := range r.Variants {
						if judged := e.parallel == nil && at >= e.verdictOf(i); judged && v.Verdict != v.Expected { // which waits for nothing
							t.Errorf("%s is %s, though it had its verdict", v.Name, v.Verdict)
						}
					}
					if !there && at > 0 {
						t.Error("there is no report")
					}
				})
			})
		}
		for i := range moments {
			after := took * time.Duration(i) / moments
			t.Run(fmt.Sprintf("%s, after %s", name, after), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					ctx, interrupt := context.WithTimeout(t.Context(), after)
					defer interrupt()
					e, labs := execution(t)
					began := time.Now()
					e.Run(ctx, UndoWithin)
					if late := time.Since(began) - after; late > time.Minute {
						t.Errorf("the run went on for %s", late)
					}
					checkInterrupted(t, e, labs)
				})
			})
		}
	}
}

func checkInterrupted(t *testing.T, e *Execution, labs *fakeLabs) {
	t.Helper()
	if e.Left() != nil || labs.removed < labs.made || labs.open > 0 {
		t.Errorf("%v left, %d labs made, %d removed, %d readers open", e.Left(), labs.made, labs.removed, labs.open)
	}
	r, there := e.Report()
	if !there {
		return // it had not begun
	}
	unknown := 0
	for _, v := range r.Variants {
		switch v.Verdict {
		case string(framework.Unknown):
			unknown++
		case v.Expected:
		default:
			t.Errorf("%s is %s: %v", v.Name, v.Verdict, v.Reasons)
		}
	}
	if (r.Verdict == string(framework.Pass)) && unknown > 0 {
		t.Errorf("the run passes, and %d variants are unknown", unknown)
	}
}

// verdictOf is the number of the step that judges a variant.
func (e *Execution) verdictOf(variant int) int {
	seen := 0
	for i, step := range e.steps {
		if strings.HasPrefix(step.Name, "verdict is ") {
			if seen == variant {
				return i
			}
			seen++
		}
	}
	return -1
}
