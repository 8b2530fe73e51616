//go:build lab && night

package lostselector_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/lostselector"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestLostSelector(t *testing.T) { scenariotest.Pass(t, lostselector.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, lostselector.Scenario) }
