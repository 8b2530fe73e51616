//go:build lab && night

package nodedrain

import (
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

// TestWhole runs the incident on whole Cilium as on the fixed version: with the incident's
// allocations in conflict, the routers send each range in use, and none of Node.spec's, to
// its node, and the removal withdraws the removed node's range alone.
func TestWhole(t *testing.T) {
	const version = "1.19.3"
	s := Scenario
	v := Scenario.At(map[string]string{"cilium": version})
	v.Role = framework.Fixed
	script := v.Script
	v.Script = func() framework.Script {
		made, fixed := script(), fixedScript()
		made.Expected = nil
		made.Baseline, made.Precursors, made.Aftermath = fixed.Baseline, fixed.Precursors, fixed.Aftermath
		return made
	}
	s.Variants = []framework.Variant{v}
	s.Incident.Facts = nil // they refer to the variants
	r := scenariotest.Judge(t, s, engine.Options{Output: t.TempDir()})
	got := r.Variants[0]
	t.Logf("%s, run: %s; %q", got.Verdict, r.Verdict, got.Reasons)
	if got.Verdict != string(framework.Prevented) || r.Verdict != string(framework.Pass) {
		t.Errorf("%s, run: %s; want %s, %s", got.Verdict, r.Verdict, framework.Prevented, framework.Pass)
	}
}
