package probe_test

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/must"
)

// redis is the name that the tests look up.
const redis = "redis.default.svc.cluster.local"

// nameServer answers for one name as the test wants.
type nameServer struct {
	address netip.AddrPort
	asked   atomic.Int64
	// answer makes the answer to a question, nil for silence.
	answer atomic.Pointer[func(dnsmessage.Message) *dnsmessage.Message]
}

func (s *nameServer) answers(f func(dnsmessage.Message) *dnsmessage.Message) { s.answer.Store(&f) }

func startNameServer(t *testing.T) *nameServer {
	t.Helper()
	conn := must.Get(net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address().Addr(), 0))))(t)
	s := &nameServer{address: conn.LocalAddr().(*net.UDPAddr).AddrPort()}
	served := make(chan struct{})
	go func() {
		defer close(served)
		b := make([]byte, 512)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if err := m.Unpack(b[:n]); err != nil {
				continue
			}
			s.asked.Add(1)
			m.Response = true
			if reply := (*s.answer.Load())(m); reply != nil {
				packed, _ := reply.Pack() // what is missing shows as lost
				_, _ = conn.WriteToUDPAddrPort(packed, from)
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-served })
	return s
}

func record(name string, body dnsmessage.ResourceBody) dnsmessage.Resource {
	return dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: dnsmessage.ClassINET, TTL: 30}, Body: body}
}

// pointing answers with an address, behind an alias.
func pointing(to netip.Addr) func(dnsmessage.Message) *dnsmessage.Message {
	return func(m dnsmessage.Message) *dnsmessage.Message {
		m.Answers = []dnsmessage.Resource{
			record(redis+".", &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("one.example.")}),
			record("one.example.", &dnsmessage.AResource{A: to.As4()}),
		}
		return &m
	}
}

// lookingUp is a probe that looks its far end up.
func lookingUp(to string, l probe.Lookup) probe.Probe {
	return probe.Probe{From: "repo", To: to, Protocol: probe.DNS, Interval: 20 * time.Millisecond, Timeout: 300 * time.Millisecond, Lookup: &l}
}

func silent(dnsmessage.Message) *dnsmessage.Message { return nil }

func coded(code dnsmessage.RCode) func(dnsmessage.Message) *dnsmessage.Message {
	return func(m dnsmessage.Message) *dnsmessage.Message { m.RCode = code; return &m }
}

// A DNS probe goes where the name leads, at each packet, and distinguishes a lookup
// that failed from an address that does not answer.
func TestDNS(t *testing.T) {
	t.Parallel()
	server := startNameServer(t)
	repo, redisEnd := startEnd(t, "repo"), startEnd(t, "redis")
	nowhere := address().Addr()
	server.answers(pointing(redisEnd.Address.Addr()))
	declared := lookingUp("service", probe.Lookup{Name: redis, Server: server.address})
	// The end's own address, a Service's, is not used: the address of the name is.
	service := probe.End{Name: "service", Address: netip.AddrPortFrom(nowhere, redisEnd.Address.Port())}
	const name = "repo->service/dns"
	s := start(t, []probe.End{repo, redisEnd, service}, declared)
	waitClean(t, s, 200*time.Millisecond)

	for _, fault := range []struct {
		name   string
		answer func(dnsmessage.Message) *dnsmessage.Message
		lost   probe.Side
		error  string
	}{
		{"no answer", silent, probe.Unresolved, "lookup: no answer"},
		{"no such name", coded(dnsmessage.RCodeNameError), probe.Unresolved, "lookup: NameError"},
		{"a broken server", coded(dnsmessage.RCodeServerFailure), probe.Unresolved, "lookup: ServerFailure"},
		{"no address", func(m dnsmessage.Message) *dnsmessage.Message { return &m }, probe.Unresolved, "lookup: no record"},
		{"another question's answer", func(m dnsmessage.Message) *dnsmessage.Message { m.ID++; return &m }, probe.Unresolved, "lookup: no answer"},
		{"a truncated answer", func(m dnsmessage.Message) *dnsmessage.Message {
			m.Truncated = true
			return pointing(redisEnd.Address.Addr())(m)
		}, probe.Unresolved, "lookup: truncated"},
		{"an address that refuses", pointing(nowhere), probe.Resolved, "ECONNREFUSED"},
	} {
		before := timeline(t, s, name)
		began := time.Now()
		server.answers(fault.answer)
		waitLoss(t, s, began, name)
		server.answers(pointing(redisEnd.Address.Addr()))
		waitClean(t, s, 100*time.Millisecond)
		line := timeline(t, s, name)
		// The first may have asked before the server changed its mind, and been answered after.
		c := line.Between(began.Add(-declared.Interval), time.Now())
		sides := map[probe.Side]int{probe.Unresolved: c.Unresolved, probe.Resolved: c.Resolved}
		if c.Lost == 0 || sides[fault.lost] != c.Lost {
			t.Errorf("%s: %d lost, of them %v; want all %s", fault.name, c.Lost, sides, fault.lost)
		}
		if line.Errors[fault.error] <= before.Errors[fault.error] {
			t.Errorf("%s: errors are %v, want more of %q", fault.name, line.Errors, fault.error)
		}
	}
	stop(t, s)
	line := timeline(t, s, name)
	// Each packet has its own lookup, but for one whose time was over before it could, on
	// a busy machine.
	asked := int(server.asked.Load())
	if c := line.Counts(); c.Lost != c.Unresolved+c.Resolved || asked > c.Sent || asked < c.Received {
		t.Errorf("%d sent, %d lookups: %s", c.Sent, asked, line.String())
	}
	must.Contain(t, line.String(), "not resolved, ")
}

// The far end's address is looked up, and the name that it has: without one, or with the name of
// another address, the far end is not connected to.
func TestReverseDNS(t *testing.T) {
	t.Parallel()
	server := startNameServer(t)
	repo, redisEnd := startEnd(t, "repo"), startEnd(t, "redis")
	named := func(to netip.Addr) func(dnsmessage.Message) *dnsmessage.Message {
		b := redisEnd.Address.Addr().As4()
		reverse := fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa.", b[3], b[2], b[1], b[0])
		return func(m dnsmessage.Message) *dnsmessage.Message {
			if m.Questions[0].Name.String() != reverse {
				return pointing(to)(m)
			}
			m.Answers = []dnsmessage.Resource{record(reverse, &dnsmessage.PTRResource{PTR: dnsmessage.MustNewName(redis + ".")})}
			return &m
		}
	}
	server.answers(named(redisEnd.Address.Addr()))
	const name = "repo->redis/dns"
	s := start(t, []probe.End{repo, redisEnd}, lookingUp("redis", probe.Lookup{Reverse: true, Server: server.address}))
	for _, fault := range []func(dnsmessage.Message) *dnsmessage.Message{coded(dnsmessage.RCodeNameError), named(repo.Address.Addr())} {
		waitClean(t, s, 200*time.Millisecond)
		began := time.Now()
		server.answers(fault)
		waitLoss(t, s, began, name)
		server.answers(named(redisEnd.Address.Addr()))
	}
	stop(t, s)
	if errors := timeline(t, s, name).Errors; errors["lookup: NameError"] == 0 || errors["lookup: another address"] == 0 {
		t.Errorf("errors are %v", errors)
	}
}

// Where the name's address is known, an answer with another one counts as lost, although
// something answers there.
func TestDNSWithAnotherAddress(t *testing.T) {
	t.Parallel()
	server := startNameServer(t)
	repo, redisEnd := startEnd(t, "repo"), startEnd(t, "redis")
	server.answers(pointing(redisEnd.Address.Addr()))
	const name = "repo->redis/dns"
	lookup := probe.Lookup{Name: redis, Server: server.address, Address: redisEnd.Address.Addr()}
	s := start(t, []probe.End{repo, redisEnd}, lookingUp("redis", lookup))
	waitClean(t, s, 200*time.Millisecond)
	began := time.Now()
	server.answers(pointing(repo.Address.Addr()))
	waitLoss(t, s, began, name)
	stop(t, s)
	errors := timeline(t, s, name).Errors
	must.Equal(t, errors, true, errors["lookup: another address"] > 0)
}

func TestDNSNeedsALookup(t *testing.T) {
	a, b := startEnd(t, "a"), startEnd(t, "b")
	for _, c := range []struct {
		name  string
		probe probe.Probe
		want  string // of New, or of Start
	}{
		{"none", probe.Probe{From: "a", To: "b", Protocol: probe.DNS}, "a lookup is for protocol dns, which must have one"},
		{"for TCP", probe.Probe{From: "a", To: "b", Protocol: probe.TCP, Lookup: &probe.Lookup{}}, "a lookup is for protocol dns"},
		{"no server", probe.Probe{From: "a", To: "b", Protocol: probe.DNS, Lookup: &probe.Lookup{Name: redis}}, "want a name or the far end's address, and an IPv4 address with a port"},
		{"a bad name", probe.Probe{From: "a", To: "b", Protocol: probe.DNS, Lookup: &probe.Lookup{Name: "a..b", Server: b.Address}}, `name "a..b"`},
	} {
		s, err := probe.New([]probe.End{a, b}, []probe.Probe{c.probe})
		if err == nil {
			err = s.Start(t.Context())
		}
		must.Fail(t, err, c.want)
	}
}
