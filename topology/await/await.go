// Package await waits for conditions. A wait has a name, an interval and a
// bound. Its error states what it last saw. Watch reports the progress of waits.
package await

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Condition checks once. It returns whether the wait is over and, if not, what
// it saw instead. An error does not end the wait, because the object may not
// exist yet: the error is then what was last seen.
type Condition func(ctx context.Context) (done bool, saw string, err error)

// TimeoutError says that a condition did not come true within its bound.
type TimeoutError struct {
	What  string        // what was waited for
	Bound time.Duration // for how long
	Saw   string        // what was seen last
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("waited %s for %s; last seen: %s", e.Bound, e.What, e.Saw)
}

// Until calls cond at once and then every interval until it is done, bound
// has passed (a *TimeoutError) or ctx ends (its error, wrapped).
func Until(ctx context.Context, what string, interval, bound time.Duration, cond Condition) error {
	saw := "nothing yet"
	watched := Begin(ctx, what)
	defer watched.End()
	err := wait.PollUntilContextTimeout(ctx, interval, bound, true, func(ctx context.Context) (bool, error) {
		done, now, err := cond(ctx)
		switch {
		case done:
			return true, nil
		case err != nil && ctx.Err() == nil:
			saw = err.Error()
		case now != "":
			saw = now
		}
		watched.see(saw)
		return false, nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("waiting for %s: %w (last seen: %s)", what, ctx.Err(), saw)
	case errors.Is(err, context.DeadlineExceeded):
		return &TimeoutError{What: what, Bound: bound, Saw: saw}
	}
	return fmt.Errorf("waiting for %s: %w", what, err)
}
