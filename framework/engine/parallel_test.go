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

// The fault comes to all variants at the same moment, however long each takes
// before; and no run of one begins while another is at its run before.
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

// A runner may give a step up and finish while a variant still undoes what it did:
// the lab must go after that, not before.
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
