package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// What is built from relapse's source runs as root. A go.mod above the working directory,
// such as in /tmp, can be of any user.
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
