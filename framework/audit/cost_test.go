package audit

import (
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

// Requests, bytes and memory are counted.
func TestCost(t *testing.T) {
	s := incident(t, "10.5.112.0/24", "10.5.114.0/24")
	config := s.config(t)
	m := Measure(config)
	must.Get(Read(t.Context(), Access{Config: config}, time.Millisecond, func(string) {}))(t)
	c := m.Cost()
	asked := 0
	for _, n := range s.asked {
		asked += n
	}
	must.Equal(t, "requests", asked, c.Requests)
	must.Equal(t, c, true, c.Bytes >= int64(2*len(s.lists["/api/v1/nodes"])) && c.PeakMemory >= 1<<20)
}
