package wire

import (
	"time"

	"golang.org/x/sys/unix"
)

// The runtime's own monotonic reading is CLOCK_MONOTONIC on Linux but has no
// public number. One pair of readings at start ties the two together; after
// that the time costs a vDSO call and no system call.
var (
	baseTime = time.Now()
	baseMono = func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			panic("reading CLOCK_MONOTONIC: " + err.Error()) // EINVAL only: not on Linux
		}
		return ts.Nano()
	}()
)

// Monotonic returns CLOCK_MONOTONIC, in nanoseconds. Processes under one
// kernel read the same clock.
func Monotonic() int64 { return baseMono + int64(time.Since(baseTime)) }

// TimeOf turns a value of this machine's Monotonic into a time.Time that carries a monotonic
// reading, so that it compares exactly with time.Now even when the wall clock is set in between.
func TimeOf(mono int64) time.Time { return baseTime.Add(time.Duration(mono - baseMono)) }
