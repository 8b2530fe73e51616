// Package probe is continuous traffic between named endpoints, with the outcome of every packet.
//
// An End is an endpoint: a pod or host in which an agent runs (cmd/probe). A Probe goes from one
// end to another. A Set starts probes, collects the agents' reports and holds a Timeline for each
// probe, which can be read at any time without stopping anything.
//
// # When a packet counts as lost
//
// A sender reports ten times a second. A packet that is unanswered Patience after it was sent, at
// the time that the sender's last report speaks of, is lost. A reply that comes later than that,
// but within the probe's Timeout, takes the loss back: the packet was received, and late. After the
// Timeout the verdict is final. So a loss is known some 0.4 s after
// the packet was sent, and is certain after the Timeout.
//
// The far end says which packet of the exchange was lost: the reply if it saw the request, and
// otherwise the request. This is unknown if the far end is no agent, and for TCP and MySQL. A login
// that the server denied counts as lost at once, and Timeline.Sources has the address that the server
// saw. A DNS probe distinguishes a name that was not resolved, which is a loss at once, from an
// address that did not answer.
//
// An echo has the number that its agent has in the set. An echo of another agent than the probe's far end
// is no answer: a Service led to the wrong pod (Timeline.Errors counts these). With TCP, MySQL and DNS,
// which echo nothing, this is unknown.
//
// # When a probe is clean
//
// It is clean since the first packet of the unbroken run of answered packets that reaches up to
// now. Packets at the end that are younger than Patience and unanswered are under way and do not
// break the run; an unanswered packet before an answered one does, regardless of its age. So
// recovery shows as soon as the first report after it, without waiting for any time-out.
//
// # What is not counted
//
// When a sending endpoint disappears, the outcome of its packets under way is
// unknown. They are not counted as lost: the timelines of its probes end. Probes to
// that endpoint continue, and lose their packets.
//
// On a busy machine an agent may not run for a while, and answers late or never,
// unless it has priority (Agent.RunFirst). It reports such scheduling stalls itself.
// Packets that were sent to it meanwhile and not answered are neither lost nor
// received: they are unjudged. So is the packet that a sender was sending when it
// stalled: it left late, and its reply may have come after the Timeout.
package probe

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// Protocol is what a probe speaks.
type Protocol = wire.Protocol

// Protocols of a probe. Package wire says what each does.
const (
	UDP          = wire.UDP
	UDPFlow      = wire.UDPFlow
	UDPConnected = wire.UDPConnected
	TCP          = wire.TCP
	MySQL        = wire.MySQL
	DNS          = wire.DNS
	// Stream packets wait in the connection where a network loses them, and TCP sends them again:
	// one that is answered after the Timeout counts as lost. A connection that is reset, closed, or
	// has heard nothing for wire.StreamGivesUp is broken, and another one is opened
	// (Timeline.Broken).
	Stream = wire.Stream
)

// Lookup is what a DNS probe looks up for every packet: a name, as it is, and the server that is asked.
type Lookup = wire.Lookup

// Login is who a MySQL probe logs in as.
type Login = wire.Login

// Patience is how long a packet may be unanswered before it is presumed lost. On a busy machine
// with two processors echoes take up to some tens of milliseconds; this is several times that, and
// still well under the second in which a fault must be noticed.
const Patience = 250 * time.Millisecond

// Defaults of a probe.
const (
	DefaultInterval    = 10 * time.Millisecond
	DefaultTCPInterval = 100 * time.Millisecond
	DefaultTimeout     = time.Second
	// DefaultServerTimeout is the time-out of a probe of a program that is no agent
	// (MySQL, DNS). It cannot say that it did not get to run, and on a busy
	// machine that takes more than a second.
	DefaultServerTimeout = 3 * time.Second
)

// Probe declares continuous traffic from one end to another. The zero values of all but From and To mean the defaults.
type Probe struct {
	// Name is From->To unless it is given.
	Name     string
	From, To string
	// Protocol is UDP unless it is given.
	Protocol Protocol
	// Login is required for MySQL, and for MySQL only.
	Login *Login
	// Lookup is required for DNS, and for DNS only. The probe connects to the address
	// that the name has, at the port of the end To. Half of the Timeout is for the lookup.
	Lookup *Lookup
	// Interval is the time between two packets: 10 ms for UDP, 100 ms for the others.
	Interval time.Duration
	// Timeout is how late a reply may be and still count: 1 s, or 3 s for MySQL and DNS.
	Timeout time.Duration
	// RefusalAnswers is set if a refusal (ICMP port unreachable) is an answer, for UDPFlow
	// and UDPConnected: the probe then loses the packets of whose fate nobody tells the
	// sender. Timeline.Errors counts the refused ones as ECONNREFUSED.
	RefusalAnswers bool `json:",omitempty"`
	// V6 is set if its packets are of IPv6.
	V6 bool `json:",omitempty"`
}

// V6Suffix ends the names of probes of IPv6.
const V6Suffix = "/v6"

// WithDefaults returns the probe with its zero values filled in: as a Set runs it and names it.
func (p Probe) WithDefaults() Probe {
	p.Protocol = cmp.Or(p.Protocol, UDP)
	if p.Name == "" {
		p.Name = p.From + "->" + p.To
		if p.Protocol != UDP {
			p.Name += "/" + string(p.Protocol)
		}
		if p.V6 {
			p.Name += V6Suffix
		}
	}
	if p.Interval == 0 {
		p.Interval = DefaultInterval
		if p.Protocol != UDP {
			p.Interval = DefaultTCPInterval
		}
	}
	if p.Timeout == 0 {
		p.Timeout = DefaultTimeout
		if p.Protocol == MySQL || p.Protocol == DNS {
			p.Timeout = DefaultServerTimeout
		}
	}
	return p
}

// Validate checks a probe that WithDefaults has completed, except its ends.
func (p Probe) Validate() error {
	switch {
	case !slices.Contains(wire.Protocols, p.Protocol):
		return fmt.Errorf("probe %s: unknown protocol %q: want udp, udp-flow, udp-connected, tcp, mysql, dns or stream", p.Name, p.Protocol)
	case p.RefusalAnswers && p.Protocol != UDPFlow && p.Protocol != UDPConnected:
		return fmt.Errorf("probe %s: a refusal is an answer for protocols udp-flow and udp-connected only", p.Name)
	case (p.Protocol == DNS) != (p.Lookup != nil):
		return fmt.Errorf("probe %s: a lookup is for protocol dns, which must have one", p.Name)
	case (p.Protocol == MySQL) != (p.Login != nil):
		return fmt.Errorf("probe %s: a login is for protocol mysql, which must have one", p.Name)
	case p.Interval < time.Millisecond:
		return fmt.Errorf("probe %s: interval %s is under 1ms", p.Name, p.Interval)
	case p.Timeout < Patience:
		return fmt.Errorf("probe %s: timeout %s is under %s, before which no packet is given up", p.Name, p.Timeout, Patience)
	}
	return nil
}
