// Package wire is the protocol between the harness and a probe agent: one
// JSON object a line over any byte stream, and the layout of probe packets.
//
// The harness sends a Request and gets the Message with the same number N. From the first hello on
// the agent also sends, every ReportInterval, a Message without a number that holds a Report. All
// times are nanoseconds of the agent's CLOCK_MONOTONIC; the clock request is there to find out how
// far that is from the harness's own.
//
//	> {"n":1,"op":"hello","set":4711}
//	< {"n":1,"at":812000000}
//	> {"n":2,"op":"start","probe":{"id":1,"kind":"udp","to":"10.5.115.7:7007","interval":10000000,"timeout":1000000000}}
//	< {"n":2,"at":813000000,"epoch":820000000}
//	< {"at":900000000,"report":{"probes":[{"id":1,"sent":[[0,7]],"got":[[0,6]],"rtt":[210,190,205,180,200,190,185],"ttl":[[62,7]]}]}}
//
// Packets are named by slot: slot k of a probe is due at epoch + k*interval. A sender that wakes up
// too late for a slot leaves it out, so that a slot always tells the time to within one interval.
package wire

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// DefaultPort is the port, UDP and TCP, that agents answer at.
const DefaultPort = 7007

// ReportInterval is how often an agent reports. It bounds how late the harness learns of anything;
// a tenth of a second is small beside the second that a detector is given.
const ReportInterval = 100 * time.Millisecond

// Standstill is the least time without running that an agent reports. An agent
// with anything to do runs at least every ReportInterval.
const Standstill = 3 * ReportInterval

// Bounds on what a peer may report: a faulty one cannot make the
// other allocate memory without limit.
const (
	maxLine = 4 << 20
	maxRun  = 1 << 16
)

// Op is what a request asks for.
type Op string

// Requests.
const (
	// Hello begins a set: whatever the session did before is forgotten.
	Hello Op = "hello"
	// Clock asks for the agent's time, Message.At.
	Clock Op = "clock"
	// Start starts a probe; the answer holds its epoch.
	Start Op = "start"
	// Stop ends the sending of probe ID. Replies under way still count.
	Stop Op = "stop"
)

// Request goes from the harness to an agent.
type Request struct {
	N   uint64 `json:"n"`
	Op  Op     `json:"op"`
	Set uint64 `json:"set,omitempty"`
	// Server is the agent's number in the set, from 1 on, with a hello.
	Server uint32 `json:"server,omitempty"`
	ID     uint32 `json:"id,omitempty"`
	Probe  *Probe `json:"probe,omitempty"`
}

// Protocol is what a probe speaks.
type Protocol string

// Protocols of a probe.
const (
	UDP   Protocol = "udp"   // echo, all packets from one source port
	TCP   Protocol = "tcp"   // connect, then close
	MySQL Protocol = "mysql" // log in, ask for USER() and CURRENT_USER(), log out
	DNS   Protocol = "dns"   // look a name up, connect to its address, then close
	// UDPFlow is echo, every packet from a new source port: each is a new flow for
	// connection tracking.
	UDPFlow Protocol = "udp-flow"
	// UDPConnected is echo from one connected socket: it is one flow for connection
	// tracking, and the sender is notified of packets that were refused.
	UDPConnected Protocol = "udp-connected"
	// Stream is one connection that stays open. Every slot's packet is written to it,
	// and comes back over it. When it breaks the next slot connects anew.
	Stream Protocol = "stream"
)

// Protocols are all protocols of a probe.
var Protocols = []Protocol{UDP, UDPFlow, UDPConnected, TCP, MySQL, DNS, Stream}

// StreamGivesUp is how long what was written to a stream may be unacknowledged
// before its connection counts as broken: TCP_USER_TIMEOUT of tcp(7). TCP itself
// waits for a quarter of an hour, which few programs do.
const StreamGivesUp = 10 * time.Second

// Login is who a MySQL probe logs in as.
type Login struct {
	User     string `json:"user"`
	Password string `json:"password"`
	Database string `json:"database,omitempty"`
}

// Lookup is what a DNS probe looks up, anew for every slot.
type Lookup struct {
	// Name is taken as it is: no search list is tried.
	Name string `json:"name,omitempty"`
	// Reverse is set, in place of Name, if the name is the one that the address of the probe's far
	// end has: what a Kerberos client with rdns asks for. The name has to have an address.
	Reverse bool `json:"reverse,omitempty"`
	// Server is asked over UDP, once for each slot.
	Server netip.AddrPort `json:"server"`
	// Address is the address that the name must have. An answer with another one counts as
	// not resolved. The zero value accepts any.
	Address netip.Addr `json:"address,omitzero"`
}

// Probe is a probe as its sender sees it.
type Probe struct {
	ID       uint32         `json:"id"`
	Kind     Protocol       `json:"kind"`
	To       netip.AddrPort `json:"to"`
	Interval time.Duration  `json:"interval"`
	// Timeout is how long a TCP connect, the echo of a new flow, a login, or a lookup
	// and a connect together, may take. UDP needs none here: the sender reports every reply,
	// however late, and the harness judges.
	Timeout time.Duration `json:"timeout"`
	// Server is the number of the agent whose echo is an answer; 0: of any agent. An echo without a number
	// is an answer as well.
	Server uint32 `json:"server,omitempty"`
	// RefusalAnswers is set if a refusal (ICMP port unreachable) is an answer. It is for
	// UDPFlow and UDPConnected, whose sockets are notified of it.
	RefusalAnswers bool `json:"refusal_answers,omitempty"`
	// Login is a MySQL probe's, and no other's.
	Login *Login `json:"login,omitempty"`
	// Lookup is a DNS probe's, and no other's. Such a probe connects to the
	// address that the name has, at To's port. The lookup may take half of the
	// Timeout, so that there is time to see whether the address answers.
	Lookup *Lookup `json:"lookup,omitempty"`
}

// Message goes from an agent to the harness.
type Message struct {
	// N is the number of the request that this answers, 0 for a report.
	N uint64 `json:"n,omitempty"`
	// At is the agent's time. In a report: all that arrived before it is in
	// this report or an earlier one.
	At     int64   `json:"at"`
	Epoch  int64   `json:"epoch,omitempty"`
	Error  string  `json:"error,omitempty"`
	Report *Report `json:"report,omitempty"`
}

// Report is what happened since the last report.
type Report struct {
	Probes []Sender    `json:"probes,omitempty"`
	Seen   []Responder `json:"seen,omitempty"`
	// Still are the times, from and until by the agent's clock, in which for longer than Standstill
	// the agent did not run, or a packet that had arrived waited to be answered. What was sent to
	// it then may be unanswered for that reason alone.
	Still [][2]int64 `json:"still,omitempty"`
}

// Sender is the sender's news of one probe.
type Sender struct {
	ID   uint32 `json:"id"`
	Sent Runs   `json:"sent,omitempty"`
	// Got are the slots that were answered, in order of arrival, and RTT
	// their round trip times in microseconds, in the same order.
	Got Runs     `json:"got,omitempty"`
	RTT []uint32 `json:"rtt,omitempty"`
	// Errors counts the slots that another agent answered (WrongServer), that the kernel refused to send, and the slots that were
	// refused by the far end (ECONNREFUSED), by errno. They are in Sent too.
	Errors map[string]int `json:"errors,omitempty"`
	// Logins are what the server of a MySQL probe said of it.
	Logins []Answer `json:"logins,omitempty"`
	// Resolved and Unresolved are the slots of a DNS probe whose lookup gave
	// an address, and gave none. Errors counts the reasons of the latter.
	Resolved   Runs `json:"resolved,omitempty"`
	Unresolved Runs `json:"unresolved,omitempty"`
	// Broken are the slots in whose time the connection of a stream broke. Errors
	// counts the reasons.
	Broken Runs `json:"broken,omitempty"`
}

// WrongServer is why a packet is lost that another agent answered than the agent of the probe's far end.
const WrongServer = "answered by another endpoint"

// Answer is a MySQL server's answer to some logins: how it identified the client, and whether
// it admitted it.
type Answer struct {
	// Client is USER(), or the user and host of the error: user@address.
	Client string `json:"client"`
	// Address is the client's, as the server sees it.
	Address netip.Addr `json:"address"`
	// Account is CURRENT_USER(), the account that let the client in. Empty
	// where it was turned away.
	Account string `json:"account,omitempty"`
	// Denied is the server's error where it turned the client away.
	Denied string `json:"denied,omitempty"`
	Slots  Runs   `json:"slots"`
}

// Responder is the far end's news of one probe from one source address.
type Responder struct {
	ID     uint32     `json:"id"`
	Source netip.Addr `json:"src"`
	Seen   Runs       `json:"seen"`
	TTL    []TTL      `json:"ttl,omitempty"`
}

// TTL is a received TTL, and how many packets had it.
type TTL [2]uint32

// Run is a range of slots, both ends included.
type Run [2]uint32

// Runs are slots in the order in which something happened to them.
type Runs []Run

// Add appends one slot.
func (r *Runs) Add(slot uint32) {
	if n := len(*r); n > 0 {
		if last := &(*r)[n-1]; last[1]+1 == slot && slot != 0 && last[1]-last[0] < maxRun-1 {
			last[1] = slot
			return
		}
	}
	*r = append(*r, Run{slot, slot})
}

// Len returns the number of slots.
func (r Runs) Len() int {
	n := 0
	for _, run := range r {
		n += int(run[1]-run[0]) + 1
	}
	return n
}

// All yields the slots one by one.
func (r Runs) All(yield func(slot uint32) bool) {
	for _, run := range r {
		for s := uint64(run[0]); s <= uint64(run[1]); s++ {
			if !yield(uint32(s)) {
				return
			}
		}
	}
}

func (r Runs) validate() error {
	for _, run := range r {
		if run[1] < run[0] || run[1]-run[0] >= maxRun {
			return fmt.Errorf("slots %d to %d are no run", run[0], run[1])
		}
	}
	return nil
}

func (m Message) validate() error {
	if m.Report == nil {
		return nil
	}
	for _, p := range m.Report.Probes {
		for _, runs := range []Runs{p.Sent, p.Got, p.Resolved, p.Unresolved, p.Broken} {
			if err := runs.validate(); err != nil {
				return fmt.Errorf("probe %d: %w", p.ID, err)
			}
		}
		if p.Got.Len() != len(p.RTT) {
			return fmt.Errorf("probe %d: %d answers, %d round trip times", p.ID, p.Got.Len(), len(p.RTT))
		}
		for _, a := range p.Logins {
			if err := a.Slots.validate(); err != nil {
				return fmt.Errorf("probe %d: %w", p.ID, err)
			}
		}
	}
	for _, s := range m.Report.Seen {
		if err := s.Seen.validate(); err != nil {
			return fmt.Errorf("seen of probe %d: %w", s.ID, err)
		}
	}
	return nil
}

// validate checks what the agent relies on. The rest is checked by the harness, by probe.Probe.Validate.
func (r Request) validate() error {
	switch r.Op {
	case Hello:
		if r.Set == 0 {
			return errors.New("hello without the number of a set")
		}
		return nil
	case Clock, Stop:
		return nil
	case Start:
	default:
		return fmt.Errorf("unknown request %q: want hello, clock, start or stop", r.Op)
	}
	switch p := r.Probe; {
	case p == nil:
		return errors.New("start without a probe")
	case (p.Kind == DNS) != (p.Lookup != nil):
		return fmt.Errorf("probe %d: a lookup is for kind dns, which must have one", p.ID)
	case p.Lookup != nil && ((p.Lookup.Name == "") != p.Lookup.Reverse || !p.Lookup.Server.Addr().Is4() || p.Lookup.Server.Port() == 0):
		return fmt.Errorf("probe %d: lookup of %q at %s: want a name or the far end's address, and an IPv4 address with a port",
			p.ID, p.Lookup.Name, p.Lookup.Server)
	case (p.Kind == MySQL) != (p.Login != nil):
		return fmt.Errorf("probe %d: a login is for kind mysql, which must have one", p.ID)
	}
	return nil
}

// DecodeMessage reads one line of an agent. What it returns without an error
// is consistent in itself; it may still name probes that nobody started.
func DecodeMessage(line []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(line, &m); err != nil {
		return Message{}, fmt.Errorf("reading an agent's message: %w", err)
	}
	if err := m.validate(); err != nil {
		return Message{}, fmt.Errorf("reading an agent's message: %w", err)
	}
	return m, nil
}

// DecodeRequest reads one line of the harness. When a line is JSON but makes no sense, the request
// is returned beside the error, so that the error can be answered under its number.
func DecodeRequest(line []byte) (Request, error) {
	var r Request
	if err := json.Unmarshal(line, &r); err != nil {
		return Request{}, fmt.Errorf("reading a request: %w", err)
	}
	return r, r.validate()
}

// Encode writes v, a Request or a Message, as one line in one Write.
func Encode(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding %T: %w", v, err)
	}
	if _, err := w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("sending %T: %w", v, err)
	}
	return nil
}

// Lines returns a scanner over the lines of r, each at most 4 MiB long.
func Lines(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 16<<10), maxLine)
	return s
}
