package images

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/relapse-dev/relapse/topology/must"
)

// TestModules looks at the go.mod files below this folder without the modules that they name: go mod tidy, which looks
// at all others (.ci/tidy), would download all that vendors' tests import. TestDerivation compares the files in
// versions/.
func TestModules(t *testing.T) {
	var files []string
	must.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) == "go.mod" {
			files = append(files, path)
		}
		return err
	}))
	for _, path := range files {
		t.Run(path, func(t *testing.T) {
			text := must.Read(t, path)
			sums, err := os.ReadFile(strings.TrimSuffix(path, ".mod") + ".sum")
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			for _, wrong := range untidy(path, text, sums) {
				t.Error(wrong)
			}
		})
	}
}

// untidy returns what go mod tidy would change, as far as two files tell: the form of go.mod, a
// module that is required or replaced twice, and a module that is required and has no checksum in
// go.sum. A folder without go.sum is compiled into other modules, and the checksums are theirs.
func untidy(path string, text, sums []byte) []string {
	file, err := modfile.Parse(path, text, nil)
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	if formatted, err := file.Format(); err != nil || !bytes.Equal(formatted, text) {
		wrong = append(wrong, fmt.Sprintf("%s: not formatted; go mod edit -fmt mends it", path))
	}
	lines := strings.Split(strings.TrimSpace(string(sums)), "\n")
	required := map[string]bool{}
	for _, require := range file.Require {
		if required[require.Mod.Path] {
			wrong = append(wrong, fmt.Sprintf("%s:%d: %s is required twice", path, require.Syntax.Start.Line, require.Mod.Path))
		}
		required[require.Mod.Path] = true
		mod := replaced(file, require.Mod)
		if modfile.IsDirectoryPath(mod.Path) || len(sums) == 0 {
			continue
		}
		want := mod.Path + " " + mod.Version + "/go.mod h1:"
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }) {
			wrong = append(wrong, fmt.Sprintf("%s:%d: go.sum has no line %q", path, require.Syntax.Start.Line, want))
		}
	}
	return wrong
}

// TestLibraries looks at crictl, which every lab runs and no scenario tests. A package is compiled once for all
// programs that have it in the same version, and of the same versions below it: so crictl takes relapse's libraries.
// A replaced version does not do, since compiled packages bear the name of the version that was asked for.
func TestLibraries(t *testing.T) {
	ours, shared := libraries(t, "../go.mod"), 0
	for path, version := range libraries(t, "cri-tools/go.mod") {
		if ours[path] == "" || path == "k8s.io/kubectl" { // a test of the night alone has it, and crictl 1.34 does not compile with 0.35
			continue
		}
		shared++
		must.Equal(t, "cri-tools/go.mod has relapse's "+path, ours[path], version)
	}
	must.Equal(t, "crictl shares a library with relapse", true, shared > 0)
}

// libraries returns the versions that a go.mod requires, by module path.
func libraries(t *testing.T, path string) map[string]string {
	t.Helper()
	file := must.Get(modfile.Parse(path, must.Read(t, path), nil))(t)
	versions := map[string]string{}
	for _, require := range file.Require {
		versions[require.Mod.Path] = require.Mod.Version
	}
	return versions
}

func TestUntidy(t *testing.T) {
	const whole = "module a\n\ngo 1.26\n\nrequire b v1.0.0\n"
	for _, c := range []struct{ name, mod, sum, want string }{
		{name: "tidy", mod: whole, sum: "b v1.0.0 h1:x=\nb v1.0.0/go.mod h1:x=\n"},
		{name: "compiled into other modules", mod: whole},
		{name: "a version that go.sum does not have", mod: whole, sum: "b v1.1.0/go.mod h1:x=\n", want: `a/go.mod:5: go.sum has no line "b v1.0.0/go.mod h1:"`},
		{name: "what replaces it counts", mod: whole + "\nreplace b => c v2.0.0\n", sum: "b v1.0.0/go.mod h1:x=\n", want: `a/go.mod:5: go.sum has no line "c v2.0.0/go.mod h1:"`},
		{name: "replaced by a folder", mod: whole + "\nreplace b => ../b\n", sum: "c v1.0.0/go.mod h1:x=\n"},
		{name: "form", mod: "module a\ngo 1.26\n", want: "a/go.mod: not formatted; go mod edit -fmt mends it"},
	} {
		must.Equal(t, c.name, c.want, strings.Join(untidy("a/go.mod", []byte(c.mod), []byte(c.sum)), "; "))
	}
}
