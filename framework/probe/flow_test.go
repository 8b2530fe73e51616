package probe_test

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/must"
)

// firewall echoes the packets of probes, and counts the source ports that they come from.
// Once it refuses new flows it answers the ports alone that it knows, as connection
// tracking does with a rule that drops state NEW.
type firewall struct {
	conn *net.UDPConn
	done chan struct{}

	mu      sync.Mutex
	ports   map[uint16]int
	refuses bool
}

func startFirewall(t *testing.T) *firewall {
	t.Helper()
	conn := must.Get(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	f := &firewall{conn: conn, done: make(chan struct{}), ports: map[uint16]int{}}
	go f.run()
	t.Cleanup(func() { conn.Close(); <-f.done })
	return f
}

func (f *firewall) run() {
	defer close(f.done)
	b := make([]byte, 1500)
	for {
		n, from, err := f.conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		p, err := wire.ParsePacket(b[:n])
		if err != nil || p.Kind != wire.RequestPacket || !f.passes(from.Port()) {
			continue
		}
		p.Kind = wire.ReplyPacket
		p.Put(b)
		_, _ = f.conn.WriteToUDPAddrPort(b[:n], from)
	}
}

func (f *firewall) passes(port uint16) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuses && f.ports[port] == 0 {
		return false
	}
	f.ports[port]++
	return true
}

func (f *firewall) refuseNew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuses = true
}

func (f *firewall) end() probe.End {
	return probe.End{Name: "firewall", Address: netip.MustParseAddrPort(f.conn.LocalAddr().String())}
}

// Each packet of a UDPFlow probe is a new flow, so it is lost where new flows are refused.
// A UDP probe has one flow, which goes on.
func TestUDPFlow(t *testing.T) {
	t.Parallel()
	a, b, f := startEnd(t, "a"), startEnd(t, "b"), startFirewall(t)
	flow := probe.Probe{From: "a", To: "firewall", Protocol: probe.UDPFlow, Interval: 20 * time.Millisecond}
	s := start(t, []probe.End{a, b, f.end()}, flow,
		probe.Probe{From: "a", To: "firewall", Interval: 20 * time.Millisecond},
		probe.Probe{From: "a", To: "b", Protocol: probe.UDPFlow, Interval: 20 * time.Millisecond})
	waitClean(t, s, 500*time.Millisecond)
	f.refuseNew()
	refused := time.Now()
	waitLoss(t, s, refused, "a->firewall/udp-flow")
	waitClean(t, s, 500*time.Millisecond, "a->firewall", "a->b/udp-flow")
	stop(t, s)
	line := timeline(t, s, "a->firewall/udp-flow")
	if c := line.Between(line.Started, refused); c.Received == 0 || c.Lost > c.Received/10 {
		t.Errorf("before new flows were refused: %+v", c)
	}
	f.mu.Lock()
	ports := len(f.ports)
	f.mu.Unlock()
	// The kernel chooses among 28,000 ports: few are chosen twice.
	if n := line.Counts().Received; ports < n*3/4 {
		t.Errorf("%d packets came from %d ports", n, ports)
	}
	if line := timeline(t, s, "a->b/udp-flow"); len(line.Sources) != 1 || line.Sources[0].Packets < line.Counts().Received {
		t.Errorf("%s; from %v", line.String(), line.Sources)
	}
}

// A connected socket is notified of refusals. Where they count as answers, a probe whose packets
// are refused loses none, and one whose packets vanish loses them.
func TestRefusal(t *testing.T) {
	t.Parallel()
	a, f := startEnd(t, "a"), startFirewall(t)
	gone := must.Get(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	closed := probe.End{Name: "closed", Address: netip.MustParseAddrPort(gone.LocalAddr().String())}
	gone.Close()
	const interval = 20 * time.Millisecond
	withRefusals := func(to string, p probe.Protocol) probe.Probe {
		return probe.Probe{From: "a", To: to, Protocol: p, Interval: interval, RefusalAnswers: true}
	}
	untold := probe.Probe{Name: "untold", From: "a", To: "closed", Protocol: probe.UDPConnected, Interval: interval}
	s := start(t, []probe.End{a, closed, f.end()}, untold, withRefusals("closed", probe.UDPConnected), withRefusals("closed", probe.UDPFlow), withRefusals("firewall", probe.UDPConnected))
	waitClean(t, s, 500*time.Millisecond, "a->closed/udp-connected", "a->closed/udp-flow", "a->firewall/udp-connected")
	waitLoss(t, s, time.Now().Add(-time.Second), "untold")
	f.conn.Close() // its port is free: what comes now is refused
	waitClean(t, s, 500*time.Millisecond, "a->firewall/udp-connected")
	stop(t, s)
	for _, name := range []string{"a->closed/udp-connected", "a->closed/udp-flow", "untold"} {
		line := timeline(t, s, name)
		if c := line.Counts(); line.Errors["ECONNREFUSED"] < c.Sent*9/10 {
			t.Errorf("%s: of %d packets %v", name, c.Sent, line.Errors)
		}
	}
	if line := timeline(t, s, "a->firewall/udp-connected"); line.Counts().Received <= line.Errors["ECONNREFUSED"] || line.Errors["ECONNREFUSED"] == 0 {
		t.Errorf("want echoes, and then refusals: %s", line.String())
	}
}

// A packet that another agent answers than the one at the probe's far end is lost, whatever it is sent over; one that
// an end without an agent answers is not.
func TestAnsweredByAnother(t *testing.T) {
	t.Parallel()
	a, b, other := startEnd(t, "a"), startEnd(t, "b"), startEnd(t, "other")
	service := probe.End{Name: "service", Address: other.Address, Agent: b.Agent}
	open := probe.End{Name: "open", Address: other.Address}
	probes := []probe.Probe{{From: "a", To: "b"}, {From: "a", To: "open"}}
	for _, protocol := range []probe.Protocol{probe.UDP, probe.UDPFlow, probe.UDPConnected, probe.Stream} {
		probes = append(probes, probe.Probe{From: "a", To: "service", Protocol: protocol, Interval: 20 * time.Millisecond}.WithDefaults())
	}
	s := start(t, []probe.End{a, b, other, service, open}, probes...)
	waitClean(t, s, 200*time.Millisecond, "a->b", "a->open")
	for _, p := range probes[2:] {
		waitLoss(t, s, time.Time{}, p.Name)
	}
	stop(t, s)
	for _, p := range probes[2:] {
		got := timeline(t, s, p.Name)
		if c := got.Between(got.Started, got.Stopped); c.Received > 0 || got.Errors[wire.WrongServer] == 0 {
			t.Errorf("%s: %d were received; %v", p.Name, c.Received, got.Errors)
		}
	}
	must.Equal(t, "b was answered by another", 0, timeline(t, s, "a->b").Errors[wire.WrongServer])
}
