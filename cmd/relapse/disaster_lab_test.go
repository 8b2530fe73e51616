//go:build lab && night

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// The tests of this file take something away from a run in its middle: the disk, Docker, a guest's memory, the clock.
// The run must end with one sentence and the right status, remove its lab, and keep what it has recorded.

func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// fill fills the file system of a folder. The returned function frees it again.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	file, err := os.Create(filepath.Join(dir, "filler"))
	must.NoError(t, err)
	defer file.Close()
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() { must.NoError(t, os.Remove(file.Name())) }
}

// sentence asserts that the session has written one sentence with these words to standard error.
func (s *session) sentence(words ...string) {
	s.t.Helper()
	said := ""
	for line := range strings.Lines(s.stderr.String()) {
		if !strings.HasPrefix(line, "time=") { // the log's
			said += line
		}
	}
	must.Equal(s.t, "sentences in "+said, 1, strings.Count(said, "\n"))
	must.Contain(s.t, "begins "+said, append(words, "begins relapse: ")...)
}

func (s *session) readable(output string) report.Report {
	s.t.Helper()
	runs, _ := filepath.Glob(filepath.Join(output, s.scenario, "2*")) // the pattern is right
	if len(runs) != 1 {
		s.t.Fatalf("%d runs in %s, want one", len(runs), output)
	}
	r := must.Get(report.Read(filepath.Join(runs[0], "report.json")))(s.t)
	must.Equal(s.t, "half files", nil, must.Get(filepath.Glob(filepath.Join(runs[0], "*.tmp")))(s.t))
	must.Equal(s.t, "there is a page", true, len(must.Read(s.t, filepath.Join(runs[0], "report.html"))) > 0)
	got := end(s.t, program(context.WithoutCancel(s.t.Context()), "judge", runs[0]))
	s.t.Logf("judge: status %d\n%s%s", got.status, got.stdout, got.stderr)
	must.Contain(s.t, got.stdout, s.scenario+" "+filepath.Base(runs[0])+": stored ")
	return r
}

func TestReportFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("file systems need root")
	}
	for _, test := range []struct {
		name   string
		dir    func(t *testing.T) string
		status int
		says   string
	}{
		{"a read-only file system", func(t *testing.T) string {
			dir := smallDisk(t, "64k")
			must.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			return dir
		}, exitUsage, "--output: mkdir DIR/node-drain: read-only file system"},
		{"a file in place of the scenario's folder", func(t *testing.T) string {
			return filepath.Dir(must.Write(t, filepath.Join(t.TempDir(), scenario), ""))
		}, exitUsage, "--output: mkdir DIR/node-drain: not a directory"},
		{"a full disk", func(t *testing.T) string {
			dir := smallDisk(t, "64k")
			fill(t, dir)
			return dir
		}, exitMachine, "no space left on device"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := test.dir(t)
			s := start(t, nil, "run", scenario, "--output", dir)
			s.ends(test.status, time.Minute)
			s.sentence(strings.ReplaceAll(test.says, "DIR", dir))
			must.Equal(t, "it has begun", "", s.output())
		})
	}
}

func TestDiskFillsUp(t *testing.T) {
	docker := onlyLab(t)
	const name, variant = "masquerade-drift", "translated"
	for _, test := range []struct{ name, at, verdict string }{
		{"before the baseline", "components are installed", "unknown"},
		{"when the verdict is known", "verdict prevented", "prevented"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := smallDisk(t, "1m")
			s := start(t, nil, "run", name, "--variant", variant, "--output", dir)
			s.printed(test.at, 3*time.Minute)
			empty := fill(t, dir)
			s.ends(exitMachine, 3*time.Minute)
			s.sentence("the run could not be stored", "no space left on device")
			nothingLeft(t, docker)
			empty()
			must.Equal(t, "verdict", "inconclusive", s.readable(dir).Verdict)
		})
	}
}

func dockerd() int {
	text, err := os.ReadFile("/run/docker.pid")
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || strings.TrimSpace(string(comm)) != "dockerd" {
		return 0
	}
	return pid
}

// TestDockerKilled kills Docker's engine during a run. The lab can only be taken down when the engine runs again.
func TestDockerKilled(t *testing.T) {
	docker := onlyLab(t)
	for _, at := range []string{"routers and hosts", "components are installed"} {
		t.Run(at, func(t *testing.T) {
			s := start(t, nil, "run", scenario, "--variant", affected)
			s.printed(at, 3*time.Minute)
			pid := dockerd()
			if pid == 0 {
				t.Fatal("there is no dockerd")
			}
			must.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			defer func() {
				// dockerd gives up while the containerd of the killed engine still runs; the next start succeeds.
				must.NoError(t, await.Until(context.WithoutCancel(t.Context()), "setup to start Docker", time.Second, 2*time.Minute,
					func(ctx context.Context) (bool, string, error) {
						got := end(t, program(ctx, "setup"))
						return got.status == exitExpected, fmt.Sprintf("%+v", got), nil
					}))
				end(t, program(context.WithoutCancel(t.Context()), "down", scenario)).prints(t, exitExpected)
				nothingLeft(t, docker)
			}()
			s.ends(exitMachine, 3*time.Minute)
			s.sentence("Docker stopped answering", "relapse doctor", "relapse down")
			if at == "components are installed" {
				s.readable(s.dir)
			}
		})
	}
}

// TestClockJumps sets the clock ahead by an hour after the baseline has begun, and back after the fault.
func TestClockJumps(t *testing.T) {
	onlyLab(t)
	now := func(clock int32) time.Duration {
		var at unix.Timespec
		must.NoError(t, unix.ClockGettime(clock, &at))
		return time.Duration(at.Nano())
	}
	set := func(to time.Duration) {
		at := unix.NsecToTimespec(int64(to))
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &at); err != nil {
			t.Skipf("the clock cannot be set here: %v", err)
		}
	}
	wall, monotonic := now(unix.CLOCK_REALTIME), now(unix.CLOCK_MONOTONIC)
	restore := func() { set(wall + now(unix.CLOCK_MONOTONIC) - monotonic) }
	t.Cleanup(restore)

	short := withoutRemedies + "=1"
	s := start(t, []string{short}, "run", scenario, "--variant", affected)
	s.printed("components are installed", 3*time.Minute)
	set(now(unix.CLOCK_REALTIME) + time.Hour)
	s.printed("cilium-1.11.6          symptom", 2*time.Minute)
	restore()
	s.ends(exitExpected, 5*time.Minute)
	took := now(unix.CLOCK_MONOTONIC) - monotonic

	r, v := s.report(), s.judged("pass", "reproduced")
	must.Equal(t, took, true, max(r.Timings.Total, v.ElapsedMS) <= took.Milliseconds())
	within := func(what string, at time.Time) {
		outside := at.Before(r.Started) || at.After(r.Started.Add(took))
		must.Equal(t, fmt.Sprint(what, " is outside of the run, at ", at), false, outside)
	}
	for _, step := range r.Steps {
		within(step.Name, step.Began)
		if step.Ended != nil {
			within("the end of "+step.Name, *step.Ended)
			must.Equal(t, step, false, step.Ended.Before(step.Began))
		}
	}
	within("the fault", v.Fault.Began)
	within("the onset", *v.Onset)
	for _, f := range v.Findings {
		if f.At != nil {
			within("a finding", *f.At)
		}
	}
	judge := program(t.Context(), "judge", report.Latest(s.dir, scenario))
	judge.Env = append(judge.Env, short)
	end(t, judge).prints(t, exitExpected)
}

func TestTwoUsers(t *testing.T) {
	docker := onlyLab(t)
	user := func(name string) []string {
		home := filepath.Join(t.TempDir(), name)
		must.NoError(t, os.MkdirAll(filepath.Join(home, ".cache"), 0o700))
		was := must.Get(os.UserCacheDir())(t)
		// The link keeps the image cache: nothing has to be built again.
		must.NoError(t, os.Symlink(filepath.Join(was, "relapse"), filepath.Join(home, ".cache", "relapse")))
		env := []string{"HOME=" + home, "XDG_CACHE_HOME=", "SUDO_USER=" + name}
		for _, key := range []string{"GOCACHE", "GOMODCACHE", "GOPATH"} {
			env = append(env, key+"="+strings.TrimSpace(string(must.Get(exec.Command("go", "env", key).Output())(t))))
		}
		return env
	}
	one, other := user("one"), user("other")
	const small = "unpinned-image"
	first := start(t, append(one, withoutRemedies+"=1"), "run", scenario, "--variant", affected)
	first.printed("routers and hosts", 3*time.Minute)

	same := start(t, other, "run", scenario, "--variant", affected)
	same.ends(exitMachine, time.Minute)
	same.sentence(`lab "node-drain" is held by process `+strconv.Itoa(first.cmd.Process.Pid), "wait for it to end")

	whole(t, exitExpected, other, "up", small)
	its := func() []string {
		return each.Where(parts(t, docker), func(part string) bool { return strings.Contains(part, scenario) })
	}
	before := its()
	whole(t, exitExpected, other, "down", small)
	must.Equal(t, "of the first one's lab as much is there", true, len(its()) >= len(before))
	first.ends(exitExpected, 5*time.Minute)
	first.judged("pass", "reproduced")
}

// TestGuestOutOfMemory fills the memory of a guest with files in a tmpfs: its kernel kills one process after the other.
func TestGuestOutOfMemory(t *testing.T) {
	docker := onlyLab(t)
	s := start(t, []string{guestMemory + "=1"}, "run", "ipvs-deadlock", "--variant", "kube-proxy-1.13.2")
	s.ends(exitInconclusive, 8*time.Minute)
	s.unknown("edge3")
	t.Logf("standard error: %q", s.stderr.String())
	s.console("edge3", "Out of memory")
	nothingLeft(t, docker)
	s.readable(s.dir)
}
