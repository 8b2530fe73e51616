package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
)

// Redeploy creates and deletes a Service in turn, as a pipeline does that deploys previews. It goes on after a
// change that fails. Undo ends it.
func Redeploy(s workload.LoadBalancer, every time.Duration) framework.Fault {
	end := func() error { return nil }
	return framework.Fault{
		Name: fmt.Sprintf("Service %s is created and deleted in turn, every %s", s.Name, every),
		Inject: func(ctx context.Context, r *framework.Run) error {
			if err := s.Create(ctx, r); err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
			ended := make(chan error, 1)
			go func() { ended <- redeploy(ctx, r, s, every) }()
			end = func() error { cancel(); return <-ended }
			return nil
		},
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := s.Given(ctx, r)
			return err == nil, fmt.Sprint(err), nil
		},
		Undo: func(ctx context.Context, r *framework.Run) error {
			err := end()
			end = func() error { return nil }
			return errors.Join(err, s.Remove(ctx, r))
		},
	}
}

// redeploy returns the error of the last change before ctx ends.
func redeploy(ctx context.Context, r *framework.Run, s workload.LoadBalancer, every time.Duration) (last error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for next, other := framework.Action(s.Remove), framework.Action(s.Create); ; next, other = other, next {
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
		if err := next(ctx, r); ctx.Err() == nil {
			last = err
		}
	}
}
