//go:build lab && night

package cordonwithdraws_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/cordonwithdraws"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestCordonWithdraws(t *testing.T) { scenariotest.Pass(t, cordonwithdraws.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, cordonwithdraws.Scenario) }
