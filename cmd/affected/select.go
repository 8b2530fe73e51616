package main

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/topology/each"
)

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

// reason says what of a change needs a package's tests, or nothing.
func (t *Tree) reason(p *pkg, change Change) string {
	for _, file := range change.Files {
		if strings.HasPrefix(file, p.folder+"/") && !documents(file) {
			return file + " is its own"
		}
	}
	if strings.HasPrefix(p.folder, "cmd/") {
		return ""
	}
	var alone []*pkg // packages of this project that its tests use and the core's do not
	for path := range t.uses(p) {
		if used := t.packages[path]; used != nil && used.folder != "" && !t.core[path] {
			alone = append(alone, used)
		}
	}
	for _, file := range change.Files {
		if documents(file) {
			continue
		}
		if owner := t.owner(file); owner != nil && slices.Contains(alone, owner) {
			return file + " is of a package that it uses"
		}
		if component, ok := t.images(p, file); ok {
			return file + " is of the images of " + component
		}
		if name := t.declares(file, append(alone, p), change); name != "" {
			return file + " declares " + name
		}
	}
	return ""
}

func documents(file string) bool { return path.Ext(file) == ".md" }

// guest is the field of a node that makes it a guest, in a scenario's topology.
var guest = regexp.MustCompile(`\bKernel(:| =) *"\d`)

// images says whether a file belongs to the images of a scenario's component, or of
// guests. A component's package is named as the folder of its images is, without hyphens.
func (t *Tree) images(p *pkg, file string) (component string, ok bool) {
	if strings.HasPrefix(file, "images/guest/") || strings.HasPrefix(file, "topology/lab/guest/") {
		return "guests", guest.MatchString(p.text(true))
	}
	rest, ok := strings.CutPrefix(file, "images/")
	if !ok {
		rest, ok = strings.CutPrefix(file, "framework/component/")
	}
	folder, _, found := strings.Cut(rest, "/")
	component = module + "framework/component/" + strings.ReplaceAll(folder, "-", "")
	return folder, ok && found && strings.HasPrefix(p.folder, "scenarios/") && t.uses(p)[component]
}

// declares returns a name that a shared Go file declares, that these packages use, and that
// no package of the core uses.
func (t *Tree) declares(file string, packages []*pkg, change Change) string {
	owner := t.owner(file)
	if path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") || owner == nil || !t.core[owner.ImportPath] {
		return ""
	}
	for _, name := range change.Declared(file) {
		name = path.Base(owner.folder) + "." + name
		if !t.named[name] && slices.ContainsFunc(packages, func(p *pkg) bool { return p.names()[name] }) {
			return name
		}
	}
	return ""
}

var qualified = regexp.MustCompile(`\b\w+\.[A-Z]\w*`)

// names returns the names of other packages that a package's files use, such as
// detect.Ownership. Tests do not count.
func (p *pkg) names() map[string]bool {
	if p.used == nil {
		p.used = map[string]bool{}
		for _, name := range qualified.FindAllString(p.text(false), -1) {
			p.used[name] = true
		}
	}
	return p.used
}

func (p *pkg) text(tests bool) string {
	files := p.GoFiles
	if tests {
		files = slices.Concat(files, p.TestGoFiles, p.XTestGoFiles)
	}
	var text strings.Builder
	for _, file := range files {
		source, _ := os.ReadFile(filepath.Join(p.Dir, file)) // go list has just seen it
		text.Write(source)
	}
	return text.String()
}

var declaration = regexp.MustCompile(`(?m)^(?:func|type|var|const|\t)\s*([A-Z]\w*)(?:\(|\[| |$)`)

// exported returns the exported names that a Go file declares: of functions, types, variables and
// constants, those in parentheses too, and more: of fields, which no other package names
// by the package's name.
func exported(source string) []string {
	return each.Of(declaration.FindAllStringSubmatch(source, -1), func(match []string) string { return match[1] })
}
