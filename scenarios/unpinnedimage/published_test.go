package unpinnedimage

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// The split must not change who is let through, only by which policy.
func TestPolicies(t *testing.T) {
	callers := func(split bool) (names, ranges []string) {
		for part := range strings.SplitSeq(policies(&framework.Run{Topology: lab}, split), "\n---\n") {
			var p networkingv1.NetworkPolicy
			if err := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(part)), 4096).Decode(&p); err != nil {
				t.Fatalf("%v in\n%s", err, part)
			}
			if len(p.Spec.PodSelector.MatchExpressions) != 1 || len(p.Spec.Ingress) != 1 {
				t.Errorf("%+v", p.Spec)
			}
			names = append(names, p.Name)
			for _, from := range p.Spec.Ingress[0].From {
				ranges = append(ranges, from.IPBlock.CIDR)
			}
		}
		slices.Sort(ranges)
		return names, ranges
	}
	onePolicy, before := callers(false)
	twoPolicies, after := callers(true)
	if len(onePolicy) != 1 || len(twoPolicies) != 2 || !slices.Contains(twoPolicies, onePolicy[0]) {
		t.Errorf("%v becomes %v", onePolicy, twoPolicies)
	}
	if !slices.Equal(before, after) || len(before) != 2 {
		t.Errorf("%v are let through, and then %v", before, after)
	}
}

// The rules of a node on which v0.4.0's were left, as package snapshot has them.
func TestLeftovers(t *testing.T) {
	text := must.Read(t, "../../framework/snapshot/testdata/kube-router-0.4.0-leftovers.iptables-save")
	rules := must.Get(snapshot.ParseRules(string(text), snapshot.FilterTable))(t)
	s := snapshot.Snapshot{Firewalls: []snapshot.Firewall{
		{Node: "master"}, {Node: guarded, Rules: snapshot.List[snapshot.Rule]{Read: true, Items: rules}},
	}}
	if got := podChains(s, guarded); len(got) != 2 {
		t.Errorf("chains %v, want those of two pods", got)
	}
	if got := podChains(s, "master"); len(got) != 0 {
		t.Errorf("chains %v on another node", got)
	}
	if len(detect.Run(published.Script().Detectors, []snapshot.Snapshot{s})) == 0 {
		t.Error("none of the variant's detectors names them")
	}
}
