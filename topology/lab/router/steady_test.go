package router

import (
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/bgp"
)

// Times that a program prints up to a second apart are the same, and others are not.
func TestSteady(t *testing.T) {
	var s steady
	at := time.Date(2026, 11, 24, 16, 30, 7, 595_801_000, time.UTC)
	for _, answer := range []struct {
		name         string
		printed, say time.Time
	}{
		{"first", at, at},
		{"later", at.Add(39 * time.Microsecond), at},
		{"earlier", at.Add(-39 * time.Microsecond), at},
		{"in the next second", at.Add(time.Second), at},
		{"a new session", at.Add(3 * time.Second), at.Add(3 * time.Second)},
		{"which stays", at.Add(3*time.Second + time.Microsecond), at.Add(3 * time.Second)},
	} {
		got := s.steadied([]bgp.Neighbor{{Address: addr("192.0.2.2"), Established: answer.printed}})
		if !got[0].Established.Equal(answer.say) {
			t.Errorf("%s: %s, want %s", answer.name, got[0].Established, answer.say)
		}
	}
	s.steadied(nil)
	if len(s.last) > 0 {
		t.Errorf("times of a session that has ended are kept: %v", s.last)
	}
}
