package example_test

import (
	"fmt"
	"testing"

	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/suite"
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
	if missing := suite.MissingImages(example.Scenario, hasRecipe); len(missing) > 0 {
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
	// image-alone: baseline: for 5s 6 probes lose no packet, and detectors find nothing
	// image-alone: fault is injected
	// image-alone: symptom: outside->master, outside->worker, master->worker, worker->master lose packets
	// image-alone: detectors report the 2 expected findings
	// image-alone: after: kube-router may not list EndpointSlices, and says so
	// image-alone: no other probe loses packets, and there is no unexpected finding, for at least 5s from the fault
	// image-alone: ineffective remedy: restart kube-router
	// image-alone: remedy: the manifest of version 2
	// image-alone: verdict is reproduced
	// image-alone: lab is restored
	// image-and-manifest: components are installed
	// image-and-manifest: baseline: for 5s 6 probes lose no packet, and detectors find nothing
	// image-and-manifest: fault is injected
	// image-and-manifest: no probe loses packets for at least 5s from the fault, and there is no active finding for 5s
	// image-and-manifest: verdict is prevented
	// image-and-manifest: lab is restored
	// lab: lab is down
}
