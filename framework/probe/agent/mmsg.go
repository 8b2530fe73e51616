package agent

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// batchSize is how many packets one system call may carry. More than 64 in
// one go would hold up the requests that others wait for.
const batchSize = 64

// controlSize has room for the ancillary data of one packet: TTL, packet info and a time stamp.
const controlSize = 128

type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// batch is the memory of one recvmmsg or sendmmsg. It is allocated once: the
// pointers inside stay good because heap objects do not move.
//
// The system calls are raw: the descriptors never block, and an ordinary call would wake the Go runtime's
// monitor thread each time, which costs more than the packet (measured by BenchmarkFiftyPairs). ReadBatch
// and WriteBatch of golang.org/x/net would wake it too, and allocate an address for each packet.
type batch struct {
	hdrs    [batchSize]mmsghdr
	iovs    [batchSize]unix.Iovec
	names   [batchSize]unix.RawSockaddrInet6     // or of IPv4, as Namelen of the header says
	data    [batchSize][wire.PacketSize + 1]byte // one more, to notice what is too long
	control [batchSize][controlSize]byte
}

func newBatch() *batch {
	b := new(batch)
	for i := range b.hdrs {
		b.iovs[i].Base = &b.data[i][0]
		h := &b.hdrs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		h.Iov = &b.iovs[i]
		h.SetIovlen(1)
	}
	return b
}

// receive reads what is there, without waiting: EAGAIN when there is nothing.
func (b *batch) receive(fd int) (int, unix.Errno) {
	for i := range b.hdrs {
		b.iovs[i].SetLen(len(b.data[i]))
		h := &b.hdrs[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.Control = &b.control[i][0]
		h.SetControllen(controlSize)
	}
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd),
			uintptr(unsafe.Pointer(&b.hdrs[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// send sends packets 0 to n-1 and calls refused for each packet that the kernel
// refused. A refused packet never holds up later packets.
func (b *batch) send(fd int, n int, refused func(i int, errno unix.Errno)) {
	for i := 0; i < n; {
		sent, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd),
			uintptr(unsafe.Pointer(&b.hdrs[i])), uintptr(n-i), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			refused(i, errno)
			i++
		default:
			i += int(sent)
		}
	}
}

func (b *batch) packet(i int) (wire.Packet, error) {
	return wire.ParsePacket(b.data[i][:min(int(b.hdrs[i].len), len(b.data[i]))])
}

func (b *batch) name(i int) name { return name{b.names[i], b.hdrs[i].hdr.Namelen} }

func (b *batch) source(i int) netip.Addr {
	if b.names[i].Family == unix.AF_INET {
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&b.names[i])).Addr)
	}
	return netip.AddrFrom16(b.names[i].Addr)
}

// put makes packet i of a batch that is to be sent, without ancillary data.
func (b *batch) put(i int, p wire.Packet, to name) {
	p.Put(b.data[i][:])
	b.iovs[i].SetLen(wire.PacketSize)
	b.names[i] = to.RawSockaddrInet6
	h := &b.hdrs[i].hdr
	h.Namelen = to.size
	h.Control = nil
	h.SetControllen(0)
}

// from makes packet i leave from a given local address.
func (b *batch) from(i int, local netip.Addr) {
	c := &b.control[i]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
	size, body := unix.SizeofInet4Pktinfo, unsafe.Pointer(&c[unix.CmsgLen(0)])
	if local.Is4() {
		h.Level, h.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
		*(*unix.Inet4Pktinfo)(body) = unix.Inet4Pktinfo{Spec_dst: local.As4()}
	} else {
		h.Level, h.Type, size = unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo
		*(*unix.Inet6Pktinfo)(body) = unix.Inet6Pktinfo{Addr: local.As16()}
	}
	h.SetLen(unix.CmsgLen(size))
	m := &b.hdrs[i].hdr
	m.Control = &c[0]
	m.SetControllen(unix.CmsgSpace(size))
}

// ancillary is what the kernel said about a received packet.
type ancillary struct {
	ttl   uint8
	local netip.Addr
	// stamp is when the packet arrived, by CLOCK_REALTIME; 0 when unknown.
	stamp int64
}

func (b *batch) ancillary(i int) ancillary {
	var a ancillary
	rest := b.control[i][:min(int(b.hdrs[i].hdr.Controllen), controlSize)]
	for len(rest) >= unix.SizeofCmsghdr {
		h, body, next, err := unix.ParseOneSocketControlMessage(rest)
		if err != nil {
			break
		}
		rest = next
		switch {
		case len(body) < 4:
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL, h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT:
			a.ttl = uint8(*(*int32)(unsafe.Pointer(&body[0])))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(body) >= unix.SizeofInet4Pktinfo:
			a.local = netip.AddrFrom4((*unix.Inet4Pktinfo)(unsafe.Pointer(&body[0])).Spec_dst)
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(body) >= unix.SizeofInet6Pktinfo:
			a.local = netip.AddrFrom16((*unix.Inet6Pktinfo)(unsafe.Pointer(&body[0])).Addr)
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_TIMESTAMPNS && len(body) >= int(unsafe.Sizeof(unix.Timespec{})):
			a.stamp = (*unix.Timespec)(unsafe.Pointer(&body[0])).Nano()
		}
	}
	return a
}

// name is an address of either family, as the kernel has it.
type name struct {
	unix.RawSockaddrInet6
	size uint32
}

// family is the index of its family in Agent.families.
func (n name) family() int {
	if n.size == unix.SizeofSockaddrInet4 {
		return 0
	}
	return 1
}

func sockaddr(to netip.AddrPort) name {
	sa := name{unix.RawSockaddrInet6{Family: unix.AF_INET6}, unix.SizeofSockaddrInet6}
	if to.Addr().Is4() {
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(&sa)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().As4()}
		sa.size = unix.SizeofSockaddrInet4
	} else {
		sa.Addr = to.Addr().As16()
	}
	port := (*[2]byte)(unsafe.Pointer(&sa.Port)) // network byte order, at the same place in both
	port[0], port[1] = byte(to.Port()>>8), byte(to.Port())
	return sa
}
