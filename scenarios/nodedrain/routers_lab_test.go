//go:build lab && night

package nodedrain

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// TestRouterKinds runs the scenario with each kind of router as its ToRs. All come to the
// same verdicts and findings.
func TestRouterKinds(t *testing.T) {
	results := map[topology.RouterKind][]string{}
	for _, kind := range topology.RouterKinds {
		s := must.Get(withRouters(Scenario, map[string]string{routerParameter.Name: string(kind)}))(t)
		r := scenariotest.Judge(t, s, engine.Options{Output: t.TempDir()})
		if r.Verdict != string(framework.Pass) {
			t.Errorf("with %s the run is %s, not %s", kind, r.Verdict, framework.Pass)
		}
		results[kind] = resultOf(r)
		t.Logf("with %s: %q", kind, results[kind])
	}
	for _, kind := range topology.RouterKinds[1:] {
		if d := cmp.Diff(results[topology.GoBGP], results[kind]); d != "" {
			t.Errorf("verdicts and findings (-%s +%s):\n%s", topology.GoBGP, kind, d)
		}
	}
}

// resultOf lists verdicts, remedies and findings of a run. It leaves out what depends on the
// moments of the polls: settling findings, which router showed one first, and latent ones of
// the fixed version. Its speaker withdraws a range some moments after the Node object was
// deleted, and a poll between the two has a route to an absent node.
func resultOf(r report.Report) []string {
	set := map[string]bool{}
	for _, v := range r.Variants {
		set[fmt.Sprintf("%s: %s, losing packets: %q", v.Name, v.Verdict, slices.Sorted(slices.Values(v.ProbesHurt)))] = true
		for _, m := range v.Remedies {
			set[fmt.Sprintf("%s: %s: %s", v.Name, m.ID, m.Verdict)] = true
		}
		for _, f := range v.Findings {
			id := f.ID()
			if passing := id.State == detect.Latent && v.Role != string(framework.Affected); id.State != detect.Pending && !passing {
				id.Routers = ""
				set[fmt.Sprintf("%s: %s: %s", v.Name, f.During, id)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}
