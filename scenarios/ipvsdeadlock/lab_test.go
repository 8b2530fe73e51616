//go:build lab

package ipvsdeadlock_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/ipvsdeadlock"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
)

func TestIPVSDeadlock(t *testing.T) { scenariotest.Pass(t, ipvsdeadlock.Scenario) }
