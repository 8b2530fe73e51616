package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func findingsOf(s framework.Scenario) []framework.Finding {
	var all []framework.Finding
	for _, v := range s.Variants {
		script := v.Script()
		all = append(all, slices.Concat(script.Latent, script.Expected)...)
		for _, p := range script.Precursors {
			all = append(all, p.Expected...)
		}
	}
	return all
}

// The incidents embedded in kubectl-relapse equal the incidents of the scenarios.
func TestIncidents(t *testing.T) {
	const dir = "../portable/incidents/" // beside testdata
	files := []string{"catalogue.json"}
	var all []portable.Incident
	for _, s := range scenarios.All {
		found := each.Of(findingsOf(s), func(f framework.Finding) string { return f.Detector + " " + f.Kind })
		slices.Sort(found)
		all = append(all, portable.Incident{Subject: advise.Of(s), Findings: slices.Compact(found)})
		var text strings.Builder
		describe(&text, s)
		files = append(files, s.Incident.Name+".txt")
		goldentest.Compare(t, dir+s.Incident.Name+".txt", text.String())
	}
	goldentest.Compare(t, dir+"catalogue.json", string(must.Get(json.MarshalIndent(all, "", "  "))(t))+"\n")
	slices.Sort(files)
	must.Equal(t, "files", files, each.Of(must.Get(os.ReadDir("portable/incidents"))(t), os.DirEntry.Name))
}

// kubectl-relapse imports no package that brings up a lab, and packages for the kernel on Linux only.
func TestPluginImportsNoLab(t *testing.T) {
	labs := `^(github\.com/moby/moby/|sigs\.k8s\.io/kind/|github\.com/osrg/gobgp/v3/pkg/server|` +
		`github\.com/relapse-dev/relapse/(images|scenarios|topology/(host|lab))(/|$))`
	for system, never := range map[string]string{"linux": labs, "darwin": labs + "|/netlink|/netns", "windows": labs + "|/netlink|/netns"} {
		t.Run(system, func(t *testing.T) {
			list := exec.CommandContext(t.Context(), "go", "list", "-deps", "../kubectl-relapse")
			list.Env = append(os.Environ(), "GOOS="+system)
			deps := strings.Fields(string(must.Get(list.Output())(t)))
			must.Equal(t, deps, true, slices.Contains(deps, "github.com/relapse-dev/relapse/framework/audit"))
			must.Equal(t, "kubectl-relapse needs", nil, each.Where(deps, regexp.MustCompile(never).MatchString))
		})
	}
}
