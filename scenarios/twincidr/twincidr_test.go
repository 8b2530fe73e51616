package twincidr

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// Whichever node's range the newcomer is given, the incident has occurred.
func TestTwin(t *testing.T) {
	for given, want := range map[netip.Prefix]bool{{}: false, third: false, second: true, lowest: true} {
		s := &story{given: given}
		_, occurred := s.script(framework.Fixed).Trials.Result()
		must.Equal(t, given, want, occurred)
	}
}

func TestRefused(t *testing.T) {
	for says, want := range map[string]bool{
		"requested CIDR (10.69.128.0/27) is already allocated":  true,
		"requested CIDR (10.69.128.32/27) is already allocated": false, // master's
		"allocator full": false,
		"":               false,
	} {
		must.Equal(t, says, want, refused(says))
	}
}

func TestTwoOrigins(t *testing.T) {
	hops := func(addresses ...string) snapshot.Snapshot {
		route := snapshot.Route{Prefix: lowest, Protocol: snapshot.RouteBGP}
		for _, a := range addresses {
			route.NextHops = append(route.NextHops, snapshot.NextHop{Address: netip.MustParseAddr(a)})
		}
		toMaster := snapshot.Route{Prefix: second, Protocol: snapshot.RouteBGP, NextHops: []snapshot.NextHop{{Address: netip.MustParseAddr("10.69.4.11")}}}
		read := snapshot.List[snapshot.Route]{Read: true, Items: []snapshot.Route{route, toMaster}}
		return snapshot.Snapshot{Routers: []snapshot.Router{{Name: tors[0], Routes: read}, {Name: tors[1], Routes: read}}}
	}
	for name, test := range map[string]struct {
		at    snapshot.Snapshot
		holds bool
	}{
		"both": {hops("10.69.4.22", "10.69.4.21"), true}, "the owner alone": {hops("10.69.4.21"), false},
		"another node": {hops("10.69.4.11", "10.69.4.21"), false},
	} {
		holds, saw, err := twoOrigins(t.Context(), &framework.Run{Topology: lab, Snapshot: func() snapshot.Snapshot { return test.at }})
		must.NoError(t, err)
		must.Equal(t, name+": "+saw, test.holds, holds)
	}
}
