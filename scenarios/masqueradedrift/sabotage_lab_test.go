//go:build lab && night

package masqueradedrift

import (
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

// TestSliceThatCannotStart upgrades to a configuration that the slice cannot run. The old rules
// stay and no traffic is harmed, as if the version refused to start: nothing is known of it.
func TestSliceThatCannotStart(t *testing.T) {
	defer scenariotest.Down(t, Scenario)
	s := Scenario
	v := translated.variant(framework.Fixed)
	v.Script = func() framework.Script {
		broken := translated
		broken.then = broken.then.With(cilium.Config{"enable-ip-masq-agent": "true"})
		made, other := translated.script(framework.Fixed), broken.script(framework.Fixed)
		made.Fault, made.Refuses = other.Fault, other.Refuses
		return made
	}
	s.Variants = []framework.Variant{v}
	r := scenariotest.Judge(t, s, engine.Options{Output: t.TempDir(), Keep: true, Reuse: true})
	got := r.Variants[0]
	t.Logf("%s, run: %s; %q", got.Verdict, r.Verdict, got.Reasons)
	if got.Verdict != string(framework.Unknown) || r.Verdict != string(framework.Inconclusive) || got.Refuses != "" {
		t.Errorf("%s, run: %s, refuses: %q; want %s, %s", got.Verdict, r.Verdict, got.Refuses, framework.Unknown, framework.Inconclusive)
	}
}
