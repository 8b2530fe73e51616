//go:build lab

package kindlab

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

const icmpRate = "/proc/sys/net/ipv4/icmp_ratelimit"

// ip runs ip(8) in this thread's network namespace.
func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %q: %v: %s", args, err, out)
	}
	return string(out)
}

// TestCableComesBack cuts the power of a node with a cable to a bridge: its namespace goes, and
// a new one gets the same cable, routes and sysctls.
func TestCableComesBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread() // the thread ends with the test
	machine := must.Get(netns.New())(t)
	defer machine.Close()
	ip(t, "link", "add", "rack", "type", "bridge")
	ip(t, "link", "set", "rack", "up")

	// node is a process with a network namespace of its own.
	node := func() (pid int, space netns.NsHandle) {
		cmd := exec.Command("unshare", "--net", "sh", "-c", "echo; exec sleep 1000")
		out := must.Get(cmd.StdoutPipe())(t)
		must.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		})
		must.Get(out.Read(make([]byte, 1)))(t)
		return cmd.Process.Pid, must.Get(netns.GetFromPid(cmd.Process.Pid))(t)
	}
	within := func(space netns.NsHandle, do func() error) {
		t.Helper()
		must.NoError(t, netns.Set(space))
		err := do()
		if back := netns.Set(machine); back != nil {
			t.Fatal(back)
		}
		must.NoError(t, err)
	}
	shows := func() string {
		links := ip(t, "-o", "link", "show", "eth1")
		mac := links[strings.Index(links, "link/ether"):]
		value := must.Read(t, "/proc/sys/net/ipv4/fib_multipath_hash_policy")
		routes := strings.Split(strings.TrimSpace(ip(t, "-4", "route")), "\n")
		slices.Sort(routes)
		rate := must.Read(t, icmpRate)
		return fmt.Sprintf("%s%s%s%s%s", strings.Fields(mac)[1], ip(t, "-4", "-o", "address", "show", "eth1")[2:], strings.Join(routes, "\n"), value, rate)
	}

	pid, first := node()
	ip(t, "link", "add", "r1-0", "mtu", "1400", "master", "rack", "type", "veth", "peer", "name", "eth1", "mtu", "1400", "netns", fmt.Sprint(pid))
	ip(t, "link", "set", "r1-0", "up")
	var was kernelState
	var cables []cable
	var before string
	within(first, func() (err error) {
		ip(t, "link", "set", "lo", "up")
		ip(t, "link", "set", "eth1", "up")
		ip(t, "address", "add", "10.4.94.32/24", "dev", "eth1")
		ip(t, "route", "add", "default", "nexthop", "via", "10.4.94.239", "nexthop", "via", "10.4.94.238")
		ip(t, "route", "add", "10.9.0.0/16", "via", "10.4.94.21")
		if err := os.WriteFile("/proc/sys/net/ipv4/fib_multipath_hash_policy", []byte("1"), 0); err != nil {
			return err
		}
		was, cables, err = readKernel([]topology.Link{{Network: "rack", Address: netip.MustParseAddr("10.4.94.32")}}, nil)
		before = shows()
		return err
	})
	if len(cables) != 1 {
		t.Fatalf("cables are %+v, want one", cables)
	}
	if err := cables[0].findPort(); err != nil || cables[0].port != "r1-0" || cables[0].bridge != "rack" {
		t.Fatalf("the cable is %+v, %v", cables[0], err)
	}
	first.Close()
	ip(t, "link", "delete", "r1-0") // as the kernel does when the namespace ends

	pid, second := node()
	defer second.Close()
	must.NoError(t, cables[0].lay(pid))
	within(second, func() error {
		ip(t, "link", "set", "lo", "up")
		if err := configure(cables); err != nil {
			return err
		}
		// Components leave links and routes behind.
		ip(t, "link", "add", "cni0", "type", "bridge")
		ip(t, "route", "add", "10.8.0.0/16", "via", "10.4.94.21")
		ip(t, "route", "add", "default", "via", "10.4.94.21")
		if err := os.WriteFile(icmpRate, []byte("0"), 0); err != nil {
			return err
		}
		if err := was.restore(); err != nil {
			return err
		}
		must.Equal(t, "the node has", before, shows())
		if links := ip(t, "-br", "link"); strings.Contains(links, "cni0") {
			t.Errorf("a link was left:\n%s", links)
		}
		return nil
	})
	if port := ip(t, "-o", "link", "show", "r1-0"); !strings.Contains(port, "master rack") || !strings.Contains(port, "mtu 1400") {
		t.Errorf("the port is %s", port)
	}
}
