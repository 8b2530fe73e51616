package snapshot

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})

func TestParseRules(t *testing.T) {
	match := func(s string) Match { return Match{Range: netip.MustParsePrefix(s)} }
	for _, tt := range []struct {
		name, line string
		want       Rule
	}{
		{"a jump", `-A FORWARD -d 10.20.65.3/32 -m comment --comment "to POD name:web-1 \"x\"" -j KUBE-POD-FW-A`,
			Rule{Chain: "FORWARD", Destination: match("10.20.65.3/32"), Target: "KUBE-POD-FW-A", Comment: `to POD name:web-1 "x"`}},
		{"a plain address", "-A FORWARD -s 10.20.65.3 -j ACCEPT", Rule{Chain: "FORWARD", Source: match("10.20.65.3/32"), Target: "ACCEPT"}},
		{"a negated address", "-A FORWARD ! -s 10.20.65.3/32 -j DROP",
			Rule{Chain: "FORWARD", Source: Match{Range: netip.MustParsePrefix("10.20.65.3/32"), Not: true}, Target: "DROP"}},
		{"a flag without value before the target", "-A FORWARD -m physdev --physdev-is-bridged -j KUBE-POD-FW-A",
			Rule{Chain: "FORWARD", Target: "KUBE-POD-FW-A", Conditional: true}},
		{"a negated match", `-A C -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable`,
			Rule{Chain: "C", Target: "REJECT", Conditional: true, Unmarked: true}},
		{"options of the target are not the rule's", "-A C -j REJECT --reject-with icmp-port-unreachable", Rule{Chain: "C", Target: "REJECT"}},
		{"the way out", "-A FORWARD -o eth0 -j ACCEPT", Rule{Chain: "FORWARD", Out: "eth0", Target: "ACCEPT"}},
		{"every other way out", "-A FORWARD ! -o cilium_+ -j ACCEPT", Rule{Chain: "FORWARD", Out: "!cilium_+", Target: "ACCEPT"}},
		{"the way in", "-A FORWARD -i eth0 -j ACCEPT", Rule{Chain: "FORWARD", Target: "ACCEPT", Conditional: true}},
		{"a goto", "-A C -g D", Rule{Chain: "C", Target: "D"}},
		{"no target", "-A C -m comment --comment -j", Rule{Chain: "C", Comment: "-j"}},
		{"Calico's natOutgoing", "-A cali-nat-outgoing -m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE",
			Rule{Chain: "cali-nat-outgoing", Target: "MASQUERADE", Conditional: true}},
		{"SNAT to a range with ports", "-A POSTROUTING -s 10.0.0.0/8 -o eth0 -j SNAT --to-source 192.0.2.1-192.0.2.9:1024-65535",
			Rule{Chain: "POSTROUTING", Source: match("10.0.0.0/8"), Out: "eth0", Target: "SNAT", To: netip.MustParseAddr("192.0.2.1")}},
		{"an option of MASQUERADE", "-A POSTROUTING -s 10.0.0.1 -j MASQUERADE --random-fully",
			Rule{Chain: "POSTROUTING", Source: match("10.0.0.1/32"), Target: "MASQUERADE"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Text = tt.line
			for _, table := range []string{FilterTable, NATTable} {
				saved := "*raw\n-A PREROUTING -j ACCEPT\nCOMMIT\n*" + table + "\n:C - [0:0]\n" + tt.line + "\nCOMMIT\n*mangle\n-A INPUT -j DROP\nCOMMIT\n"
				must.Equal(t, table, []Rule{tt.want}, must.Get(ParseRules(saved, table))(t), byValue)
			}
		})
	}
}

func TestParseRulesErrors(t *testing.T) {
	for _, tt := range []struct{ name, line, want string }{
		{"an address", "-A C -s here -j DROP", `line 2 of iptables-save's output: -s in "-A C -s here -j DROP": `},
		{"an address out of range", "-A POSTROUTING -s 10.0.0.300 -j ACCEPT", "10.0.0.300"},
		{"a range", "-A C -d 10.0.0.0/99 -j DROP", "line 2 of iptables-save's output: "},
		{"no address to translate to", "-A POSTROUTING -j SNAT --to-source nowhere", "nowhere"},
		{"a quotation", `-A C -m comment --comment "x -j DROP`, "does not end"},
	} {
		t.Run(tt.name, func(t *testing.T) { must.Fail(t, must.Err(ParseRules("*filter\n"+tt.line+"\n", FilterTable)), tt.want) })
	}
}

// What kube-router 1.5.1 wrote on a node of the lab.
func TestParseRulesOfKubeRouter(t *testing.T) {
	text := must.Read(t, "testdata/kube-router-1.5.1.iptables-save")
	rules := must.Get(ParseRules(string(text), FilterTable))(t)
	must.Equal(t, "rules", strings.Count(string(text), "\n-A "), len(rules))
	must.Equal(t, "without a target", nil, each.Where(rules, func(r Rule) bool { return r.Target == "" }))
}

// What Cilium 1.11.1 wrote on a node of the lab.
func TestParseRulesOfCilium(t *testing.T) {
	saved := must.Read(t, "testdata/cilium-1.11.1-nat.iptables-save")
	got := map[string]Rule{}
	for _, r := range must.Get(ParseRules(string(saved), NATTable))(t) {
		must.Contain(t, string(saved), r.Text+"\n")
		r.Text = ""
		got[r.Comment] = r
	}
	router := netip.MustParseAddr("10.20.30.33")
	want := map[string]Rule{
		"cilium-feeder: CILIUM_PRE_nat":    {Chain: "PREROUTING", Target: "CILIUM_PRE_nat"},
		"cilium-feeder: CILIUM_OUTPUT_nat": {Chain: "OUTPUT", Target: "CILIUM_OUTPUT_nat"},
		"cilium-feeder: CILIUM_POST_nat":   {Chain: "POSTROUTING", Target: "CILIUM_POST_nat"},
		"exclude traffic to cluster nodes from masquerade": {
			Chain: "CILIUM_POST_nat", Target: "ACCEPT", Conditional: true,
			Source: Match{Range: netip.MustParsePrefix("10.20.30.32/27")},
		},
		"cilium masquerade non-cluster": {Chain: "CILIUM_POST_nat", Target: "MASQUERADE", Out: "!cilium_+",
			Source:      Match{Range: netip.MustParsePrefix("10.20.30.32/27")},
			Destination: Match{Range: netip.MustParsePrefix("10.20.30.0/24"), Not: true}},
		"exclude proxy return traffic from masquerade": {Chain: "CILIUM_POST_nat", Target: "ACCEPT", Conditional: true},
		"cilium host->cluster from 127.0.0.1 masquerade": {
			Chain: "CILIUM_POST_nat", Target: "SNAT", To: router, Out: "cilium_host",
			Source: Match{Range: netip.MustParsePrefix("127.0.0.1/32")},
		},
		"hairpin traffic that originated from a local pod": {
			Chain: "CILIUM_POST_nat", Target: "SNAT", To: router, Out: "cilium_host", Conditional: true,
		},
	}
	for comment, rule := range want {
		rule.Comment = comment
		want[comment] = rule
	}
	must.Equal(t, "", want, got, byValue)
}

func FuzzParseRules(f *testing.F) {
	f.Add("*filter\n-A FORWARD ! -s 10.20.65.3/32 -m comment --comment \"a \\\" b\" -j DROP\n", FilterTable)
	f.Add("*nat\n-A POSTROUTING ! -s 10.0.0.0/8 -j SNAT --to-source 1.2.3.4\n", NATTable)
	f.Add("*nat\n-A X -s\n", NATTable)
	f.Add("*nat\n-A\n", NATTable)
	f.Fuzz(func(t *testing.T, saved, table string) {
		rules, err := ParseRules(saved, table)
		for _, r := range rules {
			if r.Chain == "" || err != nil {
				t.Errorf("%+v, %v", r, err)
			}
		}
	})
}

func TestMatch(t *testing.T) {
	inside, outside := netip.MustParseAddr("10.20.30.40"), netip.MustParseAddr("10.4.40.10")
	pods := netip.MustParsePrefix("10.20.30.0/24")
	for _, test := range []struct {
		match           Match
		inside, outside bool
	}{
		{Match{}, true, true},
		{Match{Range: pods}, true, false},
		{Match{Range: pods, Not: true}, false, true},
	} {
		matches := [2]bool{test.match.Matches(inside), test.match.Matches(outside)}
		must.Equal(t, test.match, [2]bool{test.inside, test.outside}, matches)
	}
}
