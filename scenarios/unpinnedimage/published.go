package unpinnedimage

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kuberouter"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// The versions of 2020, by the vendor's tags.
var (
	v0  = kuberouter.Image("0.4.0")
	rc5 = kuberouter.Image("1.0.0-rc5")
)

// published is the incident of 2020 itself. What v1.0.0-rc5 does to v0.4.0's rules is
// read from its source: it lists every KUBE-POD-FW chain that is not its own as stale,
// removes the jumps to it from its own chains only, empties it, and cannot delete it,
// because FORWARD still leads there. That ends its clean-up, so one stale chain of each
// node is empty, and the others stay as v0.4.0 left them, REJECT included. The sets of
// addresses that they use have the same names in both versions, and are kept up to date.
//
// So a policy that is changed after the restart shows the damage: the stale chains
// reject what a new policy allows.
var published = framework.Variant{
	Name: publishedVariant, Role: framework.Affected, Form: framework.Whole,
	OnlyUpstream: "neither version is published as a Go module",
	Components:   map[string]string{"kube-router": "0.4.0", "latest": "1.0.0-rc5"},
	Images:       []string{v0, rc5, bystanderImage, workload.ProbeImage},
	Script:       publishedScript,
}

// guarded is the node on which a policy selects the probe's pod and the bystanders. The stale
// chain that is emptied is the first by name, which is a hash: with more of them it is less
// likely the probe's, which then would lose no packet.
const (
	guarded        = worker1
	bystanders     = 15
	bystanderImage = "registry.k8s.io/pause:3.10"
)

var bystander = workload.Deployment{
	Name: "bystander", Pods: workload.Pods{Namespace: metav1.NamespaceDefault,
		Labels: client.MatchingLabels{workload.ProbeLabel: "bystander"}},
}

func publishedScript() framework.Script {
	k := untagged(kuberouter.V0, corev1.PullAlways)
	s := common(v0, rc5, k)
	s.Install = framework.InOrder(s.Install, guard)
	// Probes connect for each packet: policies do not stop packets of an open connection.
	for i := range s.Probes {
		p := &s.Probes[i]
		*p = probe.Probe{Name: p.Name, From: p.From, To: p.To, Protocol: probe.TCP}.WithDefaults()
	}
	s.Detectors = append(s.Detectors, detect.StaleFirewallRules{})
	s.Latent = unpinned()
	s.Baseline = append(s.Baseline, framework.Check{
		ID: "chains-for-pods", Name: guarded + " has a chain for each pod that a policy selects", Bound: time.Minute,
		Reads: []snapshot.Source{snapshot.Firewalls},
		Holds: func(_ context.Context, r *framework.Run) (bool, string, error) {
			got := podChains(r.Snapshot(), guarded)
			return len(got) == bystanders+1, fmt.Sprintf("%d of %d pods have one", len(got), bystanders+1), nil
		},
	})
	s.Precursors[0].Expected = moved()[:1]
	s.Fault.Name += ", and a policy is split in two"
	s.Fault.Inject = framework.InOrder(s.Fault.Inject, func(ctx context.Context, r *framework.Run) error {
		return workload.Apply(ctx, labaccess.Cluster(r), policies(r, true))
	})
	s.Impacted = []probe.Probe{onMaster.To(onWorker1)} // of which worker1 is guarded
	s.Observe = 15 * time.Second                       // a full sync of 16 pods' rules
	s.Expected = []framework.Finding{{
		Detector: detect.StaleFirewallRules{}.Name(), Kind: detect.FrozenRules, State: detect.Active, Owner: guarded,
		AnyObject: true, // a chain's name is a hash
	}}
	s.Aftermath = []framework.Check{runs("new-version-runs", rc5), sessionsUp}
	s.Remedies = []framework.Remedy{
		{ID: "argument-reverted", Name: "revert the argument", Apply: k.Apply},
		{
			// What v1.0 needs when it follows an older version. A reboot does the same.
			ID: "flush-filter", Name: "flush the filter table, then roll", Helps: true, Bound: recoversWithin,
			Apply: framework.InOrder(func(ctx context.Context, r *framework.Run) error {
				return labaccess.Lab(r).EachNode(ctx, all, func(ctx context.Context, node *kindlab.Node) error {
					if err := kuberouter.FlushFilter(ctx, node); err != nil {
						return err
					}
					return kuberouter.PodDeleted(node.Name())(ctx, r)
				})
			}, kuberouter.RolledOut),
		},
	}
	return s
}

// policies allow the same callers before and after the split. Before, one policy names
// both the outside and the pods; then the pods have one of their own.
func policies(r *framework.Run, split bool) string {
	outside, _ := r.Topology.Network(rack.Uplink.Name)
	policy := func(name string, from ...netip.Prefix) string {
		var peers strings.Builder
		for _, p := range from {
			fmt.Fprintf(&peers, "    - ipBlock: {cidr: %s}\n", p)
		}
		return fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s, namespace: default, labels: {scenario: unpinned-image}}
spec:
  podSelector: {matchExpressions: [{key: %s, operator: In, values: [%s, bystander]}]}
  ingress:
  - from:
%s`, name, workload.ProbeLabel, guarded, peers.String())
	}
	if !split {
		return policy("callers", outside.Subnet, rack.Pods)
	}
	return policy("peers", rack.Pods) + "---\n" + policy("callers", outside.Subnet)
}

// guard has a policy select the probe's pod and the bystanders on one node.
func guard(ctx context.Context, r *framework.Run) error {
	err := workload.Apply(ctx, labaccess.Cluster(r), policies(r, false)+fmt.Sprintf(`---
apiVersion: apps/v1
kind: Deployment
metadata: {name: bystander, namespace: default}
spec:
  replicas: %d
  selector: {matchLabels: {%s: bystander}}
  template:
    metadata: {labels: {%[2]s: bystander}}
    spec: {nodeName: %s, containers: [{name: pause, image: "%s"}]}
`, bystanders, workload.ProbeLabel, guarded, bystanderImage))
	if err != nil {
		return err
	}
	return bystander.Ready(ctx, labaccess.Cluster(r), time.Minute)
}

func unguard(ctx context.Context, r *framework.Run) error {
	err := labaccess.Cluster(r).Kube().DeleteAllOf(ctx, &networkingv1.NetworkPolicy{},
		client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"scenario": "unpinned-image"})
	if err != nil {
		return fmt.Errorf("removing the policies: %w", err)
	}
	return bystander.Delete(ctx, labaccess.Cluster(r))
}

func podChains(s snapshot.Snapshot, node string) map[string]bool {
	chains := map[string]bool{}
	for _, f := range s.Firewalls {
		for _, rule := range f.Rules.Items {
			if f.Node == node && rule.Chain == "FORWARD" && strings.HasPrefix(rule.Target, "KUBE-POD-FW-") {
				chains[rule.Target] = true
			}
		}
	}
	return chains
}
