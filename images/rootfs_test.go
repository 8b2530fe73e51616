package images

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// The archive's signature is checked whatever the machine and the mirror are.
func TestDebootstrapCommand(t *testing.T) {
	for _, test := range []struct {
		name, mirror string
		packages     []string
		want         []string
	}{
		{"plain", "", nil, []string{"debootstrap", "--force-check-gpg", "--variant=minbase", "bookworm", "/tree"}},
		{"packages and a mirror", "https://mirror.example/debian", []string{"a", "b"},
			[]string{"debootstrap", "--force-check-gpg", "--variant=minbase", "--include=a,b", "bookworm", "/tree", "https://mirror.example/debian"}},
	} {
		got := debootstrapCommand(&Debian{Suite: "bookworm", Packages: test.packages}, "/tree", test.mirror)
		must.Equal(t, test.name, test.want, got)
	}
}

// Documentation goes, and copyright files stay, with the links that stand for a package's folder.
func TestTrimDocumentation(t *testing.T) {
	dir := t.TempDir()
	doc := filepath.Join(dir, "usr/share/doc")
	for _, file := range []string{"README", "libc6/copyright", "libc6/changelog.gz", "libc6/examples/a", "perl/changelog.gz"} {
		must.Write(t, filepath.Join(doc, file), "")
	}
	for link, to := range map[string]string{"libc-bin": "libc6", "libc6/NEWS.gz": "changelog.gz"} {
		must.NoError(t, os.Symlink(to, filepath.Join(doc, link)))
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", trimDocumentation)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var left []string
	must.NoError(t, filepath.WalkDir(doc, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			left = append(left, path[len(doc)+1:])
		}
		return err
	}))
	must.Equal(t, "left", []string{"libc-bin", "libc6/copyright"}, left)
}
