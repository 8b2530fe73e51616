package channel

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

// counted is a pipe's end that counts the bytes on their way to the guest.
type counted struct {
	net.Conn
	underway *atomic.Int64
	most     *atomic.Int64
	guest    bool
}

func (c counted) Write(p []byte) (int, error) {
	if !c.guest {
		n := c.underway.Add(int64(len(p)))
		if n > c.most.Load() {
			c.most.Store(n)
		}
	}
	return c.Conn.Write(p)
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.guest {
		c.underway.Add(int64(-n))
	}
	return n, err
}

// TestMetered sends more than the window through a metered session, to the
// guest and back, and checks that the window was kept.
func TestMetered(t *testing.T) {
	machine, guest := pipes(t)
	var underway, most atomic.Int64
	toGuest := counted{Conn: machine, underway: &underway, most: &most}
	ofGuest := counted{Conn: guest, underway: &underway, most: &most, guest: true}
	go func() {
		session, err := Accept(t.Context(), ofGuest, true)
		if err != nil {
			t.Error(err)
			return
		}
		echo(t, session)
	}()
	session := must.Get(Open(t.Context(), toGuest, true))(t)
	defer session.Close()
	stream := must.Get(session.Open())(t)
	_ = stream.SetDeadline(time.Now().Add(20 * time.Second))
	content := bytes.Repeat([]byte("\x00\r\n\x04\x13 bytes"), 100*window/10)
	go func() { _, _ = stream.Write(content) }() // what is missing shows at the other end
	back := make([]byte, len(content))
	if _, err := io.ReadFull(stream, back); err != nil || !bytes.Equal(back, content) {
		t.Errorf("came back otherwise, %v", err)
	}
	if got := most.Load(); got > window {
		t.Errorf("%d bytes were on their way to the guest, %d are allowed", got, window)
	}
}

// TestMeterWaits checks that a writer whose window is used up ends when the
// session does, and when the pipe fails.
func TestMeterWaits(t *testing.T) {
	for name, end := range map[string]func(m *meter, guest net.Conn){
		"closed": func(m *meter, _ net.Conn) { m.Close() },
		"failed": func(m *meter, guest net.Conn) {
			guest.Close()
			_, _ = m.Read(make([]byte, 1)) // it fails, which the writer learns
		},
	} {
		t.Run(name, func(t *testing.T) {
			machine, guest := pipes(t)
			m := newMeter(machine)
			written := make(chan error, 1)
			go func() {
				n, err := io.WriteString(m, strings.Repeat("x", window+1))
				must.Equal(t, "", window, n)
				written <- err
			}()
			must.Get(io.ReadFull(guest, make([]byte, window)))(t)
			end(m, guest)
			must.Is(t, <-written, io.ErrClosedPipe)
		})
	}
}
