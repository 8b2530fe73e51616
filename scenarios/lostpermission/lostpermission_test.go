package lostpermission

import (
	"testing"

	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
)

func TestScenario(t *testing.T) {
	if err := Scenario.Validate(); err != nil {
		t.Error(err)
	}
	catalogue, err := images.Open("../..")
	if err != nil {
		t.Fatal(err)
	}
	hasRecipe := func(image string) bool { _, err := catalogue.Recipe(image); return err == nil }
	if missing := suite.MissingImages(Scenario, hasRecipe); len(missing) > 0 {
		t.Errorf("images without a recipe: %v", missing)
	}
}
