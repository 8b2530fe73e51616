package upgrade

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Run takes a component from one version to another on a lab of these, and back, and
// returns what that did. What was measured is returned with every error:
// engine.ErrInterrupted, an image that does not build, a lab that does not come up or
// does not go down. That a version does not come up on a node is no error: Stopped
// says so. The lab is taken down in any case, unless it is to be kept.
//
// Of the options it looks at Output, which is where evidence is kept and may be empty,
// Keep, Reuse, and Progress.
func Run(ctx context.Context, u Upgrade, from, to string, labs engine.Labs, o engine.Options) (Measures, error) {
	u = u.between(from, to)
	if o.Progress == nil {
		o.Progress = engine.Silent
	}
	step := func(name string, do func() error) error {
		done := o.Progress.Step("upgrade", name)
		err := do()
		done(err)
		return err
	}
	scenario := u.scenario(from, to)
	t := &trip{upgrade: u, from: from, to: to, step: step}
	err := step("images are there", func() error {
		_, _, err := labs.Prepare(ctx, scenario, scenario.Variants)
		return err
	})
	if err != nil {
		return t.measures(), outcome(ctx, err, nil)
	}
	var up engine.Lab
	err = step("lab is up", func() (err error) {
		up, err = labs.Up(ctx, scenario, scenario.Variants, o.Reuse)
		return err
	})
	if held := (*kindlab.HeldError)(nil); errors.As(err, &held) {
		return t.measures(), err // it is another process's
	}
	if up != nil {
		l := openLab(up, u, o)
		if err == nil {
			err = l.make(ctx, t)
		}
		if (err != nil || len(t.stopped) > 0) && ctx.Err() == nil {
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
		left = step("lab is down", func() error { return up.Down(undo) })
	default: // as much of it as came up
		left = labs.Down(undo, scenario)
	}
	return t.measures(), outcome(ctx, err, left)
}

// outcome is the error of a run: why it broke, and what of the lab is left. What an
// interrupt broke is not told.
func outcome(ctx context.Context, err, left error) error {
	if ctx.Err() != nil {
		err = engine.ErrInterrupted
	}
	return errors.Join(err, left)
}

const (
	// lookEvery is the time from one look at the routers to the next.
	lookEvery = 200 * time.Millisecond
	// restFor is how long is watched what nobody changes.
	restFor = 10 * time.Second
	// rollWithin bounds the change of one node: the pull of an image, the start of
	// a pod, and a BGP speaker's first dial, which may take ten seconds by itself.
	rollWithin = 3 * time.Minute
	// cleanFor is how long all probes must be clean before anything is measured,
	// and cleanWithin bounds the wait for it.
	cleanFor, cleanWithin = 2 * time.Second, time.Minute
	// fateWithin bounds how much later than the end of a time it is known what became
	// of its packets, where an agent does not get to run.
	fateWithin = 30 * time.Second
)

// lab is what a trip needs of a running lab.
type lab interface {
	// start starts the probes.
	start(ctx context.Context) (probes, error)
	// look reads the routers.
	look(ctx context.Context) snapshot.Snapshot
	// kernel is what a node's kernel holds, as kernelScript tells it.
	kernel(ctx context.Context, node string) (string, error)
}

// probes are those of an upgrade. A *probe.Set is one.
type probes interface {
	Timelines() []probe.Timeline
	WaitClean(ctx context.Context, names []string, window, bound time.Duration) (time.Time, error)
	Stop(ctx context.Context, names ...string) error
}

// trip is the way from one version to another and back, with what was seen on it.
type trip struct {
	upgrade  Upgrade
	from, to string
	lab      lab
	run      *framework.Run
	// step tells the progress of something, and does it.
	step func(name string, do func() error) error

	timelines []probe.Timeline
	looks     []snapshot.Snapshot
	resting   span
	there     *rollout
	back      *rollout
	stopped   []string
	left      []Difference
}

// span is a time that is measured.
type span struct{ began, ended time.Time }

// rollout is one version taking the place of another.
type rollout struct {
	from, to      string
	nodes         []NodeStep
	during, after span
}

// make makes the trip. The error is for what says nothing about the versions.
func (t *trip) make(ctx context.Context) error {
	err := t.step(fmt.Sprintf("%s %s is installed", t.upgrade.Component, t.from), func() error {
		return t.upgrade.Install(ctx, t.run, t.from)
	})
	if err != nil {
		return fmt.Errorf("installing %s %s: %w", t.upgrade.Component, t.from, err)
	}
	probes, err := t.lab.start(ctx)
	if err != nil {
		return err
	}
	watch := startWatch(ctx, t.lab.look)
	err = t.travel(ctx, probes)
	t.looks = watch.stop()
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), engine.UndoWithin)
	defer cancel()
	err = errors.Join(err, probes.Stop(undo))
	t.timelines = probes.Timelines()
	return err
}

// travel is what is measured of the trip.
func (t *trip) travel(ctx context.Context, probes probes) error {
	var unclean error
	err := t.step("every path is clean", func() error {
		_, unclean = probes.WaitClean(ctx, nil, cleanFor, cleanWithin)
		return unclean
	})
	switch {
	case ctx.Err() != nil:
		return err
	case err != nil:
		t.stop("before the upgrade not every path was clean: %s", err)
		return nil
	}
	before, err := t.kernels(ctx)
	if err != nil {
		return err
	}
	if err := t.rest(ctx, probes, &t.resting, "at rest"); err != nil {
		return err
	}
	t.there = &rollout{from: t.from, to: t.to, nodes: []NodeStep{}}
	if err := t.roll(ctx, probes, t.there, t.upgrade.Nodes); err != nil {
		return err
	}
	touched := t.upgrade.Nodes[:len(t.there.nodes)]
	t.back = &rollout{from: t.to, to: t.from, nodes: []NodeStep{}}
	if err := t.roll(ctx, probes, t.back, touched); err != nil || t.back.after.ended.IsZero() {
		return err
	}
	after, err := t.kernels(ctx)
	if err != nil {
		return err
	}
	t.left, err = t.upgrade.differences(before, after)
	return err
}

// stop notes why the trip went no further.
func (t *trip) stop(format string, args ...any) {
	t.stopped = append(t.stopped, fmt.Sprintf(format, args...))
}

// rest watches for a time what nobody changes, up to when it is known what became of
// its packets.
func (t *trip) rest(ctx context.Context, probes probes, s *span, what string) error {
	rest := t.upgrade.Rest
	if rest == 0 {
		rest = restFor
	}
	s.began = time.Now()
	s.ended = s.began.Add(rest)
	return t.step(fmt.Sprintf("%s, for %s", what, rest), func() error {
		err := await.Until(ctx, "the last packets' fate", lookEvery, rest+fateWithin, func(context.Context) (bool, string, error) {
			for _, line := range probes.Timelines() {
				if line.Gone.IsZero() && !line.Known(s.ended) {
					return false, line.String(), nil
				}
			}
			return true, "", nil
		})
		var timeout *await.TimeoutError
		switch {
		case ctx.Err() != nil:
			s.ended = time.Now()
			return err
		case errors.As(err, &timeout): // what is not known counts as such
			t.run.Note(err.Error())
			return nil
		}
		return err
	})
}

// roll has a version take the place of another on these nodes. The error is the end
// of ctx alone: that a version does not come up stops the trip.
func (t *trip) roll(ctx context.Context, probes probes, r *rollout, nodes []string) error {
	r.during.began = time.Now()
	err := t.change(ctx, r, nodes)
	r.during.ended = time.Now()
	switch {
	case ctx.Err() != nil:
		return err
	case err != nil:
		t.stop("%s %s took the place of %s on %d of %d nodes: %s", t.upgrade.Component, r.to, r.from, r.ready(), len(nodes), err)
		return nil
	}
	return t.rest(ctx, probes, &r.after, "after "+r.to)
}

func (t *trip) change(ctx context.Context, r *rollout, nodes []string) error {
	bound := t.upgrade.RollWithin
	if bound == 0 {
		bound = rollWithin
	}
	within := func(name string, do func(context.Context) error) error {
		return t.step(name, func() error {
			ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("it took longer than %s", bound))
			defer cancel()
			err := do(ctx)
			if err != nil && context.Cause(ctx) != nil && !errors.Is(err, context.Cause(ctx)) {
				err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
			}
			return err
		})
	}
	if t.upgrade.Release != nil {
		err := within("what "+r.to+" has for all nodes", func(ctx context.Context) error { return t.upgrade.Release(ctx, t.run, r.to) })
		if err != nil {
			return err
		}
	}
	for _, node := range nodes {
		step := NodeStep{Node: node, Began: time.Now()}
		err := within(node+" gets "+r.to, func(ctx context.Context) error { return t.upgrade.Roll(ctx, t.run, node, r.to) })
		if err == nil {
			step.Ready = time.Now()
		}
		r.nodes = append(r.nodes, step)
		if err != nil {
			return fmt.Errorf("node %s: %w", node, err)
		}
	}
	return nil
}

// ready counts the nodes on which the version does its work.
func (r *rollout) ready() int {
	n := 0
	for _, step := range r.nodes {
		if !step.Ready.IsZero() {
			n++
		}
	}
	return n
}

// kernels is what the kernel of each node holds.
func (t *trip) kernels(ctx context.Context) (map[string]string, error) {
	all := map[string]string{}
	err := t.step("the nodes' kernels are read", func() error {
		for _, node := range t.upgrade.Nodes {
			text, err := t.lab.kernel(ctx, node)
			if err != nil {
				return fmt.Errorf("reading the kernel of %s: %w", node, err)
			}
			all[node] = text
		}
		return nil
	})
	return all, err
}

// measures are those of the trip so far.
func (t *trip) measures() Measures {
	m := Measures{
		Component: t.upgrade.Component, Form: string(t.upgrade.Form), Topology: t.upgrade.about(),
		Resting: t.phase(t.resting), Stopped: strings.Join(t.stopped, "; "), Left: t.left,
	}
	for _, r := range []struct {
		seen *rollout
		to   **Rollout
	}{{t.there, &m.Upgrade}, {t.back, &m.Back}} {
		if r.seen != nil {
			*r.to = &Rollout{
				From: r.seen.from, To: r.seen.to, Nodes: r.seen.nodes, During: t.phase(r.seen.during), After: t.phase(r.seen.after),
			}
		}
	}
	return m
}

// phase is what was seen in a time.
func (t *trip) phase(s span) Phase {
	p := Phase{Began: s.began, Ended: s.ended, Paths: []Path{}, Routers: []Router{}}
	if s.ended.IsZero() {
		return p
	}
	for _, w := range t.upgrade.Paths {
		p.Paths = append(p.Paths, w.measure(t.timelines, s))
	}
	p.Routers = routersOf(t.upgrade.Topology, t.looks, s)
	return p
}
