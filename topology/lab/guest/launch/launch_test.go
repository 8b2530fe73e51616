package launch

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/lab/guest/agent"
	"github.com/relapse-dev/relapse/topology/lab/guest/boot"
	"github.com/relapse-dev/relapse/topology/lab/guest/channel"
	"github.com/relapse-dev/relapse/topology/must"
)

var twoLinks = boot.Parameters{Hostname: "node1", Links: []boot.Link{
	{Name: "eth0", MAC: net.HardwareAddr{2, 0x42, 10, 4, 94, 23}, Address: netip.MustParsePrefix("10.4.94.23/24")},
	{Name: "eth1", MAC: net.HardwareAddr{2, 0x42, 10, 9, 0, 1}, Address: netip.MustParsePrefix("10.9.0.1/16")},
}}

func TestQEMUCommand(t *testing.T) {
	for _, test := range []struct {
		name      string
		c         Config
		want, not []string // arguments, or parts of the kernel's command line
	}{
		{name: "tcg", c: Config{Accelerator: TCG, CPUs: 2, Memory: 1536},
			want: []string{"tcg,thread=multi,tb-size=256", "max", "1536M", "nowatchdog", "relapse.hostname=node1",
				"tap,id=eth1,ifname=tap1,script=no,downscript=no", "virtio-net-pci,netdev=eth0,mac=02:42:0a:04:5e:17"},
			not: []string{"kvm", "host"}},
		{name: "kvm", c: Config{Accelerator: KVM, CPUs: 4, Memory: 1024}, want: []string{"kvm", "host", "4", "1024M"},
			not: []string{"tcg,thread=multi,tb-size=256", "nowatchdog"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := qemuCommand(test.c, twoLinks, []string{"tap0", "tap1"})
			words := slices.Concat(args, strings.Fields(args[slices.Index(args, "-append")+1]))
			for _, want := range test.want {
				must.Equal(t, want, true, slices.Contains(words, want))
			}
			for _, not := range test.not {
				must.Equal(t, not, false, slices.Contains(words, not))
			}
		})
	}
}

// TestRunWithoutQEMU checks that an incomplete image is an error before the network is changed.
func TestRunWithoutQEMU(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for name, run := range map[string]func() error{
		"launch": func() error { return Run(t.Context(), Config{Accelerator: TCG}, t.TempDir()) },
		"probe":  func() error { return Probe(t.Context(), KVM) },
	} {
		t.Run(name, func(t *testing.T) {
			err := run()
			if _, is := errors.AsType[*ImageError](err); !is || err.Error() != "the image has no qemu-system-x86_64: rebuild it" {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestEnded(t *testing.T) {
	aborted := exec.Command("sh", "-c", "kill -ABRT $$").Run()
	for _, test := range []struct {
		name string
		err  error
		oom  bool
		want string
	}{
		{"User Mode Linux panics", aborted, false, "the guest's kernel has panicked"},
		{"switched off", nil, false, "the guest has switched itself off, or its kernel has panicked"},
		{"an earlier kill was another's", nil, true, "the guest has switched itself off, or its kernel has panicked"},
		{"memory", errors.New("signal: killed"), true, "the guest was killed: it exceeded the container's memory limit"},
		{"crash", errors.New("signal: aborted"), false, "running the guest: signal: aborted"},
	} {
		t.Run(test.name, func(t *testing.T) { must.Equal(t, "", test.want, ended(UML, test.err, test.oom).Error()) })
	}
}

func TestOOMKills(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want int
	}{
		"version 1":         {"oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", 2},
		"version 2":         {"low 0\nhigh 0\nmax 17\noom 1\noom_kill 1\noom_group_kill 0\n", 1},
		"an older kernel's": {"oom_kill_disable 0\nunder_oom 0\n", 0},
	} {
		t.Run(name, func(t *testing.T) { must.Equal(t, "", test.want, oomKills(test.text)) })
	}
}

func TestOtherMAC(t *testing.T) {
	mac := net.HardwareAddr{0x02, 0x42, 1, 2, 3, 4}
	other := otherMAC(mac)
	if other.String() != "06:42:01:02:03:04" || mac[0] != 0x02 {
		t.Errorf("%s became %s", mac, other)
	}
	if other[0]&1 != 0 || other[0]&2 == 0 {
		t.Errorf("%s is not a local unicast address", other)
	}
}

// serveGuest runs a server whose guest is an agent in this process.
func serveGuest(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	s := must.Get(listen(dir))(t)
	ours, file, err := socketPair()
	must.NoError(t, err)
	theirs := must.Get(net.FileConn(file))(t)
	file.Close()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.run(ctx, ours, false) // ends with ctx
	}()
	go func() {
		session, err := channel.Accept(ctx, theirs, false)
		if err == nil {
			_ = agent.Serve(session) // ends with the session
		}
	}()
	t.Cleanup(func() {
		cancel()
		ours.Close()
		theirs.Close()
		<-ended
	})
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		up := s.session != nil
		s.mu.Unlock()
		if up {
			return dir
		}
		if time.Now().After(limit) {
			t.Fatal("no session")
		}
	}
}

func dialServer(t *testing.T, path string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn := must.Get(net.Dial("unix", path))(t)
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	return conn, bufio.NewReader(conn)
}

func TestServer(t *testing.T) {
	dir := serveGuest(t)
	conn, r := dialServer(t, filepath.Join(dir, Socket))
	must.NoError(t, channel.WriteLine(conn, channel.Request{Exec: []string{"echo", "hello"}}))
	frames := gob.NewDecoder(r)
	var output, end channel.Frame
	if err := frames.Decode(&output); err != nil || string(output.Stdout) != "hello\n" {
		t.Errorf("%q, %v", output.Stdout, err)
	}
	if err := frames.Decode(&end); err != nil || end.Exit == nil || end.Exit.Status != 0 {
		t.Errorf("%+v, %v", end, err)
	}
}

func TestForward(t *testing.T) {
	dir := serveGuest(t)
	inGuest := filepath.Join(t.TempDir(), "echo")
	forward := func() string {
		conn, r := dialServer(t, filepath.Join(dir, Socket))
		must.NoError(t, channel.WriteLine(conn, channel.Request{Forward: inGuest}))
		var reply channel.Reply
		if err := channel.ReadLine(r, &reply); err != nil || reply.Error != "" {
			t.Fatalf("%+v, %v", reply, err)
		}
		return filepath.Join(dir, reply.Socket)
	}
	socket := forward()
	must.Equal(t, socket, socket, forward())
	t.Run("no program listens", func(t *testing.T) {
		_, r := dialServer(t, socket)
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("got %v, want the connection's end", err)
		}
	})
	t.Run("echo", func(t *testing.T) {
		l := must.Get(net.Listen("unix", inGuest))(t)
		defer l.Close()
		go func() {
			if conn, err := l.Accept(); err == nil {
				_, _ = io.Copy(conn, conn)
			}
		}()
		conn, r := dialServer(t, socket)
		must.Get(io.WriteString(conn, "ping"))(t)
		echo := make([]byte, 4)
		if _, err := io.ReadFull(r, echo); err != nil || string(echo) != "ping" {
			t.Errorf("%q, %v", echo, err)
		}
	})
}

// TestServerWithoutGuest checks that a connection ends where no guest answers.
func TestServerWithoutGuest(t *testing.T) {
	dir := t.TempDir()
	s := must.Get(listen(dir))(t)
	defer s.l.Close()
	go s.accept(s.l, s.serve)
	conn, r := dialServer(t, filepath.Join(dir, Socket))
	must.NoError(t, channel.WriteLine(conn, channel.Request{Exec: []string{"true"}}))
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("got %v, want the connection's end", err)
	}
}

// TestListenReplaces checks that the socket of a guest whose power was cut
// does not stand in the way.
func TestListenReplaces(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, Socket), nil, 0o600))
	must.Get(listen(dir))(t).l.Close()
}
