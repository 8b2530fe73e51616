package scenarios

import (
	"testing"

	"github.com/relapse-dev/relapse/images"
)

// Whatever is wrong with a scenario, and can be seen without a lab, shows here
// and not half a minute into a run.
func TestCatalogue(t *testing.T) {
	built, err := images.Open("..")
	if err != nil {
		t.Fatal(err)
	}
	known := func(ref string) bool { _, err := built.Recipe(ref); return err == nil }
	for _, s := range All {
		t.Run(s.Incident.Name, func(t *testing.T) {
			if err := s.Validate(); err != nil {
				t.Error(err)
			}
			if len(s.Incident.Facts) == 0 {
				t.Error("its record lists no facts: nobody can see what of the incident a run asserts")
			}
			if missing := s.MissingImages(known); len(missing) > 0 {
				t.Errorf("there is no recipe for %q", missing)
			}
		})
	}
}
