package router

import (
	"net/netip"
	"testing"
	"time"
)

func TestAnnounces(t *testing.T) {
	address := netip.MustParseAddr("10.4.94.21")
	session := Neighbor{Address: address, State: StateEstablished, Established: noon, Received: 1}
	changed := func(change func(*Neighbor)) []Neighbor {
		n := session
		change(&n)
		return []Neighbor{{Address: netip.MustParseAddr("10.4.94.22")}, n}
	}
	for _, test := range []struct {
		name      string
		neighbors []Neighbor
		since     time.Time
		up        bool // the session
		announces bool
	}{
		{"no neighbour", nil, time.Time{}, false, false},
		{"whenever it came up", changed(func(*Neighbor) {}), time.Time{}, true, true},
		{"within the same second", changed(func(*Neighbor) {}), noon.Add(900 * time.Millisecond), true, true},
		{"too old", changed(func(*Neighbor) {}), noon.Add(time.Second), true, false},
		{"no route over it", changed(func(n *Neighbor) { n.Received = 0 }), noon, true, false},
		{"not up", changed(func(n *Neighbor) { n.State = "active" }), noon, false, false},
		{"another's", changed(func(n *Neighbor) { n.Address = n.Address.Next().Next() }), noon, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if up := Established(test.neighbors, address); up != test.up {
				t.Errorf("established: %t, want %t", up, test.up)
			}
			if got := Announces(test.neighbors, address, test.since); got != test.announces {
				t.Errorf("announces: %t, want %t", got, test.announces)
			}
		})
	}
}
