package images

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"

	"github.com/relapse-dev/relapse/topology/each"
)

// Substitute is a module that programs are built with in place of the one that the vendor's go.mod chooses.
type Substitute struct {
	module.Version
	// For is what the vendor has chosen. Its path is another one where the vendor or the recipe takes another module;
	// it is a folder, without a version, where the vendor takes one of his own tree.
	For module.Version
}

// String is the substitute as in "github.com/osrg/gobgp/v4 v4.8.0 for v4.6.1".
func (s Substitute) String() string {
	return spaced(s.Version) + " for " + strings.TrimPrefix(spaced(s.For), s.Path+" ")
}

// Substitutes returns the modules that programs of the image's version are built with in place of the vendor's choice,
// in order of their paths. A module from which nothing is compiled, such as a generator's, is not among them. The
// version's go.mod must be there: it is committed for the catalogue's versions, and Derive and Build derive others.
func (r Recipe) Substitutes() ([]Substitute, error) {
	if r.build == nil || r.build.file == "" {
		return nil, nil
	}
	return r.build.substitutes()
}

// mostNamed is how many substitutes a form names. relapse versions has all.
const mostNamed = 2

// Packaging is the image's form, with the modules that were substituted: "whole, with github.com/osrg/gobgp/v4 v4.8.0
// for v4.6.1". More than a few are counted. It is the same on every machine.
func (r Recipe) Packaging() (string, error) {
	form := string(r.Form)
	if r.KernelModules != nil {
		form += fmt.Sprintf(", %s where the kernel has no /proc/modules", r.KernelModules)
	}
	all, err := r.Substitutes()
	switch {
	case err != nil || len(all) == 0:
		return form, err
	case len(all) > mostNamed:
		return fmt.Sprintf("%s, with %d modules raised or replaced", form, len(all)), nil
	}
	return form + ", with " + joined(all), nil
}

// Differs says with what the image is built here in place of what the vendor has chosen; empty: it is as the vendor's.
func (r Recipe) Differs() (string, error) {
	all, err := r.Substitutes()
	if modules := r.KernelModules.replaces(); modules.Path != "" {
		return strings.Trim(modules.String()+", "+joined(all), ", "), err
	}
	return joined(all), err
}

func joined(all []Substitute) string {
	return each.Joined(all, ", ", Substitute.String)
}

// substitutes reads what noteSubstitutes has noted in the version's go.mod.
func (b *versionBuild) substitutes() ([]Substitute, error) {
	m := goModule{file: b.file}
	mod, err := m.read()
	if err != nil {
		return nil, fmt.Errorf("reading which modules were substituted: %w", err)
	}
	sums, err := m.checksums()
	if err != nil {
		return nil, fmt.Errorf("reading which modules were substituted: %w", err)
	}
	return substitutesIn(mod, sums), nil
}

// substitutesIn are the substitutes in a go.mod that packages come from: only these have checksums of files in go.sum.
func substitutesIn(mod *modfile.File, sums map[string]string) []Substitute {
	var all []Substitute
	current := chosen(mod)
	for path, line := range lines(mod) {
		if noted := note(line); noted != "" {
			s := Substitute{Version: current[path]}
			var other bool // than the module itself
			if s.For.Path, s.For.Version, other = strings.Cut(noted, " "); !other && !modfile.IsDirectoryPath(noted) {
				s.For = module.Version{Path: path, Version: noted}
			}
			if sums[spaced(s.Version)] != "" {
				all = append(all, s)
			}
		}
	}
	slices.SortFunc(all, func(a, b Substitute) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// isFor is what a line of a go.mod is for: a version of the same module, a module with its version, or a folder.
var isFor = regexp.MustCompile(`^// (?:indirect; )?for (\S+)(?: (\S+))?$`)

// noteSubstitutes writes into a derived go.mod, at each module that the recipe raises, replaces or leaves unreplaced,
// which choice of the vendor it is for. A module that turns out as the vendor has chosen it gets no comment.
func (m vendorModule) noteSubstitutes(mod *modfile.File, vendors map[string]module.Version) {
	current, all := chosen(mod), lines(mod)
	paths := slices.Concat(slices.Collect(maps.Keys(m.AtLeast)), slices.Collect(maps.Keys(m.Replace)), m.Unreplaced)
	for _, path := range each.Once(paths) {
		line, now, was := all[path], current[path], vendors[path]
		if line == nil || was.Path == "" || now == was {
			continue
		}
		comment := "for " + strings.TrimPrefix(spaced(was), path+" ")
		if len(line.Suffix) > 0 && line.Suffix[0].Token == "// indirect" {
			comment = "indirect; " + comment
		}
		line.Suffix = []modfile.Comment{{Token: "// " + comment, Suffix: true}}
	}
}

func chosen(mod *modfile.File) map[string]module.Version {
	all := map[string]module.Version{}
	for _, q := range mod.Require {
		all[q.Mod.Path] = replaced(mod, q.Mod)
	}
	for _, r := range mod.Replace {
		if _, required := all[r.Old.Path]; !required {
			all[r.Old.Path] = r.New
		}
	}
	return all
}

func replaced(file *modfile.File, mod module.Version) module.Version {
	for _, r := range file.Replace {
		if r.Old.Path == mod.Path && (r.Old.Version == "" || r.Old.Version == mod.Version) {
			return r.New
		}
	}
	return mod
}

func lines(mod *modfile.File) map[string]*modfile.Line {
	all := map[string]*modfile.Line{}
	for _, q := range mod.Require {
		all[q.Mod.Path] = q.Syntax
	}
	for _, r := range mod.Replace {
		all[r.Old.Path] = r.Syntax
	}
	return all
}

// note is what a line says that it is for; empty if it says nothing.
func note(line *modfile.Line) string {
	if line != nil {
		for _, c := range line.Suffix {
			if noted := isFor.FindStringSubmatch(c.Token); noted != nil {
				return spaced(module.Version{Path: noted[1], Version: noted[2]})
			}
		}
	}
	return ""
}

func spaced(v module.Version) string { return strings.TrimSpace(v.Path + " " + v.Version) }
