package example_test

import (
	"fmt"
	"testing"

	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios/internal/example"
)

// A scenario can be checked without a lab: whatever is misspelt, missing or
// cannot be built is told here, all at once.
func TestScenario(t *testing.T) {
	if err := example.Scenario.Validate(); err != nil {
		t.Error(err)
	}
	catalogue, err := images.Open("../../..")
	if err != nil {
		t.Fatal(err)
	}
	hasRecipe := func(image string) bool { _, err := catalogue.Recipe(image); return err == nil }
	if missing := example.Scenario.MissingImages(hasRecipe); len(missing) > 0 {
		t.Errorf("images without a recipe: %v", missing)
	}
}

// The steps of a run are known before anything runs: this is what --dry-run
// prints.
func Example() {
	for _, step := range engine.New(example.Scenario, nil, engine.Options{}).Steps() {
		fmt.Printf("%s: %s\n", step.Scope, step.Name)
	}
	// Output:
	// lab: images are there
	// lab: lab is up
	// image-alone: components are installed
	// image-alone: baseline: 6 probes clean and detectors quiet for 5s
	// image-alone: fault
	// image-alone: symptom: outside->master, outside->worker, master->worker, worker->master are hurt
	// image-alone: detectors come to 2 findings
	// image-alone: after: kube-router may not list EndpointSlices, and says so
	// image-alone: nothing else is hurt and no other alarm raised, 5s from the fault at least
	// image-alone: no remedy: restart kube-router
	// image-alone: remedy: the manifest of version 2
	// image-alone: verdict is reproduced
	// image-alone: lab is put back
	// image-and-manifest: components are installed
	// image-and-manifest: baseline: 6 probes clean and detectors quiet for 5s
	// image-and-manifest: fault
	// image-and-manifest: no probe is hurt, 5s from the fault at least, and detectors are quiet for 5s
	// image-and-manifest: verdict is prevented
	// image-and-manifest: lab is put back
	// lab: lab is down
}
