//go:build lab && night

package addednic_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/addednic"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestAblations(t *testing.T) { scenariotest.Ablations(t, addednic.Scenario) }
