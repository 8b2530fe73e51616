package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/topology/must"
)

// pinned is an action by its commit: a tag can be moved.
var pinned = regexp.MustCompile(`^[a-z0-9-]+/[a-z0-9-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+$`)

// Workflows run code of vendors: they take actions by commit, with the tag beside it, and
// leave no token in the checkout.
func TestWorkflows(t *testing.T) {
	files := must.Get(filepath.Glob("../../.github/workflows/*.yml"))(t)
	must.Equal(t, "there are workflows", true, len(files) > 0)
	actions := must.Get(filepath.Glob("../../.github/actions/*/action.yml"))(t)
	for _, file := range append(files, actions...) {
		text := must.Read(t, file)
		for line := range strings.Lines(string(text)) {
			_, action, uses := strings.Cut(line, "uses: ")
			if action = strings.TrimSpace(action); uses && !strings.HasPrefix(action, "./") {
				must.Equal(t, "pinned in "+file+": "+action, true, pinned.MatchString(action))
			}
		}
		var workflow struct {
			Jobs map[string]struct {
				Steps []struct {
					Uses string
					With map[string]any
				}
			}
		}
		must.NoError(t, yaml.Unmarshal(text, &workflow))
		for name, job := range workflow.Jobs {
			for _, step := range job.Steps {
				if strings.HasPrefix(step.Uses, "actions/checkout@") { // its token is not left there
					must.Equal(t, file+": job "+name, any(false), step.With["persist-credentials"])
				}
			}
		}
	}
}

// setup installs what debootstrap checks signatures with.
func TestSetupInstallsDebiansKeys(t *testing.T) {
	must.Contain(t, " "+strings.Join(debianPackages, " ")+" ", " debian-archive-keyring ", " debootstrap ", " gpgv ")
}
