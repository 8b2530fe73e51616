//go:build lab && night

package masqueradedrift_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/masqueradedrift"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestAblations(t *testing.T) { scenariotest.Ablations(t, masqueradedrift.Scenario) }
