//go:build lab

package masqueradedrift_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/masqueradedrift"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestMasqueradeDrift(t *testing.T) { scenariotest.Pass(t, masqueradedrift.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, masqueradedrift.Scenario) }
