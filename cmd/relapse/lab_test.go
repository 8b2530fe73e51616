//go:build lab

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/moby/moby/client"
	"github.com/vishvananda/netlink"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
	"github.com/relapse-dev/relapse/topology/rtnl"
)

// The tests of this file run relapse as its users do, on real labs. A test fails if it leaves the machine changed.

const (
	scenario = "node-drain"
	affected = "cilium-1.11.6"
	fixed    = "cilium-1.12.0"
	// prefixed is the prefix of all names that relapse gives to a lab's parts in Docker and nftables.
	prefixed = "relapse-" + scenario
)

func dockerEngine(t *testing.T) *client.Client {
	t.Helper()
	docker := must.Get(client.New(client.FromEnv))(t)
	t.Cleanup(func() { docker.Close() })
	return docker
}

// parts lists all parts of labs on this machine. It does not use package kindlab, which is under test.
func parts(t *testing.T, docker *client.Client) []string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // it is also called at clean-up
	var all []string
	for _, c := range must.Get(docker.ContainerList(ctx, client.ContainerListOptions{All: true}))(t).Items {
		if name := strings.TrimPrefix(c.Names[0], "/"); strings.HasPrefix(name, "relapse-") || c.Labels["dev.relapse.lab"] != "" {
			all = append(all, "container "+name)
		}
	}
	for _, n := range must.Get(docker.NetworkList(ctx, client.NetworkListOptions{}))(t).Items {
		if strings.HasPrefix(n.Name, "relapse-") || n.Labels["dev.relapse.lab"] != "" {
			all = append(all, "network "+n.Name)
		}
	}
	for _, table := range must.Get(new(nftables.Conn).ListTables())(t) {
		if strings.HasPrefix(table.Name, "relapse-") {
			all = append(all, "nftables table "+table.Name)
		}
	}
	for _, l := range must.Get(rtnl.Dump(context.WithoutCancel(t.Context()), netlink.LinkList))(t) {
		if strings.HasPrefix(l.Attrs().Name, "rl-") {
			all = append(all, "link "+l.Attrs().Name)
		}
	}
	folders, err := os.ReadDir(kindlab.StateDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, f := range folders {
		if f.IsDir() {
			all = append(all, "folder "+f.Name())
		}
	}
	for _, path := range must.Get(filepath.Glob("/proc/[0-9]*/cmdline"))(t) {
		text, err := os.ReadFile(path)
		if err == nil && strings.HasPrefix(filepath.Base(string(text)), "docker\x00") && bytes.Contains(text, []byte("relapse-")) {
			all = append(all, "process "+strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return all
}

func nothingLeft(t *testing.T, docker *client.Client) {
	t.Helper()
	must.Equal(t, "left behind", nil, parts(t, docker))
}

// counters are the files of /proc/sys that the kernel itself changes, or whose reading has an effect.
var counters = []string{"aio-nr", "dentry-state", "file-nr", "inode-nr", "inode-state", "ns_last_pid", "perf_event_max_sample_rate", "stat_refresh", "tainted"}

func machineState(t *testing.T, docker *client.Client) map[string]string {
	t.Helper()
	state := map[string]string{}
	for _, v := range must.Get(docker.VolumeList(context.WithoutCancel(t.Context()), client.VolumeListOptions{}))(t).Items {
		state["volume "+v.Name] = "is there"
	}
	for _, l := range must.Get(rtnl.Dump(context.WithoutCancel(t.Context()), netlink.LinkList))(t) {
		state["link "+l.Attrs().Name] = "is there"
	}
	routes, err := rtnl.Dump(context.WithoutCancel(t.Context()), func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	must.NoError(t, err)
	for _, r := range routes {
		state["route "+r.String()] = "is there"
	}
	for _, pattern := range []string{
		"/proc/sys/net/ipv4/*", "/proc/sys/net/ipv4/conf/all/*", "/proc/sys/net/ipv4/conf/default/*", "/proc/sys/net/bridge/*", "/proc/sys/net/core/*",
		"/proc/sys/kernel/*", "/proc/sys/kernel/keys/*", "/proc/sys/vm/*", "/proc/sys/fs/*",
	} {
		for _, f := range must.Get(filepath.Glob(pattern))(t) {
			if slices.Contains(counters, filepath.Base(f)) {
				continue
			}
			if text, err := os.ReadFile(f); err == nil { // some can only be written
				state[f] = strings.TrimSpace(string(text))
			}
		}
	}
	for name, command := range map[string][]string{"iptables": {"iptables-save"}, "ip6tables": {"ip6tables-save"}, "netns": {"ip", "netns", "list"}, "mounts": {"cat", "/proc/self/mountinfo"}} {
		out, err := exec.Command(command[0], command[1:]...).Output()
		if err != nil {
			continue // not installed
		}
		for line := range strings.Lines(string(out)) {
			if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ":") { // times, and counters
				state[name+" "+strings.TrimSpace(line)] = "is there"
			}
		}
	}
	return state
}

// onlyLab fails the test unless there is no lab now and at the end of the test, when the machine must be unchanged.
func onlyLab(t *testing.T) *client.Client {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("labs need root")
	}
	docker := dockerEngine(t)
	if there := parts(t, docker); len(there) > 0 {
		t.Fatalf("there is a lab already, which this test would disturb (relapse down): %q", there)
	}
	before := machineState(t, docker)
	t.Cleanup(func() {
		if there := parts(t, docker); len(there) > 0 {
			t.Errorf("left behind: %q", there)
			end(t, program(context.WithoutCancel(t.Context()), "down")).prints(t, exitExpected)
		}
		for _, difference := range differences(before, machineState(t, docker)) {
			t.Error(difference)
		}
	})
	return docker
}

func differences(before, after map[string]string) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(before)) {
		switch now, ok := after[key]; {
		case !ok:
			all = append(all, fmt.Sprintf("%s was %q and is gone", key, before[key]))
		case now != before[key]:
			all = append(all, fmt.Sprintf("%s was %q and is %q", key, before[key], now))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if _, was := before[key]; !was {
			all = append(all, fmt.Sprintf("%s is new: %q", key, after[key]))
		}
	}
	return all
}

type session struct {
	t        *testing.T
	cmd      *exec.Cmd
	scenario string
	dir      string // of the reports

	mu     sync.Mutex
	lines  []string
	stderr bytes.Buffer
	exited chan struct{}
}

// start runs a command of relapse on a scenario in the background, in a process group of its own as a shell does. At
// the end of the test a running command is killed, and its lab is taken down.
func start(t *testing.T, env []string, args ...string) *session {
	t.Helper()
	s := &session{t: t, scenario: args[1], exited: make(chan struct{})}
	if args[0] == "run" && !slices.Contains(args, "--output") {
		s.dir = reportsDir(t)
		args = append(args, "--output", s.dir)
	}
	s.cmd = program(context.WithoutCancel(t.Context()), args...)
	s.cmd.Env = append(s.cmd.Env, env...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.cmd.Stderr = &s.stderr
	stdout, write, err := os.Pipe()
	must.NoError(t, err)
	s.cmd.Stdout = write
	must.NoError(t, s.cmd.Start())
	write.Close()
	go func() {
		defer stdout.Close()
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			s.mu.Lock()
			s.lines = append(s.lines, scanner.Text())
			s.mu.Unlock()
		}
	}()
	go func() {
		defer close(s.exited)
		_ = s.cmd.Wait() // the status is checked below
	}()
	t.Cleanup(func() {
		if s.ended() {
			return
		}
		s.signal(syscall.SIGKILL)
		<-s.exited
		end(t, program(context.WithoutCancel(t.Context()), "down", s.scenario)).prints(t, exitExpected)
	})
	return s
}

// reportsDir is the folder for the reports of a test's runs: below RELAPSE_REPORTS, or a temporary one.
func reportsDir(t *testing.T) string {
	t.Helper()
	keep := os.Getenv("RELAPSE_REPORTS")
	if keep == "" {
		return t.TempDir()
	}
	dir := filepath.Join(keep, "cli", strings.NewReplacer("/", "-", ",", "").Replace(t.Name()))
	must.NoError(t, os.RemoveAll(dir))
	return dir
}

// signal sends a signal to the process alone, if it is still there.
func (s *session) signal(sig os.Signal) { _ = s.cmd.Process.Signal(sig) }

// ctrlC sends SIGINT to all processes of the group, as a terminal does: also to the processes that relapse has started.
func (s *session) ctrlC() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGINT) }

func (s *session) hasChild(name string) bool {
	all, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	for _, path := range all {
		// proc_pid_stat(5): pid (comm) state ppid ...
		text, err := os.ReadFile(path)
		_, child, _ := strings.Cut(string(text), "("+name+") ")
		if fields := strings.Fields(child); err == nil && len(fields) > 1 && fields[1] == fmt.Sprint(s.cmd.Process.Pid) {
			return true
		}
	}
	return false
}

func (s *session) ended() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

func (s *session) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

// printed waits for a text. Each new line begins the bound anew: only a run that hangs exceeds it.
func (s *session) printed(text string, bound time.Duration) {
	s.t.Helper()
	for before := ""; !strings.Contains(before, text); {
		eventually(s.t, fmt.Sprintf("relapse to print %q", text), bound, func() (bool, string) {
			ended, out := s.ended(), s.output()
			if ended && !strings.Contains(out, text) {
				s.t.Fatalf("relapse ended and never printed %q:\n%s\n%s\n%s", text, s.cmd.ProcessState, out, s.stderr.String())
			}
			grown := out != before
			before = out
			return grown, out
		})
	}
}

func (s *session) ends(want int, bound time.Duration) {
	s.t.Helper()
	began := time.Now()
	eventually(s.t, "relapse to end", bound, func() (bool, string) { return s.ended(), s.output() })
	s.t.Logf("ended after %s", time.Since(began).Round(10*time.Millisecond))
	must.Equal(s.t, s.output()+"\n"+s.stderr.String(), want, s.cmd.ProcessState.ExitCode())
}

func (s *session) report() report.Report {
	s.t.Helper()
	return must.Get(report.Read(filepath.Join(report.Latest(s.dir, s.scenario), "report.json")))(s.t)
}

func whole(t *testing.T, want int, env []string, args ...string) *session {
	t.Helper()
	s := start(t, env, args...)
	s.ends(want, 5*time.Minute)
	return s
}

func (s *session) interrupted(docker *client.Client) {
	s.t.Helper()
	s.ends(exitInterrupted, time.Minute)
	must.Equal(s.t, "standard error", "relapse: interrupted\n", s.stderr.String())
	nothingLeft(s.t, docker)
}

// killed kills the run by SIGKILL. It has left something with leaves in its name, and down can be called twice.
func (s *session) killed(docker *client.Client, leaves string) {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	s.ends(-1, time.Minute)
	if there := parts(s.t, docker); !slices.ContainsFunc(there, func(part string) bool { return strings.Contains(part, leaves) }) {
		s.t.Errorf("nothing of %s was left, so that down has nothing to find: %q", leaves, there)
	}
	for range 2 {
		got := relapse(s.t, "down")
		must.Equal(s.t, "down", ended{exitExpected, got.stdout, ""}, got)
	}
	nothingLeft(s.t, docker)
}

// judged asserts the verdicts of the run and of its one variant, and returns the variant.
func (s *session) judged(run, variant string) report.Variant {
	s.t.Helper()
	r := s.report()
	if len(r.Variants) != 1 {
		s.t.Fatalf("%d variants in the report, want one", len(r.Variants))
	}
	must.Equal(s.t, "verdicts", [...]string{run, variant}, [...]string{r.Verdict, r.Variants[0].Verdict})
	return r.Variants[0]
}

// unknown asserts that the run could not be judged, and that the report says what was at fault.
func (s *session) unknown(fault string) {
	s.t.Helper()
	v := s.judged("inconclusive", "unknown")
	must.Contain(s.t, strings.Join(v.Reasons, "\n"), fault)
}

func (s *session) console(guest, says string) {
	s.t.Helper()
	pattern := filepath.Join(report.Latest(s.dir, s.scenario), "evidence", "*", "*-log-"+guest+"-console.txt")
	consoles, _ := filepath.Glob(pattern) // the pattern is right
	if len(consoles) != 1 {
		s.t.Fatalf("%d consoles in the evidence, want one", len(consoles))
	}
	must.Contain(s.t, read(s.t, consoles[0]), says)
}

func inside(t *testing.T, member string, command ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", append([]string{"exec", prefixed + "-" + member}, command...)...).CombinedOutput()
	return string(out), err
}

// TestUpstreamThatIsNotThere takes the vendors' images from a registry that does not answer.
func TestUpstreamThatIsNotThere(t *testing.T) {
	docker := onlyLab(t)
	// Nobody listens on the port of tcpmux.
	const nowhere = "docker.io=http://127.0.0.1:1,registry.k8s.io=http://127.0.0.1:1"
	s := whole(t, exitMachine, nil, "run", "unpinned-image", "--images=upstream", "--upstream", nowhere)
	const want = "the registry of docker.io, http://127.0.0.1:1, cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused: " +
		"set a mirror with --upstream docker.io=URL, or run without --images=upstream\n"
	must.Contain(t, s.stderr.String(), want)
	nothingLeft(t, docker)
}

func TestInterrupt(t *testing.T) {
	docker := onlyLab(t)
	uplinks := startCapture(t)
	for _, test := range []struct {
		name string
		// reached waits until the run is at the point of the interrupt.
		reached func(*session)
		stop    func(*session)
	}{
		{"while images are looked at", func(s *session) {
			eventually(s.t, "relapse to ask go for the images' inputs", time.Minute, func() (bool, string) {
				return s.hasChild("go"), s.output()
			})
		}, (*session).ctrlC},
		{"when networks are there", func(s *session) { s.printed("isolated networks", time.Minute) },
			func(s *session) { s.signal(syscall.SIGTERM) }},
		{"while kind creates the cluster", func(s *session) {
			eventually(s.t, "kubeadm to run", time.Minute, func() (bool, string) {
				_, err := inside(s.t, "k8s-control-plane", "pgrep", "kubeadm")
				return err == nil, s.output()
			})
		}, (*session).ctrlC},
		{"in the baseline", func(s *session) { s.printed("components are installed", 2*time.Minute) },
			func(s *session) { s.signal(syscall.SIGINT) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := start(t, nil, "run", scenario, "--variant", affected)
			test.reached(s)
			test.stop(s)
			s.interrupted(docker)
		})
	}
	t.Run("twice", func(t *testing.T) {
		s := start(t, nil, "run", scenario, "--variant", affected)
		s.printed("lab is up", 2*time.Minute) // it takes seconds to take it down
		s.signal(syscall.SIGTERM)
		s.printed("interrupted: changes are undone", time.Minute)
		eventually(t, "the second signal to end it", time.Minute, func() (bool, string) {
			s.signal(syscall.SIGTERM) // no effect if it has ended
			return s.ended(), s.output()
		})
		names := "left on this machine: parts of " + scenario + "; remove them: relapse down " + scenario + "\n"
		must.Equal(t, "status", exitInterrupted, s.cmd.ProcessState.ExitCode())
		must.Contain(t, s.stderr.String()+"end", names+"end")
		relapse(t, "down").prints(t, exitExpected)
		nothingLeft(t, docker)
	})
	t.Run("when its time is up", func(t *testing.T) {
		s := whole(t, exitInconclusive, nil, "run", scenario, "--variant", affected, "--timeout", "6s")
		s.unknown("")
		must.Equal(t, "standard error", "relapse: the run took longer than 6s\n", s.stderr.String())
		nothingLeft(t, docker)
	})
	uplinks.quiet(t)
}

func TestKill(t *testing.T) {
	docker := onlyLab(t)
	for _, at := range []string{"routers and hosts", "lab is up"} {
		t.Run(at, func(t *testing.T) {
			s := start(t, nil, "run", scenario, "--variant", affected)
			s.printed(at, 2*time.Minute)
			s.killed(docker, prefixed)
		})
	}
}

// fullDisk is a command that runs relapse with an image cache on a small file system. The file system is mounted in a
// mount namespace of its own, so it ends with the process.
func fullDisk(t *testing.T, size string, args ...string) *exec.Cmd {
	t.Helper()
	self := must.Get(os.Executable())(t)
	cache := t.TempDir()
	script := fmt.Sprintf("mount -t tmpfs -o size=%s tmpfs %q && exec %q \"$@\"", size, cache, self)
	cmd := program(t.Context())
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", script, "relapse"}, args...)
	goCache := must.Get(exec.Command("go", "env", "GOCACHE").Output())(t)
	cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+cache, "GOCACHE="+strings.TrimSpace(string(goCache)))
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd
}

func TestFullDisk(t *testing.T) {
	docker := onlyLab(t)
	for _, args := range [][]string{{"doctor"}, {"up", scenario}, {"run", scenario, "--output", t.TempDir()}} {
		t.Run(args[0], func(t *testing.T) {
			end(t, fullDisk(t, "64m", args...)).complains(t, exitMachine,
				"the image cache needs 5 GB of free disk", "relapse images prune, or put the image cache on another file system")
		})
	}
	t.Run("while an image is built", func(t *testing.T) {
		end(t, fullDisk(t, "128k", "images", "build", "registry.k8s.io/pause:3.10")).complains(t, exitMachine, "no space left on device")
	})
	nothingLeft(t, docker)
}
