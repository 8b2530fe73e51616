package framework_test

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// acts matches the packages that a vocabulary of incidents must not need: what brings up
// or changes a lab.
var acts = regexp.MustCompile(`^(github\.com/docker/|sigs\.k8s\.io/kind|github\.com/relapse-dev/relapse/(topology/(lab/(kindlab|guest)|host)|framework/(component|fault|engine|labaccess)|images)(/|$))`)

// What acts on a lab says so in its imports: this package, and whatever it imports, does not.
func TestVocabularyImportsNoLab(t *testing.T) {
	out := must.Get(exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output())(t)
	deps := strings.Fields(string(out))
	if len(deps) < 50 {
		t.Fatalf("%d packages: %s", len(deps), out)
	}
	for _, path := range deps {
		if acts.MatchString(path) {
			t.Errorf("package framework needs %s", path)
		}
	}
}
