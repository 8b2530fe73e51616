//go:build lab

package probe_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/must"
)

// TestThroughRouter has two ends with a router between them, each in a
// network namespace of its own:
//
//	a 10.99.1.2 --- 10.99.1.1 router 10.99.2.1 --- 10.99.2.2 b
//
// and takes away b's route back, then a's route there.
func TestThroughRouter(t *testing.T) {
	id := fmt.Sprintf("relapse-%d-", os.Getpid())
	ns := map[string]string{"a": id + "a", "b": id + "b", "router": id + "r"}
	for _, n := range ns {
		ip(t, "netns", "add", n)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", n).Run() })
		ip(t, "-n", n, "link", "set", "lo", "up")
	}
	for i, end := range []string{"a", "b"} {
		near, far := fmt.Sprintf("10.99.%d.2", i+1), fmt.Sprintf("10.99.%d.1", i+1)
		ip(t, "-n", ns[end], "link", "add", "eth0", "type", "veth", "peer", "name", "to-"+end, "netns", ns["router"])
		ip(t, "-n", ns[end], "addr", "add", near+"/24", "dev", "eth0")
		ip(t, "-n", ns["router"], "addr", "add", far+"/24", "dev", "to-"+end)
		ip(t, "-n", ns[end], "link", "set", "eth0", "up")
		ip(t, "-n", ns["router"], "link", "set", "to-"+end, "up")
		ip(t, "-n", ns[end], "route", "add", "10.99.0.0/16", "via", far)
	}
	ip(t, "netns", "exec", ns["router"], "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")

	dir := t.TempDir()
	a := spawnIn(t, dir, "a", ns["a"], "10.99.1.2:7007")
	b := spawnIn(t, dir, "b", ns["b"], "10.99.2.2:7007")
	s := start(t, []probe.End{a, b}, append(both("a", "b"), probe.Probe{From: "a", To: "b", Protocol: probe.TCP})...)
	for _, fault := range []struct {
		name, ns, via string
		lost          func(probe.Counts) int
	}{
		{"no way back", ns["b"], "10.99.2.1", func(c probe.Counts) int { return c.LostReply }},
		{"no way there", ns["a"], "10.99.1.1", func(c probe.Counts) int { return c.LostRequest }},
	} {
		waitClean(t, s, 300*time.Millisecond)
		began := time.Now()
		ip(t, "-n", fault.ns, "route", "del", "10.99.0.0/16")
		first := waitLoss(t, s, began, "a->b", "b->a", "a->b/tcp")
		t.Logf("%s: first loss after %s", fault.name, first.Sub(began))
		ip(t, "-n", fault.ns, "route", "add", "10.99.0.0/16", "via", fault.via)
		mended := time.Now()
		since := waitClean(t, s, 50*time.Millisecond, "a->b", "b->a")
		t.Logf("%s: mended; clean since %s, found after %s", fault.name, since.Sub(mended), time.Since(mended))
		line := timeline(t, s, "a->b")
		if c := line.Between(began, mended); c.Lost == 0 || fault.lost(c) < c.Lost-3 {
			t.Errorf("%s: %+v", fault.name, c)
		}
	}
	stop(t, s)
	for _, line := range s.Timelines() {
		t.Log(line.String(), line.RequestTTL, line.Sources)
		if line.Probe.Protocol == probe.TCP {
			continue
		}
		if c := line.Counts(); line.RequestTTL[63] < c.Received || len(line.RequestTTL) != 1 {
			t.Errorf("%s: want TTL 63 throughout, got %v of %+v", line.Probe.Name, line.RequestTTL, c)
		}
	}
	if line := timeline(t, s, "a->b"); line.Errors["ENETUNREACH"] == 0 {
		t.Errorf("no ENETUNREACH without a route: %v", line.Errors)
	}
}

// TestRunFirst has every thread of an agent run in real time.
func TestRunFirst(t *testing.T) {
	id := fmt.Sprintf("relapse-%d-first", os.Getpid())
	ip(t, "netns", "add", id)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", id).Run() })
	end := spawnIn(t, t.TempDir(), "a", id, "127.0.0.1:7007")
	must.NoError(t, end.Agent.RunFirst())
	pids := must.Get(exec.Command("ip", "netns", "pids", id).Output())(t)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%s/task/[0-9]*", strings.TrimSpace(string(pids))))
	if err != nil || len(threads) == 0 {
		t.Fatalf("no threads of process %q: %v", pids, err)
	}
	for _, path := range threads {
		tid := must.Get(strconv.Atoi(filepath.Base(path)))(t)
		if attr, err := unix.SchedGetAttr(tid, 0); err != nil || attr.Policy != unix.SCHED_RR {
			t.Errorf("thread %d: %+v, %v", tid, attr, err)
		}
	}
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// spawnIn runs an agent in a network namespace, and reaches it as the harness
// reaches one in a container.
func spawnIn(t *testing.T, dir, name, ns, listen string) probe.End {
	t.Helper()
	socket := filepath.Join(dir, name)
	cmd := exec.Command("ip", "netns", "exec", ns, must.Get(program())(t), "agent", "--socket", socket, "--listen", listen)
	agent := launched(t, cmd, name, func() string { return fmt.Sprintf("/proc/%d/root%s", cmd.Process.Pid, socket) })
	return probe.End{Name: name, Address: netip.MustParseAddrPort(listen), Agent: agent}
}
