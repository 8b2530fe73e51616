package kubeproxy

import (
	"slices"
	"time"
)

const (
	// looksHung is in how many looks in a row the same goroutines wait for IPVS,
	// and no sync is finished, if they wait for each other. Two of a healthy
	// kube-proxy may both be in a call at one look, and again at the next.
	looksHung = 3
	// FrozenFor is how long a kube-proxy may go without finishing a sync before
	// it has stopped, whatever its goroutines do. It is to sync each second; the
	// slowest sync that was seen on a busy machine, without hardware support for
	// guests, took 38 s.
	FrozenFor = 2 * time.Minute
)

// Hang tells from look to look whether kube-proxy hangs. The zero value has
// seen nothing.
type Hang struct {
	// Last is the newest look.
	Last Look

	alike int       // looks up to the last one that could be of one that hangs
	since time.Time // when the last look's count of syncs was seen first
}

// See takes one more look, and tells whether kube-proxy hangs.
func (h *Hang) See(l Look) bool {
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
	return len(l.Waiting) > 1 && h.alike >= looksHung || l.At.Sub(h.since) >= FrozenFor
}
