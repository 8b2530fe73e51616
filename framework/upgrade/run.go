package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Run upgrades a component from one version to another on a lab of these, rolls it back,
// and returns the measures. It returns what was measured with every error:
// engine.ErrInterrupted, an image that does not build, a lab that does not come up or
// does not go down. A version that does not come up on a node is no error, and Stopped of
// the measures has the reason. The lab is taken down in any case, unless it is to be kept.
//
// Of the options it uses Output, which is the folder of the record and of the evidence and
// may be empty, Keep, Reuse, and Progress.
func Run(ctx context.Context, u Upgrade, from, to string, labs engine.Labs, o engine.Options) (Measures, error) {
	if o.Progress == nil {
		o.Progress = engine.Silent
	}
	t := newTrip(u, from, to, o.Output, func(name string) func(error) { return o.Progress.Step("upgrade", name) })
	scenario := t.upgrade.scenario(from, to)
	err := t.tell("images are available", func() error {
		_, err := labs.Prepare(ctx, scenario, scenario.Variants)
		return err
	})
	if err != nil {
		return t.end(ctx, err, nil)
	}
	var up engine.Lab
	err = t.tell("lab is up", func() (err error) {
		up, err = labs.Up(ctx, scenario, scenario.Variants, o.Reuse)
		return err
	})
	if held := (*kindlab.HeldError)(nil); errors.As(err, &held) {
		return t.end(ctx, err, nil) // the lab belongs to another process
	}
	if up != nil {
		l := openLab(up, t.upgrade, o)
		if err == nil {
			err = l.make(ctx, t)
		}
		if (err != nil || t.measures().Stopped != "") && ctx.Err() == nil {
			l.keepLogs(ctx)
		}
		err = errors.Join(err, l.close())
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), engine.UndoWithin)
	defer cancel()
	var left error
	switch {
	case up != nil && o.Keep:
		up.Release()
	case up != nil:
		left = t.tell("lab is down", func() error { return up.Down(undo) })
	default: // a part of it may have come up
		left = labs.Down(undo, scenario)
	}
	return t.end(ctx, err, left)
}

// end ends the record and returns the measures. The error joins why the trip ended early,
// unless an interrupt is the reason, why a part of the lab is left, and what was not
// recorded.
func (t *trip) end(ctx context.Context, err, left error) (Measures, error) {
	if ctx.Err() != nil {
		err = engine.ErrInterrupted // other errors follow from it
	}
	return t.measures(), errors.Join(err, left, t.h.Close())
}

const (
	// pollEvery is the time from one poll of the routers to the next.
	pollEvery = 200 * time.Millisecond
	// restFor is how long the lab is watched while nothing changes: twice
	// wire.StreamGivesUp, after which a connection that a rollout cut is broken.
	restFor = 20 * time.Second
	// rollWithin bounds the change of one node: the pull of an image, the start of
	// a pod, and a BGP speaker's first dial, which may take ten seconds by itself.
	rollWithin = 3 * time.Minute
	// settleFor is how long the lab is watched after an agent that crashed works again. Its
	// loss is known then, and what it loses later is lost in the next steps.
	settleFor = 5 * time.Second
	// keptWithin bounds how long routers keep the routes of an agent that does not come
	// back: 120 s by default in Cilium, Calico's BIRD and GoBGP, which is the longest of
	// all components, and then some for the poll that shows it.
	keptWithin = 150 * time.Second
	// cleanFor is how long all probes must be clean before anything is measured,
	// and cleanWithin bounds the wait for it.
	cleanFor, cleanWithin = 2 * time.Second, time.Minute
	// outcomeWithin bounds how much later than the end of a phase the outcome of its
	// packets is known, where an agent does not get to run.
	outcomeWithin = 30 * time.Second
)

// lab is what a trip needs of a running lab.
type lab interface {
	// start starts the probes.
	start(ctx context.Context) (probes, error)
	// poll reads the routers.
	poll(ctx context.Context) snapshot.Snapshot
	// kernel is what a node's kernel holds, as kernelScript prints it.
	kernel(ctx context.Context, node string) (string, error)
	// ends says that the component ends by itself each time that it is started, and how;
	// empty if it does not.
	ends(ctx context.Context) (string, error)
}

// probes are those of an upgrade. A *probe.Set is one.
type probes interface {
	Timelines() []probe.Timeline
	WaitClean(ctx context.Context, names []string, window, bound time.Duration) (time.Time, error)
	Stop(ctx context.Context, names ...string) error
}

// trip carries out an upgrade and the rollback, and records in a history what was done
// and seen. MeasuresOf judges that history. The trip itself keeps no result, and asks the
// history how to go on.
type trip struct {
	upgrade  Upgrade // declared for both versions
	from, to string
	dir      string // of the record; empty if there is none
	h        *history.History
	lab      lab
	run      *framework.Run
	probes   probes // nil until they run
	// steady asks the agent of a node that was replaced last whether it still runs.
	steady map[string]func(context.Context) error
	// progress begins a part of the progress, and returns what ends it.
	progress func(name string) func(error)
}

// newTrip begins the history of an upgrade, and its file in a folder; without a folder
// there is none.
func newTrip(u Upgrade, from, to, dir string, progress func(name string) func(error)) *trip {
	t := &trip{upgrade: u.between(from, to), from: from, to: to, dir: dir, h: &history.History{}, progress: progress, steady: map[string]func(context.Context) error{}}
	t.h.Create(dir, time.Now(), beginning(t.upgrade, from, to))
	return t
}

// measures are those of the trip so far.
func (t *trip) measures() Measures { return MeasuresOf(t.upgrade, t.h) }

// tell shows a part of the trip in the progress.
func (t *trip) tell(name string, do func() error) error {
	done := t.progress(name)
	err := do()
	done(err)
	return err
}

// step carries out a step of the history.
func (t *trip) step(ctx context.Context, id framework.StepID, name string, do func() error) error {
	t.h.BeginStep(id)
	err := t.tell(name, do)
	if t.probes != nil {
		t.h.AddPackets(t.probes.Timelines())
	}
	t.h.EndStep(id, err, ctx.Err() != nil)
	return err
}

// make makes the trip. The error is for what says nothing about the versions.
func (t *trip) make(ctx context.Context) error {
	err := t.step(ctx, framework.StepInstall, fmt.Sprintf("%s %s is installed", t.upgrade.Component, t.from), func() error {
		return t.h.Do(history.Install, "", func(a *history.Act) { a.Err = t.upgrade.Install(ctx, t.run, t.from) }).Err
	})
	if err != nil {
		return fmt.Errorf("installing %s %s: %w", t.upgrade.Component, t.from, err)
	}
	t.h.Do(history.StartProbes, "", func(a *history.Act) { t.probes, a.Err = t.lab.start(ctx); err = a.Err })
	if err != nil {
		return err
	}
	watch := engine.StartWatch(t.lab.poll, polling(), t.h, nil)
	err = t.travel(ctx)
	watch.Stop()
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), engine.UndoWithin)
	defer cancel()
	err = errors.Join(err, t.probes.Stop(undo))
	t.h.AddPackets(t.probes.Timelines())
	return err
}

// travel carries out the steps that are measured.
func (t *trip) travel(ctx context.Context) error {
	if err := t.baseline(ctx); err != nil || unclean(t.h) != nil {
		return err
	}
	if err := t.readKernels(ctx, beforeUpgrade); err != nil {
		return err
	}
	if err := t.rest(ctx, stepRest, "at rest"); err != nil {
		return err
	}
	if err := t.roll(ctx, upgrading, t.to, t.upgrade.changed()); err != nil {
		return err
	}
	if err := t.roll(ctx, rollingBack, t.from, touched(t.upgrade, t.h)); err != nil {
		return err
	}
	if _, rested := t.h.Step(stepAfter(rollingBack)); !rested {
		return nil // the rollback stopped
	}
	return t.readKernels(ctx, afterRollback)
}

// baseline waits until all probes are clean. The error is the end of ctx alone: unclean
// says what the wait came to.
func (t *trip) baseline(ctx context.Context) error {
	return t.step(ctx, framework.StepBaseline, "every path is clean", func() error {
		called := t.h.Now()
		_, err := t.probes.WaitClean(ctx, nil, cleanFor, cleanWithin)
		if ctx.Err() != nil {
			return err
		}
		t.h.MarkPackets(history.Mark{Moment: history.ProbesClean, Began: called, Bound: cleanWithin}, t.probes.Timelines())
		return nil
	})
}

// rest watches for a time while nothing changes, until the outcome of the packets of that
// time is known.
func (t *trip) rest(ctx context.Context, id framework.StepID, what string) error {
	rest := t.restFor()
	return t.step(ctx, id, fmt.Sprintf("%s, for %s", what, rest), func() error { return t.watch(ctx, rest) })
}

// watch watches for a time, until the outcome of the packets of that time is known, and marks
// it in the history. The error is the end of ctx.
func (t *trip) watch(ctx context.Context, lasting time.Duration) error {
	began := t.h.Now()
	until := began.Add(lasting)
	err := await.Until(ctx, "the outcome of the last packets", pollEvery, lasting+outcomeWithin, func(context.Context) (bool, string, error) {
		for _, line := range t.probes.Timelines() {
			if line.Gone.IsZero() && !line.Known(t.h.Monotonic(until)) {
				return false, line.String(), nil
			}
		}
		return true, "", nil
	})
	if ctx.Err() != nil {
		return err
	}
	if err != nil { // a packet without a known outcome is counted as such
		t.run.Note(err.Error())
	}
	t.h.MarkPackets(history.Mark{Moment: history.Watched, Began: began, Until: until}, t.probes.Timelines())
	return nil
}

// restFor is how long the lab is watched while nothing changes.
func (t *trip) restFor() time.Duration { return cmp.Or(t.upgrade.Rest, restFor) }

// rollWithin bounds the change of one node.
func (t *trip) rollWithin() time.Duration { return cmp.Or(t.upgrade.RollWithin, rollWithin) }

// roll replaces the version on these nodes, one after the other, and watches what follows.
// The error is the end of ctx alone: a version that does not come up stops the rollout,
// and the history has the reason.
func (t *trip) roll(ctx context.Context, d direction, version string, nodes []string) error {
	if t.upgrade.Release != nil {
		err := t.change(ctx, stepRelease(d), history.Release, "", "release "+version+" to the cluster", func(ctx context.Context) error {
			return t.upgrade.Release(ctx, t.run, version)
		})
		if err != nil {
			return onlyEnd(ctx, err)
		}
	}
	for i, node := range nodes {
		if t.upgrade.Half != nil {
			err := t.change(ctx, stepHalf(d, node), history.Roll, node, "half of "+node+" gets "+version, func(ctx context.Context) error {
				return t.upgrade.Half(ctx, t.run, node, version)
			})
			if err != nil {
				return onlyEnd(ctx, err)
			}
			if err := t.restart(ctx, d, node); err != nil {
				return err
			}
		}
		works, err := t.replace(ctx, d, node, version)
		if err != nil || !works {
			return onlyEnd(ctx, err)
		}
		if t.upgrade.Half == nil && i+1 == len(nodes)/2 { // with one node there is no half
			if err := t.restart(ctx, d, nodes[len(nodes)-1]); err != nil {
				return err
			}
		}
	}
	rest := t.restFor()
	return onlyEnd(ctx, t.step(ctx, stepAfter(d), fmt.Sprintf("after %s, for %s", version, rest), func() error {
		if err := t.watch(ctx, rest); err != nil {
			return err
		}
		for _, node := range nodes {
			if steady := t.steady[node]; steady != nil {
				t.h.Do(history.StillWorks, node, func(a *history.Act) { t.ask(ctx, a, node, steady) })
			}
		}
		return ctx.Err()
	}))
}

// replace replaces the agent of a node by one of a version, asks that for new work, and notes
// what to ask it later. It reports whether the agent does it.
func (t *trip) replace(ctx context.Context, d direction, node, version string) (works bool, err error) {
	began := time.Now()
	err = t.step(ctx, stepNode(d, node), node+" gets "+version, func() error {
		err := t.bounded(ctx, history.Roll, node, func(ctx context.Context) error { return t.upgrade.Roll(ctx, t.run, node, version) })
		if err != nil {
			return err
		}
		if t.upgrade.Works != nil {
			act := t.h.Do(history.Works, node, func(a *history.Act) {
				t.ask(ctx, a, node, func(ctx context.Context) error { return t.upgrade.Works(ctx, t.run, node, version, began) })
			})
			if act.Err != nil || !act.Holds {
				return act.Err
			}
		}
		works = true
		if t.upgrade.Steady == nil {
			return nil
		}
		steady, err := t.upgrade.Steady(ctx, t.run, node)
		if err != nil { // it is recorded when the agent is asked
			steady = func(context.Context) error { return err }
		}
		t.steady[node] = steady
		return nil
	})
	return works, err
}

// ask asks the agent of a node whether it works, and records the answer: what was seen of it if
// it does not, and what it says of itself. Another error says nothing of the agent.
func (t *trip) ask(ctx context.Context, a *history.Act, node string, works func(context.Context) error) {
	bounded, cancel := context.WithTimeoutCause(ctx, t.rollWithin(), fmt.Errorf("it took longer than %s", t.rollWithin()))
	defer cancel()
	err := works(bounded)
	_, late := errors.AsType[*await.TimeoutError](err)
	_, ended := errors.AsType[*workload.EndedError](err)
	switch {
	case err == nil:
		a.Holds = true
	case ctx.Err() == nil && (late || ended || bounded.Err() != nil):
		a.Saw = err.Error()
		if t.upgrade.Explain != nil {
			a.Saw += "; " + t.upgrade.Explain(ctx, t.run, node)
		}
	default:
		a.Err = err
	}
}

// onlyEnd is an error if ctx has ended, and nil otherwise.
func onlyEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return nil
}

// change carries out a step of a rollout within its bound.
func (t *trip) change(ctx context.Context, id framework.StepID, what history.Action, part, name string, do func(context.Context) error) error {
	return t.step(ctx, id, name, func() error { return t.bounded(ctx, what, part, do) })
}

// bounded carries out an act of a rollout within its bound.
func (t *trip) bounded(ctx context.Context, what history.Action, part string, do func(context.Context) error) error {
	bound := t.rollWithin()
	return t.h.Do(what, part, func(a *history.Act) {
		bounded, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("it took longer than %s", bound))
		defer cancel()
		if a.Err = do(bounded); a.Err == nil {
			return
		}
		if ctx.Err() == nil {
			var err error
			if a.Saw, err = t.lab.ends(ctx); err != nil {
				t.run.Note("whether the component ends by itself is not known: " + err.Error())
			}
		}
		if cause := context.Cause(bounded); a.Err != nil && cause != nil && !errors.Is(a.Err, cause) {
			a.Err = fmt.Errorf("%w (%w)", a.Err, cause)
		}
	}).Err
}

// restart has an agent crash that a rollout has not reached, and watches what follows. The
// error is the end of ctx alone: the history has whether the agent works again, and the
// rollout goes on in any case.
func (t *trip) restart(ctx context.Context, d direction, node string) error {
	if t.upgrade.Crash == nil || t.measures().Stopped != "" { // a version that does not start has crashed already
		return nil
	}
	version := t.from
	if d == rollingBack {
		version = t.to
	}
	return onlyEnd(ctx, t.step(ctx, stepRestart(d), version+" is restarted on "+node+" in the middle of the rollout", func() error {
		var works func(context.Context) error
		act := t.h.Do(history.Restart, node, func(a *history.Act) {
			if works, a.Err = t.upgrade.Crash(ctx, t.run, node, version); a.Err == nil {
				t.ask(ctx, a, node, works)
			}
		})
		if act.Err == nil && act.Holds { // an agent may work for a moment, and end once more
			if err := t.watch(ctx, settleFor); err != nil {
				return err
			}
			act = t.h.Do(history.StillWorks, node, func(a *history.Act) { t.ask(ctx, a, node, works) })
		}
		if act.Err != nil || act.Holds {
			return act.Err
		}
		// With graceful restart routers keep the routes of an agent that does not come back,
		// and traffic is lost only then.
		err := await.Until(ctx, "the routers to have a session with "+node+", or none of its routes", pollEvery, keptWithin, func(context.Context) (bool, string, error) {
			polls := t.h.View().Polls()
			if len(polls) == 0 {
				return false, "no router was polled", nil
			}
			kept := keeping(t.upgrade.Topology, polls[len(polls)-1], node)
			return kept == "", kept, nil
		})
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			t.run.Note(err.Error())
		}
		return t.watch(ctx, t.restFor())
	}))
}

// readKernels records what the kernel of each node holds.
func (t *trip) readKernels(ctx context.Context, when string) error {
	return t.step(ctx, stepKernels(when), "read the nodes' kernels", func() error {
		for _, node := range t.upgrade.Nodes {
			act := t.h.Do(history.ReadKernel, node, func(a *history.Act) { a.Saw, a.Err = t.lab.kernel(ctx, node) })
			if act.Err != nil {
				return fmt.Errorf("reading the kernel of %s: %w", node, act.Err)
			}
		}
		return nil
	})
}
