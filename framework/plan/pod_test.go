package plan

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repository is a git repository whose make build makes a relapse that prints what it
// is called with, and ends with the status in the file status.<command>.
func repository(t *testing.T) (url, dir string) {
	t.Helper()
	dir = t.TempDir()
	makefile := `build:
	mkdir bin
	printf '#!/bin/bash\nprintf "<%%s>" "$$@"; echo; exit $$(cat ` + dir + `/status.$$1 2>/dev/null || echo 0)\n' >bin/relapse
	chmod +x bin/relapse
`
	if err := os.WriteFile(filepath.Join(dir, "Makefile"), []byte(makefile), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=v1"}, {"add", "Makefile"},
		{"-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "--message=m"},
	} {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	return "file://" + dir, dir
}

// in runs a container's command here, and returns what it printed and its exit status.
func in(t *testing.T, command []string) (out string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "<") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n"), cmd.ProcessState.ExitCode()
}

func TestPodRunsAShard(t *testing.T) {
	url, dir := repository(t)
	from := Source{Repository: url, Ref: "v1"}
	shard := Shard{1, []Item{{"node-drain", minute}}}
	command := from.runs(Run{Label: "cilium && !slow"}.args(shard, "/reports")).Command
	const run = "<run><node-drain><--label=cilium && !slow><--output=/reports><--timeout=48m0s>"
	status := func(of, is string) {
		if err := os.WriteFile(filepath.Join(dir, "status."+of), []byte(is), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, status := in(t, command); out != "<doctor>\n"+run || status != 0 {
		t.Errorf("a machine that can run it: status %d\n%s", status, out)
	}
	status("run", "1")
	if out, status := in(t, command); status != 1 {
		t.Errorf("a verdict that was not expected: status %d\n%s", status, out)
	}
	status("doctor", "3")
	if out, status := in(t, command); out != "<doctor>\n<setup>\n"+run || status != 1 {
		t.Errorf("a machine that can be cured: status %d\n%s", status, out)
	}
	status("setup", "3")
	if out, status := in(t, command); out != "<doctor>\n<setup>" || status != 3 {
		t.Errorf("a pod that is not privileged: status %d\n%s", status, out)
	}
	from.Ref = "v2"
	if out, status := in(t, from.runs(nil).Command); out != "" || status == 0 {
		t.Errorf("no such version: status %d\n%s", status, out)
	}
}

// The last step of a workflow names what the plan holds: relapse merge says what of it has
// no report.
func TestPodMerges(t *testing.T) {
	url, dir := repository(t)
	from := Source{Repository: url, Ref: "v1"}
	command := from.merges(planned, "/merged", []string{"/reports/shard-1", "/reports/shard-2"}).Command
	const want = "<merge><--output=/merged><--expect=added-nic,node-drain,unpinned-image></reports/shard-1></reports/shard-2>"
	if out, status := in(t, command); out != want || status != 0 {
		t.Errorf("status %d\n%s", status, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "status.merge"), []byte("4"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, status := in(t, command); out != want || status != 4 {
		t.Errorf("a report is missing: status %d\n%s", status, out)
	}
}
