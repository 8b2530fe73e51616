package probe

import (
	"math/bits"
	"time"
)

// RTT sums up round trip times. They run from the send call to the kernel's
// time stamp on the reply, and so include what the far end took to answer.
type RTT struct {
	Min time.Duration
	// Median is exact to 1/16.
	Median time.Duration
	Max    time.Duration
}

// histogram counts microseconds in buckets of 1/16 of a power of two: a fixed
// 2 kB a probe.
type histogram struct {
	min, max uint32
	total    int
	buckets  [29 * 16]uint32
}

func bucket(us uint32) int {
	if us < 16 {
		return int(us)
	}
	shift := bits.Len32(us) - 5
	return shift*16 + int(us>>shift)
}

// floor returns the least value of a bucket.
func floor(bucket int) uint32 {
	if bucket < 32 {
		return uint32(bucket)
	}
	shift := bucket/16 - 1
	return uint32(bucket%16+16) << shift
}

func (h *histogram) add(us uint32) {
	if h.total == 0 || us < h.min {
		h.min = us
	}
	h.max = max(h.max, us)
	h.total++
	h.buckets[bucket(us)]++
}

func (h *histogram) summary() RTT {
	if h.total == 0 {
		return RTT{}
	}
	median := uint32(0)
	rest := (h.total + 1) / 2
	for i, n := range h.buckets {
		if rest -= int(n); rest <= 0 {
			median = max(floor(i), h.min)
			break
		}
	}
	return RTT{Min: micros(h.min), Median: micros(median), Max: micros(h.max)}
}

func micros(us uint32) time.Duration { return time.Duration(us) * time.Microsecond }
