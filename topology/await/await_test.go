package await

import (
	"context"
	"errors"
	"strings"
	"testing"
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
