package images

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// vendorProxy has the go command take modules from a folder, which holds three
// releases of the module x.dev/vendor: its package says which one it is.
func vendorProxy(t *testing.T) {
	t.Helper()
	proxy, cache := t.TempDir(), t.TempDir()
	for _, version := range []string{"v1.0.0", "v1.1.0", "v1.1.1"} {
		source := t.TempDir()
		write := func(dir, name, text string) { must.Write(t, filepath.Join(dir, name), text) }
		goMod := "module x.dev/vendor\n\ngo 1.20\n"
		write(source, "go.mod", goMod)
		write(filepath.Join(source, "cmd"), "main.go", "package main\n\nfunc main() {}\n")
		write(source, "vendor.go", "package vendor\n\nconst Version = \""+version+"\"\n\nconst Loaded = \"/proc/modules\"\n")
		served := filepath.Join(proxy, "x.dev/vendor/@v")
		write(served, version+".info", fmt.Sprintf(`{"Version": %q}`, version))
		write(served, version+".mod", goMod)
		f := must.Get(os.Create(filepath.Join(served, version+".zip")))(t)
		must.NoError(t, errors.Join(zip.CreateFromDir(f, module.Version{Path: "x.dev/vendor", Version: version}, source), f.Close()))
	}
	t.Setenv("GOPROXY", "file://"+proxy)
	t.Setenv("GONOSUMDB", "x.dev")
	t.Setenv("GOMODCACHE", cache)
	t.Cleanup(func() { // Go makes the cache read-only
		if out, err := exec.Command("go", "clean", "-modcache").CombinedOutput(); err != nil {
			t.Errorf("removing the module cache: %v: %s", err, out)
		}
	})
}

// vendored is a source tree with a component; the catalogue has its version 1.0.0.
var vendored = map[string]string{
	"v/component.yaml": `
go: "1.24"
modules:
  - {module: x.dev/vendor, from: 1.0.0, below: 2.0.0, unlisted: [x.dev/vendor]}
images:
  - ref: x.dev/v:${version}
    component: v
    form: slice
    from: 1.0.0
    below: 2.0.0
    versions: [1.0.0]
    programs:
      - {package: ./main, path: /v, ldflags: "-X main.said=${version}"}
      - {package: "${module}/cmd", path: /cmd}
lacking:
  - {ref: "x.dev/v:${version}", from: 0.1.0, below: 0.6.0, why: v is a word from 0.6.0 on}
`,
	"v/go.mod": "module github.com/relapse-dev/relapse/images/v\n\ngo 1.24\n",
	"v/main/main.go": `package main

import "x.dev/vendor"

var said string

func main() { println(said, vendor.Version) }
`,
	"v/versions/1.0.0.mod": "module github.com/relapse-dev/relapse/images/v\n\ngo 1.24\n\nrequire x.dev/vendor v1.0.0\n",
}

// with returns files with one of them changed.
func with(files map[string]string, name, text string) map[string]string {
	changed := maps.Clone(files)
	changed[name] = text
	return changed
}

func TestBuildOfAVersionThatNoFolderHas(t *testing.T) {
	vendorProxy(t)
	c := open(t, newRoot(t, vendored))
	refs := must.Get(c.Find(Want{Component: "v", Version: "1.1.1"}))(t)
	must.Equal(t, "images of v 1.1.1", []string{"x.dev/v:1.1.1"}, refs)
	must.Equal(t, "asked for a second time", refs, must.Get(c.Find(Want{Component: "x.dev/v", Version: "1.1.1"}))(t))
	first := mustBuild(t, c, refs...)
	r := must.Get(c.Recipe(refs[0]))(t)
	must.Equal(t, "the recipe", [2]string{"1.1.1", "-X main.said=1.1.1"}, [2]string{r.Version, r.Programs[0].LDFlags})
	files := must.Get(filepath.Glob(filepath.Join(c.cache.modules(), "v-1.1.1-*", "*")))(t)
	must.Equal(t, "the cache keeps", []string{"1.1.1.mod", "1.1.1.sum"}, each.Of(files, filepath.Base))
	// What is kept serves where no proxy answers.
	t.Setenv("GOPROXY", "off")
	again := open(t, c.root)
	refs = must.Get(again.Find(Want{Component: "x.dev/v", Version: "1.1.1"}))(t)
	must.Equal(t, "built again", first, mustBuild(t, again, refs...))
}

func TestAtUnknownVersion(t *testing.T) {
	c := open(t, newRoot(t, vendored))
	for _, test := range []struct{ name, version, want string }{
		{"v", "2.0.0", "no recipe builds v at version 2.0.0; there are those from 1.0.0 and below 2.0.0"},
		{"x.dev/v", "0.9.0", "no recipe builds x.dev/v at version 0.9.0; there are those from 1.0.0 and below 2.0.0"},
		{"x.dev/v", "0.5.0", "no recipe builds x.dev/v at version 0.5.0: v is a word from 0.6.0 on; there are those from 1.0.0 and below 2.0.0"},
		{"v", "one", "no recipe builds v at version one; there are those from 1.0.0 and below 2.0.0"},
		{"w", "1.0.0", "no recipe builds w at version 1.0.0; there are v"},
	} {
		must.Equal(t, "", test.want, fmt.Sprint(must.Err(c.Find(Want{Component: test.name, Version: test.version}))))
	}
	// Only At makes such a version known: a misspelt ref stays unknown.
	must.Fail(t, must.Err(c.Build(t.Context(), []string{"x.dev/v:1.1.1"}, nil)), "no recipe makes image")
}

// TestRecipeAndGoModDisagree is what make check says of a version in a recipe that its go.mod does not have.
func TestRecipeAndGoModDisagree(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"of a component",
			with(vendored, "v/versions/1.0.0.mod", "module v\n\ngo 1.24\n\nrequire x.dev/vendor v1.1.0\n"),
			"images/v/component.yaml: x.dev/v:1.0.0: version: expected ROOT/images/v/versions/1.0.0.mod to require x.dev/vendor@v1.0.0, found v1.1.0"},
		{"of a component, without go.mod",
			with(vendored, "v/component.yaml", strings.ReplaceAll(vendored["v/component.yaml"], "[1.0.0]", "[1.0.0, 1.1.0]")),
			"images/v/component.yaml: x.dev/v:1.1.0: programs[0].in: open ROOT/images/v/versions/1.1.0.mod: no such file or directory"},
		{"of one version", map[string]string{
			"e/image.yaml": "images: [{ref: x.dev/e:1, component: e, form: whole, version: 1.0.0, module: x.dev/vendor, programs: [{package: x.dev/vendor/e, path: /e}]}]",
			"e/go.mod":     "module e\n\nrequire x.dev/vendor v1.1.0\n",
		},
			"images/e/image.yaml: x.dev/e:1: version: expected ROOT/images/e/go.mod to require x.dev/vendor@v1.0.0, found v1.1.0"},
		{"proved by nothing", map[string]string{"e/image.yaml": "images: [{ref: x.dev/e:1, component: e, form: whole, version: 1.0.0}]"},
			"x.dev/e:1: version: nothing proves it"},
		{"out of range", with(vendored, "v/component.yaml", strings.ReplaceAll(vendored["v/component.yaml"], "[1.0.0]", "[2.1.0]")),
			"images/v/component.yaml: images[0].versions: version 2.1.0 is not from 1.0.0 and below 2.0.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := newRoot(t, test.files)
			must.Fail(t, must.Err(openIn(t.TempDir(), root)), strings.ReplaceAll(test.want, "ROOT", root))
		})
	}
}

// TestProgramOfAnotherVersion builds a program whose go.mod asks for what the
// recipe says and replaces it by another release. Its link flags say 1.0.0.
func TestProgramOfAnotherVersion(t *testing.T) {
	vendorProxy(t)
	replaced := vendored["v/versions/1.0.0.mod"] + "\nreplace x.dev/vendor => x.dev/vendor v1.1.0\n"
	c := open(t, newRoot(t, with(vendored, "v/versions/1.0.0.mod", replaced)))
	b := must.Get(c.components[0].build("1.0.0"))(t)
	must.NoError(t, b.settle(t.Context(), filepath.Dir(b.file), []byte(replaced)))
	must.Fail(t, must.Err(c.Build(t.Context(), []string{"x.dev/v:1.0.0"}, nil)), filepath.Join(c.root, "images/v/component.yaml")+
		": x.dev/v:1.0.0: expected x.dev/vendor@v1.0.0 in /v, found x.dev/vendor@v1.1.0: no image is made of it")
	expectNothingHalfMade(t, c)
}

func TestDerive(t *testing.T) {
	vendor := string(must.Read(t, "testdata/derive-vendor.mod"))
	b := versionBuild{
		component: &component{Go: "1.26", folder: "/images/v"},
		version:   "1.2.3",
		vendor: vendorModule{
			Module:    "x.dev/vendor",
			Published: map[string]string{"1.2.3": "v0.0.0-20250813170300-a0db560f0520"},
			AtLeast:   map[string]string{"golang.org/x/net": "v0.30.0", "golang.org/x/sys": "v0.30.0", "golang.org/x/mod": "v0.17.0"},
			Replace:   map[string]string{"x.dev/api": "x.dev/api v1.0.0"},
			Staging:   &staging{Folder: "staging", Modules: []string{"x.dev/staged"}},
		},
	}
	derived := must.Get(b.derive([]byte(vendor)))(t)
	must.Equal(t, "derived", string(must.Read(t, "testdata/derive-derived.mod")), string(derived))

	must.Fail(t, must.Err(b.derive([]byte(vendor+"\nreplace x.dev/own => ./own\n"))),
		"replaces x.dev/own by its own folder ./own: expected another version under replace")
	t.Run("a folder that is published too, and the vendor's language", func(t *testing.T) {
		published := b
		published.vendor.Go = vendorGo
		published.vendor.Staging = &staging{Folder: "staging/src", Published: "v0.${minor}.${patch}"}
		derived := must.Get(published.derive([]byte(vendor + "\nreplace x.dev/own => ./staging/src/x.dev/own\n")))(t)
		must.Contain(t, string(derived), "\ngo 1.17\n", "\nreplace x.dev/own => x.dev/own v0.2.3\n", "\nreplace x.dev/part => x.dev/fork v1.2.3\n")
	})
	for _, test := range []struct{ name, old, new, want string }{
		{"as derived", "", "", ""},
		{"more that is indirect", "x.dev/staged v0.0.0\n", "x.dev/staged v0.0.0\n\tx.dev/more v1.0.0 // indirect\n", ""},
		{"more that is not", "x.dev/staged v0.0.0\n", "x.dev/staged v0.0.0\n\tx.dev/more v1.0.0\n", "require x.dev/more@v1.0.0"},
		{"another version", "golang.org/x/net v0.30.0", "golang.org/x/net v0.31.0", "require golang.org/x/net@v0.31.0"},
		{"one less", "\tgolang.org/x/net v0.30.0 // for v0.1.0\n", "", "require golang.org/x/net@v0.30.0"},
		{"raised without a word", " // for v0.1.0", "", "golang.org/x/net is for v0.1.0"},
		{"replaced by another", "x.dev/fork v1.2.3", "x.dev/fork v1.2.4", "replace x.dev/part => x.dev/fork@v1.2.4"},
		{"one more replaced", "go 1.26\n", "go 1.26\n\nreplace x.dev/y => x.dev/z v1.0.0\n", "replace x.dev/y => x.dev/z@v1.0.0"},
		{"another language", "go 1.26", "go 1.25", "go 1.25"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := difference(t, derived, []byte(strings.Replace(string(derived), test.old, test.new, 1)))
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %s, want %q in it", got, test.want)
			}
		})
	}
}

func TestProvePackages(t *testing.T) {
	tree := t.TempDir()
	status := "Package: bird\nStatus: install ok installed\nVersion: 1.6.8-2.1\n\nPackage: mariadb-server\nVersion: 1:10.11.14-0+deb12u2\nDescription: x\n more: y\n"
	must.Write(t, filepath.Join(tree, "var/lib/dpkg/status"), status)
	for name, test := range map[string]struct {
		versions map[string]string
		want     string
	}{
		"none said":       {nil, "<nil>"},
		"as said":         {map[string]string{"bird": "1.6.8", "mariadb-server": "10.11"}, "<nil>"},
		"another version": {map[string]string{"bird": "2.0"}, "a/image.yaml: x.dev/a:1: expected bird 2.0 among Debian's packages, found 1.6.8-2.1: no image is made of it"},
		"half a number":   {map[string]string{"mariadb-server": "10.1"}, "a/image.yaml: x.dev/a:1: expected mariadb-server 10.1 among Debian's packages, found 1:10.11.14-0+deb12u2: no image is made of it"},
		"not there":       {map[string]string{"clang": "14"}, "a/image.yaml: x.dev/a:1: expected clang 14 among Debian's packages, found none: no image is made of it"},
	} {
		r := Recipe{Ref: "x.dev/a:1", folder: "a", Debian: &Debian{Versions: test.versions}}
		must.Equal(t, name, test.want, fmt.Sprint(r.provePackages(tree)))
	}
}
