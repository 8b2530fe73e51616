//go:build lab && night

package udpblackhole_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/scenarios/udpblackhole"
)

func TestUDPBlackhole(t *testing.T) { scenariotest.Pass(t, udpblackhole.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, udpblackhole.Scenario) }
