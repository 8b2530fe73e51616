//go:build lab && night

package cordonwithdraws_test

import (
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/scenarios/cordonwithdraws"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestCordonWithdraws(t *testing.T) { scenariotest.Pass(t, cordonwithdraws.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, cordonwithdraws.Scenario) }

// With two families the incident takes the addresses of both away.
func TestDual(t *testing.T) {
	dual := must.Get(cordonwithdraws.Scenario.Set(map[string]string{framework.Family.Name: "dual"}))(t)
	r := scenariotest.Judge(t, dual, engine.Options{Output: t.TempDir()})
	if r.Verdict != string(framework.Pass) || len(r.NotRun) != 3 {
		t.Errorf("%s, not run are %v; %+v", r.Verdict, r.NotRun, r.Variants)
	}
}
