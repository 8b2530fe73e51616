package detect

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestStaleFirewallRules(t *testing.T) {
	// The leftovers are in the form in which v0.4.0's network policy controller
	// writes them, beside the chains of a later version.
	const leftovers, clean = "kube-router-0.4.0-leftovers.iptables-save", "kube-router-1.5.1.iptables-save"
	web := snapshot.Pod{Namespace: "default", Name: "web-1", Node: "worker1", IP: netip.MustParseAddr("10.20.65.3")}
	elsewhere := web
	elsewhere.Node = "worker2"
	const first, second = "worker1 KUBE-POD-FW-63NCJEV4ZEEHVYFE", "worker1 KUBE-POD-FW-A7QCCHKRWXQH2QT2"
	for _, tt := range []struct {
		name   string
		file   string
		change func(string) string
		pods   []snapshot.Pod
		want   []brief
		says   string // of the first
	}{
		{name: "leftovers, one of a pod that lives", file: leftovers, pods: []snapshot.Pod{web},
			want: []brief{{FrozenRules, Active, first, 1}, {LeftoverRules, Latent, second, 0}},
			says: "worker1 sends packets of pod default/web-1 (10.20.65.3) from FORWARD and OUTPUT directly to KUBE-POD-FW-63NCJEV4ZEEHVYFE, which ends at a REJECT. " +
				"kube-router's rules now start from KUBE-ROUTER-FORWARD: that chain stays out of date until the filter table is flushed."},
		{name: "its pod is on another node", file: leftovers, pods: []snapshot.Pod{elsewhere},
			want: []brief{{LeftoverRules, Latent, first, 0}, {LeftoverRules, Latent, second, 0}}},
		{name: "kube-router 1.5.1", file: clean, pods: []snapshot.Pod{web}},
		{name: "before the upgrade the rules are kept up to date", file: leftovers, pods: []snapshot.Pod{web},
			change: func(s string) string { return strings.ReplaceAll(s, "-j KUBE-ROUTER-", "-j OTHER-") }},
		{
			name: "flushed", file: leftovers, pods: []snapshot.Pod{web},
			change: func(s string) string {
				var rest []string
				for line := range strings.Lines(s) {
					if !strings.Contains(line, "63NCJEV4ZEEHVYFE") && !strings.Contains(line, "A7QCCHKRWXQH2QT2") {
						rest = append(rest, line)
					}
				}
				return strings.Join(rest, "")
			},
		},
		{name: "a chain that rejects only what is not marked", file: leftovers, pods: []snapshot.Pod{web},
			change: func(s string) string {
				return strings.ReplaceAll(s, "-j REJECT", "-m mark ! --mark 0x10000/0x10000 -j REJECT")
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			saved := string(must.Read(t, filepath.Join("../snapshot/testdata", tt.file)))
			if tt.change != nil {
				saved = tt.change(saved)
			}
			rules := must.Get(snapshot.ParseRules(saved, snapshot.FilterTable))(t)
			s := snapshot.Snapshot{Firewalls: []snapshot.Firewall{{Node: "worker1", Rules: snapshot.List[snapshot.Rule]{Read: true, Items: rules}}}}
			s.Pods.Read, s.Pods.Items = true, tt.pods
			compareBriefs(t, detected(t, StaleFirewallRules{}, []snapshot.Snapshot{s}), tt.want, tt.says, same)
		})
	}
}
