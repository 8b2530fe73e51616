package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
)

// lanes are variants that run side by side on one lab. Each has its steps, which
// it runs in their order. Whoever runs the steps of the execution, one after the
// other, waits for what the lanes make of them.
type parallel struct {
	all   []*parallelRun
	begin sync.Once
	stop  context.CancelFunc
	// running ends when stop was called.
	running context.Context
	done    chan struct{} // closed when all lanes are through

	mu sync.Mutex
	// moved is closed, and made anew, when a lane has come further.
	moved chan struct{}
}

// lane is one variant among them.
type parallelRun struct {
	*parallel
	steps []*parallelStep
	// broken is why what the lane has for itself could not be put back.
	broken error
	// at is the farthest point that the lane has come to; guarded by mu.
	at int
}

// Points of a run at which variants wait for each other.
const (
	// Before an installation, so that no load meets it.
	toInstall = iota
	// Before the fault, which is to come to all at the same moment.
	beforeFault
	// Where the fault says so (Run.Meet).
	inFault
	pointsOfRun
)

type parallelStep struct {
	do   func(context.Context) error
	done chan struct{}
	err  error // when done is closed
}

var errNotBegun = errors.New("not begun")

// atEnd is the point that a lane is at when it is through.
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

// start starts every lane, once. They go on until they are through, or until stop
// is called: then each still ends the step that it is at.
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

// ended waits until no lane is at work. None starts any more.
func (l *parallel) ended(ctx context.Context) error {
	l.begin.Do(func() { close(l.done) })
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for variants to end: %w", ctx.Err())
	}
}

// broken is why the nodes of some variant could not be put back; nil if all were.
func (l *parallel) broken() error {
	var all []error
	for _, one := range l.all {
		all = append(all, one.broken)
	}
	return errors.Join(all...)
}

// add plans a step of the lane. What it returns waits for it; if ctx ends before,
// all lanes are stopped.
func (l *parallelRun) add(do func(context.Context) error) (wait func(context.Context) error) {
	s := &parallelStep{do: do, done: make(chan struct{}), err: errNotBegun}
	l.steps = append(l.steps, s)
	return func(ctx context.Context) error {
		l.start(ctx)
		select {
		case <-s.done:
		case <-l.done: // without this step: the lanes had ended before they began
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

// moveTo notes how far the lane has come.
func (l *parallelRun) moveTo(point int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = max(l.at, point)
	close(l.moved)
	l.moved = make(chan struct{})
}

// meet waits until every other lane has come to a point as well, or further, or
// is through.
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

// meet waits for the variants beside this one, where there are any, to come to
// that point of their runs of the same number. One whose run has ended before is
// waited for no longer than until its next run.
func (v *variantRun) meet(ctx context.Context, point int) error {
	if v.parallel == nil {
		return nil
	}
	return v.parallel.meet(ctx, pointsOfRun*v.c.Number+point)
}
