package load

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/relapse-dev/relapse/topology/must"
)

// The churn is one for all loads: it begins with the first and ends with the last.
func TestChurnIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Churn
		began, ended := 0, 0
		run := func(ctx context.Context) error {
			began++
			<-ctx.Done()
			ended++
			return ctx.Err()
		}
		first, second := c.join(run), c.join(run)
		synctest.Wait()
		c.leave(first)
		synctest.Wait()
		if began != 1 || ended != 0 {
			t.Errorf("began %d times, ended %d times, while a load goes on", began, ended)
		}
		c.leave(second)
		must.Equal(t, "ended", 1, ended)
		c.leave(c.join(run))
		if began != 2 || ended != 2 {
			t.Errorf("began %d times, ended %d times, with a load after that", began, ended)
		}
	})
}

// A churn that breaks has broken for every load.
func TestChurnBreaks(t *testing.T) {
	var c Churn
	broken := errors.New("the API server is gone")
	run := func(context.Context) error { return broken }
	for range 2 {
		r := c.join(run)
		<-r.done
		must.Equal(t, "", broken, r.err)
		defer c.leave(r)
	}
}

func TestHeldEndpoints(t *testing.T) {
	s := Services{HeldRange: netip.MustParsePrefix("10.30.132.0/24"), HeldEndpoints: 250}
	all := s.heldEndpoints()
	seen := map[netip.Addr]bool{}
	for _, a := range all {
		if !s.HeldRange.Contains(a) {
			t.Errorf("%s is not in %s", a, s.HeldRange)
		}
		seen[a] = true
	}
	must.Equal(t, "", s.HeldEndpoints, len(seen))
	if e := endpointsOf("busy", 8081, all...); len(e.Subsets) != 1 || len(e.Subsets[0].Addresses) != s.HeldEndpoints {
		t.Errorf("endpoints: %+v", e)
	}
	if e := endpointsOf("busy", 8081); len(e.Subsets) != 0 {
		t.Errorf("no endpoints: %+v", e)
	}
}
