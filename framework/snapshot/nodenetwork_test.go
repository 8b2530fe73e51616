package snapshot

import (
	"testing"
	"time"
)

func TestSightings(t *testing.T) {
	at := func(seconds int) time.Time { return time.Date(2026, 11, 20, 12, 0, seconds, 0, time.UTC) }
	eth0, eth1, again := Interface{Name: "eth0", Index: 2}, Interface{Name: "eth1", Index: 3}, Interface{Name: "eth1", Index: 4}
	var s sightings
	for _, poll := range []struct {
		name       string
		namespace  string
		now        time.Time
		interfaces []Interface
		want       []time.Time
	}{
		{"the first poll", "a", at(0), []Interface{eth0}, []time.Time{{}}},
		{"a card comes", "a", at(1), []Interface{eth0, eth1}, []time.Time{{}, at(1)}},
		{"it stays", "a", at(2), []Interface{eth0, eth1}, []time.Time{{}, at(1)}},
		{"another one under its name", "a", at(3), []Interface{eth0, again}, []time.Time{{}, at(3)}},
		{"it goes", "a", at(4), []Interface{eth0}, []time.Time{{}}},
		{"and comes back", "a", at(5), []Interface{eth0, again}, []time.Time{{}, at(5)}},
		{"the node is started again", "b", at(6), []Interface{eth0, again}, []time.Time{{}, {}}},
	} {
		s.note(poll.namespace, poll.interfaces, poll.now)
		for i, got := range poll.interfaces {
			if !got.Since.Equal(poll.want[i]) {
				t.Errorf("%s: %s is there since %v, want %v", poll.name, got.Name, got.Since, poll.want[i])
			}
		}
	}
}
