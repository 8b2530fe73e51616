//go:build lab && night

package nftcrash_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/nftcrash"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestNFTCrash(t *testing.T) { scenariotest.Pass(t, nftcrash.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, nftcrash.Scenario) }
