package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// scripted is a repository of one commit with the scripts of .ci.
func scripted(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, script := range []string{"tidy", "left", "packages"} {
		writeTo(t, filepath.Join(dir, ".ci", script), read(t, filepath.Join("../../.ci", script)), 0o755)
	}
	committed(t, dir)
	return dir
}

// withPath is a command that finds the programs of a folder first.
func withPath(t *testing.T, dir string, command ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	return cmd
}

func writeTo(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must.NoError(t, os.WriteFile(file, []byte(text), mode))
}

// A script ends with the status of git when that fails.
func TestTidyWithoutGit(t *testing.T) {
	dir, broken := scripted(t), t.TempDir()
	writeTo(t, filepath.Join(broken, "git"), "#!/bin/sh\necho 'fatal: dubious ownership' >&2\nexit 128\n", 0o755)
	must.Equal(t, "status", 128, end(t, withPath(t, broken, filepath.Join(dir, ".ci", "tidy"))).status)
}

// make check fails if gofmt does.
func TestFormatWithoutGofmt(t *testing.T) {
	broken := t.TempDir()
	writeTo(t, filepath.Join(broken, "gofmt"), "#!/bin/sh\nexit 2\n", 0o755)
	_, recipe, found := strings.Cut(string(must.Read(t, "../../Makefile")), "$(part) 'format' ")
	recipe, _, _ = strings.Cut(recipe, "\n")
	must.Equal(t, "the Makefile has part 'format'", true, found)
	must.Equal(t, "status", 2, end(t, withPath(t, broken, "bash", "-c", strings.ReplaceAll(recipe, "$$", "$"))).status)
}

// Where nft is missing, left installs it by .ci/packages, or ends with that script's
// status and reason.
func TestLeftWithoutNft(t *testing.T) {
	dir, bin := scripted(t), t.TempDir()
	for _, program := range []string{"bash", "dirname"} {
		must.NoError(t, os.Symlink(must.Get(exec.LookPath(program))(t), filepath.Join(bin, program)))
	}
	writeTo(t, filepath.Join(dir, ".ci", "packages"), "#!/bin/bash\necho \"missing Debian packages: $*\" >&2\nexit 3\n", 0o755)
	text := read(t, filepath.Join(dir, ".ci", "left"))
	// The machine that runs this test may have nft in these folders.
	writeTo(t, filepath.Join(dir, ".ci", "left"), strings.ReplaceAll(text, ":/usr/sbin:/sbin", ""), 0o755)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "bash"), filepath.Join(dir, ".ci", "left"))
	cmd.Env = []string{"PATH=" + bin}
	must.Equal(t, "", ended{3, "", "missing Debian packages: nftables\n"}, end(t, cmd))
}

// The packages of CI are installed without removing others.
func TestPackagesRemoveNothing(t *testing.T) {
	dir, bin := scripted(t), t.TempDir()
	for program, text := range map[string]string{"dpkg-query": "exit 1", "id": "echo 0", "apt-get": `echo "apt-get $*"`} {
		writeTo(t, filepath.Join(bin, program), "#!/bin/sh\n"+text+"\n", 0o755)
	}
	got := end(t, withPath(t, bin, filepath.Join(dir, ".ci", "packages"), "nftables"))
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	must.Equal(t, got, 0, got.status)
	must.Contain(t, "begins "+lines[len(lines)-1], "begins apt-get -o", "--no-remove")
}

// make scenario by sudo: the user who called it owns bin and reports afterwards, also
// where the run fails, whose status make has.
func TestMakeScenarioBySudo(t *testing.T) {
	makefile := must.Get(filepath.Abs("../../Makefile"))(t)
	for _, test := range []struct {
		name, uid, sudo string
		status          string // of relapse run
		chown           string
	}{
		{"by sudo", "0", "1000", "0", "-R -h -P 1000:1001 bin\n-R -h -P 1000:1001 reports\n"},
		{"a run that fails", "0", "1000", "4", "-R -h -P 1000:1001 bin\n-R -h -P 1000:1001 reports\n"},
		{"root alone", "0", "", "0", ""},
		{"no number", "0", "x; reboot", "0", ""},
		{"not root", "1000", "1000", "0", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			writeTo(t, filepath.Join(dir, ".ci", "owner"), string(must.Read(t, "../../.ci/owner")), 0o755)
			writeTo(t, filepath.Join(dir, "reports", "x"), "", 0o644)
			writeTo(t, filepath.Join(dir, "path", "go"), "#!/bin/sh\nmkdir -p bin\nprintf '#!/bin/sh\\n[ \"$1 $2\" != \"run node-drain\" ] || exit "+test.status+"\\n' > bin/relapse\nchmod +x bin/relapse\n", 0o755)
			writeTo(t, filepath.Join(dir, "path", "id"), "#!/bin/sh\necho "+test.uid+"\n", 0o755)
			writeTo(t, filepath.Join(dir, "path", "chown"), "#!/bin/sh\necho \"$@\" >> "+filepath.Join(dir, "chowned")+"\n", 0o755)
			cmd := withPath(t, filepath.Join(dir, "path"), "make", "-f", makefile, "scenario", "NAME=node-drain")
			cmd.Dir = dir
			cmd.Env = append(cmd.Env, "SUDO_UID="+test.sudo, "SUDO_GID=1001", "MAKEFLAGS=", "MAKELEVEL=")
			got := end(t, cmd)
			must.Equal(t, got, test.status == "0", got.status == 0)
			must.Equal(t, got, test.status != "0", strings.Contains(got.stdout+got.stderr, "Error "+test.status))
			chowned, _ := os.ReadFile(filepath.Join(dir, "chowned")) // it is not there where nobody has called chown
			must.Equal(t, "chown was called with", test.chown, string(chowned))
		})
	}
}
