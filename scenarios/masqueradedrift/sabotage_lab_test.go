//go:build lab && night

package masqueradedrift

import (
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/topology/must"
)

// TestSliceThatCannotStart upgrades to a configuration that the slice cannot run. The old rules
// stay and no traffic is harmed, as if the version refused to start: nothing is known of it.
func TestSliceThatCannotStart(t *testing.T) {
	defer scenariotest.Down(t, Scenario)
	v := translated.variant(framework.Fixed)
	v.Script = func() framework.Script {
		broken := translated
		broken.then = broken.then.With(cilium.Config{"enable-ip-masq-agent": "true"})
		made, other := translated.script(framework.Fixed), broken.script(framework.Fixed)
		made.Fault, made.Refuses = other.Fault, other.Refuses
		return made
	}
	r := scenariotest.Alone(t, Scenario, v, framework.Unknown, framework.Inconclusive)
	must.Equal(t, "it refuses", "", r.Variants[0].Refuses)
}
