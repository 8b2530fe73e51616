package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// waiter is a descriptor that is used by raw system calls, while the Go runtime waits for it.
type waiter struct {
	file *os.File
	raw  syscall.RawConn
}

func wait(fd int, name string) (*waiter, error) {
	w := &waiter{file: os.NewFile(uintptr(fd), name)}
	var err error
	if w.raw, err = w.file.SyscallConn(); err != nil {
		w.file.Close()
		return nil, err
	}
	return w, nil
}

// Each calls step whenever the descriptor becomes readable, and returns when
// it is closed. step must take all there is, or it is not called again.
func (w *waiter) Each(step func(fd int)) {
	// One call of RawConn.Read for all reads: one call each would try each read a second time in
	// vain, a quarter of a responder's work.
	_ = w.raw.Read(func(fd uintptr) bool {
		step(int(fd))
		return false
	})
}

// Close ends Each.
func (w *waiter) Close() error { return w.file.Close() }

// receiveBuffer is requested; net.core.rmem_max may limit it. The default of 208 KiB holds some 280
// small packets, a third of a second of ten probes every 10 ms: an agent on a busy machine may not run
// for as long.
const receiveBuffer = 4 << 20

// openSocket opens a UDP socket that reports each packet's TTL, arrival and address.
func openSocket(address netip.AddrPort) (fd int, err error) {
	family, level := unix.AF_INET, unix.IPPROTO_IP
	info, reports, starts := unix.IP_PKTINFO, unix.IP_RECVTTL, unix.IP_TTL
	var at unix.Sockaddr = &unix.SockaddrInet4{Port: int(address.Port())}
	if address.Addr().Is4() {
		at.(*unix.SockaddrInet4).Addr = address.Addr().As4()
	} else {
		family, level = unix.AF_INET6, unix.IPPROTO_IPV6
		info, reports, starts = unix.IPV6_RECVPKTINFO, unix.IPV6_RECVHOPLIMIT, unix.IPV6_UNICAST_HOPS
		at = &unix.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()}
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = errors.Join(
		os.NewSyscallError("setsockopt SO_TIMESTAMPNS", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)),
		os.NewSyscallError("setsockopt PKTINFO", unix.SetsockoptInt(fd, level, info, 1)),
		os.NewSyscallError("setsockopt RECVTTL", unix.SetsockoptInt(fd, level, reports, 1)),
		os.NewSyscallError("setsockopt SO_RCVBUF", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)),
		// Everybody starts at the same TTL, whatever the sysctl of its namespace says, so that 64
		// minus the received one is the number of routers that were crossed.
		os.NewSyscallError("setsockopt TTL", unix.SetsockoptInt(fd, level, starts, 64)),
	)
	if family == unix.AF_INET6 { // the socket of IPv4 has the same port
		err = errors.Join(err, os.NewSyscallError("setsockopt IPV6_V6ONLY", unix.SetsockoptInt(fd, level, unix.IPV6_V6ONLY, 1)))
	}
	err = errors.Join(err, os.NewSyscallError("bind", unix.Bind(fd, at)))
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("UDP %s: %w", address, err)
	}
	return fd, nil
}

func openEcho(address netip.AddrPort) (*waiter, error) {
	fd, err := openSocket(address)
	if err != nil {
		return nil, err
	}
	return wait(fd, "echo")
}

// openTimer opens a timerfd. The runtime's own timers are rounded to the
// milliseconds of epoll_wait, which makes two wake-ups of one.
func openTimer() (*waiter, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return wait(fd, "timerfd")
}

// expired takes the expirations of a timer; false when there are none.
func expired(fd int) bool {
	var n uint64
	_, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&n)), unsafe.Sizeof(n))
	return errno == 0
}

// set has a timer fire at a time of CLOCK_MONOTONIC, or never for 0.
func (w *waiter) set(at int64) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(at)}
	_ = w.raw.Control(func(fd uintptr) { // an error is a timer that is closed: nobody waits for it either
		_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, fd, unix.TFD_TIMER_ABSTIME, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	})
}
