package router

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/bgp"
)

const (
	// askEvery is the time between two questions for an address.
	askEvery = 250 * time.Millisecond
	// maxStations bounds the stations that are kept of an address.
	maxStations = 16
)

// arp listens on the router's links, and asks who answers for some addresses. It asks with another MAC
// than the router's: the answers do not change the kernel's neighbour table.
type arp struct {
	socket int

	mu      sync.Mutex
	watched map[netip.Addr]*watched
}

type watched struct {
	iface   net.Interface
	answers []bgp.Answer
}

// watch begins to ask for an address on the link on which the router has the address own, and adds a route
// to the address there unless there is one.
func (a *arp) watch(address, own netip.Addr) error {
	iface, err := interfaceOf(own)
	if err != nil {
		return err
	}
	if routes, err := netlink.RouteGet(address.AsSlice()); err != nil || routes[0].Gw != nil || routes[0].LinkIndex != iface.Index {
		route := &netlink.Route{
			Dst: netlink.NewIPNet(address.AsSlice()), LinkIndex: iface.Index, Scope: unix.RT_SCOPE_LINK, Protocol: unix.RTPROT_BOOT,
		}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("routing %s to %s: %w", address, iface.Name, err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.watched == nil {
		if a.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ARP))); err != nil {
			return fmt.Errorf("opening a socket for ARP: %w", err)
		}
		a.watched = map[netip.Addr]*watched{}
		go a.listen()
		go a.ask()
	}
	if a.watched[address] == nil {
		a.watched[address] = &watched{iface: iface}
	}
	return nil
}

func interfaceOf(own netip.Addr) (net.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return net.Interface{}, err
	}
	for _, i := range all {
		addresses, err := i.Addrs()
		if err != nil {
			return net.Interface{}, err
		}
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(own.AsSlice()) {
				return i, nil
			}
		}
	}
	return net.Interface{}, fmt.Errorf("no interface has the address %s", own)
}

// links are the watched addresses as the kernel and the listener know them.
func (a *arp) links() ([]bgp.LinkNeighbor, error) {
	all := []bgp.LinkNeighbor{}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.watched == nil {
		return all, nil
	}
	table, err := netlink.NeighList(0, netlink.FAMILY_V4)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing neighbours: %w", err)
	}
	for address, w := range a.watched {
		n := bgp.LinkNeighbor{Address: address, Interface: w.iface.Name, Answers: slices.Clone(w.answers)}
		for _, entry := range table {
			missing := entry.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) != 0
			if entry.IP.Equal(address.AsSlice()) && entry.LinkIndex == w.iface.Index && !missing {
				n.MAC, n.Confirmed = entry.HardwareAddr.String(), entry.State&(netlink.NUD_REACHABLE|netlink.NUD_PERMANENT) != 0
			}
		}
		all = append(all, n)
	}
	slices.SortFunc(all, bgp.CompareLinkNeighbors)
	return all, nil
}

// ask asks for each watched address, for as long as the router runs.
func (a *arp) ask() {
	for range time.Tick(askEvery) {
		a.mu.Lock()
		for address, w := range a.watched {
			asks := slices.Clone(w.iface.HardwareAddr)
			asks[0] ^= 0x04 // another MAC, locally administered as Docker's are
			// Errors are ignored: the question is repeated.
			_ = unix.Sendto(a.socket, request(asks, address), 0, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ARP), Ifindex: w.iface.Index})
		}
		a.mu.Unlock()
	}
}

func (a *arp) listen() {
	frame := make([]byte, 128)
	for {
		n, from, err := unix.Recvfrom(a.socket, frame, 0)
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENETDOWN) {
			return
		}
		if on, ok := from.(*unix.SockaddrLinklayer); ok && on.Pkttype != unix.PACKET_OUTGOING {
			a.heard(frame[:n], on.Ifindex, time.Now())
		}
	}
}

// Offsets in an ARP frame of Ethernet and IPv4 (RFC 826), and its length.
const (
	arpHeader, arpOperation, arpSender, arpSenderIP, arpTargetIP, arpLength = 14, 20, 22, 28, 38, 42
	opRequest, opReply                                                      = 1, 2
)

// request is an ARP probe for an address (RFC 5227): it has no sender's address that stations could learn.
func request(from net.HardwareAddr, address netip.Addr) []byte {
	f := bytes.Repeat([]byte{0xff}, 6)
	f = append(f, from...)
	f = append(f, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, opRequest)
	f = append(f, from...)
	f = append(f, make([]byte, 10)...) // no sender's address, no target's MAC
	return append(f, address.AsSlice()...)
}

// heard notes a frame: a reply for a watched address, or its announcement, in which sender and target
// are the same.
func (a *arp) heard(frame []byte, iface int, at time.Time) {
	if len(frame) < arpLength {
		return
	}
	sender, _ := netip.AddrFromSlice(frame[arpSenderIP : arpSenderIP+4])
	target, _ := netip.AddrFromSlice(frame[arpTargetIP : arpTargetIP+4])
	operation := binary.BigEndian.Uint16(frame[arpOperation:])
	mac := net.HardwareAddr(frame[arpSender : arpSender+6]).String()
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.watched[sender]
	if w == nil || w.iface.Index != iface || sender != target && operation != opReply {
		return
	}
	i := slices.IndexFunc(w.answers, func(b bgp.Answer) bool { return b.MAC == mac })
	if i < 0 {
		if len(w.answers) == maxStations {
			return
		}
		i, w.answers = len(w.answers), append(w.answers, bgp.Answer{MAC: mac})
	}
	if sender == target {
		w.answers[i].Gratuitous++
		w.answers[i].Announced = at
		return
	}
	w.answers[i].Replied = at
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }
