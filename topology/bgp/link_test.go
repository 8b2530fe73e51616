package bgp

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// The output is of iproute2 6.1.
func TestLinkNeighbors(t *testing.T) {
	got := must.Get(LinkNeighbors(`[{"dst":"10.65.4.130","dev":"eth0","lladdr":"02:42:0a:41:04:16","state":["STALE"]},
{"dst":"10.65.4.21","dev":"eth0","state":["FAILED"]},{"dst":"fe80::1","dev":"eth1","lladdr":"02:42:0a:41:04:15","router":null,"state":["REACHABLE"]}]`))(t)
	must.Equal(t, "", []LinkNeighbor{
		{Address: netip.MustParseAddr("10.65.4.21"), Interface: "eth0"},
		{Address: netip.MustParseAddr("10.65.4.130"), Interface: "eth0", MAC: "02:42:0a:41:04:16"},
		{Address: netip.MustParseAddr("fe80::1"), Interface: "eth1", MAC: "02:42:0a:41:04:15", Confirmed: true},
	}, got)
	for _, text := range []string{"no JSON", `[{"dst":"nowhere"}]`} {
		must.Fail(t, must.Err(LinkNeighbors(text)))
	}
}
