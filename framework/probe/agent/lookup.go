package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// lookUpAndConnect returns an attempt to look a name up and to connect to the
// address that it has. Every slot does both anew, as a program that starts does.
func (a *Agent) lookUpAndConnect(s *session, p *sending, probe wire.Probe) (func(slot uint32), error) {
	first := dnsmessage.Question{Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	name, want := strings.TrimSuffix(probe.Lookup.Name, ".")+".", probe.Lookup.Address
	if probe.Lookup.Reverse {
		b := probe.To.Addr().As4()
		want, first.Type = probe.To.Addr(), dnsmessage.TypePTR
		name = fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa.", b[3], b[2], b[1], b[0])
	}
	var err error
	if first.Name, err = dnsmessage.NewName(name); err == nil {
		_, err = packQuery(0, first)
	}
	if err != nil {
		return nil, fmt.Errorf("name %q: %w", probe.Lookup.Name, err)
	}
	resolver := net.Dialer{LocalAddr: a.local("udp4", 0)}
	return func(slot uint32) {
		start := wire.Monotonic()
		// The session's context: an attempt under way outlives the stop.
		ctx, cancel := context.WithTimeout(s.ctx, probe.Timeout)
		defer cancel()
		addr, err := lookUp(ctx, resolver, probe.Lookup.Server, first, probe.Timeout/2)
		if err == nil && want.IsValid() && addr != want {
			err = errOtherAddress
		}
		a.mu.Lock()
		if err != nil {
			p.unresolved.Add(slot)
			p.refused("lookup: " + err.Error())
		} else {
			p.resolved.Add(slot)
		}
		a.mu.Unlock()
		if err != nil {
			return
		}
		conn, err := a.dial(ctx, "tcp4", netip.AddrPortFrom(addr, probe.To.Port()))
		rtt := wire.Monotonic() - start
		a.mu.Lock()
		defer a.mu.Unlock()
		p.connected(conn, err, slot, rtt)
	}, nil
}

// maxAnswer is the size of an answer over UDP without EDNS (RFC 1035, 4.2.1).
const maxAnswer = 512

var (
	errNoAnswer     = errors.New("no answer") // the DNS server kept silent
	errOtherAddress = errors.New("another address")
)

// lookUp asks a DNS server for the IPv4 address of a name, or of the name that an address has. There are
// only a few different errors, so that they can be counted.
func lookUp(
	ctx context.Context, dialer net.Dialer, server netip.AddrPort, first dnsmessage.Question, within time.Duration,
) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answer, err := ask(ctx, dialer, server, first)
	if ptr, ok := answer.(*dnsmessage.PTRResource); ok {
		answer, err = ask(ctx, dialer, server, dnsmessage.Question{Name: ptr.PTR, Type: dnsmessage.TypeA, Class: first.Class})
	}
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.AddrFrom4(answer.(*dnsmessage.AResource).A), nil
}

// ask asks a DNS server a question: one packet from a port of its own. The answer is the first record of the
// question's type.
func ask(ctx context.Context, dialer net.Dialer, server netip.AddrPort, question dnsmessage.Question) (dnsmessage.ResourceBody, error) {
	id := uint16(rand.Uint32())
	query, err := packQuery(id, question)
	if err != nil {
		return nil, err
	}
	conn, err := dialer.DialContext(ctx, "udp4", server.String())
	if err != nil {
		return nil, short(err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // reads know nothing of ctx
	if _, err := conn.Write(query); err != nil {
		return nil, short(err)
	}
	answer := make([]byte, maxAnswer)
	for {
		n, err := conn.Read(answer)
		if err != nil {
			return nil, short(err)
		}
		if body, ours, err := readAnswer(answer[:n], id, question); ours {
			return body, err
		}
	}
}

func packQuery(id uint16, question dnsmessage.Question) ([]byte, error) {
	m := dnsmessage.Message{
		Header: dnsmessage.Header{ID: id, RecursionDesired: true}, Questions: []dnsmessage.Question{question},
	}
	return m.Pack()
}

// readAnswer reads an answer, and tells whether it belongs to the question.
func readAnswer(packet []byte, id uint16, question dnsmessage.Question) (body dnsmessage.ResourceBody, ours bool, err error) {
	var m dnsmessage.Message
	if err := m.Unpack(packet); err != nil || !m.Response || m.ID != id ||
		len(m.Questions) != 1 || !strings.EqualFold(m.Questions[0].Name.String(), question.Name.String()) {
		return nil, false, nil
	}
	if m.RCode != dnsmessage.RCodeSuccess {
		return nil, true, errors.New(strings.TrimPrefix(m.RCode.String(), "RCode"))
	}
	if m.Truncated { // a resolver would ask again over TCP, which is not tried here
		return nil, true, errors.New("truncated")
	}
	for _, r := range m.Answers { // an alias comes before its record
		if r.Header.Type == question.Type {
			return r.Body, true, nil
		}
	}
	return nil, true, errors.New("no record")
}

// short is the error by which failures are counted: an errno's name, or errNoAnswer.
func short(err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return errors.New(unix.ErrnoName(errno))
	}
	return errNoAnswer
}
