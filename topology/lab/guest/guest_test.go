package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/guest/agent"
	"github.com/relapse-dev/relapse/topology/lab/guest/launch"
	"github.com/relapse-dev/relapse/topology/must"
)

// newGuest returns a guest whose agent runs in this process.
func newGuest(t *testing.T) *Guest {
	t.Helper()
	dir := t.TempDir()
	l := must.Get(net.Listen("unix", filepath.Join(dir, launch.Socket)))(t)
	t.Cleanup(func() { l.Close() })
	go func() { _ = agent.Serve(l) }() // ends with l
	return Open(engine(t, http.StatusNotFound, nil), "node1", "node1", dir)
}

// engine is a Docker engine that answers every inspection with state, and every
// request for a log with a console of two lines.
func engine(t *testing.T, status int, state *container.State) *client.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/logs") {
			const text = "guest boots\nguest: the guest was killed\n"
			header := []byte{byte(stdcopy.Stderr), 0, 0, 0, 0, 0, 0, byte(len(text))}
			_, _ = w.Write(append(header, text...)) // the test detects an error
			return
		}
		if strings.HasSuffix(r.URL.Path, "/wait") && state.Running {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush() // as the engine does: the answer comes later
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(container.InspectResponse{State: state})
	}))
	t.Cleanup(server.Close)
	return must.Get(client.New(client.WithHost("tcp://" + server.Listener.Addr().String())))(t)
}

// TestExecWithoutGuest checks that the error of a command names the state of a guest
// that does not run.
func TestExecWithoutGuest(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		state  *container.State
		want   string
	}{
		{"removed", http.StatusNotFound, nil, "it has no container"},
		{"not started", http.StatusOK, &container.State{Status: "created"}, "it was never powered on"},
		{"power cut", http.StatusOK, &container.State{Status: "exited", ExitCode: 137}, "its power is cut"},
		{"ended", http.StatusOK, &container.State{Status: "exited", ExitCode: 1, FinishedAt: "2026-01-02T03:04:05Z"},
			"it ended at 2026-01-02T03:04:05Z with exit status 1: guest: the guest was killed"},
		{"launcher out of memory", http.StatusOK, &container.State{Status: "exited", ExitCode: 137, OOMKilled: true, FinishedAt: "now"},
			"it ended at now with exit status 137: guest: the guest was killed"},
		{"boots", http.StatusOK, &container.State{Status: "running", Running: true}, "no such file or directory"},
		{"no engine", http.StatusInternalServerError, nil, "no such file or directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := Open(engine(t, test.status, test.state), "c", "node2", t.TempDir())
			_, err := g.Exec(t.Context(), "true")
			if !errors.Is(err, ErrNotAnswering) || !strings.HasPrefix(err.Error(), "on node2: true: ") || !strings.HasSuffix(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestReady checks that the error of a guest that does not boot contains the end of its console.
func TestReady(t *testing.T) {
	for _, test := range []struct {
		name    string
		running bool
		bound   time.Duration
		why     string
	}{
		{"late", true, 50 * time.Millisecond, "it ran no command within 50ms"},
		{"ended", false, time.Minute, "it ended"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := Open(engine(t, http.StatusOK, &container.State{Running: test.running}), "c", "node2", t.TempDir())
			want := "guest node2 did not boot: " + test.why + "; its console ends with: guest boots\nguest: the guest was killed"
			must.Equal(t, "", want, fmt.Sprint(g.Ready(t.Context(), test.bound)))
		})
	}
	g := newGuest(t)
	g.docker = engine(t, http.StatusOK, &container.State{Running: true})
	must.NoError(t, g.Ready(t.Context(), time.Minute))
}

func TestExec(t *testing.T) {
	g := newGuest(t)
	must.Equal(t, "", "a b\n", must.Get(g.Exec(t.Context(), "echo", "a b"))(t))
	input := strings.Repeat("0123456789", 50000) // more than a frame holds
	must.Equal(t, "", input, must.Get(g.ExecInput(t.Context(), strings.NewReader(input), "cat"))(t))
	must.Equal(t, "", "", must.Get(g.Exec(t.Context(), "cat"))(t)) // no input ends at once
}

func TestExecFails(t *testing.T) {
	g := newGuest(t)
	t.Run("status", func(t *testing.T) {
		out, err := g.Exec(t.Context(), "sh", "-c", "echo out; echo err >&2; exit 4")
		var exit *ExitError
		if out != "out\n" || !errors.As(err, &exit) || exit.Status != 4 {
			t.Fatalf("%q, %v", out, err)
		}
		must.Fail(t, err, "on node1: sh -c ", "exit status 4: ", "err")
	})
	t.Run("no such program", func(t *testing.T) { must.Fail(t, must.Err(g.Exec(t.Context(), "/nowhere/x")), "no such file") })
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		must.Is(t, must.Err(g.Exec(ctx, "sleep", "60")), context.DeadlineExceeded)
	})
}

func TestImage(t *testing.T) {
	catalogue := must.Get(images.Open("../../.."))(t)
	for _, kernel := range topology.Kernels {
		must.Get(catalogue.Recipe(Image(kernel)))(t)
	}
}

func TestContainer(t *testing.T) {
	o := Options{Image: "i", Hostname: "node1", Dir: "/run/relapse/lab/node1", Binds: []string{"/a:/b:ro"}, Config: launch.Config{Accelerator: launch.TCG, CPUs: 2, Memory: 1024}}
	config, host := Container(o)
	must.Equal(t, "binds", []string{"/run/relapse/lab/node1:/run/relapse", "/a:/b:ro"}, host.Binds)
	if host.Memory != (1024+Overhead)<<20 || host.Privileged {
		t.Errorf("memory %d, privileged %t", host.Memory, host.Privileged)
	}
	if len(host.Devices) != 1 || config.Hostname != "node1" {
		t.Errorf("%+v", host.Devices)
	}
	o.Accelerator = launch.KVM
	if _, host := Container(o); len(host.Devices) != 2 || host.Devices[1].PathOnHost != "/dev/kvm" {
		t.Errorf("with KVM: %+v", host.Devices)
	}
}

// TestContainerUML checks that the guest's memory has a place in its container, which gets no more rights
// than other containers.
func TestContainerUML(t *testing.T) {
	config, host := Container(Options{Image: "i", Hostname: "node1", Config: launch.Config{Accelerator: launch.UML, CPUs: 2, Seat: 3, Memory: 1024}})
	if got := host.Tmpfs["/run/uml"]; !strings.Contains(got, "exec") || !strings.HasSuffix(got, "size=1088m") {
		t.Errorf("its memory is on %q", host.Tmpfs)
	}
	if len(host.Devices) != 1 || !slices.Equal(host.CapAdd, []string{"NET_ADMIN"}) || host.Privileged || host.SecurityOpt != nil {
		t.Errorf("it has %+v, %q, %q", host.Devices, host.CapAdd, host.SecurityOpt)
	}
	if command := strings.Join(config.Cmd, " "); !strings.HasPrefix(command, "--accelerator uml ") || !strings.HasSuffix(command, " --seat 3") {
		t.Errorf("it runs %s", command)
	}
}

// TestChoose checks the order of accelerators and the reasons against the tried ones.
func TestChoose(t *testing.T) {
	broken := errors.New("no engine")
	for _, test := range []struct {
		name    string
		reasons map[launch.Accelerator]string
		err     error
		want    Choice
	}{
		{"all", nil, nil, Choice{Accelerator: launch.KVM}},
		{"no KVM", map[launch.Accelerator]string{launch.KVM: "refused"}, nil, Choice{Accelerator: launch.UML, NotKVM: "refused"}},
		{"neither", map[launch.Accelerator]string{launch.KVM: "refused", launch.UML: "not in the image"}, nil,
			Choice{Accelerator: launch.TCG, NotKVM: "refused", NotUML: "not in the image"}},
		{"KVM alone", map[launch.Accelerator]string{launch.UML: "not in the image"}, nil, Choice{Accelerator: launch.KVM}},
		{"no engine", nil, broken, Choice{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.err == nil {
				test.want.Image = "i"
			}
			got, err := choose("i", func(a launch.Accelerator) (string, error) { return test.reasons[a], test.err })
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestWiring(t *testing.T) {
	got := wiring(map[string]string{"net/ipv4/ip_forward": "1", "net/ipv4/conf/*/rp_filter": "0"},
		[]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")})
	want := `for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >"$f"; done
for f in /proc/sys/net/ipv4/ip_forward; do echo 1 >"$f"; done
ip route replace default nexthop via 10.0.0.1 nexthop via 10.0.0.2
`
	must.Equal(t, "", want, got)
	must.Equal(t, "nothing to do", "", wiring(nil, nil))
}
