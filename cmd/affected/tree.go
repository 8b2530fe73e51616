package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/topology/each"
)

// module is the path of the module that go.mod names, with a slash.
const module = "github.com/relapse-dev/relapse/"

// core are the packages whose tests in labs each change has to pass: .ci/test chooses the
// tests. cmd/relapse is not named here: it imports all packages, and its tests use few.
var core = []string{"scenarios/nodedrain", "topology/lab/kindlab", "topology/lab/router"}

// unproven are packages that the core imports, and of which a run of node-drain covers less
// than a tenth (go build -cover), and what they alone use: its tests prove nothing of them.
var unproven = []string{
	"framework/component/chart", // charts are for whole agents: the core's variants are slices
	"framework/component/chart/install",
	"framework/component/cilium/labvalues",
	"framework/component/cilium/release",
	"framework/component/kubeadm",
	"framework/component/objects",
	"framework/component/placeholder",
	"framework/detect/autodetection",
	"framework/report/compare",
}

// A Run is one call of go test for the package of a folder. Choice is a flag of go test, or none.
type Run struct{ Package, Tags, Choice, Reason string }

// A Tree is this module's packages. Folders are below the root.
type Tree struct {
	packages map[string]*pkg // by folder
	core     map[string]bool // folders of the packages that the core's tests use
	named    map[string]bool // names that these packages use, with the package: detect.Ownership
}

type pkg struct {
	folder  string
	uses    map[string]bool // folders of the packages that it and its tests are made of
	names   map[string]bool // names of other packages that its files use; tests do not count
	guests  bool            // it declares a node with a kernel of its own
	labs    bool            // it has tests with the build tag lab
	nightly bool            // all of those tests have the build tag night as well
}

func readTree() (*Tree, error) {
	cmd := exec.Command("go", "list", "-test", "-tags", "lab,night", "-json=ImportPath,GoFiles,TestGoFiles,XTestGoFiles,Deps", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	tree := &Tree{packages: map[string]*pkg{}, core: map[string]bool{}, named: map[string]bool{}}
	uses := map[string]map[string]bool{} // by folder
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var listed struct {
			ImportPath                               string
			GoFiles, TestGoFiles, XTestGoFiles, Deps []string
		}
		if err := decoder.Decode(&listed); err != nil {
			return nil, fmt.Errorf("reading go list: %w", err)
		}
		folder := strings.TrimPrefix(listed.ImportPath, module)
		tested, isTest := strings.CutSuffix(folder, ".test")
		switch {
		case strings.Contains(folder, " "): // compiled for a test
		case isTest:
			uses[tested] = map[string]bool{}
			for _, path := range listed.Deps {
				path, _, _ = strings.Cut(path, " ")
				if used, own := strings.CutPrefix(path, module); own {
					uses[tested][used] = true
				}
			}
		default:
			files := slices.Concat(listed.GoFiles, listed.TestGoFiles, listed.XTestGoFiles)
			if tree.packages[folder], err = readPackage(folder, files); err != nil {
				return nil, err
			}
		}
	}
	for folder, used := range uses {
		maps.DeleteFunc(used, func(folder string, _ bool) bool { return tree.packages[folder] == nil }) // tests' own packages
		tree.packages[folder].uses = used
	}
	for _, folder := range core {
		maps.Copy(tree.core, uses[folder])
	}
	for _, folder := range unproven {
		delete(tree.core, folder)
	}
	for folder := range tree.core {
		maps.Copy(tree.named, tree.packages[folder].names)
	}
	return tree, nil
}

var (
	buildTags = regexp.MustCompile(`(?m)^//go:build (.*\blab\b.*)$`)
	qualified = regexp.MustCompile(`\b\w+\.[A-Z]\w*`)
	// guest is the field of a node that makes it a guest, in a scenario's topology.
	guest = regexp.MustCompile(`\bKernel(:| =) *"\d`)
	// declaration also finds fields, which no other package names by the package's name.
	declaration = regexp.MustCompile(`(?m)^(?:func|type|var|const|\t)\s*([A-Z]\w*)(?:\(|\[| |$)`)
)

func readPackage(folder string, files []string) (*pkg, error) {
	p := &pkg{folder: folder, names: map[string]bool{}, nightly: true}
	for _, file := range files {
		source, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			return nil, err
		}
		text := string(source)
		p.guests = p.guests || guest.MatchString(text)
		if !strings.HasSuffix(file, "_test.go") {
			for _, name := range qualified.FindAllString(text, -1) {
				p.names[name] = true
			}
		} else if tags := buildTags.FindStringSubmatch(text); tags != nil && strings.Contains(text, "\nfunc Test") {
			p.labs = true
			p.nightly = p.nightly && strings.Contains(tags[1], "night")
		}
	}
	return p, nil
}

// exported returns the exported names that a Go file declares: of functions, types, variables and
// constants, those in parentheses too.
func exported(source string) []string {
	return each.Of(declaration.FindAllStringSubmatch(source, -1), func(match []string) string { return match[1] })
}

// All returns a call for each package with tests in labs, without the night's tests.
func (t *Tree) All() []Run { return t.runs(func(*pkg) string { return "all" }) }

// Select returns the tests in labs that a change needs besides the core. A package's tests
// are needed if the change touches
//
//   - the package itself,
//   - a package that its tests use and the core's tests do not use,
//   - a file of a shared package, if the package names something that this file declares,
//     and the core does not,
//   - the images of a scenario's components, or of guests.
//
// What the core uses is proven by the core. cmd/relapse imports all packages: its tests
// are needed for changes of the package itself.
func (t *Tree) Select(change Change) []Run {
	return t.runs(func(p *pkg) string { return t.reason(p, change) })
}

// runs are how tests are called for which there is a reason. A scenario's ablations are the night's;
// its other tests are few. Elsewhere the tests with the tag night are the night's.
func (t *Tree) runs(reason func(*pkg) string) (runs []Run) {
	for _, folder := range slices.Sorted(maps.Keys(t.packages)) {
		p := t.packages[folder]
		if !p.labs {
			continue
		}
		r := Run{Package: folder, Tags: "lab", Reason: reason(p)}
		if strings.HasPrefix(folder, "scenarios/") && !slices.Contains(core, folder) {
			r.Tags, r.Choice = "lab,night", "-skip=^TestAblations$"
		}
		if r.Reason != "" && (!p.nightly || r.Tags != "lab") {
			runs = append(runs, r)
		}
	}
	return runs
}

// reason says what of a change needs a package's tests, or nothing.
func (t *Tree) reason(p *pkg, change Change) string {
	files := slices.DeleteFunc(slices.Clone(change.Files), func(file string) bool { return path.Ext(file) == ".md" })
	for _, file := range files {
		if strings.HasPrefix(file, p.folder+"/") {
			return file + " is its own"
		}
	}
	if strings.HasPrefix(p.folder, "cmd/") {
		return ""
	}
	for _, file := range files {
		owner := path.Dir(file) // the nearest folder above it with a package
		for owner != "." && t.packages[owner] == nil {
			owner = path.Dir(owner)
		}
		if p.uses[owner] && !t.core[owner] {
			return file + " is of a package that it uses"
		}
		if component, ok := p.images(file); ok {
			return file + " is of the images of " + component
		}
		if !t.core[owner] || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, name := range change.Declared(file) {
			name = path.Base(owner) + "." + name
			for used := range p.uses {
				if (used == p.folder || !t.core[used]) && !t.named[name] && t.packages[used].names[name] {
					return file + " declares " + name
				}
			}
		}
	}
	return ""
}

// images says whether a file belongs to the images of a scenario's component, or of
// guests. A component's package is named as the folder of its images is, without hyphens.
func (p *pkg) images(file string) (component string, ok bool) {
	if strings.HasPrefix(file, "images/guest/") || strings.HasPrefix(file, "topology/lab/guest/") {
		return "guests", p.guests
	}
	rest, ok := strings.CutPrefix(file, "images/")
	if !ok {
		rest, ok = strings.CutPrefix(file, "framework/component/")
	}
	folder, _, found := strings.Cut(rest, "/")
	used := p.uses["framework/component/"+strings.ReplaceAll(folder, "-", "")]
	return folder, ok && found && used && strings.HasPrefix(p.folder, "scenarios/")
}
