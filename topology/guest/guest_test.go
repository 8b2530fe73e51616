package guest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/guest/agent"
	"github.com/relapse-dev/relapse/topology/guest/launch"
)

// newGuest returns a guest whose agent runs in this process.
func newGuest(t *testing.T) *Guest {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, launch.Socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { _ = agent.Serve(l) }() // ends with l
	return Open(nil, "", "node1", dir)
}

func TestExec(t *testing.T) {
	g := newGuest(t)
	out, err := g.Exec(t.Context(), "echo", "a b")
	if out != "a b\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	input := strings.Repeat("0123456789", 50000) // more than a frame holds
	out, err = g.ExecInput(t.Context(), strings.NewReader(input), "cat")
	if out != input || err != nil {
		t.Errorf("%d bytes of %d came back, %v", len(out), len(input), err)
	}
	out, err = g.Exec(t.Context(), "cat") // no input ends at once
	if out != "" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
}

func TestExecFails(t *testing.T) {
	g := newGuest(t)
	t.Run("status", func(t *testing.T) {
		out, err := g.Exec(t.Context(), "sh", "-c", "echo out; echo err >&2; exit 4")
		var exit *ExitError
		if out != "out\n" || !errors.As(err, &exit) || exit.Status != 4 {
			t.Fatalf("%q, %v", out, err)
		}
		if text := err.Error(); !strings.HasPrefix(text, "on node1: sh -c ") || !strings.Contains(text, "exit status 4") || !strings.Contains(text, "err") {
			t.Errorf("the error is %q", text)
		}
	})
	t.Run("no such program", func(t *testing.T) {
		if _, err := g.Exec(t.Context(), "/nowhere/x"); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := g.Exec(ctx, "sleep", "60"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no launcher", func(t *testing.T) {
		g := Open(nil, "", "node2", t.TempDir())
		if _, err := g.Exec(t.Context(), "true"); !errors.Is(err, ErrNotAnswering) || !strings.Contains(err.Error(), "node2") {
			t.Errorf("got %v", err)
		}
	})
}

func TestImage(t *testing.T) {
	catalogue, err := images.Open("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, kernel := range topology.Kernels {
		if _, err := catalogue.Recipe(Image(kernel)); err != nil {
			t.Error(err)
		}
	}
}

func TestContainer(t *testing.T) {
	o := Options{Image: "i", Hostname: "node1", Dir: "/run/relapse/lab/node1", Binds: []string{"/a:/b:ro"}, Accelerator: TCG, CPUs: 2, Memory: 1024}
	config, host := Container(o)
	if !slices.Equal(host.Binds, []string{"/run/relapse/lab/node1:/run/relapse", "/a:/b:ro"}) {
		t.Errorf("binds are %q", host.Binds)
	}
	if host.Memory != (1024+Overhead)<<20 || host.Privileged {
		t.Errorf("memory %d, privileged %t", host.Memory, host.Privileged)
	}
	if len(host.Devices) != 1 || config.Hostname != "node1" {
		t.Errorf("%+v", host.Devices)
	}
	o.Accelerator = KVM
	if _, host := Container(o); len(host.Devices) != 2 || host.Devices[1].PathOnHost != "/dev/kvm" {
		t.Errorf("with KVM: %+v", host.Devices)
	}
}

func TestWiring(t *testing.T) {
	got := wiring(map[string]string{"net/ipv4/ip_forward": "1", "net/ipv4/conf/*/rp_filter": "0"},
		[]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")})
	want := `for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >"$f"; done
for f in /proc/sys/net/ipv4/ip_forward; do echo 1 >"$f"; done
ip route replace default nexthop via 10.0.0.1 nexthop via 10.0.0.2
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := wiring(nil, nil); got != "" {
		t.Errorf("nothing to do: %q", got)
	}
}
