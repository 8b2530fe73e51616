//go:build lab && night

package nodedrain

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// installations is how many the rate is counted over.
const installations = 30

// TestHowOftenAllocationsDisagree counts how often a cluster comes by itself to allocations that do
// not agree: its nodes have joined one after the other, Cilium is installed on all of them at once,
// and no order is forced on the CiliumNodes. The record quotes the rate that it logs. Were all
// orders of four nodes as likely, the allocations would agree once in 24 times.
func TestHowOftenAllocationsDisagree(t *testing.T) {
	s := Scenario
	s.Variants = slices.Clone(s.Variants[:1])
	script := s.Variants[0].Script
	disagree, counted := 0, 0
	s.Variants[0].Script = func() framework.Script {
		changed := script()
		install := changed.Install
		changed.Install = func(ctx context.Context, r *framework.Run) error {
			for range installations {
				spec, use, err := unforced(ctx, r)
				if err != nil {
					return err
				}
				counted++
				if fmt.Sprint(spec) != fmt.Sprint(use) {
					disagree++
				}
				t.Logf("Node.spec: %v; CiliumNode: %v", spec, use)
			}
			return install(ctx, r)
		}
		changed.Precursors, changed.Remedies = nil, nil
		return changed
	}
	scenariotest.Judge(t, s, engine.Options{Output: t.TempDir()})
	rate := report.NewRate(disagree, counted)
	t.Logf("the allocations disagree in %d of %d installations (95%%: %.0f to %.0f%%)", rate.Count, rate.Runs, 100*rate.Low, 100*rate.High)
	if counted != installations || disagree == 0 {
		t.Errorf("%d of %d installations were counted, and %d came to the incident's state", counted, installations, disagree)
	}
}

// unforced installs Cilium on all nodes at once, and returns both allocations by node.
func unforced(ctx context.Context, r *framework.Run) (spec, use map[string]string, err error) {
	c := incident(affected, cilium.ClusterPool)
	if err := framework.InOrder(cilium.Uninstalled(all, podCIDR), c.Configure, c.RunAgents(all...))(ctx, r); err != nil {
		return nil, nil, err
	}
	err = await.Until(ctx, "ranges of all nodes", 100*time.Millisecond, time.Minute, func(ctx context.Context) (bool, string, error) {
		spec, use, err = readAllocations(ctx, labaccess.Cluster(r))
		return len(spec) == len(all) && len(use) == len(all), fmt.Sprintf("Node.spec: %v; CiliumNode: %v", spec, use), err
	})
	return spec, use, err
}

// readAllocations reads the ranges that nodes have by now.
func readAllocations(ctx context.Context, c *kindlab.Cluster) (spec, use map[string]string, err error) {
	var nodes corev1.NodeList
	var ciliumNodes unstructured.UnstructuredList
	ciliumNodes.SetGroupVersionKind(schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNodeList"})
	api := c.Client.Resources().GetControllerRuntimeClient()
	if err := api.List(ctx, &nodes); err != nil {
		return nil, nil, err
	}
	if err := api.List(ctx, &ciliumNodes); err != nil {
		return nil, nil, err
	}
	spec, use = map[string]string{}, map[string]string{}
	for _, n := range nodes.Items {
		spec[n.Name] = n.Spec.PodCIDR
	}
	for _, n := range ciliumNodes.Items {
		ranges, _, err := unstructured.NestedStringSlice(n.Object, "spec", "ipam", "podCIDRs")
		if err != nil {
			return nil, nil, err
		}
		if len(ranges) > 0 {
			use[n.GetName()] = ranges[0]
		}
	}
	return spec, use, nil
}
