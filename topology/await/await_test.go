package await

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestUntil(t *testing.T) {
	const interval, bound = time.Millisecond, 50 * time.Millisecond
	t.Run("done", func(t *testing.T) {
		polls := 0
		must.NoError(t, Until(t.Context(), "the third poll", interval, time.Minute, func(context.Context) (bool, string, error) {
			polls++
			return polls == 3, "", nil
		}))
		must.Equal(t, "polls", 3, polls)
	})
	t.Run("bound says what was seen last", func(t *testing.T) {
		err := Until(t.Context(), "a route", interval, bound, func(context.Context) (bool, string, error) {
			return false, "an empty table", nil
		})
		if timeout, ok := errors.AsType[*TimeoutError](err); !ok || timeout.Saw != "an empty table" {
			t.Fatalf("err = %v; want a TimeoutError that saw an empty table", err)
		}
	})
	t.Run("an error is something seen", func(t *testing.T) {
		must.Fail(t, Until(t.Context(), "a socket", interval, bound, func(context.Context) (bool, string, error) {
			return false, "", errors.New("connection refused")
		}), "connection refused")
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		never := func(context.Context) (bool, string, error) { return false, "", nil }
		must.Is(t, Until(ctx, "nothing", interval, time.Minute, never), context.Canceled)
	})
}

// A watched wait reports its beginning, each change of what it sees, and its end.
func TestWatch(t *testing.T) {
	var reported []Sight
	ctx := Watch(t.Context(), func(s Sight) { reported = append(reported, s) })
	polls := 0
	must.NoError(t, Until(ctx, "the fourth poll", time.Millisecond, time.Minute, func(context.Context) (bool, string, error) {
		polls++
		return polls == 4, []string{"one", "one", "two", ""}[polls-1], nil
	}))
	want := []Sight{{}, {Saw: "one"}, {Saw: "two"}, {Saw: "two", Over: true}}
	for i := range want {
		want[i].What, want[i].Began = "the fourth poll", reported[0].Began
	}
	must.Equal(t, "reported", want, reported)
}

// See asks for a description once a second, and never for a wait that is not watched.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		see := func(ctx context.Context) {
			w := Begin(ctx, "a packet")
			for range 25 {
				time.Sleep(100 * time.Millisecond)
				w.See(func() string { asked++; return fmt.Sprint(asked) })
			}
			w.End()
		}
		see(t.Context())
		if asked > 0 {
			t.Errorf("asked %d times without a watcher", asked)
		}
		var reported []Sight
		see(Watch(t.Context(), func(s Sight) { reported = append(reported, s) }))
		if asked != 3 || len(reported) != 5 || reported[3].Saw != "3" || !reported[4].Over {
			t.Errorf("asked %d times, reported %+v; want 3 times in 2.5 s", asked, reported)
		}
	})
}
