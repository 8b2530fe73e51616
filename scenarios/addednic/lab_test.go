//go:build lab

package addednic_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/addednic"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestAddedNIC(t *testing.T) { scenariotest.Pass(t, addednic.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, addednic.Scenario) }
