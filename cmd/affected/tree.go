package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// module is the path of the module that go.mod names, with a slash.
const module = "github.com/relapse-dev/relapse/"

// core are the packages whose tests in labs each change has to pass: .ci/test chooses the
// tests. cmd/relapse is not named here: it imports all packages, and its tests use few.
var core = []string{"scenarios/nodedrain", "topology/lab/kindlab", "topology/lab/router"}

// unproven are packages that the core imports, and of which a run of node-drain covers less
// than a tenth (go build -cover): its tests prove nothing of them.
var unproven = []string{
	"framework/component/chart", // charts are for whole agents: the core's variants are slices
	"framework/component/cilium/labvalues",
	"framework/component/cilium/release",
	"framework/component/kubeadm",
	"framework/detect/autodetection",
	"framework/report/compare",
}

// A Run is one call of go test for one package.
type Run struct {
	Package string `json:"package"` // its folder
	Tags    string `json:"tags"`
	Choice  string `json:"choice"` // a flag of go test, or none
	Reason  string `json:"reason"`
}

// A Tree is what go list says of this module's packages.
type Tree struct {
	packages map[string]*pkg // by import path, those of other modules as well
	core     map[string]bool // import paths that the core's tests use
	named    map[string]bool // names that these packages use, with the package: detect.Ownership
}

type pkg struct {
	ImportPath, Dir                    string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string

	folder  string // below the root, "" for packages of other modules
	labs    bool   // it has tests with the build tag lab
	nightly bool   // all of those tests have the build tag night as well
	used    map[string]bool
}

func readTree() (*Tree, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "list", "-deps", "-test", "-tags", "lab,night",
		"-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	tree := &Tree{packages: map[string]*pkg{}}
	for decoder := json.NewDecoder(out); ; {
		p := new(pkg)
		if err := decoder.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("reading go list: %w", err)
		}
		if strings.ContainsAny(p.ImportPath, " ") || strings.HasSuffix(p.ImportPath, ".test") {
			continue // compiled for a test
		}
		if own, ok := strings.CutPrefix(p.ImportPath, module); ok {
			p.folder = own
			if p.labs, p.nightly, err = labTests(filepath.Join(root, own)); err != nil {
				return nil, err
			}
		}
		tree.packages[p.ImportPath] = p
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	tree.core, tree.named = map[string]bool{}, map[string]bool{}
	for _, folder := range core {
		tree.addUses(tree.core, tree.packages[module+folder], unproven)
	}
	for path := range tree.core {
		if p := tree.packages[path]; p != nil && p.folder != "" {
			maps.Copy(tree.named, p.names())
		}
	}
	return tree, nil
}

var buildTags = regexp.MustCompile(`(?m)^//go:build (.*\blab\b.*)$`)

// labTests says whether a folder has tests in labs, and whether all are the night's.
func labTests(dir string) (labs, nightly bool, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	nightly = true
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return false, false, err
		}
		if tags := buildTags.FindSubmatch(text); tags != nil && strings.Contains(string(text), "\nfunc Test") {
			labs = true
			nightly = nightly && strings.Contains(string(tags[1]), "night")
		}
	}
	return labs, labs && nightly, err
}

func (t *Tree) inLabs() []*pkg {
	return slices.SortedFunc(func(yield func(*pkg) bool) {
		for _, p := range t.packages {
			if p.labs && !yield(p) {
				return
			}
		}
	}, func(a, b *pkg) int { return strings.Compare(a.folder, b.folder) })
}

// uses returns the import paths of what a package and its tests are made of.
func (t *Tree) uses(p *pkg) map[string]bool {
	used := map[string]bool{}
	t.addUses(used, p, nil)
	return used
}

// addUses adds what a package and its tests are made of, without what only these folders'
// packages use.
func (t *Tree) addUses(used map[string]bool, p *pkg, without []string) {
	left := slices.Concat([]string{p.ImportPath}, p.TestImports, p.XTestImports)
	for len(left) > 0 {
		path := left[0]
		left = left[1:]
		if used[path] || slices.Contains(without, strings.TrimPrefix(path, module)) {
			continue
		}
		used[path] = true
		if imported := t.packages[path]; imported != nil {
			left = append(left, imported.Imports...)
		}
	}
}

// owner returns the package of the nearest folder above a file, or nil.
func (t *Tree) owner(file string) *pkg {
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		if p := t.packages[module+dir]; p != nil {
			return p
		}
	}
	return nil
}

// run is how a package's tests are called. A scenario's ablations are the night's; its other tests
// are few. Elsewhere the tests with the tag night are the night's.
func (p *pkg) run(reason string) Run {
	r := Run{Package: p.folder, Tags: "lab", Reason: reason}
	if strings.HasPrefix(p.folder, "scenarios/") && !slices.Contains(core, p.folder) {
		r.Tags, r.Choice = "lab,night", "-skip=^TestAblations$"
	}
	return r
}

// All returns a call for each package, without the night's tests.
func (t *Tree) All() []Run { return t.runs(func(*pkg) string { return "all" }) }

func (t *Tree) runs(reason func(*pkg) string) (runs []Run) {
	for _, p := range t.inLabs() {
		if r := p.run(reason(p)); r.Reason != "" && (!p.nightly || r.Tags != "lab") {
			runs = append(runs, r)
		}
	}
	return runs
}
