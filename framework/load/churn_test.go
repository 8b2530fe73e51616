package load

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/relapse-dev/relapse/topology/must"
)

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
		must.Equal(t, "began and ended while a load goes on", [...]int{1, 0}, [...]int{began, ended})
		c.leave(second)
		must.Equal(t, "ended", 1, ended)
		c.leave(c.join(run))
		must.Equal(t, "began and ended with a load after that", [...]int{2, 2}, [...]int{began, ended})
	})
}

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
		must.Equal(t, a, true, s.HeldRange.Contains(a))
		seen[a] = true
	}
	must.Equal(t, "", s.HeldEndpoints, len(seen))
	some, none := endpointsOf("busy", 8081, all...).Subsets, endpointsOf("busy", 8081).Subsets
	must.Equal(t, some, [...]int{1, s.HeldEndpoints, 0}, [...]int{len(some), len(some[0].Addresses), len(none)})
}
