package bgprouter

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/topology/lab/router"
)

// A snapshot has what the router says, under the same names.
func TestConversions(t *testing.T) {
	a, at := netip.MustParseAddr("10.4.94.32"), time.Unix(1767323045, 0).UTC()
	pods := netip.MustParsePrefix("10.5.112.0/24")
	path := router.Path{
		Prefix: pods, NextHop: a, Neighbor: a.Next(), ASPath: []uint32{64512}, Origin: "igp", LocalPref: 100, MED: 5,
		Internal: true, Best: true, Multipath: true, Received: at,
	}
	neighbor := router.Neighbor{
		Address: a, AS: 64512, RouterID: a.Next(), State: router.StateEstablished, Established: at, HoldTime: 9 * time.Second, Received: 2, Accepted: 1,
	}
	route := router.Route{
		Prefix: pods, Type: router.TypeUnicast, Protocol: router.ProtocolBGP, Metric: router.DistanceEBGP, Source: a,
		NextHops: []router.NextHop{{Address: a, Interface: "eth0"}, {Address: a.Next(), Interface: "eth1"}},
	}
	numbered := router.Route{Prefix: pods, Type: 11, Protocol: 42}
	for _, test := range []struct {
		name     string
		from, to any
	}{
		{"path", path, toPath(path)},
		{"neighbor", neighbor, toNeighbor(neighbor)},
		{"route", route, toRoute(route)},
		{"route of a type and a protocol without a name", numbered, toRoute(numbered)},
	} {
		t.Run(test.name, func(t *testing.T) {
			want, err := json.Marshal(test.from)
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(test.to)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
