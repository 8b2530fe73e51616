package main

import (
	"path/filepath"
	"regexp"
	"slices"
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
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflow: %v", err)
	}
	actions := must.Get(filepath.Glob("../../.github/actions/*/action.yml"))(t)
	for _, file := range append(files, actions...) {
		text := must.Read(t, file)
		for line := range strings.Lines(string(text)) {
			_, action, uses := strings.Cut(line, "uses: ")
			if action = strings.TrimSpace(action); uses && !strings.HasPrefix(action, "./") && !pinned.MatchString(action) {
				t.Errorf("%s uses %s, which is not pinned by its commit with the version beside it", file, action)
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
				if strings.HasPrefix(step.Uses, "actions/checkout@") && step.With["persist-credentials"] != false {
					t.Errorf("%s: job %s leaves its token in the checkout", file, name)
				}
			}
		}
	}
}

// setup installs what debootstrap checks signatures with.
func TestSetupInstallsDebiansKeys(t *testing.T) {
	for _, name := range []string{"debian-archive-keyring", "debootstrap", "gpgv"} {
		if !slices.Contains(debianPackages, name) {
			t.Errorf("%s is not installed", name)
		}
	}
}
