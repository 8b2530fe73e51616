//go:build lab && night

package localeverywhere_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/localeverywhere"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestLocalEverywhere(t *testing.T) { scenariotest.Pass(t, localeverywhere.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, localeverywhere.Scenario) }
