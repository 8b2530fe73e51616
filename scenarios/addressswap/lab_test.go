//go:build lab && night

package addressswap_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/addressswap"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestAddressSwap(t *testing.T) { scenariotest.Pass(t, addressswap.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, addressswap.Scenario) }
