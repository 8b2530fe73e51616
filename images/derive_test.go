package images

import (
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var update = flag.Bool("update", false, "derive the go.mod and go.sum of the catalogue's versions anew")

// builds returns how the catalogue's versions of this tree's components are
// built, by component and version.
func builds(t *testing.T) map[string]*versionBuild {
	t.Helper()
	all := map[string]*versionBuild{}
	for _, file := range must.Get(filepath.Glob("*/" + componentFile))(t) {
		c := &component{folder: must.Get(filepath.Abs(filepath.Dir(file)))(t), builds: map[string]*versionBuild{}}
		must.Get(readYAML(file, c))(t)
		for _, version := range c.catalogued() {
			all[filepath.Base(c.folder)+"/"+version] = must.Get(c.build(version))(t)
		}
	}
	return all
}

// TestDerivation compares each go.mod of the catalogue's versions with what is
// derived from the vendor's, which comes from Go's module cache or its proxy.
// That Go adds nothing else to it is tested where images are built.
func TestDerivation(t *testing.T) {
	for name, b := range builds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			derived := must.Get(b.derive(must.Get(b.vendorGoMod(t.Context()))(t)))(t)
			if *update {
				must.NoError(t, b.settle(t.Context(), filepath.Dir(b.file), derived))
			}
			must.Equal(t, b.file, "", difference(t, derived, must.Read(t, b.file)))
		})
	}
}

// difference says how a committed go.mod differs from what is derived. Beyond what is derived
// it may only have indirect requirements, which Go adds.
func difference(t *testing.T, derived, committed []byte) string {
	t.Helper()
	want := must.Get(modfile.Parse("derived", derived, nil))(t)
	have := must.Get(modfile.Parse("committed", committed, nil))(t)
	have.Require = slices.DeleteFunc(have.Require, func(q *modfile.Require) bool {
		return q.Indirect && !slices.ContainsFunc(want.Require, func(d *modfile.Require) bool { return d.Mod.Path == q.Mod.Path })
	})
	texts := func(mod *modfile.File) []string {
		all := []string{"module " + mod.Module.Mod.Path, "go " + mod.Go.Version}
		for _, q := range mod.Require {
			all = append(all, fmt.Sprintf("require %s", q.Mod))
		}
		for _, r := range mod.Replace {
			all = append(all, fmt.Sprintf("replace %s => %s", r.Old, r.New))
		}
		for path := range chosen(mod) { // what a line is for is in its comment
			if said := note(lines(mod)[path]); said != "" {
				all = append(all, path+" is for "+said)
			}
		}
		slices.Sort(all)
		return all
	}
	beyond := func(sign string, all, others []string) []string {
		more := slices.DeleteFunc(slices.Clone(all), func(text string) bool { return slices.Contains(others, text) })
		return each.Of(more, func(text string) string { return sign + text })
	}
	wanted, found := texts(want), texts(have)
	return strings.Join(slices.Concat(beyond("-", wanted, found), beyond("+", found, wanted)), "\n")
}
