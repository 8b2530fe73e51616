package scenarios

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
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
	taken := map[string]bool{}
	for _, s := range All {
		t.Run(s.Incident.Name, func(t *testing.T) {
			if err := s.Validate(); err != nil {
				t.Error(err)
			}
			if len(s.Incident.Facts) == 0 {
				t.Error("its record lists no facts: nobody can see what of the incident a run asserts")
			}
			if s.Owner == "" {
				t.Error("it has no owner: nobody is told when its verdict changes over night")
			}
			// make test leaves those to the night whose test has that build tag.
			folder := strings.ReplaceAll(s.Incident.Name, "-", "")
			text, err := os.ReadFile(filepath.Join(folder, "lab_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			slow, night := slices.Contains(s.Labels, framework.SlowLabel), strings.Contains(string(text), "//go:build lab && night")
			if slow != night {
				t.Errorf("label %s: %v; left to the night: %v", framework.SlowLabel, slow, night)
			}
			for _, v := range s.Variants {
				if taken[v.Name] {
					t.Errorf("variant %q: another scenario has one of this name, and --variant and --label choose by it", v.Name)
				}
				taken[v.Name] = true
			}
			if missing := s.MissingImages(known); len(missing) > 0 {
				t.Errorf("there is no recipe for %q", missing)
			}
		})
	}
}
