package ipvsdeadlock

import (
	"fmt"
	"slices"
	"time"
)

const (
	// looksHung is in how many looks in a row the same goroutines wait for IPVS,
	// and no sync is finished, if they wait for each other. Both may be in a call
	// at one look, and again at the next.
	looksHung = 3
	// frozenFor is how long a kube-proxy may go without finishing a sync before
	// it has stopped, whatever its goroutines do. It is to sync each second; the
	// slowest sync that was seen on a busy machine, without hardware support for
	// guests, took 38 s.
	frozenFor = 2 * time.Minute
)

// look is what kube-proxy says of itself at one moment.
type look struct {
	at    time.Time
	mode  string
	syncs int // that it has finished
	// waiting are its goroutines that wait for IPVS.
	waiting []int
	// walked is how many entries of the graceful-termination list its log tells
	// of, for the busy Service: each once when it is to go onto the list, and once
	// with each tick.
	walked int
}

func (l look) String() string {
	return fmt.Sprintf("%s %3d syncs, %4d entries walked, waiting %v", l.at.Format("15:04:05.0"), l.syncs, l.walked, l.waiting)
}

// hang tells from look to look whether kube-proxy hangs.
type hang struct {
	last  look
	alike int       // looks up to the last one that could be of one that hangs
	since time.Time // when the last look's count of syncs was seen first
}

// see takes one more look, and tells whether kube-proxy hangs.
func (h *hang) see(l look) bool {
	first := h.since.IsZero()
	synced := first || l.syncs != h.last.syncs
	if synced {
		h.since = l.at
	}
	if synced || !slices.Equal(l.waiting, h.last.waiting) {
		h.alike = 0
	}
	h.alike++
	h.last = l
	return len(l.waiting) > 1 && h.alike >= looksHung || l.at.Sub(h.since) >= frozenFor
}
