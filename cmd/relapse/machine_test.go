package main

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// packed is a zip archive of files with these modes. The content of each file is its name.
func packed(t *testing.T, files map[string]os.FileMode) []byte {
	t.Helper()
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	for name, mode := range files {
		header := &zip.FileHeader{Name: name}
		header.SetMode(mode)
		must.Get(must.Get(archive.CreateHeader(header))(t).Write([]byte(name)))(t)
	}
	must.NoError(t, archive.Close())
	return out.Bytes()
}

// A distributed program unpacks its source once, as a whole or not at all.
func TestUnpacked(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	defer syscall.Umask(syscall.Umask(0)) // even then others may not write
	files := map[string]os.FileMode{"go.mod": 0o644, "images/tor/install.sh": 0o755}
	archive := packed(t, files)
	dir := must.Get(unpacked(archive))(t)
	for name, mode := range files {
		must.Equal(t, "text", name, read(t, filepath.Join(dir, name)))
		must.Equal(t, "mode of "+name, mode, must.Get(os.Stat(filepath.Join(dir, name)))(t).Mode())
	}
	marker := must.Write(t, filepath.Join(dir, "kept"), "")
	must.Equal(t, "the second time", dir, must.Get(unpacked(archive))(t))
	read(t, marker) // it was not unpacked again
}

func TestUnpackedWrong(t *testing.T) {
	whole := packed(t, map[string]os.FileMode{"go.mod": 0o644})
	for _, test := range []struct {
		name, says string
		archive    []byte
	}{
		{"cut off", "not a valid zip file", whole[:len(whole)-12]},
		{"damaged", "checksum error", bytes.Replace(whole, []byte("go.modgo.mod"), []byte("go.modgo.mOd"), 1)},
		{"a link", "invalid", packed(t, map[string]os.FileMode{"a": os.ModeSymlink | 0o777})},
	} {
		t.Run(test.name, func(t *testing.T) {
			cache := t.TempDir()
			t.Setenv("XDG_CACHE_HOME", cache)
			must.Fail(t, must.Err(unpacked(test.archive)), test.says)
			must.Equal(t, "files left", 0, len(must.Get(os.ReadDir(filepath.Join(cache, "relapse", "source")))(t)))
		})
	}
}

// Root builds from a source that nobody else may have changed.
func TestUnpackedByRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it is about root")
	}
	sourceOfRoot = filepath.Join(t.TempDir(), "root")
	for name, test := range map[string]struct {
		change func(cache string) error
		below  string // a folder below it that exists
		moved  bool
	}{
		"root's":             {func(string) error { return nil }, "", false},
		"a user's":           {func(cache string) error { return os.Chown(cache, 1000, 1000) }, "", true},
		"writable":           {func(cache string) error { return os.Chmod(cache, 0o777) }, "", true},
		"in a user's":        {func(cache string) error { return os.Chown(cache, 1000, 1000) }, "relapse", true},
		"a user's in root's": {func(cache string) error { return os.Chown(cache+"/relapse", 1000, 1000) }, "relapse", true},
	} {
		t.Run(name, func(t *testing.T) {
			cache := t.TempDir()
			t.Setenv("XDG_CACHE_HOME", cache)
			must.NoError(t, os.MkdirAll(filepath.Join(cache, test.below), 0o755))
			must.NoError(t, test.change(cache))
			dir := must.Get(unpacked(packed(t, map[string]os.FileMode{"go.mod": 0o644})))(t)
			must.Equal(t, "moved to "+dir, test.moved, strings.HasPrefix(dir, sourceOfRoot))
		})
	}
}

// Images built from relapse's source run as root, and a go.mod above the working directory, such as in /tmp, may belong
// to any user.
func TestSourceOfAnother(t *testing.T) {
	file := must.Write(t, filepath.Join(t.TempDir(), "go.mod"), "module "+modulePath+"\n")
	owner := os.Geteuid()
	for _, test := range []struct {
		name  string
		owner int
		uid   int
		sudo  string
		says  string
	}{
		{"one's own", owner, owner, "", ""},
		{"of the caller of sudo", 4711, 0, "4711", ""},
		{"of root", 0, 4711, "", ""},
		{"of another", 4711, 4712, "", "belongs to uid 4711, and relapse runs as uid 4712"},
		{"of another, by sudo", 4711, 0, "4712", "belongs to uid 4711, and relapse runs as uid 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := complaint(t.Context(), trustedOwner(file, test.owner, test.uid, test.sudo))
			must.Equal(t, got, test.says == "", got == "")
			must.Contain(t, got, test.says)
		})
	}
	must.NoError(t, trusted(file, owner, strconv.Itoa(owner)))
	// A folder of that name is not the source, and is no error.
	dir := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(dir, "go.mod"), 0o755))
	t.Chdir(dir)
	must.Fail(t, must.Err(sourceRoot()), "cannot find it")
}
