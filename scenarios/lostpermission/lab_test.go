//go:build lab && night

package lostpermission_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/lostpermission"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestLostPermission(t *testing.T) { scenariotest.Pass(t, lostpermission.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, lostpermission.Scenario) }
