package snapshot

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseFilter(t *testing.T) {
	prefix := netip.MustParsePrefix("10.20.65.3/32")
	for _, tt := range []struct {
		name, line string
		want       Rule
	}{
		{
			"a jump", `-A FORWARD -d 10.20.65.3/32 -m comment --comment "to POD name:web-1 \"x\"" -j KUBE-POD-FW-A`,
			Rule{Chain: "FORWARD", Destination: prefix, Target: "KUBE-POD-FW-A", Comment: `to POD name:web-1 "x"`},
		},
		{"a plain address", "-A FORWARD -s 10.20.65.3 -j ACCEPT", Rule{Chain: "FORWARD", Source: prefix, Target: "ACCEPT"}},
		{"a negated address", "-A FORWARD ! -s 10.20.65.3/32 -j DROP", Rule{Chain: "FORWARD", Target: "DROP", Conditional: true}},
		{
			"a flag without value before the target", "-A FORWARD -m physdev --physdev-is-bridged -j KUBE-POD-FW-A",
			Rule{Chain: "FORWARD", Target: "KUBE-POD-FW-A", Conditional: true},
		},
		{
			"a negated match", `-A C -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable`,
			Rule{Chain: "C", Target: "REJECT", Conditional: true},
		},
		{"options of the target are not the rule's", "-A C -j REJECT --reject-with icmp-port-unreachable", Rule{Chain: "C", Target: "REJECT"}},
		{"an interface", "-A FORWARD -o eth0 -j ACCEPT", Rule{Chain: "FORWARD", Target: "ACCEPT", Conditional: true}},
		{"a goto", "-A C -g D", Rule{Chain: "C", Target: "D"}},
		{"no target", "-A C -m comment --comment -j", Rule{Chain: "C", Comment: "-j"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseFilter("*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n*filter\n:C - [0:0]\n" + tt.line + "\nCOMMIT\n")
			if err != nil {
				t.Fatal(err)
			}
			compare := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
			if diff := cmp.Diff([]Rule{tt.want}, got, compare); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseFilterErrors(t *testing.T) {
	for _, tt := range []struct{ name, line, want string }{
		{"an address", "-A C -s here -j DROP", "line 2 of iptables-save's output: "},
		{"a range", "-A C -d 10.0.0.0/99 -j DROP", "line 2 of iptables-save's output: "},
		{"a quotation", `-A C -m comment --comment "x -j DROP`, "does not end"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ParseFilter("*filter\n" + tt.line + "\n"); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

// What kube-router 1.5.1 wrote on a node of the lab.
func TestParseFilterRecorded(t *testing.T) {
	text, err := os.ReadFile("testdata/kube-router-1.5.1.iptables-save")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := ParseFilter(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Count(string(text), "\n-A "); len(rules) != want {
		t.Errorf("%d rules, want %d", len(rules), want)
	}
	for _, r := range rules {
		if r.Target == "" {
			t.Errorf("no target: %+v", r)
		}
	}
}

func FuzzParseFilter(f *testing.F) {
	f.Add("*filter\n-A FORWARD ! -s 10.20.65.3/32 -m comment --comment \"a \\\" b\" -j DROP\n")
	f.Fuzz(func(t *testing.T, saved string) {
		rules, err := ParseFilter(saved)
		for _, r := range rules {
			if r.Chain == "" || err != nil {
				t.Errorf("%+v, %v", r, err)
			}
		}
	})
}
