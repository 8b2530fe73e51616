package cordonwithdraws

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// A route that an earlier run left is no announcement of a new Service. Nothing is created
// then: there is no lab here.
func TestAnnouncesMoreThanWasLeft(t *testing.T) {
	at := func(read bool) snapshot.Snapshot {
		paths := snapshot.List[snapshot.Path]{Read: read, Items: []snapshot.Path{{Prefix: netip.PrefixFrom(later.Address, 32)}}}
		return snapshot.Snapshot{Routers: []snapshot.Router{{Name: tors[0], Paths: snapshot.List[snapshot.Path]{Read: true}}, {Name: tors[1], Paths: paths}}}
	}
	for _, tt := range []struct {
		name     string
		at       snapshot.Snapshot
		saw      string
		notKnown bool
	}{
		{name: "a router has it", at: at(true), saw: "tor2 has 10.66.128.3 before Service later is created"},
		{name: "a router was not read", at: at(false), notKnown: true},
	} {
		holds, saw, err := announcesMore(t.Context(), &framework.Run{Topology: lab, Snapshot: func() snapshot.Snapshot { return tt.at }})
		if holds || saw != tt.saw || (err != nil) != tt.notKnown {
			t.Errorf("%s: %t, %q, %v", tt.name, holds, saw, err)
		}
	}
}
