package snapshot

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})

func TestParseNAT(t *testing.T) {
	saved, err := os.ReadFile("testdata/cilium-1.11.1-nat.iptables-save")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := ParseNAT(string(saved))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]NATRule{}
	for _, r := range rules {
		if !strings.Contains(string(saved), r.Text+"\n") {
			t.Errorf("%q is not what iptables-save printed", r.Text)
		}
		r.Text = ""
		got[r.Comment] = r
	}
	router := netip.MustParseAddr("10.20.30.33")
	want := map[string]NATRule{
		"cilium-feeder: CILIUM_PRE_nat":    {Chain: "PREROUTING", Target: "CILIUM_PRE_nat"},
		"cilium-feeder: CILIUM_OUTPUT_nat": {Chain: "OUTPUT", Target: "CILIUM_OUTPUT_nat"},
		"cilium-feeder: CILIUM_POST_nat":   {Chain: "POSTROUTING", Target: "CILIUM_POST_nat"},
		"exclude traffic to cluster nodes from masquerade": {
			Chain: "CILIUM_POST_nat", Target: "ACCEPT", Conditional: true,
			Source: Match{Range: netip.MustParsePrefix("10.20.30.32/27")},
		},
		"cilium masquerade non-cluster": {
			Chain: "CILIUM_POST_nat", Target: "MASQUERADE", Out: "!cilium_+",
			Source:      Match{Range: netip.MustParsePrefix("10.20.30.32/27")},
			Destination: Match{Range: netip.MustParsePrefix("10.20.30.0/24"), Not: true},
		},
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
	if diff := cmp.Diff(want, got, byValue); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseNATLine(t *testing.T) {
	in := func(s string) Match { return Match{Range: netip.MustParsePrefix(s)} }
	for _, test := range []struct {
		name, line string
		want       NATRule
		err        string
	}{
		{
			name: "Calico's natOutgoing", line: "-A cali-nat-outgoing -m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE",
			want: NATRule{Chain: "cali-nat-outgoing", Target: "MASQUERADE", Conditional: true},
		},
		{
			name: "SNAT to a range with ports", line: "-A POSTROUTING -s 10.0.0.0/8 -o eth0 -j SNAT --to-source 192.0.2.1-192.0.2.9:1024-65535",
			want: NATRule{Chain: "POSTROUTING", Source: in("10.0.0.0/8"), Out: "eth0", Target: "SNAT", To: netip.MustParseAddr("192.0.2.1")},
		},
		{
			name: "options of the target are no conditions", line: "-A POSTROUTING -s 10.0.0.1 -j MASQUERADE --random-fully",
			want: NATRule{Chain: "POSTROUTING", Source: in("10.0.0.1/32"), Target: "MASQUERADE"},
		},
		{name: "no address", line: "-A POSTROUTING -s 10.0.0.300 -j ACCEPT", err: "10.0.0.300"},
		{name: "no address to translate to", line: "-A POSTROUTING -j SNAT --to-source nowhere", err: "nowhere"},
		{name: "a quotation that does not end", line: `-A POSTROUTING -m comment --comment "x`, err: "line 2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			rules, err := ParseNAT("*nat\n" + test.line + "\nCOMMIT\n*filter\n-A INPUT -j DROP\nCOMMIT\n")
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("%v, want %q in it", err, test.err)
				}
				return
			}
			test.want.Text = test.line
			if diff := cmp.Diff([]NATRule{test.want}, rules, byValue); err != nil || diff != "" {
				t.Errorf("%v; (-want +got):\n%s", err, diff)
			}
		})
	}
}

func FuzzParseNAT(f *testing.F) {
	f.Add("*nat\n-A POSTROUTING ! -s 10.0.0.0/8 -j SNAT --to-source 1.2.3.4\n")
	f.Add("*nat\n-A X -s\n")
	f.Add("*nat\n-A\n")
	f.Fuzz(func(t *testing.T, saved string) {
		rules, err := ParseNAT(saved)
		for _, r := range rules {
			if err == nil && r.Chain == "" {
				t.Errorf("a rule without a chain: %+v", r)
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
		if test.match.Matches(inside) != test.inside || test.match.Matches(outside) != test.outside {
			t.Errorf("%+v matches %v and %v", test.match, test.match.Matches(inside), test.match.Matches(outside))
		}
	}
}
