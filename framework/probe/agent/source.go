package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The source ports of new flows are Linux' default ephemeral ports. They are dealt to a few
// destinations in turn; each has enough of them for one flow each 17 ms and TIME_WAIT of 60 s.
const (
	firstPort    = 32768
	lastPort     = 60999
	destinations = 8
	portsOfEach  = (lastPort + 1 - firstPort) / destinations
)

// sources chooses source ports so that no two destinations share one. Translators on the path may
// make one destination of two, a Service and its pod: two flows with one source port are then one
// to connection tracking. Cilium keeps the entry of a Service's flow for minutes after its end,
// and answers a new flow to the pod from the Service's address (ct_has_nodeport_egress_entry4 in
// bpf/lib/conntrack.h asks for no lifetime): the client refuses that answer.
type sources struct {
	mu    sync.Mutex
	flows map[netip.AddrPort]*source
}

type source struct{ class, flow int }

// next is the port of the next flow to a destination.
func (s *sources) next(to netip.AddrPort) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flows == nil {
		s.flows = map[netip.AddrPort]*source{}
	}
	entry := s.flows[to]
	if entry == nil {
		// A restarted agent does not begin with the ports that it used before.
		entry = &source{class: len(s.flows) % destinations, flow: rand.IntN(portsOfEach)}
		s.flows[to] = entry
	}
	entry.flow = (entry.flow + 1) % portsOfEach
	return firstPort + entry.flow*destinations + entry.class
}

// dial opens a new flow to a destination from a port that no other destination has. If the next few
// ports are in use, the kernel chooses.
func (a *Agent) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	dialer := net.Dialer{KeepAlive: -1}
	for range 16 {
		dialer.LocalAddr = a.local(network, a.sources.next(to))
		conn, err := dialer.DialContext(ctx, network, to.String())
		if !errors.Is(err, unix.EADDRINUSE) {
			return conn, err
		}
	}
	dialer.LocalAddr = a.local(network, 0)
	return dialer.DialContext(ctx, network, to.String())
}

// local is the agent's own address with a port; an agent on all addresses leaves the address to
// the kernel.
func (a *Agent) local(network string, port int) net.Addr {
	var ip net.IP
	if !a.addr.IsUnspecified() {
		ip = a.addr.AsSlice()
	}
	if strings.HasPrefix(network, "udp") {
		return &net.UDPAddr{IP: ip, Port: port}
	}
	return &net.TCPAddr{IP: ip, Port: port}
}
