//go:build lab && night

package upgrade_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

// refusesNew makes a node's kernel forward only established connections, like a firewall that has lost its other rules.
// New connections from $nodes pass: kube-proxy is asked by them whether it works.
const refusesNew = `nft add table ip sabotage
nft 'add chain ip sabotage forward { type filter hook forward priority 0; }'
nft add rule ip sabotage forward ip saddr != $nodes ct state new drop`

// hidesNew drops a node's packets to new Services, as if its kube-proxy did not follow.
const hidesNew = `nft add table ip sabotage
nft 'add chain ip sabotage output { type filter hook output priority -300; }'
nft 'add rule ip sabotage output ip daddr 10.96.0.0/16 ip daddr != { 10.96.0.1, 10.96.0.77 } drop'`

// silences drops a node's gratuitous ARP, whose sender and target are the same. The program drops it itself (da,
// TC_ACT_SHOT): some kernels have no tc actions.
const silences = `tc qdisc add dev eth0 clsact
tc filter add dev eth0 egress protocol arp bpf da bytecode '6,32 0 0 28,7 0 0 0,32 0 0 38,29 0 1 0,6 0 0 2,6 0 0 0'`

// byARP are MetalLB's objects as most people have them, whose addresses some nodes announce.
const byARP = `apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: default, namespace: metallb-system}
spec: {addresses: [10.100.0.120-10.100.0.130]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: default, namespace: metallb-system}
spec:
  ipAddressPools: [default]
  nodeSelectors: [{matchLabels: {kubernetes.io/hostname: worker1}}]
`

// Each upgrade is broken in another way, and must be a NO-GO by the rows about it, and by no other rows.
func TestSabotagedUpgrade(t *testing.T) {
	onNodes := func(script string) func(context.Context, *framework.Run, []string) error {
		return func(ctx context.Context, r *framework.Run, nodes []string) error {
			network, _ := r.Topology.Network("nodes")
			return labaccess.Lab(r).EachNode(ctx, nodes, func(ctx context.Context, n *kindlab.Node) error {
				_, err := n.Exec(ctx, "sh", "-ec", "nodes="+network.Subnet.String()+"\n"+script)
				return err
			})
		}
	}
	for _, test := range []struct {
		name                string
		component, from, to string
		settings            upgrade.Settings
		// with runs after the release of the new version, and back after the release of the old one.
		with, back func(ctx context.Context, r *framework.Run, nodes []string) error
		fails      []string // the rows that must be a NO-GO
		fine       []string // the rows that must be fine
		warns      []string // the rows that must warn, without a NO-GO
		stopped    string   // why the upgrade must stop; empty if it must not
		ends       string   // what the new version must say when it ends each time
	}{
		{name: "new connections alone are refused", component: "kube-proxy", from: "1.34.4", to: "1.37.0",
			settings: upgrade.Settings{Mode: "iptables"},
			with:     onNodes(refusesNew), back: onNodes("nft delete table ip sabotage"),
			fails: []string{"new connections, outside to pod", "new connections, pod to pod, other node", "node port"},
			fine:  []string{"outside to pod", "pod to pod, other node", "long-lived TCP"}},
		{name: "a new Service is not implemented", component: "kube-proxy", from: "1.34.4", to: "1.37.0",
			settings: upgrade.Settings{Mode: "iptables"},
			with:     onNodes(hidesNew), back: onNodes("nft delete table ip sabotage"),
			fails:   []string{"rollout"},
			stopped: "kube-proxy on master to implement a new Service"},
		{name: "an announcement is dropped", component: "metallb", from: "0.14.8", to: "0.14.9",
			with: func(ctx context.Context, r *framework.Run, _ []string) error {
				advertisement := &unstructured.Unstructured{}
				advertisement.SetAPIVersion("metallb.io/v1beta1")
				advertisement.SetKind("BGPAdvertisement")
				return labaccess.Cluster(r).Client.Resources().GetControllerRuntimeClient().DeleteAllOf(ctx, advertisement, client.InNamespace("metallb-system"))
			},
			fails:   []string{"rollout"},
			stopped: "no session, or no route over it: master"},
		{name: "gratuitous ARP is dropped", component: "metallb", from: "0.14.8", to: "0.14.9", settings: upgrade.Settings{Manifests: byARP},
			with: onNodes(silences), back: onNodes("tc qdisc del dev eth0 clsact"),
			fails: []string{"the answering node is drained, policy Local"},
			fine:  []string{"rollout", "address by ARP, outside, UDP"}},
		{name: "an announcement stays where it is", component: "metallb", from: "0.14.8", to: "0.14.9", settings: upgrade.Settings{Manifests: byARP},
			with: func(ctx context.Context, r *framework.Run, _ []string) error {
				return workload.Apply(ctx, labaccess.Cluster(r), byARP) // the lab has others announce as well
			},
			fails:   []string{"rollout"},
			stopped: "worker2 to answer by ARP for"},
		{name: "a second station answers", component: "metallb", from: "0.14.8", to: "0.14.9", settings: upgrade.Settings{Manifests: byARP},
			with: func(ctx context.Context, r *framework.Run, _ []string) error {
				given, err := workload.LoadBalancer{Name: "by-arp", OnlyIPv4: true}.Given(ctx, r)
				if err == nil {
					_, err = labaccess.Lab(r).Node("master").Exec(ctx, "ip", "address", "add", given[0].String()+"/32", "dev", "lo")
				}
				return err
			},
			warns: []string{"router tor"}},
		{name: "the new version does not know an argument", component: "cilium", from: "1.18.4", to: "1.19.3",
			settings: upgrade.Settings{Values: map[string]any{"extraArgs": []any{"--enable-ipsec-encrypted-overlay=false"}}},
			stopped:  "cilium to be ready on master",
			ends:     "unknown flag: --enable-ipsec-encrypted-overlay"},
	} {
		t.Run(test.name, func(t *testing.T) {
			u := must.Get(upgrade.Of(test.component, test.from, test.to, test.settings))(t)
			release := u.Release
			u.Release = func(version string) framework.Action {
				return func(ctx context.Context, r *framework.Run) error {
					err := release(version)(ctx, r)
					switch {
					case version == test.to && test.with != nil:
						err = errors.Join(err, test.with(ctx, r, u.Nodes))
					case version == test.from && test.back != nil:
						err = errors.Join(err, test.back(ctx, r, u.Nodes))
					}
					return err
				}
			}
			o := options(t)
			m, err := upgrade.Run(t.Context(), u, test.from, test.to, suite.Labs(o), o.Options)
			if err != nil || !strings.Contains(m.Stopped, test.stopped) || (m.Stopped == "") != (test.stopped == "") {
				t.Fatalf("%v; stopped: %s", err, m.Stopped)
			}
			must.Contain(t, m.Upgrade.Ends, test.ends)
			must.Equal(t, m.Upgrade.Ends, test.ends == "", m.Upgrade.Ends == "")
			q := judgedAlone(t, test.component, test.from, test.to, &m)
			must.Equal(t, q.Heading(), true, q.Verdict == qualify.NoGo || test.warns != nil)
			for _, row := range q.Rows {
				fails := row.State == qualify.Fails
				if slices.Contains(test.warns, row.Name) && (row.State != qualify.Warning || !strings.Contains(row.Says, "at once")) ||
					slices.Contains(test.fails, row.Name) && !fails || slices.Contains(test.fine, row.Name) && fails {
					t.Errorf("%s is %s", row.Name, row.State)
				}
			}
			for _, name := range slices.Concat(test.fails, test.fine, test.warns) {
				must.Equal(t, "has row "+name, true, slices.ContainsFunc(q.Rows, func(r qualify.Row) bool { return r.Name == name }))
			}
		})
	}
}
