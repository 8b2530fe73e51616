//go:build lab && night

package lostptr_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/lostptr"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestLostPTR(t *testing.T) { scenariotest.Pass(t, lostptr.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, lostptr.Scenario) }
