package bgp

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The output is of iproute2 6.1.
func TestLinkNeighbors(t *testing.T) {
	got, err := LinkNeighbors(`[{"dst":"10.65.4.130","dev":"eth0","lladdr":"02:42:0a:41:04:16","state":["STALE"]},
{"dst":"10.65.4.21","dev":"eth0","state":["FAILED"]},{"dst":"fe80::1","dev":"eth1","lladdr":"02:42:0a:41:04:15","router":null,"state":["REACHABLE"]}]`)
	want := []LinkNeighbor{
		{Address: netip.MustParseAddr("10.65.4.21"), Interface: "eth0"},
		{Address: netip.MustParseAddr("10.65.4.130"), Interface: "eth0", MAC: "02:42:0a:41:04:16"},
		{Address: netip.MustParseAddr("fe80::1"), Interface: "eth1", MAC: "02:42:0a:41:04:15", Confirmed: true},
	}
	if err != nil || !slices.EqualFunc(got, want, func(a, b LinkNeighbor) bool { return cmp.Equal(a, b, cmpopts.EquateComparable(netip.Addr{})) }) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, text := range []string{"no JSON", `[{"dst":"nowhere"}]`} {
		if _, err := LinkNeighbors(text); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}
