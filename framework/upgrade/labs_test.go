package upgrade

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

// The lab goes down in every case, and one of another process is not touched.
func TestRun(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		// noImages, noLab, noProbes and half are the world's.
		noImages, noLab, noProbes error
		half                      bool
		// interrupt comes with the installation, and panics is set if that panics.
		interrupt, panics bool
		did               string
		says              string
		logs              bool
	}{
		{name: "an image does not build", noImages: broken, did: "remnants down", says: "broken"},
		{name: "no lab comes up", noLab: broken, did: "remnants down", says: "broken"},
		{name: "half a lab comes up", noLab: broken, half: true, did: "down", says: "broken", logs: true},
		{name: "the lab is another process's", noLab: &kindlab.HeldError{}, says: (&kindlab.HeldError{}).Error()},
		{name: "no endpoint answers", noProbes: errors.New("no agent answers"), did: "down", says: "no agent answers", logs: true},
		{name: "an interrupt", interrupt: true, did: "down", says: engine.ErrInterrupted.Error()},
		{name: "a panic", panics: true, did: "down", says: "panic: no such thing", logs: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := newWorld()
			w.noImages, w.noLab, w.noProbes, w.half = c.noImages, c.noLab, c.noProbes, c.half
			w.upgrade.Install = func(string) framework.Action {
				return func(ctx context.Context, _ *framework.Run) error {
					if c.panics {
						panic("no such thing")
					}
					if c.interrupt {
						cancel()
					}
					return ctx.Err()
				}
			}
			output := t.TempDir()
			m, err := w.run(ctx, t, output)
			must.Fail(t, err, c.says)
			must.Equal(t, err, c.interrupt, errors.Is(err, engine.ErrInterrupted))
			must.Equal(t, "the lab", c.did, strings.Join(w.did, ", "))
			must.Equal(t, m, [...]any{"thing", true, true}, [...]any{m.Component, m.Upgrade == nil, m.Left == nil})
			must.Equal(t, "logs", c.logs, len(must.Get(filepath.Glob(filepath.Join(output, "*log-one*")))(t)) > 0)
			must.Equal(t, "images", []string{"relapse.dev/probe:dev", "relapse.dev/thing:1", "relapse.dev/thing:2"}, w.served)
		})
	}
}
