package upgrade

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// fakeLabs makes a lab on which nothing can be dialled, and notes what was done to it.
type fakeLabs struct {
	prepare, up error
	came        bool // a lab comes up, whatever up says
	did         []string
	served      []string
}

func (l *fakeLabs) Prepare(_ context.Context, _ framework.Scenario, variants []framework.Variant) (engine.Prepared, error) {
	l.served = variants[0].Images
	return engine.Prepared{}, l.prepare
}

func (l *fakeLabs) Up(context.Context, framework.Scenario, []framework.Variant, bool) (engine.Lab, error) {
	if !l.came {
		return nil, l.up
	}
	return fakeLab{l}, l.up
}

func (l *fakeLabs) Down(ctx context.Context, _ framework.Scenario) error {
	l.did = append(l.did, "remnants down")
	return ctx.Err()
}

type fakeLab struct{ *fakeLabs }

func (l fakeLab) Attach(*framework.Run) {}
func (l fakeLab) Dial(context.Context, *framework.Run, []framework.Endpoint) ([]probe.End, error) {
	return nil, errors.New("no agent answers")
}
func (l fakeLab) Open(context.Context, []snapshot.Source, []string) (engine.Reader, error) {
	return nil, errors.New("nothing to read")
}
func (l fakeLab) Guests(context.Context) ([]report.Guest, error)  { return nil, nil }
func (l fakeLab) CPUTime(context.Context) (engine.CPUTime, error) { return engine.CPUTime{}, nil }
func (l fakeLab) Logs(context.Context, time.Time, []string) (map[string]string, error) {
	return map[string]string{"one": "it said why"}, nil
}
func (l fakeLab) Release() { l.did = append(l.did, "released") }
func (l fakeLab) Down(ctx context.Context) error {
	l.did = append(l.did, "down")
	return ctx.Err()
}

// The lab goes down in every case, and one of another process is not touched.
func TestRun(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name      string
		labs      fakeLabs
		keep      bool
		interrupt bool
		did       string
		says      string
		logs      bool
	}{
		{name: "an image does not build", labs: fakeLabs{prepare: broken}, says: "broken"},
		{name: "no lab comes up", labs: fakeLabs{up: broken}, did: "remnants down", says: "broken"},
		{name: "half a lab comes up", labs: fakeLabs{up: broken, came: true}, did: "down", says: "broken", logs: true},
		{name: "the lab is another process's", labs: fakeLabs{up: &kindlab.HeldError{}}, says: (&kindlab.HeldError{}).Error()},
		{name: "no endpoint answers", labs: fakeLabs{came: true}, did: "down", says: "no agent answers", logs: true},
		{name: "the lab is kept", labs: fakeLabs{came: true}, keep: true, did: "released", says: "no agent answers", logs: true},
		{name: "an interrupt", labs: fakeLabs{came: true}, interrupt: true, did: "down", says: engine.ErrInterrupted.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			u := newWorld().upgrade
			if c.interrupt {
				u.Install = func(ctx context.Context, _ *framework.Run, _ string) error {
					cancel()
					return ctx.Err()
				}
			}
			output := t.TempDir()
			m, err := Run(ctx, u, "1", "2", &c.labs, engine.Options{Output: output, Keep: c.keep})
			if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, engine.ErrInterrupted) != c.interrupt {
				t.Errorf("%v, want %q", err, c.says)
			}
			if got := strings.Join(c.labs.did, ", "); got != c.did {
				t.Errorf("the lab is %q, want %q", got, c.did)
			}
			if m.Component != "thing" || m.Upgrade != nil || m.Left != nil {
				t.Errorf("%+v", m)
			}
			files, err := os.ReadDir(output)
			logs := false
			for _, f := range files {
				logs = logs || strings.Contains(f.Name(), "log-one")
			}
			if err != nil || logs != c.logs {
				t.Errorf("evidence %v, %v", files, err)
			}
			if want := "relapse.dev/probe:dev, relapse.dev/thing:1, relapse.dev/thing:2"; strings.Join(c.labs.served, ", ") != want {
				t.Errorf("the lab serves %v", c.labs.served)
			}
		})
	}
}
