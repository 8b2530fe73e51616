package framework

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// In order no action follows one that fails. At once it ends the others.
func TestActions(t *testing.T) {
	broken := errors.New("broken")
	fails := func(context.Context, *Run) error { return broken }
	var done []string
	notes := func(name string) Action {
		return func(context.Context, *Run) error { done = append(done, name); return nil }
	}
	if err := InOrder(notes("a"), notes("b"), fails, notes("c"))(t.Context(), nil); !errors.Is(err, broken) || !slices.Equal(done, []string{"a", "b"}) {
		t.Errorf("done %q, %v", done, err)
	}
	waits := func(ctx context.Context, _ *Run) error { <-ctx.Done(); return ctx.Err() }
	if err := AtOnce(waits, fails)(t.Context(), nil); !errors.Is(err, broken) {
		t.Errorf("%v, want the first error", err)
	}
	must.NoError(t, AtOnce()(t.Context(), nil))
}
