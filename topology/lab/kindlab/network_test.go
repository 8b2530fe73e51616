package kindlab

import (
	"bytes"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/host/subnet"
	"github.com/relapse-dev/relapse/topology/must"
)

type packet struct {
	iif, oif string // interfaces; empty where the hook has none
	uid      int    // -1: no socket
	state    uint32 // of conntrack
	to       string // the IPv4 destination; empty: an IPv6 packet
}

// machine is the machine's own address on each of the bridges.
const machine = "10.1.2.1"

func bridges(names ...string) []bridge {
	return each.Of(names, func(name string) bridge { return bridge{name, netip.MustParseAddr(machine)} })
}

// decides carries rules out as the kernel does: an expression that has no value to compare
// ends its rule.
func decides(t *testing.T, rules [][]expr.Any, p packet) (dropped, untracked bool) {
	t.Helper()
	for _, rule := range rules {
		var register []byte
		matches := true
		for _, e := range rule {
			if !matches {
				break
			}
			switch e := e.(type) {
			case *expr.Meta:
				switch e.Key {
				case expr.MetaKeyIIFNAME:
					register, matches = ifname(p.iif), p.iif != ""
				case expr.MetaKeyOIFNAME:
					register, matches = ifname(p.oif), p.oif != ""
				case expr.MetaKeySKUID:
					register, matches = binaryutil.NativeEndian.PutUint32(uint32(p.uid)), p.uid >= 0
				case expr.MetaKeyNFPROTO:
					register = []byte{unix.NFPROTO_IPV6}
					if p.to != "" {
						register = []byte{unix.NFPROTO_IPV4}
					}
				default:
					t.Fatalf("key %v", e.Key)
				}
			case *expr.Payload:
				register = netip.MustParseAddr(p.to).AsSlice()
			case *expr.Notrack:
				untracked = true
			case *expr.Ct:
				register = binaryutil.NativeEndian.PutUint32(p.state)
			case *expr.Bitwise:
				masked := make([]byte, e.Len)
				for i := range masked {
					masked[i] = register[i]&e.Mask[i] ^ e.Xor[i]
				}
				register = masked
			case *expr.Cmp:
				matches = bytes.Equal(register, e.Data) == (e.Op == expr.CmpOpEq)
			case *expr.Counter:
			case *expr.Verdict:
				return e.Kind == expr.VerdictDrop, untracked
			default:
				t.Fatalf("expression %T", e)
			}
		}
	}
	return false, untracked
}

// Connections between members are not tracked; the machine's connections are.
func TestNotTracked(t *testing.T) {
	rules := isolation(bridges("rl-nodes", "rl-uplink"))[0].rules
	for name, test := range map[string]struct {
		packet packet
		want   bool
	}{
		"from pod to pod":          {packet{iif: "rl-nodes", to: "10.5.115.2"}, true},
		"on the second network":    {packet{iif: "rl-uplink", to: "10.1.2.9"}, true},
		"an answer to the machine": {packet{iif: "rl-uplink", to: machine}, false},
		"of IPv6":                  {packet{iif: "rl-nodes"}, true},
		"beside the lab":           {packet{iif: "docker0", to: "10.5.115.2"}, false},
	} {
		_, untracked := decides(t, rules, test.packet)
		must.Equal(t, name, test.want, untracked)
	}
}

func TestIsolation(t *testing.T) {
	const root, other, none = 0, 1000, -1
	rules := map[string][][]expr.Any{}
	for _, h := range isolation(bridges("rl-nodes", "rl-uplink")) {
		rules[h.name] = h.rules
	}
	for _, test := range []struct {
		name, hook string
		packet     packet
		drops      bool
	}{
		{"within a network", "forward", packet{iif: "rl-nodes", oif: "rl-nodes"}, false},
		{"between two of its networks", "forward", packet{iif: "rl-nodes", oif: "rl-uplink"}, true},
		{"out of the lab", "forward", packet{iif: "rl-nodes", oif: "eth0"}, true},
		{"into the lab", "forward", packet{iif: "eth0", oif: "rl-uplink"}, true},
		{"beside the lab", "forward", packet{iif: "eth0", oif: "docker0"}, false},
		{"root to the lab", "output", packet{oif: "rl-nodes", uid: root}, false},
		{"another user to the lab", "output", packet{oif: "rl-nodes", uid: other}, true},
		{"another user to its second network", "output", packet{oif: "rl-uplink", uid: other}, true},
		{"another user elsewhere", "output", packet{oif: "eth0", uid: other}, false},
		{"the kernel to the lab", "output", packet{oif: "rl-nodes", uid: none}, false},
		{"an answer of the lab", "input", packet{iif: "rl-nodes", to: machine, state: expr.CtStateBitESTABLISHED}, false},
		{"an error about a packet", "input", packet{iif: "rl-nodes", to: machine, state: expr.CtStateBitRELATED}, false},
		{"neighbour discovery", "input", packet{iif: "rl-nodes", state: expr.CtStateBitUNTRACKED}, true},
		{"a connection of the lab", "input", packet{iif: "rl-uplink", to: machine, state: expr.CtStateBitNEW}, true},
		{"a connection of the lab by IPv6", "input", packet{iif: "rl-uplink", state: expr.CtStateBitNEW}, true},
		{"a connection to another address of the machine", "input", packet{iif: "rl-uplink", to: "10.9.9.9", state: expr.CtStateBitUNTRACKED}, true},
		{"a connection from elsewhere", "input", packet{iif: "eth0", to: machine, state: expr.CtStateBitNEW}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dropped, _ := decides(t, rules[test.hook], test.packet)
			must.Equal(t, "dropped", test.drops, dropped)
		})
	}
}

// The loss of all rules of a running lab (nft flush ruleset) is noticed, and so is the loss of one chain.
func TestMissingRules(t *testing.T) {
	hooks := isolation(bridges("rl-nodes", "rl-uplink"))
	whole := map[string]int{"prerouting": 4, "forward": 4, "output": 2, "input": 6}
	for _, test := range []struct {
		name string
		have map[string]int
		err  error
		says string
	}{
		{"all of them", whole, nil, ""},
		{"more of them", map[string]int{"prerouting": 4, "forward": 5, "output": 2, "input": 6}, nil, ""},
		{"flushed", nil, os.ErrNotExist, "table relapse-x has 0 of 4 rules in chain prerouting"},
		{"one chain emptied", map[string]int{"prerouting": 4, "forward": 4, "input": 6}, nil, "table relapse-x has 0 of 2 rules in chain output"},
		{"not allowed", nil, os.ErrPermission, "reading chain prerouting of nftables table relapse-x: permission denied"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := missing("relapse-x", hooks, func(chain string) (int, error) { return test.have[chain], test.err })
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
		})
	}
}

// The cure is the flag, unless the network is Fixed.
func TestOverlapNamesItsCure(t *testing.T) {
	n := topology.Network{Name: "nodes"}
	o := subnet.Overlap{Subnet: netip.MustParsePrefix("10.4.94.0/24"), Route: netip.MustParsePrefix("10.0.0.0/8"), Device: "wg0", Table: 254}
	const begins = `network "nodes" needs 10.4.94.0/24, but this machine routes 10.0.0.0/8 to wg0 (routing table main): `
	must.Equal(t, "", begins+"remove that lab or network, or move the lab's own networks with --subnets", overlapping(n, o).Error())
	n.Fixed = "it is the incident's"
	must.Equal(t, "", begins+"remove that lab or network; --subnets does not move this one: it is the incident's", overlapping(n, o).Error())
}
