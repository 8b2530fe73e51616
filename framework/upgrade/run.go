package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/await"
)

// Run upgrades a component from one version to another on a lab, rolls it back, takes the lab down, and returns the
// measures, also with an error: engine.ErrInterrupted, an image that does not build, a lab that does not come up or go
// down. If a version does not come up on a node, that is no error: Measures.Stopped has the reason. It uses the options
// of engine.NewPlan; Output is also the folder of the record.
func Run(ctx context.Context, u Upgrade, from, to string, labs engine.Labs, o engine.Options) (Measures, error) {
	t := newTrip(u, from, to)
	t.h.Create(o.Output, time.Now(), beginning(t.upgrade, from, to))
	scenario := t.upgrade.scenario(from, to)
	if o.Progress != nil {
		o.Progress = o.Progress.Scenario(scenario.Incident.Name)
	}
	e := engine.NewPlan(engine.Plan{Scope: "upgrade", Scenario: scenario, History: t.h, Secrets: u.secrets, Steps: t.steps}, labs, o)
	e.Run(ctx, engine.UndoWithin)
	err := e.Broken()
	if ctx.Err() != nil {
		err = engine.ErrInterrupted // the interrupt causes other errors
	}
	return t.measures(), errors.Join(err, e.Left(), t.h.Close())
}

const (
	// pollEvery is the time from one poll of the routers to the next.
	pollEvery = 200 * time.Millisecond
	// restFor is how long the lab is watched at rest: twice wire.StreamGivesUp, after which a cut connection breaks.
	restFor = 20 * time.Second
	// rollWithin bounds the change of one node: a pull, a pod's start, and a BGP speaker's first dial (up to ten seconds).
	rollWithin = 3 * time.Minute
	// settleFor is how long the lab is watched after a crashed agent works again. Later losses count for the next steps.
	settleFor = 5 * time.Second
	// keptWithin bounds how long routers keep the routes of an agent that does not come back. The longest default is
	// 120 s, in Cilium, Calico's BIRD and GoBGP; the rest is for the poll that shows it.
	keptWithin = 150 * time.Second
	// cleanFor is how long all probes must be clean before anything is measured, within cleanWithin.
	cleanFor, cleanWithin = 2 * time.Second, time.Minute
)

// trip is an upgrade and its rollback as a plan of the engine. It has no result but the history, which MeasuresOf
// judges. The history also decides how the trip goes on.
type trip struct {
	*engine.Session
	upgrade  Upgrade // declared for both versions
	from, to string
	h        *history.History
	// stopped are the rollouts with a failed step.
	stopped map[direction]bool
	// steady asks whether a node's newest agent still runs, by node.
	steady map[string]func(context.Context) error
}

func newTrip(u Upgrade, from, to string) *trip {
	if u.kernel == nil {
		u.kernel = kernelOf
	}
	if u.ends == nil {
		u.ends = u.endsByItself
	}
	return &trip{
		upgrade: u, from: from, to: to, h: &history.History{}, stopped: map[direction]bool{}, steady: map[string]func(context.Context) error{},
	}
}

func (t *trip) measures() Measures { return MeasuresOf(t.upgrade, t.h) }

func (t *trip) steps(s *engine.Session) []engine.PlanStep {
	t.Session = s
	steps := []engine.PlanStep{
		{ID: framework.StepInstall, Name: fmt.Sprintf("%s %s is installed", t.upgrade.Component, t.from), Do: t.install},
		{ID: framework.StepBaseline, Name: "every path is clean", Do: t.baseline},
		t.readKernels(beforeUpgrade, t.isClean),
		{ID: stepRest, Name: fmt.Sprintf("at rest, for %s", restFor), Due: t.isClean,
			Do: func(ctx context.Context) error { return t.watch(ctx, restFor) }},
	}
	steps = append(steps, t.failovers(oldVersion, t.from, t.isClean)...)
	steps = append(steps, t.rollout(upgrading, t.from, t.to)...)
	steps = append(steps, t.failovers(newVersion, t.to, func() bool { return t.goesOn(upgrading) && t.measures().Stopped == "" })...)
	steps = append(steps, t.rollout(rollingBack, t.to, t.from)...)
	steps = append(steps, t.readKernels(afterRollback, func() bool { return t.goesOn(rollingBack) }))
	if node := t.upgrade.undone(); node != "" {
		steps = append(steps, engine.PlanStep{
			ID: stepUndo, Name: fmt.Sprintf("%s gets %s, and %s again at once", node, t.to, t.from),
			Due: func() bool { return t.goesOn(rollingBack) && t.measures().Stopped == "" },
			Do:  func(ctx context.Context) error { return t.undo(ctx, node) },
		})
	}
	return steps
}

// undo gives a node the new version, and the old version again as soon as the new one is ready: a later change could
// hide what the new version has left.
func (t *trip) undo(ctx context.Context, node string) error {
	for _, version := range []string{t.to, t.from} {
		step := rolloutStep{stepUndo, history.Roll, node, version, ""}
		act := func(ctx context.Context) error {
			if t.upgrade.Release != nil {
				if err := t.upgrade.Release(version)(ctx, t.Run()); err != nil {
					return err
				}
			}
			return t.upgrade.Roll(ctx, t.Run(), node, version)
		}
		if err := t.bounded(ctx, step, act); err != nil {
			return notAsExpected(err)
		}
	}
	if err := t.UntilKnown(ctx, t.h.Now().Add(settleFor)); ctx.Err() != nil {
		return err
	}
	return t.watch(ctx, settleFor)
}

func (t *trip) isClean() bool { return unclean(t.upgrade, t.h) == nil }

func (t *trip) goesOn(d direction) bool { return t.isClean() && !t.stopped[d] }

func (t *trip) install(ctx context.Context) error {
	err := t.h.Do(history.Install, "", func(a *history.Act) { a.Err = t.upgrade.Install(t.from)(ctx, t.Run()) }).Err
	if err != nil {
		return fmt.Errorf("installing %s %s: %w", t.upgrade.Component, t.from, err)
	}
	return nil
}

func (t *trip) baseline(ctx context.Context) error {
	if err := t.StartProbes(ctx, t.upgrade.Ends, t.upgrade.probes()); err != nil {
		return err
	}
	if err := t.StartWatch(ctx, []snapshot.Source{snapshot.Routers}, nil, polling(), nil); err != nil {
		return err
	}
	called := t.h.Now()
	_, err := t.Probes().WaitClean(ctx, nil, cleanFor, cleanWithin)
	if ctx.Err() != nil {
		return err
	}
	t.MarkPackets(history.Mark{Moment: history.ProbesClean, Began: called, Bound: cleanWithin})
	if err != nil && !t.isClean() {
		return notAsExpected(err)
	}
	return nil
}

// notAsExpected is an error of a step after which the trip goes on: the history has the result.
func notAsExpected(err error) error { return fmt.Errorf("%w: %w", verdict.ErrNotAsExpected, err) }

// watch watches for a time, waits for the outcome of its packets, and marks it. The error is that ctx has ended.
func (t *trip) watch(ctx context.Context, lasting time.Duration) error {
	began := t.h.Now()
	until := began.Add(lasting)
	err := t.UntilKnown(ctx, until)
	if ctx.Err() != nil {
		return err
	}
	if err != nil { // packets without a known outcome are counted
		t.Run().Note(err.Error())
	}
	t.MarkPackets(history.Mark{Moment: history.Watched, Began: began, Until: until})
	return nil
}

func (t *trip) rollWithin() time.Duration { return cmp.Or(t.upgrade.RollWithin, rollWithin) }

// rollout are the steps that replace a version by another, node after node, and watch the lab afterwards. The rollback
// has only nodes whose upgrade began. A version that does not come up stops the rollout.
func (t *trip) rollout(d direction, from, to string) []engine.PlanStep {
	var steps []engine.PlanStep
	for _, step := range t.upgrade.rolloutSteps(d, from, to) {
		do := func(ctx context.Context) error {
			if err := t.carryOut(ctx, step); err != nil {
				t.stopped[d] = t.stopped[d] || step.what != history.Restart
				return notAsExpected(err)
			}
			return nil
		}
		steps = append(steps, engine.PlanStep{ID: step.id, Name: step.name, Due: func() bool { return t.isDue(d, step) }, Do: do})
	}
	return append(steps, engine.PlanStep{
		ID: stepOf(kindAfter, d, ""), Name: fmt.Sprintf("after %s, for %s", to, restFor), Due: func() bool { return t.goesOn(d) },
		Do: func(ctx context.Context) error {
			if err := t.watch(ctx, restFor); err != nil {
				return err
			}
			return t.stillWork(ctx, t.upgrade.changed())
		},
	})
}

func (t *trip) isDue(d direction, s rolloutStep) bool {
	switch {
	case !t.goesOn(d):
		return false
	case s.what == history.Restart: // a version that does not start has crashed already
		return t.measures().Stopped == ""
	}
	return d == upgrading || s.part == "" || slices.Contains(touched(t.upgrade, t.h), s.part)
}

func (t *trip) carryOut(ctx context.Context, s rolloutStep) error {
	do := t.upgrade.Migrate.Do
	switch s.id.Kind {
	case kindRestart:
		return t.restart(ctx, s)
	case kindNode:
		return t.replace(ctx, s)
	case kindRelease:
		do = t.upgrade.Release(s.version)
	case kindHalf:
		do = func(ctx context.Context, r *framework.Run) error { return t.upgrade.Half(ctx, r, s.part, s.version) }
	}
	return t.bounded(ctx, s, func(ctx context.Context) error { return do(ctx, t.Run()) })
}

func (t *trip) stillWork(ctx context.Context, nodes []string) error {
	var all error
	for _, node := range nodes {
		steady := t.steady[node]
		if steady == nil {
			continue
		}
		act := t.h.Do(history.StillWorks, node, func(a *history.Act) { t.ask(ctx, a, node, steady) })
		all = errors.Join(all, failed(act))
	}
	if all != nil {
		return notAsExpected(all)
	}
	return nil
}

// failed is why an agent does not work, or could not be asked.
func failed(act history.Act) error {
	if act.Err == nil && !act.Holds {
		return errors.New(act.Saw)
	}
	return act.Err
}

func (t *trip) replace(ctx context.Context, s rolloutStep) error {
	node, began := s.part, time.Now()
	err := t.bounded(ctx, s, func(ctx context.Context) error { return t.upgrade.Roll(ctx, t.Run(), node, s.version) })
	if err != nil {
		return err
	}
	if t.upgrade.Works != nil {
		act := t.h.Do(history.Works, node, func(a *history.Act) {
			t.ask(ctx, a, node, func(ctx context.Context) error { return t.upgrade.Works(ctx, t.Run(), node, s.version, began) })
		})
		if err := failed(act); err != nil {
			return err
		}
	}
	if t.upgrade.Steady == nil {
		return nil
	}
	steady, err := t.upgrade.Steady(ctx, t.Run(), node)
	if err != nil { // ask records it
		steady = func(context.Context) error { return err }
	}
	t.steady[node] = steady
	return nil
}

// ask asks the agent of a node whether it works. If it does not, ask records what was seen, and what the agent says of
// itself. Any other error says nothing of the agent.
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
		if explained := t.explain(ctx, node); explained != "" {
			a.Saw += "; " + explained
		}
	default:
		a.Err = err
	}
}

// explain says in one clause why the agent of a node does not work; empty if nothing says it.
func (t *trip) explain(ctx context.Context, node string) string {
	if t.upgrade.Explain != nil {
		return t.upgrade.Explain(ctx, t.Run(), node)
	}
	says, err := t.upgrade.ends(ctx, t.Run())
	if err != nil {
		says = "whether the component ends by itself is not known: " + err.Error()
	}
	return says
}

func (t *trip) bounded(ctx context.Context, s rolloutStep, do func(context.Context) error) error {
	bound := t.rollWithin()
	return t.h.Do(s.what, s.part, func(a *history.Act) {
		bounded, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("it took longer than %s", bound))
		defer cancel()
		if a.Err = do(bounded); a.Err == nil {
			return
		}
		if ctx.Err() == nil {
			var err error
			if a.Saw, err = t.upgrade.ends(ctx, t.Run()); err != nil {
				t.Run().Note("whether the component ends by itself is not known: " + err.Error())
			}
		}
		if cause := context.Cause(bounded); a.Err != nil && cause != nil && !errors.Is(a.Err, cause) {
			a.Err = fmt.Errorf("%w (%w)", a.Err, cause)
		}
	}).Err
}

// restart has an agent crash that a rollout has not reached, and watches the lab.
func (t *trip) restart(ctx context.Context, s rolloutStep) error {
	var works func(context.Context) error
	act := t.h.Do(history.Restart, s.part, func(a *history.Act) {
		if works, a.Err = t.upgrade.Crash(ctx, t.Run(), s.part, s.version); a.Err == nil {
			t.ask(ctx, a, s.part, works)
		}
	})
	if act.Err == nil && act.Holds { // the agent may have ended once more
		if err := t.watch(ctx, settleFor); err != nil {
			return err
		}
		act = t.h.Do(history.StillWorks, s.part, func(a *history.Act) { t.ask(ctx, a, s.part, works) })
	}
	if act.Err != nil || act.Holds {
		return act.Err
	}
	if err := t.watchLoss(ctx, s.part); err != nil {
		return err
	}
	return failed(act)
}

// watchLoss watches the losses without the agent of a node. With graceful restart they begin when routers forget its
// routes.
func (t *trip) watchLoss(ctx context.Context, node string) error {
	what := "the routers to have a session with " + node + ", or none of its routes"
	err := await.Until(ctx, what, pollEvery, keptWithin, func(context.Context) (bool, string, error) {
		polls := t.h.View().Polls()
		if len(polls) == 0 {
			return false, "no router was polled", nil
		}
		keepers := keeping(t.upgrade.Topology, polls[len(polls)-1], node)
		return keepers == "", keepers, nil
	})
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		t.Run().Note(err.Error())
	}
	return t.watch(ctx, restFor)
}

func (t *trip) readKernels(when string, due func() bool) engine.PlanStep {
	return engine.PlanStep{ID: stepOf(kindKernels, when, ""), Name: "read the nodes' kernels", Due: due, Do: func(ctx context.Context) error {
		for _, node := range t.upgrade.Nodes {
			act := t.h.Do(history.ReadKernel, node, func(a *history.Act) { a.Saw, a.Err = t.upgrade.kernel(ctx, t.Run(), node) })
			if act.Err != nil {
				return fmt.Errorf("reading the kernel of %s: %w", node, act.Err)
			}
			t.Run().Evidence("kernel-"+node, act.Saw)
		}
		return nil
	}}
}

func kernelOf(ctx context.Context, r *framework.Run, node string) (string, error) {
	script := kernelScript
	if r.Topology.Dual {
		script += kernelScriptV6
	}
	return labaccess.Lab(r).Node(node).Exec(ctx, "sh", "-ec", script)
}

// endsByItself says how the component ends each time it is started; empty if it does not end.
func (u Upgrade) endsByItself(ctx context.Context, r *framework.Run) (string, error) {
	for _, pods := range u.Pods {
		how, err := workload.Ends(ctx, labaccess.Cluster(r), pods)
		if how != "" || err != nil {
			return how, err
		}
	}
	return "", nil
}
