//go:build lab

package unpinnedimage_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/scenarios/unpinnedimage"
)

func TestUnpinnedImage(t *testing.T) { scenariotest.Pass(t, unpinnedimage.Scenario) }
