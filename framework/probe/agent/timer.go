package agent

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// readTimer takes the expirations of a timerfd; false when there is none.
func readTimer(fd uintptr, buf *[8]byte) bool {
	_, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(buf)), uintptr(len(buf)))
	return errno != unix.EAGAIN
}

func setTimer(fd uintptr, at int64) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(at)}
	_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, fd, unix.TFD_TIMER_ABSTIME, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
}
