//go:build lab && night

package bfdreset_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/bfdreset"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestBFDReset(t *testing.T) { scenariotest.Pass(t, bfdreset.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, bfdreset.Scenario) }
