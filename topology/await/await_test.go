package await

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestUntil(t *testing.T) {
	const interval, bound = time.Millisecond, 50 * time.Millisecond
	t.Run("done", func(t *testing.T) {
		looks := 0
		err := Until(t.Context(), "the third look", interval, time.Minute, func(context.Context) (bool, string, error) {
			looks++
			return looks == 3, "", nil
		})
		if err != nil || looks != 3 {
			t.Fatalf("looks = %d, err = %v; want 3 looks and no error", looks, err)
		}
	})
	t.Run("bound says what was seen last", func(t *testing.T) {
		err := Until(t.Context(), "a route", interval, bound, func(context.Context) (bool, string, error) {
			return false, "an empty table", nil
		})
		var timeout *TimeoutError
		if !errors.As(err, &timeout) || timeout.Saw != "an empty table" {
			t.Fatalf("err = %v; want a TimeoutError that saw an empty table", err)
		}
	})
	t.Run("an error is something seen", func(t *testing.T) {
		err := Until(t.Context(), "a socket", interval, bound, func(context.Context) (bool, string, error) {
			return false, "", errors.New("connection refused")
		})
		if err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Fatalf("err = %v; want it to name the last error", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := Until(ctx, "nothing", interval, time.Minute, func(context.Context) (bool, string, error) {
			return false, "", nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("err = %v; want the cancellation", err)
		}
	})
}

// Whoever watches is told at the beginning, at each thing that is seen for the first
// time, and at the end.
func TestWatch(t *testing.T) {
	var told []Sight
	ctx := Watch(t.Context(), func(s Sight) { told = append(told, s) })
	looks := 0
	err := Until(ctx, "the fourth look", time.Millisecond, time.Minute, func(context.Context) (bool, string, error) {
		looks++
		return looks == 4, []string{"one", "one", "two", ""}[looks-1], nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range told {
		if s.What != "the fourth look" || !s.Began.Equal(told[0].Began) {
			t.Errorf("%+v", s)
		}
		got = append(got, s.Saw)
	}
	if want := []string{"", "one", "two", "two"}; !slices.Equal(got, want) || !told[len(told)-1].Over || told[2].Over {
		t.Errorf("told %+v, want %q and then the end", told, want)
	}
}

// A wait of its own is asked what it sees once a second, and not at all where nobody
// watches.
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
			t.Errorf("asked %d times for nobody", asked)
		}
		var told []Sight
		see(Watch(t.Context(), func(s Sight) { told = append(told, s) }))
		if asked != 3 || len(told) != 5 || told[3].Saw != "3" || !told[4].Over {
			t.Errorf("asked %d times, told %+v; want 3 times in 2.5 s", asked, told)
		}
	})
}
