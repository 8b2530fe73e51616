//go:build lab && night

package ipvsdeadlock_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/ipvsdeadlock"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestIPVSDeadlock(t *testing.T) { scenariotest.Pass(t, ipvsdeadlock.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, ipvsdeadlock.Scenario) }
