package channel

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

// pipes returns both ends of a byte pipe that buffers, as a serial port does.
func pipes(t testing.TB) (machine, guest net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must.NoError(t, err)
	var ends [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pipe")
		ends[i] = must.Get(net.FileConn(file))(t)
		file.Close()
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

// echo sends back what comes by a session's first stream: the other end sees what is missing.
func echo(t *testing.T, session *Session) {
	stream, err := session.Accept()
	if err != nil {
		t.Error(err)
		return
	}
	_, _ = io.Copy(stream, stream)
}

func connect(t *testing.T, machine, guest net.Conn) (client, server *Session) {
	t.Helper()
	accepted := make(chan *Session, 1)
	go func() {
		session, err := Accept(t.Context(), guest, false)
		if err != nil {
			t.Error(err)
		}
		accepted <- session
	}()
	client = must.Get(Open(t.Context(), machine, false))(t)
	server = <-accepted
	go echo(t, server)
	stream := must.Get(client.Open())(t)
	defer stream.Close()
	must.Get(io.WriteString(stream, "word"))(t)
	word := make([]byte, 4)
	if _, err := io.ReadFull(stream, word); err != nil || string(word) != "word" {
		t.Fatalf("echo is %q, %v", word, err)
	}
	return client, server
}

func TestSession(t *testing.T) {
	for _, test := range []struct {
		name               string
		toGuest, toMachine string // what an earlier session left in the pipe
	}{
		{name: "clean pipe"},
		{name: "a half line", toGuest: "hel", toMachine: "rea"},
		{name: "an old handshake", toGuest: "hello 1\ngo 1\n", toMachine: "ready 1\nstart 1\n"},
		{name: "bytes without an end", toGuest: strings.Repeat("\x00\xff", 500), toMachine: strings.Repeat("x", lineLimit)},
	} {
		t.Run(test.name, func(t *testing.T) {
			machine, guest := pipes(t)
			_, _ = io.WriteString(machine, test.toGuest)
			_, _ = io.WriteString(guest, test.toMachine)
			if test.name == "an old handshake" {
				// The guest takes part in it, finds no session behind, and begins again.
				must.Get(Accept(t.Context(), guest, false))(t).Close()
			}
			connect(t, machine, guest)
		})
	}
}

func TestSecondSession(t *testing.T) {
	machine, guest := pipes(t)
	client, server := connect(t, machine, guest)
	server.Close()
	client.Close()
	connect(t, machine, guest)
}

func TestGuestReplaced(t *testing.T) {
	machine, guest := pipes(t)
	client, server := connect(t, machine, guest)
	server.Close() // of which the machine learns nothing but garbage
	client.Close()
	must.NoError(t, guest.SetDeadline(time.Time{}))
	must.Get(guest.Write([]byte{0, 1, 2}))(t)
	connect(t, machine, guest)
}

// TestReplacedEndIsNoticed checks that the machine's session ends when another end
// begins in the guest, long before a keep-alive is missed.
func TestReplacedEndIsNoticed(t *testing.T) {
	for name, metered := range map[string]bool{"plain": false, "metered": true} {
		t.Run(name, func(t *testing.T) {
			machine, guest := pipes(t)
			go func() { _, _ = Accept(t.Context(), guest, metered) }() // it answers, and is as good as dead
			session := must.Get(Open(t.Context(), machine, metered))(t)
			defer session.Close()
			go func() { _, _ = Accept(t.Context(), guest, metered) }()
			select {
			case <-session.CloseChan():
			case <-time.After(config().KeepAliveInterval):
				t.Error("the session goes on")
			}
		})
	}
}

func TestEndsWithItsContext(t *testing.T) {
	machine, guest := pipes(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	must.Is(t, must.Err(Open(ctx, machine, false)), context.DeadlineExceeded)
	must.Is(t, must.Err(Accept(ctx, guest, false)), context.DeadlineExceeded)
}

func TestReadLine(t *testing.T) {
	var stream bytes.Buffer
	must.NoError(t, WriteLine(&stream, Request{Exec: []string{"echo", "two\nlines"}}))
	stream.WriteString("rest")
	r := bufio.NewReader(&stream)
	var got Request
	must.NoError(t, ReadLine(r, &got))
	must.Equal(t, "the line", Request{Exec: []string{"echo", "two\nlines"}}, got)
	must.Equal(t, "behind the line", "rest", string(must.Get(io.ReadAll(r))(t)))
	must.Fail(t, ReadLine(bufio.NewReader(strings.NewReader("{\n")), &got)) // half an object
}
