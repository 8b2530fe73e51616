package images

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestLicenses(t *testing.T) {
	files := map[string]string{
		"go.mod":        "module m\n\ngo 1.26\n\nrequire x.dev/a v0.0.0\n\nreplace x.dev/a => ./a\n",
		"program/p.go":  "package main\n\nimport _ \"x.dev/a/b\"\n\nfunc main() {}\n",
		"a/go.mod":      "module x.dev/a\n\ngo 1.26\n",
		"a/b/b.go":      "package b\n",
		"a/LICENSE.txt": "", "a/Copying": "", "a/README.md": "", "a/b/LICENSE": "",
	}
	r := &Recipe{folder: filepath.Join(newRoot(t, files), "images"), Licenses: "/licenses", Programs: []Program{{Package: "./program"}, {Package: "./program"}}}
	items := must.Get(r.licenses(t.Context()))(t)
	paths := each.Of(items, func(i item) string { return i.path })
	slices.Sort(paths)
	want := []string{"/licenses/go/LICENSE", "/licenses/go/PATENTS", "/licenses/x.dev/a/Copying", "/licenses/x.dev/a/LICENSE.txt"}
	must.Equal(t, "", want, paths)

	delete(files, "a/LICENSE.txt")
	delete(files, "a/Copying")
	r.folder = filepath.Join(newRoot(t, files), "images")
	must.Fail(t, must.Err(r.licenses(t.Context())), "x.dev/a in "+r.folder+"/a has none")
}
