package kubeproxy

import (
	"slices"
	"time"
)

const (
	// pollsHung is how many polls in a row must show the same goroutines waiting for IPVS,
	// and no sync finished, before kube-proxy counts as hung. Two goroutines of a healthy
	// kube-proxy may both be in a call at one poll, and again at the next.
	pollsHung = 3
	// FrozenFor is how long a kube-proxy may go without finishing a sync before it counts as
	// stopped, regardless of its goroutines. It should sync every five seconds; the slowest sync
	// that was seen on a busy machine, without hardware support for guests, took 38 s.
	FrozenFor = 2 * time.Minute
)

// Hang reports after each poll whether kube-proxy hangs. The zero value has seen nothing.
type Hang struct {
	// Last is the newest state.
	Last State

	alike int       // polls in a row, up to the last, with the same goroutines waiting and no sync
	since time.Time // when the last poll's count of syncs was seen first
}

// See takes the state of one more poll, and reports whether kube-proxy hangs.
func (h *Hang) See(l State) bool {
	first := h.since.IsZero()
	synced := first || l.Syncs != h.Last.Syncs
	if synced {
		h.since = l.At
	}
	if synced || !slices.Equal(l.Waiting, h.Last.Waiting) {
		h.alike = 0
	}
	h.alike++
	h.Last = l
	return len(l.Waiting) > 1 && h.alike >= pollsHung || l.At.Sub(h.since) >= FrozenFor
}
