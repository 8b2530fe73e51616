// Package channel carries many byte streams between a guest and the machine
// over one byte pipe, a virtio serial port or a serial line, so that a guest can
// be commanded whatever becomes of its network.
//
// A serial port has no notion of a connection: either end may be replaced
// while bytes of the old one are still under way. Open and Accept therefore
// begin with a handshake that throws away whatever does not belong to it:
//
//	guest    newHere   once, for the session that the machine may still have with
//	                   the end before this one: it ends at what is no frame
//	machine  hello N   with another number N each second until the answer comes
//	guest    ready N   to each hello
//	machine  go N      no hello follows
//	guest    start N   the last line: streams begin behind it
//
// Streams are yamux's. Under them a metered pipe counts what is on its way to
// the guest: see meter.
package channel

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/yamux"
)

// Pipe is one end of the byte pipe. A read or write that blocks must end
// when a deadline passes.
type Pipe interface {
	io.ReadWriter
	SetDeadline(time.Time) error
}

// Session is a running channel. Its Close leaves the pipe open, so that the
// next session can begin on it.
type Session = yamux.Session

// Open begins a session on the machine's end and waits until the guest has
// answered. When ctx ends it returns after the attempt under way. Both ends say
// alike whether the pipe is metered.
func Open(ctx context.Context, pipe Pipe, metered bool) (*Session, error) {
	for {
		err := open(pipe, rand.Text())
		switch {
		case err == nil && metered:
			return yamux.Client(newMeter(pipe), config())
		case err == nil:
			return yamux.Client(held{pipe}, config())
		case ctx.Err() != nil:
			return nil, fmt.Errorf("waiting for the guest's agent: %w", context.Cause(ctx))
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf("waiting for the guest's agent: %w", err)
		}
	}
}

func open(pipe Pipe, number string) error {
	const (
		// A guest that is still booting does not read yet; the line waits in the
		// pipe.
		helloLimit = time.Second
		// The guest answers at once, unless it is starved of CPU time.
		startLimit = 10 * time.Second
	)
	lines := lineReader{pipe: pipe}
	for _, step := range []struct {
		say, answer string
		limit       time.Duration
	}{
		{"hello ", "ready ", helloLimit},
		{"go ", "start ", startLimit},
	} {
		if err := pipe.SetDeadline(time.Now().Add(step.limit)); err != nil {
			return err
		}
		if err := send(pipe, step.say+number); err != nil {
			return err
		}
		for line := ""; line != step.answer+number; {
			var err error
			if line, err = lines.next(); err != nil {
				return err
			}
		}
	}
	return pipe.SetDeadline(time.Time{})
}

// Accept waits on the guest's end for the machine to begin a session.
func Accept(ctx context.Context, pipe Pipe, metered bool) (*Session, error) {
	if err := pipe.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("waiting for the machine: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = pipe.SetDeadline(past) })
	defer stop()
	if err := accept(pipe); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("waiting for the machine: %w", err)
	}
	if metered {
		return yamux.Server(&meteredGuest{held: held{pipe}}, config())
	}
	return yamux.Server(held{pipe}, config())
}

// newHere, with its line breaks, is longer than the header of a yamux frame and that of
// a metered piece, so that the machine need not wait for more before it sees that this
// is neither.
const newHere = "a new end is here"

func accept(pipe Pipe) error {
	if err := send(pipe, newHere); err != nil {
		return err
	}
	lines := lineReader{pipe: pipe}
	var number string
	for {
		line, err := lines.next()
		if err != nil {
			return err
		}
		if n, ok := strings.CutPrefix(line, "hello "); ok {
			number = n
			err = send(pipe, "ready "+number)
		} else if number != "" && line == "go "+number {
			return send(pipe, "start "+number)
		}
		if err != nil {
			return err
		}
	}
}

// config is yamux's, with keep-alives so that an end that is silent is noticed, or one
// that was replaced while half a frame was under way. A guest without hardware
// acceleration may be starved for seconds: the limit is generous.
func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.KeepAliveInterval = 10 * time.Second
	c.ConnectionWriteTimeout = 30 * time.Second
	c.LogOutput = io.Discard // the session's end is reported by its user
	return c
}

// held is a pipe under a session. Closing it ends the session's reading and
// writing but not the pipe.
type held struct{ Pipe }

func (h held) Close() error { return h.SetDeadline(past) }

// past as a deadline ends whatever blocks.
var past = time.Unix(1, 0)

func send(pipe Pipe, line string) error {
	// The line break before it ends whatever an earlier session left.
	_, err := io.WriteString(pipe, "\n"+line+"\n")
	return err
}

// lineReader reads lines and not a byte more than asked for: what follows
// the last line belongs to the session.
type lineReader struct{ pipe Pipe }

// lineLimit is above the length of any line of the handshake. A longer one is
// left of a session; it is cut into pieces and ignored.
const lineLimit = 64

func (r *lineReader) next() (string, error) {
	var line []byte
	var b [1]byte
	for len(line) < lineLimit {
		if _, err := io.ReadFull(r.pipe, b[:]); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	return string(line), nil
}

// Join copies what ra reads to b and what rb reads to a, until one of the two
// ends. ra reads from a and rb from b; either may have read ahead.
func Join(a io.Writer, ra io.Reader, b io.Writer, rb io.Reader) {
	ended := make(chan struct{}, 2)
	carry := func(w io.Writer, r io.Reader) {
		_, _ = io.Copy(w, r) // whichever end fails, the connection is over
		ended <- struct{}{}
	}
	go carry(b, ra)
	go carry(a, rb)
	<-ended
}
