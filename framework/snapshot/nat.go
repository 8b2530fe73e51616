package snapshot

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// NodeNAT is what one node does to the addresses of packets: the rules of its nat table, the flows
// that its kernel knows, and the BPF programs that packets pass after both.
type NodeNAT struct {
	Node string `json:"node"`
	// Rules are the rules of the node's own kind of iptables, or the rules of both kinds
	// as Firewall has them, where an audit has read the node.
	Rules List[Rule] `json:"rules"`
	// Flows are of IPv4, without those of the loopback network. Package nodestate leaves out rules
	// and flows that detectors do not read.
	Flows List[Flow] `json:"flows"`
	// Programs are attached where packets leave the node's network devices (tc egress).
	Programs List[Program] `json:"programs"`
}

// Program is a BPF program that traffic control (tc) runs on each packet that leaves by a device.
// What it does to addresses comes after the nat table, and connection tracking does not know of it.
type Program struct {
	Device string `json:"device"`
	// Name is what the program was attached as, such as "bpf_host.o:[to-netdev]".
	Name string `json:"name"`
}

// Flow is an entry of a node's connection tracking. The kernel chooses the translation when it sees
// the first packet of a flow, and keeps to it as long as the entry lives, even if the rules change.
type Flow struct {
	Protocol    string         `json:"protocol"` // tcp, udp, icmp, or the number
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	// SeenAs is where the destination sees the flow come from.
	SeenAs netip.AddrPort `json:"seen_as"`
	// Redirected is true if another address than Destination answers, as with a Service's address.
	Redirected bool `json:"redirected,omitempty"`
	// AnsweredBy is that address; the zero value if it is Destination.
	AnsweredBy netip.AddrPort `json:"answered_by,omitzero"`
	// Established says of a TCP flow that both ends have the connection open.
	Established bool `json:"established,omitempty"`
	// Expires is how long the kernel keeps the entry from this moment on if no
	// packet comes. Each packet restarts that time.
	Expires time.Duration `json:"expires_ns"`
}

// Translated reports whether the destination sees another address than the source's own.
func (f Flow) Translated() bool { return f.SeenAs.Addr() != f.Source.Addr() }

// NAT is the source of what the nodes do to the addresses of packets. It needs
// root on the machine of the nodes' containers.
var NAT = perNode("nat tables", natReader, func(n NodeNAT) string { return n.Node },
	func(s *Snapshot) *[]NodeNAT { return &s.NAT })

func (n NodeNAT) parts() []part {
	return []part{
		listPart("nat table of "+n.Node, n.Rules, ruleState("nat table", n.Node)),
		listPart("flows of "+n.Node, n.Flows, nil),
		listPart("BPF programs of "+n.Node, n.Programs, func(p Program, to *statements) {
			to.add(Kernel, "tc egress of "+n.Node, n.Node, "", "%s: %s", p.Device, p.Name)
		}),
	}
}

func natReader(node string, m Machine) func(context.Context) NodeNAT {
	var dump sync.Mutex // a table of 200,000 connections takes 200 MB, and may outlast ctx
	return func(ctx context.Context) NodeNAT {
		n := NodeNAT{Node: node}
		var all sync.WaitGroup
		all.Go(func() {
			n.Rules = list(ctx, func(ctx context.Context) ([]Rule, error) {
				if _, own := m.(Own); own { // its programs are not the node's
					return rulesOfBothKinds(ctx, m, NATTable)
				}
				return savedRules(ctx, m, NATTable, "iptables-save", "--table", NATTable)
			})
		})
		all.Go(func() {
			n.Flows = list(ctx, func(ctx context.Context) ([]Flow, error) {
				if !dump.TryLock() {
					return nil, errors.New("the last question is still being answered")
				}
				defer dump.Unlock()
				return flowsOf(ctx, m)
			})
		})
		all.Go(func() {
			n.Programs = list(ctx, func(ctx context.Context) ([]Program, error) { return programsOf(ctx, m) })
		})
		all.Wait()
		return n
	}
}
