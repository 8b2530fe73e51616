//go:build lab && night

package twincidr_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/scenarios/twincidr"
)

func TestTwinCIDR(t *testing.T) { scenariotest.Pass(t, twincidr.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, twincidr.Scenario) }
