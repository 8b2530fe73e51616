package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

var thisTree = sync.OnceValues(func() (*Tree, error) {
	if err := os.Chdir("../.."); err != nil {
		return nil, err
	}
	return readTree()
})

// cilium are the scenarios whose component is Cilium, but for the core's.
var cilium = []string{"scenarios/lostpermission", "scenarios/masqueradedrift", "scenarios/twincidr"}

// The files are this project's own: what a change of them needs is known.
func TestSelect(t *testing.T) {
	for _, test := range []struct {
		name    string
		file    string
		needs   []string // all of them
		needed  []string // some of them, where a list of all would soon be another one
		without []string
	}{
		{name: "a document", file: "README.md"},
		{name: "a scenario's document", file: "scenarios/addednic/README.md"},
		{name: "a scenario", file: "scenarios/addednic/record.go", needs: []string{"scenarios/addednic"}},
		{name: "the core's scenario", file: "scenarios/nodedrain/record.go", needs: []string{"scenarios/nodedrain"}},
		{name: "a file that is not Go's", file: "scenarios/unpinnedimage/testdata/x", needs: []string{"scenarios/unpinnedimage"}},
		{name: "the engine", file: "framework/engine/execution.go"},
		{name: "isolation of labs", file: "topology/lab/kindlab/network.go", needs: []string{"topology/lab/kindlab"}},
		{name: "a package that the core has, too", file: "framework/detect/ipvsconvergence.go"},
		{name: "load on Service proxies", file: "framework/load/load.go", needed: []string{"scenarios/ipvsdeadlock"}},
		{name: "a recipe", file: "images/kube-router/component.yaml", needs: []string{"images", "scenarios/masqueradedrift", "scenarios/unpinnedimage"}},
		{name: "a recipe of a component that the core has, too", file: "images/cilium/component.yaml", needed: cilium},
		{name: "a component's package", file: "framework/component/kuberouter/kuberouter.go", needed: []string{"scenarios/unpinnedimage"},
			without: []string{"scenarios/addednic", "scenarios/twincidr"}},
		{name: "guests' images", file: "images/guest/image.yaml", needs: []string{"images", "scenarios/ipvsdeadlock", "topology/lab/kindlab"}},
		{name: "guests", file: "topology/lab/guest/guest.go", needs: []string{"scenarios/ipvsdeadlock", "topology/lab/guest", "topology/lab/kindlab"}},
		{name: "the CLI", file: "cmd/relapse/run.go", needs: []string{"cmd/relapse"}},
		{name: "a fault", file: "framework/fault/nic.go", needs: []string{"framework/fault"}},
		{name: "the factory of images", file: "images/key.go", needs: []string{"images"}},
		{name: "a package that is gone", file: "framework/nowhere/nothing.go"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := must.Get(thisTree())(t)
			var got []string
			for _, r := range tree.Select([]string{test.file}) {
				got = append(got, r.Package)
			}
			if len(test.needed) == 0 && len(test.without) == 0 && !slices.Equal(got, test.needs) {
				t.Errorf("%q; want %q", got, test.needs)
			}
			for _, p := range test.needed {
				if !slices.Contains(got, p) {
					t.Errorf("%q are without %q", got, p)
				}
			}
			for _, p := range test.without {
				if slices.Contains(got, p) {
					t.Errorf("%q have %q", got, p)
				}
			}
		})
	}
}

func TestAll(t *testing.T) {
	tree := must.Get(thisTree())(t)
	var got []string
	for _, r := range tree.All() {
		got = append(got, r.Package)
	}
	for _, folder := range []string{"cmd/relapse", "scenarios/twincidr", "topology/lab/router"} {
		if !slices.Contains(got, folder) {
			t.Errorf("%q are without %q", got, folder)
		}
	}
}

// The change is everything since the commit to compare with: committed or not, new or gone.
func TestChangedFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(file, text string) { must.Write(t, file, text) }
	run := func(args ...string) {
		args = append([]string{"-c", "user.name=t", "-c", "user.email=t@example.net"}, args...)
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	commit := func() { run("add", "-A"); run("commit", "-q", "-m", "x") }
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	run("init", "-q", "-b", "main")
	write("go.mod", "module m\n\nrequire example.net/a v1.0.0\n")
	write("gone.go", "package m\n\nfunc Gone() {}\n")
	write("same.go", "package m\n")
	commit()
	if files, err := changedFiles(""); err != nil || len(files) != 0 {
		t.Errorf("the first commit: %q, %v", files, err)
	}
	write("committed.go", "package m\n")
	commit()
	write("go.mod", "module m\n\nrequire example.net/a v1.0.1\n")
	write("new/new.go", "package new\n")
	must.NoError(t, os.Remove("gone.go"))
	files, err := changedFiles("")
	slices.Sort(files)
	if want := []string{"committed.go", "go.mod", "gone.go", "new/new.go"}; err != nil || !slices.Equal(files, want) {
		t.Errorf("%q, %v; want %q", files, err, want)
	}
	if _, err := changedFiles("nothing"); err == nil {
		t.Error("a commit that is not there")
	}
}
