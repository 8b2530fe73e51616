package snapshot

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// NodeNAT is what one node does to the addresses of packets: the rules of its
// nat table, the flows that its kernel knows, and the BPF programs that packets
// pass after both.
type NodeNAT struct {
	Node  string        `json:"node"`
	Rules List[NATRule] `json:"rules"`
	// Flows are of IPv4, without those of the loopback network.
	Flows List[Flow] `json:"flows"`
	// Programs are on the ways out of the node's network devices.
	Programs List[Program] `json:"programs"`
}

// Program is a BPF program that traffic control (tc) runs on each packet that
// leaves by a device. What it does to addresses comes after the nat table,
// and connection tracking does not know of it.
type Program struct {
	Device string `json:"device"`
	// Name is what the program was attached as, such as
	// "bpf_host.o:[to-netdev]".
	Name string `json:"name"`
}

// NATRule is one rule of a nat table, as far as it is understood here.
type NATRule struct {
	Chain       string `json:"chain"`
	Source      Match  `json:"source,omitzero"`
	Destination Match  `json:"destination,omitzero"`
	// Out is the interface that the packet leaves by, with a "!" before it for
	// all others; a "+" at its end is any rest of the name.
	Out string `json:"out,omitempty"`
	// Target is a chain, or what is done: MASQUERADE, SNAT, ACCEPT, RETURN and
	// so on; empty if there is none. To is the address of an SNAT.
	Target  string     `json:"target,omitempty"`
	To      netip.Addr `json:"to,omitzero"`
	Comment string     `json:"comment,omitempty"`
	// Conditional tells that the rule looks at something else as well.
	Conditional bool `json:"conditional,omitempty"`
	// Text is the rule as iptables-save prints it.
	Text string `json:"text"`
}

// Match is a range of addresses, or all but that range. The zero Match is any
// address.
type Match struct {
	Range netip.Prefix `json:"range,omitzero"`
	Not   bool         `json:"not,omitempty"`
}

// Matches tells whether an address is in the match.
func (m Match) Matches(a netip.Addr) bool {
	return !m.Range.IsValid() || m.Range.Contains(a) != m.Not
}

// Flow is an entry of a node's connection tracking. The kernel chooses the
// translation when it sees the first packet of a flow, and keeps to it as long
// as the entry lives, whatever becomes of the rules.
type Flow struct {
	Protocol    string         `json:"protocol"` // tcp, udp, icmp, or the number
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	// SeenAs is where the destination sees the flow come from.
	SeenAs netip.AddrPort `json:"seen_as"`
	// Established is of TCP: both ends have the connection open.
	Established bool `json:"established,omitempty"`
	// Expires is after how much silence the entry goes, as of this moment:
	// each packet sets it back.
	Expires time.Duration `json:"expires_ns"`
}

// Translated tells whether the destination sees another address than the
// source's own.
func (f Flow) Translated() bool { return f.SeenAs.Addr() != f.Source.Addr() }

// Same tells whether two flows are the same entry.
func (f Flow) Same(g Flow) bool {
	return f.Protocol == g.Protocol && f.Source == g.Source && f.Destination == g.Destination && f.SeenAs == g.SeenAs
}

// HostSockets are the TCP sockets of a host outside every cluster: whom it
// sees, by its own word.
type HostSockets struct {
	Host    string       `json:"host"`
	Sockets List[Socket] `json:"sockets"`
}

// Socket is a TCP connection as one end sees it, open or just closed
// (TIME_WAIT).
type Socket struct {
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
}

// ParseNAT reads the nat table from what iptables-save prints, in its order.
func ParseNAT(saved string) ([]NATRule, error) {
	rules := []NATRule{}
	table := ""
	number := 0
	for line := range strings.Lines(saved) {
		number++
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
		}
		if table != "nat" || !strings.HasPrefix(line, "-A ") {
			continue
		}
		rule, err := parseNATRule(line)
		if err != nil {
			return nil, fmt.Errorf("line %d of iptables-save's output: %w", number, err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// natTakesValue are flags whose value may look like a flag.
var natTakesValue = append([]string{"-o", "-i"}, takesValue...)

func parseNATRule(line string) (NATRule, error) {
	words, err := ruleWords(line)
	if err != nil {
		return NATRule{}, err
	}
	r := NATRule{Text: line}
	not := false
	for len(words) > 0 {
		word, value := words[0], ""
		if words = words[1:]; word == "!" {
			not = true
			continue
		}
		if len(words) > 0 && (slices.Contains(natTakesValue, word) || !strings.HasPrefix(words[0], "-") && words[0] != "!") {
			value, words = words[0], words[1:]
		}
		switch {
		case word == "-A":
			r.Chain = value
		case word == "-s" || word == "-d":
			prefix, err := parseRange(value)
			if err != nil {
				return NATRule{}, err
			}
			match := &r.Source
			if word == "-d" {
				match = &r.Destination
			}
			*match = Match{Range: prefix, Not: not}
		case word == "-o":
			r.Out = value
			if not {
				r.Out = "!" + value
			}
		case word == "-j" || word == "-g":
			r.Target = value
		case word == "--comment":
			r.Comment = value
		case word == "--to-source":
			// The first address; ports, and the rest of a range, are not looked at.
			first, _, _ := strings.Cut(value, "-")
			first, _, _ = strings.Cut(first, ":")
			if r.To, err = netip.ParseAddr(first); err != nil {
				return NATRule{}, fmt.Errorf("%s in %q: %w", word, line, err)
			}
		case r.Target != "": // what follows the target are its own options
		case word == "-m":
			r.Conditional = r.Conditional || value != "comment"
		default:
			r.Conditional = true
		}
		not = false
	}
	if r.Chain == "" {
		return NATRule{}, fmt.Errorf("no chain in %q", line)
	}
	return r, nil
}
