package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
)

// parallel are variants in parallel on one lab, or lanes. Each runs its steps in order; the execution's wait for them.
type parallel struct {
	all   []*parallelRun
	apart bool // lanes, which do not wait for each other
	begin sync.Once
	stop  context.CancelFunc
	// running ends when stop is called.
	running context.Context
	done    chan struct{} // closed when all have ended

	mu sync.Mutex
	// moved is closed and replaced when a variant reaches a point.
	moved chan struct{}
}

// parallelRun is a variant, or a lane.
type parallelRun struct {
	*parallel
	steps []*parallelStep
	// broken is why the variant's nodes, or the lane's lab, could not be restored.
	broken error
	// at is the last point that was reached; guarded by mu.
	at int
}

// Points of a run at which variants wait for each other.
const (
	// Before the installation, so that the load of others does not disturb it.
	toInstall = iota
	// Before the fault, which is injected in all variants at the same moment.
	beforeFault
	// In the fault (Run.Meet).
	inFault
	pointsOfRun
)

type parallelStep struct {
	do   func(context.Context) error
	done chan struct{}
	err  error // valid when done is closed
}

var errNotBegun = errors.New("not begun")

const atEnd = math.MaxInt

func newParallel() *parallel {
	l := &parallel{done: make(chan struct{}), moved: make(chan struct{})}
	l.running, l.stop = context.WithCancel(context.Background())
	return l
}

func (l *parallel) add() *parallelRun {
	added := &parallelRun{parallel: l, at: -1}
	l.all = append(l.all, added)
	return added
}

// start starts all variants, once. After stop each ends its current step and no further one.
func (l *parallel) start(ctx context.Context) {
	l.begin.Do(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		context.AfterFunc(l.running, cancel)
		var all sync.WaitGroup
		for _, one := range l.all {
			all.Go(func() { one.run(ctx) })
		}
		go func() {
			all.Wait()
			cancel()
			close(l.done)
		}()
	})
}

// ended waits until no variant runs. None starts later.
func (l *parallel) ended(ctx context.Context) error {
	l.begin.Do(func() { close(l.done) })
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for variants to end: %w", ctx.Err())
	}
}

// add plans a step of the variant. wait waits for it; if ctx ends before, all variants are stopped.
func (l *parallelRun) add(do func(context.Context) error) (wait func(context.Context) error) {
	s := &parallelStep{do: do, done: make(chan struct{}), err: errNotBegun}
	l.steps = append(l.steps, s)
	return func(ctx context.Context) error {
		l.start(ctx)
		select {
		case <-s.done:
		case <-l.done: // the step was not begun
		case <-ctx.Done():
			l.stop()
			select {
			case <-s.done:
			case <-l.done:
			}
		}
		return s.err
	}
}

func (l *parallelRun) run(ctx context.Context) {
	defer l.moveTo(atEnd)
	for _, s := range l.steps {
		if ctx.Err() != nil {
			s.err = fmt.Errorf("%w: %w", errNotBegun, ctx.Err())
		} else {
			s.err = s.do(ctx)
		}
		close(s.done)
	}
}

func (l *parallelRun) moveTo(point int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = max(l.at, point)
	close(l.moved)
	l.moved = make(chan struct{})
}

// meet waits until all other variants have reached a point, or have ended.
func (l *parallelRun) meet(ctx context.Context, point int) error {
	l.moveTo(point)
	for {
		l.mu.Lock()
		behind := slices.ContainsFunc(l.all, func(other *parallelRun) bool { return other.at < point })
		moved := l.moved
		l.mu.Unlock()
		if !behind {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the other variants: %w", ctx.Err())
		}
	}
}

// meet waits until the parallel variants on the same lab, if any, have reached the same point of the same run.
func (v *variantRun) meet(ctx context.Context, point int) error {
	if v.parallel == nil || v.parallel.apart {
		return nil
	}
	return v.parallel.meet(ctx, pointsOfRun*v.c.Number+point)
}
