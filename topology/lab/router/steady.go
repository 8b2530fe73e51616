package router

import (
	"net/netip"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/topology/bgp"
)

// steady replaces the time at which a session came up by the time of the last answer, if they
// differ by jitter at most. FRR and BIRD compute wall-clock times for each answer from their
// monotonic clock: of FRR, which has full seconds of both, the same time comes out up to one
// second apart, and of BIRD some microseconds.
type steady struct {
	mu   sync.Mutex
	last map[netip.Addr]time.Time
}

// No peer opens a session again so soon.
const jitter = time.Second

func (s *steady) steadied(answer []bgp.Neighbor) []bgp.Neighbor {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := map[netip.Addr]time.Time{}
	for i := range answer {
		n := &answer[i]
		if before, ok := s.last[n.Address]; ok && n.Established.Sub(before).Abs() <= jitter {
			n.Established = before
		}
		now[n.Address] = n.Established
	}
	s.last = now
	return answer
}
