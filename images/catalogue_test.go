package images

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// newRoot writes a source tree; file names are relative to its images folder.
func newRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		must.Write(t, filepath.Join(root, "images", name), content)
	}
	return root
}

// open opens a source tree's catalogue with a cache of its own.
func open(t *testing.T, root string) *Catalogue {
	t.Helper()
	return must.Get(openIn(filepath.Join(root, "cache"), root))(t)
}

func TestOpenReportsBadRecipes(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  []string // each in the error, in any order
	}{
		{name: "unknown field", files: map[string]string{"a/image.yaml": "images: [{ref: x.dev/a:1, entripoint: [/a]}]"},
			want: []string{"images/a/image.yaml", `unknown field "entripoint"`}},
		{name: "no images", files: map[string]string{"a/image.yaml": "images: []"},
			want: []string{"images/a/image.yaml: images: expected at least one image"}},
		{name: "ref without host or tag", files: map[string]string{"a/image.yaml": "images: [{ref: pause:1}, {ref: x.dev/a}]"},
			want: []string{"pause:1: ref:", "x.dev/a: ref:"}},
		{name: "unknown base", files: map[string]string{"a/image.yaml": "images: [{ref: x.dev/a:1, base: x.dev/b:1}]"},
			want: []string{`images/a/image.yaml: x.dev/a:1: base: no recipe makes image "x.dev/b:1"; there are x.dev/a:1`}},
		{name: "cycle", files: map[string]string{
			"a/image.yaml": "images: [{ref: x.dev/a:1, base: x.dev/b:1}]",
			"b/image.yaml": "images: [{ref: x.dev/b:1, base: x.dev/a:1}]",
		}, want: []string{"images/a/image.yaml: x.dev/a:1: base: x.dev/b:1 is built on this image in turn"}},
		{name: "duplicate name",
			files: map[string]string{"a/image.yaml": "images: [{ref: x.dev/a:1}]", "b/image.yaml": "images: [{ref: x.dev/a:1}]"},
			want:  []string{"images/b/image.yaml: x.dev/a:1: ref: also in", "images/a/image.yaml"}},
		{name: "missing file", files: map[string]string{"a/image.yaml": "images: [{ref: x.dev/a:1, files: [{source: etc, path: /etc}]}]"},
			want: []string{"files[0].source", "no such file"}},
		{name: "file outside the folder",
			files: map[string]string{"a/image.yaml": "images: [{ref: x.dev/a:1, files: [{source: ../b, path: /b}]}]"},
			want:  []string{"files[0].source: expected a path inside the folder"}},
		{name: "missing go.mod",
			files: map[string]string{"a/image.yaml": "images: [{ref: x.dev/a:1, programs: [{package: ./a, path: /a}]}]"},
			want:  []string{"programs[0].in", "go.mod: no such file"}},
		{name: "module that is not required", files: map[string]string{
			"a/go.mod":     "module a\n",
			"a/image.yaml": "images: [{ref: x.dev/a:1, files: [{module: b.dev/b, source: etc, path: /etc}]}]",
		}, want: []string{"files[0].module", "go.mod does not require b.dev/b"}},
		{
			name: "everything at once",
			files: map[string]string{
				"a/image.yaml": "images: [{ref: x.dev/a:1, form: half}]",
				"b/image.yaml": "images: [{ref: x.dev/b:1, version: '1'}]",
				"d/image.yaml": "images: {",
			},
			want: []string{
				`a:1: form: "half" is neither`, "b:1: form: expected whole or slice", "images/d/image.yaml",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			must.Fail(t, must.Err(openIn(t.TempDir(), newRoot(t, test.files))), test.want...)
		})
	}
}

func TestOpenReadsThisTree(t *testing.T) {
	node := must.Get(must.Get(openIn(t.TempDir(), ".."))(t).Recipe("relapse.dev/node:v1.34.4"))(t)
	must.Equal(t, "the node's stop signal", "SIGRTMIN+3", node.StopSignal)
}

func TestClosure(t *testing.T) {
	c := open(t, newRoot(t, map[string]string{
		"a/image.yaml": "images: [{ref: x.dev/a:1, base: x.dev/c:1}, {ref: x.dev/b:1, base: x.dev/a:1}]",
		"c/image.yaml": "images: [{ref: x.dev/c:1}, {ref: x.dev/d:1}]",
	}))
	got := must.Get(c.closure([]string{"x.dev/b:1", "x.dev/a:1"}))(t)
	must.Equal(t, "order of build", []string{"x.dev/c:1", "x.dev/a:1", "x.dev/b:1"}, got)
	must.Fail(t, must.Err(c.closure([]string{"x.dev/e:1"})), `no recipe makes image "x.dev/e:1"`)
}

// TestedModules has the checksum in go.sum of the module that an image was built from.
func TestTestedModules(t *testing.T) {
	c := must.Get(Open(".."))(t)
	const agent, probe = "quay.io/cilium/cilium:v1.12.0", "relapse.dev/probe:dev"
	modules := must.Get(c.TestedModules(context.Background(), []string{agent, probe}))(t)
	if len(modules) != 1 || modules[0].Ref != agent || modules[0].Path != "github.com/cilium/cilium" || modules[0].Version.Version != "v1.12.0" {
		t.Fatalf("%+v", modules)
	}
	r, _ := c.Recipe(agent)
	sums := must.Read(t, r.module("").sum())
	if want := "github.com/cilium/cilium v1.12.0 " + modules[0].Sum + "\n"; !strings.HasPrefix(modules[0].Sum, "h1:") || !strings.Contains(string(sums), want) {
		t.Errorf("%s does not hold %q", filepath.Base(r.module("").sum()), want)
	}
	must.Fail(t, must.Err(c.TestedModules(context.Background(), []string{"no.such/image:1"})))
}
