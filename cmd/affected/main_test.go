package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/relapse-dev/relapse/topology/each"
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
		{name: "a detector of one scenario", file: "framework/detect/reversename.go", needs: []string{"scenarios/lostptr"}},
		{name: "the core's detector, which declares one of another scenario", file: "framework/detect/ownership.go", needs: []string{"scenarios/twincidr"}},
		{name: "load on Service proxies", file: "framework/load/load.go", needed: []string{"scenarios/ipvsdeadlock"}},
		{name: "a recipe", file: "images/kube-router/component.yaml", needs: []string{"images", "scenarios/masqueradedrift", "scenarios/unpinnedimage"}},
		{name: "a recipe of a component that the core has, too", file: "images/cilium/component.yaml", needed: cilium},
		{name: "a component's package", file: "framework/component/kuberouter/kuberouter.go", needed: []string{"scenarios/unpinnedimage"},
			without: []string{"scenarios/addednic", "scenarios/twincidr"}},
		{name: "guests' images", file: "images/guest/image.yaml", needs: []string{"images", "scenarios/ipvsdeadlock", "topology/lab/kindlab"}},
		{name: "guests", file: "topology/lab/guest/guest.go", needs: []string{"scenarios/ipvsdeadlock", "topology/lab/guest", "topology/lab/kindlab"}},
		{name: "the CLI", file: "cmd/relapse/run.go", needs: []string{"cmd/relapse"}},
		{name: "a fault of one scenario", file: "framework/fault/nic.go", needed: []string{"framework/fault", "scenarios/addednic"}},
		{name: "the factory of images", file: "images/key.go", needs: []string{"images"}},
		{name: "a package that is gone", file: "framework/nowhere/nothing.go"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := must.Get(thisTree())(t)
			change := Change{Files: []string{test.file}, Declared: func(file string) []string {
				text, _ := os.ReadFile(file)
				return exported(string(text))
			}}
			got := each.Of(tree.Select(change), func(r Run) string { return r.Package })
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
	got := each.Of(tree.All(), func(r Run) string { return r.Package })
	for _, folder := range []string{"cmd/relapse", "scenarios/twincidr", "topology/lab/router"} {
		if !slices.Contains(got, folder) {
			t.Errorf("%q are without %q", got, folder)
		}
	}
}

func TestExported(t *testing.T) {
	got := exported("package p\n\nfunc A() {}\n\nfunc (t T) M() {}\n\ntype T struct {\n\tF int\n}\n\nvar (\n\tV = 1\n\tw = 2\n)\n\nconst C = 3\n\ntype G[X any] struct{}\n")
	for _, name := range []string{"A", "T", "V", "C", "G"} {
		if !slices.Contains(got, name) {
			t.Errorf("%q are without %q", got, name)
		}
	}
	if slices.Contains(got, "w") {
		t.Errorf("%q have w", got)
	}
}

// The change is everything since the commit to compare with: committed or not, new or gone.
func TestReadChange(t *testing.T) {
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
	if change, err := readChange(""); err != nil || len(change.Files) != 0 {
		t.Errorf("the first commit: %q, %v", change.Files, err)
	}
	write("committed.go", "package m\n")
	commit()
	write("go.mod", "module m\n\nrequire example.net/a v1.0.1\n")
	write("new/new.go", "package new\n")
	must.NoError(t, os.Remove("gone.go"))
	change, err := readChange("")
	slices.Sort(change.Files)
	if want := []string{"committed.go", "go.mod", "gone.go", "new/new.go"}; err != nil || !slices.Equal(change.Files, want) {
		t.Errorf("%q, %v; want %q", change.Files, err, want)
	}
	if got := change.Declared("gone.go"); !slices.Equal(got, []string{"Gone"}) {
		t.Errorf("a file that is gone declares %q", got)
	}
	if _, err := readChange("nothing"); err == nil {
		t.Error("a commit that is not there")
	}
}
