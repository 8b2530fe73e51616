//go:build lab && night

package unpinnedimage_test

import (
	"testing"

	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/scenarios/unpinnedimage"
)

func TestUnpinnedImage(t *testing.T) { scenariotest.Pass(t, unpinnedimage.Scenario) }

func TestAblations(t *testing.T) { scenariotest.Ablations(t, unpinnedimage.Scenario) }
