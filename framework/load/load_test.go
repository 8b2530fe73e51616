package load

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

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
