package agent

import (
	"bufio"
	"bytes"
	"encoding/gob"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/lab/guest/channel"
	"github.com/relapse-dev/relapse/topology/must"
)

func ask(t *testing.T, request channel.Request) (net.Conn, *bufio.Reader) {
	t.Helper()
	l := must.Get(net.Listen("unix", filepath.Join(t.TempDir(), "s")))(t)
	t.Cleanup(func() { l.Close() })
	go func() { _ = Serve(l) }() // ends with l
	conn := must.Get(net.Dial("unix", l.Addr().String()))(t)
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	must.NoError(t, channel.WriteLine(conn, request))
	return conn, bufio.NewReader(conn)
}

func collect(t *testing.T, r io.Reader) (stdout, stderr string, status channel.ExitStatus) {
	t.Helper()
	var out, errs bytes.Buffer
	for frames := gob.NewDecoder(r); ; {
		var frame channel.Frame
		must.NoError(t, frames.Decode(&frame))
		out.Write(frame.Stdout)
		errs.Write(frame.Stderr)
		if frame.Exit != nil {
			return out.String(), errs.String(), *frame.Exit
		}
	}
}

func TestRun(t *testing.T) {
	for _, test := range []struct {
		name           string
		command        []string
		input          string
		stdout, stderr string
		status         int
		failure        string // part of ExitStatus.Error
	}{
		{name: "output", command: []string{"sh", "-c", "echo out; echo err >&2"}, stdout: "out\n", stderr: "err\n"},
		{name: "arguments stay apart", command: []string{"printf", "%s|", "a b", "", "c"}, stdout: "a b||c|"},
		{name: "input", command: []string{"cat"}, input: strings.Repeat("0123456789", 20000), stdout: strings.Repeat("0123456789", 20000)},
		{name: "input that is not read", command: []string{"true"}, input: strings.Repeat("x", 200000)},
		{name: "status", command: []string{"sh", "-c", "exit 7"}, status: 7},
		{name: "signal", command: []string{"sh", "-c", "kill -TERM $$"}, status: 128 + 15},
		{name: "no such program", command: []string{"/nowhere/x"}, status: 127, failure: "no such file"},
		{name: "child that keeps the output open", command: []string{"sh", "-c", "sleep 60 & echo done"}, stdout: "done\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			conn, r := ask(t, channel.Request{Exec: test.command})
			go func() {
				frames := gob.NewEncoder(conn)
				if test.input != "" {
					_ = frames.Encode(channel.Frame{Input: []byte(test.input)})
				}
				_ = frames.Encode(channel.Frame{})
			}()
			stdout, stderr, status := collect(t, r)
			if stdout != test.stdout || stderr != test.stderr || status.Status != test.status || !strings.Contains(status.Error, test.failure) {
				t.Errorf("got %.50q, %.50q, %+v", stdout, stderr, status)
			}
		})
	}
}

func TestRunEndsWithTheMachine(t *testing.T) {
	conn, r := ask(t, channel.Request{Exec: []string{"sh", "-c", "echo $$; exec sleep 60"}})
	var frame channel.Frame
	must.NoError(t, gob.NewDecoder(r).Decode(&frame))
	conn.Close()
	file := filepath.Join("/proc", strings.TrimSpace(string(frame.Stdout)))
	for limit := time.After(10 * time.Second); ; {
		if _, err := os.Stat(file); err != nil {
			return
		}
		select {
		case <-limit:
			t.Fatal("the command still runs")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestDial(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "echo")
	l := must.Get(net.Listen("unix", socket))(t)
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(conn, conn)
	}()
	conn, r := ask(t, channel.Request{Dial: socket})
	must.Get(io.WriteString(conn, "ping"))(t)
	var reply channel.Reply
	if err := channel.ReadLine(r, &reply); err != nil || reply.Error != "" {
		t.Fatalf("%+v, %v", reply, err)
	}
	echo := make([]byte, 4)
	if _, err := io.ReadFull(r, echo); err != nil || string(echo) != "ping" {
		t.Errorf("echo is %q, %v", echo, err)
	}

	_, r = ask(t, channel.Request{Dial: socket + "-not"})
	if err := channel.ReadLine(r, &reply); err != nil || !strings.Contains(reply.Error, "no such file") {
		t.Errorf("a socket that is not there: %+v, %v", reply, err)
	}
}

func TestFindPort(t *testing.T) {
	class := t.TempDir()
	for port, name := range map[string]string{"vport0p1": "org.example", "vport0p2": Port} {
		must.Write(t, filepath.Join(class, port, "name"), name+"\n")
	}
	must.Equal(t, "", "/dev/vport0p2", must.Get(findPort(class))(t))
	must.Fail(t, must.Err(findPort(t.TempDir())), Port)
}

// TestOpenPort checks that a terminal carries any byte unharmed and echoes none.
func TestOpenPort(t *testing.T) {
	line, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("this machine has no pseudo-terminals:", err)
	}
	defer line.Close()
	number, err := unix.IoctlGetInt(int(line.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(line.Fd()), unix.TIOCSPTLCK, 0)
	}
	must.NoError(t, err)
	port := must.Get(openPort(fmt.Sprintf("/dev/pts/%d", number)))(t)
	defer port.Close()
	all := make([]byte, 256)
	for b := range all {
		all[b] = byte(b)
	}
	for _, direction := range []struct {
		name     string
		from, to *os.File
	}{{"to the guest", line, port}, {"from the guest", port, line}} {
		must.Get(direction.from.Write(all))(t)
		got := make([]byte, len(all))
		if _, err := io.ReadFull(direction.to, got); err != nil || !bytes.Equal(got, all) {
			t.Errorf("%s: %q, %v", direction.name, got, err)
		}
	}
}
