package main

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/reporters"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

func scripted(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, script := range []string{"tidy", "left", "packages"} {
		writeTo(t, filepath.Join(dir, ".ci", script), read(t, filepath.Join("../../.ci", script)), 0o755)
	}
	committed(t, dir)
	return dir
}

// withPath is a command with the folder dir first in PATH.
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

func TestTidyWithoutGit(t *testing.T) {
	dir, broken := scripted(t), t.TempDir()
	writeTo(t, filepath.Join(broken, "git"), "#!/bin/sh\necho 'fatal: dubious ownership' >&2\nexit 128\n", 0o755)
	must.Equal(t, "status", 128, end(t, withPath(t, broken, filepath.Join(dir, ".ci", "tidy"))).status)
}

func TestFormatWithoutGofmt(t *testing.T) {
	broken := t.TempDir()
	writeTo(t, filepath.Join(broken, "gofmt"), "#!/bin/sh\nexit 2\n", 0o755)
	_, recipe, found := strings.Cut(string(must.Read(t, "../../Makefile")), "$(part) 'format' ")
	recipe, _, _ = strings.Cut(recipe, "\n")
	must.Equal(t, "the Makefile has part 'format'", true, found)
	must.Equal(t, "status", 2, end(t, withPath(t, broken, "bash", "-c", strings.ReplaceAll(recipe, "$$", "$"))).status)
}

// If nft is missing, .ci/left installs it by .ci/packages, or ends with the status and the message of that script.
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

// After sudo make scenario, bin and reports belong to the user who called sudo, and the status is the run's.
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
			chowned, _ := os.ReadFile(filepath.Join(dir, "chowned")) // missing if chown was not called
			must.Equal(t, "chown was called with", test.chown, string(chowned))
		})
	}
}

// night runs .ci/night over shards in a new folder. planned are the names of the scenarios.
func night(t *testing.T, planned string, shards, earlier string) (dir string, status int) {
	t.Helper()
	script := must.Get(filepath.Abs("../../.ci/night"))(t)
	dir = t.TempDir()
	cmd := exec.CommandContext(t.Context(), script, planned, shards, earlier)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), asProgram+"=1", "RELAPSE="+os.Args[0])
	got := end(t, cmd)
	t.Logf("%s%s", got.stdout, got.stderr)
	return dir, got.status
}

func read(t *testing.T, path string) string {
	t.Helper()
	return string(must.Read(t, path))
}

// TestNights is two nights of two shards. In the second night a verdict changes.
func TestNights(t *testing.T) {
	must.Get(exec.LookPath("bash"))(t)
	drain := func(r *report.Report) {
		r.Variants = append(r.Variants, report.Variant{Name: "cilium-1.12.0", Role: "fixed", Form: "slice", Expected: "prevented", Verdict: "prevented"})
	}
	nic := func(r *report.Report) {
		r.Scenario, r.Owner = "added-nic", "@net"
		r.Variants = []report.Variant{
			{Name: "first-found", Role: "affected", Form: "whole", Expected: "reproduced", Verdict: "reproduced"},
			{Name: "first-found-restarted", Role: "affected", Form: "whole", Expected: "reproduced", Verdict: "reproduced"},
			{Name: "kubernetes-internal-ip", Role: "fixed", Form: "whole", Expected: "prevented", Verdict: "prevented"},
		}
	}
	first, second := t.TempDir(), t.TempDir()
	storeRun(t, filepath.Join(first, "shard-1"), drain)
	storeRun(t, filepath.Join(first, "shard-2"), nic)
	before, status := night(t, "node-drain,added-nic", first, "none")
	must.Equal(t, "exit status", exitExpected, status)
	must.Fail(t, must.Err(os.Stat(filepath.Join(before, "changed.txt"))), "no such file")
	for _, name := range []string{"pages/node-drain.html", "pages/added-nic.html", "night/index.html", "night/junit.xml"} {
		read(t, filepath.Join(before, name))
	}
	history := filepath.Join(before, "history")
	read(t, filepath.Join(history, "node-drain", "2026-01-02T03-04-05Z", "report.json"))

	tomorrow := func(r *report.Report) { r.Started = r.Started.Add(24 * time.Hour) }
	storeRun(t, filepath.Join(second, "shard-1"), func(r *report.Report) { drain(r); tomorrow(r) })
	storeRun(t, filepath.Join(second, "shard-2"), func(r *report.Report) {
		nic(r)
		tomorrow(r)
		r.Verdict, r.Variants[0].Verdict = "inconclusive", "unknown"
	})
	dir, status := night(t, "node-drain,added-nic", second, history)
	must.Equal(t, "exit status", exitInconclusive, status)
	changed := read(t, filepath.Join(dir, "changed.txt"))
	must.Contain(t, changed+"end", "\nverdicts differ: added-nic (@net)\nend", "verdict  A reproduced, B unknown")
	summary := read(t, filepath.Join(dir, "night", "summary.md"))
	must.Contain(t, summary, "## relapse: 1 of 2 scenarios passed", "\nverdicts differ: added-nic (@net)\n")
	must.Equal(t, "runs", 4, len(must.Get(filepath.Glob(filepath.Join(dir, "history", "*", "*", "report.json")))(t)))
	var suites reporters.JUnitTestSuites
	must.NoError(t, xml.Unmarshal([]byte(read(t, filepath.Join(dir, "night", "junit.xml"))), &suites))
	must.Equal(t, "errors, failures, disabled", [...]int{1, 0, 0}, [...]int{suites.Errors, suites.Failures, suites.Disabled})

	// A shard whose machine was lost.
	os.RemoveAll(filepath.Join(second, "shard-2"))
	lost, status := night(t, "node-drain,added-nic", second, history)
	must.Equal(t, "exit status", exitInconclusive, status)
	must.Contain(t, read(t, filepath.Join(lost, "night", "summary.md")), "added-nic: `no shard has a report of it`")
	must.Contain(t, read(t, filepath.Join(lost, "changed.txt"))+"end", "\nverdicts differ: added-nic (@net)\nend")
	// A shard whose second scenario has left no report: both shards have one.
	third := t.TempDir()
	storeRun(t, filepath.Join(third, "shard-1"), drain)
	storeRun(t, filepath.Join(third, "shard-2"), nic)
	half, status := night(t, "node-drain,added-nic,unpinned-image", third, "none")
	must.Equal(t, "exit status", exitInconclusive, status)
	summary = read(t, filepath.Join(half, "night", "summary.md"))
	must.Contain(t, summary, "## relapse: 2 of 3 scenarios passed", "unpinned-image: `no shard has a report of it`")
	none, status := night(t, "node-drain,added-nic", t.TempDir(), history)
	must.Equal(t, "exit status", exitInconclusive, status)
	must.Contain(t, read(t, filepath.Join(none, "night", "summary.md")), "## relapse: 0 of 2 scenarios passed")
}

// pinned is an action by its commit: a tag can be moved.
var pinned = regexp.MustCompile(`^[a-z0-9-]+/[a-z0-9-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+$`)

// Workflows run code of vendors: they name actions by commit, with the tag beside it, and leave no token on disk.
func TestWorkflows(t *testing.T) {
	files := must.Get(filepath.Glob("../../.github/workflows/*.yml"))(t)
	must.Equal(t, "there are workflows", true, len(files) > 0)
	actions := must.Get(filepath.Glob("../../.github/actions/*/action.yml"))(t)
	for _, file := range append(files, actions...) {
		text := must.Read(t, file)
		for line := range strings.Lines(string(text)) {
			_, action, uses := strings.Cut(line, "uses: ")
			if action = strings.TrimSpace(action); uses && !strings.HasPrefix(action, "./") {
				must.Equal(t, "pinned in "+file+": "+action, true, pinned.MatchString(action))
			}
		}
		var workflow struct {
			Jobs map[string]struct {
				Steps []struct {
					Uses string
					With map[string]any
				}
			}
		}
		must.NoError(t, yaml.Unmarshal(text, &workflow))
		for name, job := range workflow.Jobs {
			for _, step := range job.Steps {
				if strings.HasPrefix(step.Uses, "actions/checkout@") { // its token is not left there
					must.Equal(t, file+": job "+name, any(false), step.With["persist-credentials"])
				}
			}
		}
	}
}

func TestSetupInstallsDebiansKeys(t *testing.T) {
	must.Contain(t, " "+strings.Join(debianPackages, " ")+" ", " debian-archive-keyring ", " debootstrap ", " gpgv ")
}
