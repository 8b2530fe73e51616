package main

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Select returns the tests in labs that changed files need besides the core. A package's tests
// are needed if a file belongs to
//
//   - the package itself,
//   - a package that its tests use and the core's tests do not use,
//   - the images of a scenario's components, or of guests.
//
// What the core uses is proven by the core, and by the night. cmd/relapse imports all packages: its tests
// are needed for changes of the package itself.
func (t *Tree) Select(files []string) []Run {
	var runs []Run
	for _, p := range t.inLabs() {
		r := p.run("")
		if p.nightly && r.Tags == "lab" {
			continue
		}
		if r.Reason = t.reason(p, files); r.Reason != "" {
			runs = append(runs, r)
		}
	}
	return runs
}

// reason says which of some files needs a package's tests, or nothing.
func (t *Tree) reason(p *pkg, files []string) string {
	files = slices.DeleteFunc(slices.Clone(files), func(file string) bool { return path.Ext(file) == ".md" })
	for _, file := range files {
		if strings.HasPrefix(file, p.folder+"/") {
			return file + " is its own"
		}
	}
	if strings.HasPrefix(p.folder, "cmd/") {
		return ""
	}
	uses := t.uses(p)
	for _, file := range files {
		if owner := t.owner(file); owner != nil && uses[owner.ImportPath] && !t.core[owner.ImportPath] {
			return file + " is of a package that it uses"
		}
		if component := t.images(p, uses, file); component != "" {
			return file + " is of the images of " + component
		}
	}
	return ""
}

// guest is the field of a node that makes it a guest, in a scenario's topology.
var guest = regexp.MustCompile(`\bKernel(:| =) *"\d`)

// images is the scenario's component, or guests, to whose images a file belongs; empty if there is none. A
// component's package is named as the folder of its images is, without hyphens.
func (t *Tree) images(p *pkg, uses map[string]bool, file string) (component string) {
	if strings.HasPrefix(file, "images/guest/") || strings.HasPrefix(file, "topology/lab/guest/") {
		for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			if source, err := os.ReadFile(filepath.Join(p.Dir, name)); err == nil && guest.Match(source) {
				return "guests"
			}
		}
		return ""
	}
	rest, is := strings.CutPrefix(file, "images/")
	if !is {
		rest, is = strings.CutPrefix(file, "framework/component/")
	}
	folder, _, found := strings.Cut(rest, "/")
	if is && found && strings.HasPrefix(p.folder, "scenarios/") && uses[module+"framework/component/"+strings.ReplaceAll(folder, "-", "")] {
		return folder
	}
	return ""
}
