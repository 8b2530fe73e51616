package wire

import "golang.org/x/sys/unix"

func kernelClock() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("reading CLOCK_MONOTONIC: " + err.Error()) // EINVAL only: not on Linux
	}
	return ts.Nano()
}
