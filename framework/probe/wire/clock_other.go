//go:build !linux

package wire

// kernelClock is 0: agents run on Linux alone, so that none has the clock of this machine.
func kernelClock() int64 { return 0 }
