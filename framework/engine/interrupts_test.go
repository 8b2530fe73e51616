package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/must"
)

// Whenever a run is interrupted, its labs go down, its readers are closed, and no goroutine is left, or else the bubble
// would not end. No variant is judged by steps that did not run.
func TestInterrupts(t *testing.T) {
	const moments = 10
	for name, scenario := range map[string]func() (framework.Scenario, *fakeLabs, Options){
		"one after the other": func() (framework.Scenario, *fakeLabs, Options) {
			w, s := fakeWorld()
			return s, &fakeLabs{world: w}, Options{}
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
			e.withoutPage = true
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
						if e.parallel == nil && at >= e.verdictOf(i) { // which waits for nothing
							must.Equal(t, v.Name+" had its verdict", v.Expected, v.Verdict)
						}
					}
					must.Equal(t, "there is a report", true, there || at == 0)
				})
			})
		}
		for i := range moments {
			delay := took * time.Duration(i) / moments
			t.Run(fmt.Sprintf("%s, after %s", name, delay), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					ctx, interrupt := context.WithTimeout(t.Context(), delay)
					defer interrupt()
					e, labs := execution(t)
					began := time.Now()
					e.Run(ctx, UndoWithin)
					must.Equal(t, time.Since(began), true, time.Since(began)-delay <= time.Minute)
					checkInterrupted(t, e, labs)
				})
			})
		}
	}
}

func checkInterrupted(t *testing.T, e *Execution, labs *fakeLabs) {
	t.Helper()
	must.Equal(t, "left", nil, e.Left())
	must.Equal(t, "all labs removed, and readers open", [...]any{true, 0}, [...]any{labs.removed >= labs.made, labs.open})
	r, there := e.Report()
	if !there {
		return // it had not begun
	}
	unknown := false
	for _, v := range r.Variants {
		if v.Verdict == string(framework.Unknown) {
			unknown = true
		} else {
			must.Equal(t, v.Reasons, v.Expected, v.Verdict)
		}
	}
	must.Equal(t, "it passes, and a variant is unknown", false, r.Verdict == string(framework.Pass) && unknown)
}

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
