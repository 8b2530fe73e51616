//go:build lab

package nodedrain_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/nodedrain"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestNodeDrain(t *testing.T) { scenariotest.Pass(t, nodedrain.Scenario) }
