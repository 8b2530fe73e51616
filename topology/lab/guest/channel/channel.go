// Package channel multiplexes byte streams between a guest and the machine over one byte pipe, a
// virtio serial port or a serial line. It does not use the guest's network.
//
// A serial port has no connections: either side may be replaced while bytes of the old one are in
// transit. Open and Accept therefore begin with a handshake, and discard all other bytes:
//
//	guest    newHere   once: it ends a session that the machine may still have with an
//	                   earlier guest process, because it is no frame
//	machine  hello N   each second, with a new number N, until the answer
//	guest    ready N   to each hello
//	machine  go N      no hello follows
//	guest    start N   the last line, followed by the streams
//
// Streams are yamux's. A metered pipe limits the bytes in transit to the guest: see meter.
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

// Pipe is one side of the byte pipe. A blocked read or write must end when a deadline passes.
type Pipe interface {
	io.ReadWriter
	SetDeadline(time.Time) error
}

// Session is a running channel. Its Close leaves the pipe open for the next session.
type Session = yamux.Session

// Open begins a session on the machine's side and waits for the guest's answer. When ctx ends it
// returns after the current attempt. Both sides must have the same value of metered.
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
		// A booting guest does not read yet; the line waits in the pipe.
		helloLimit = time.Second
		// The guest answers at once, unless it gets no CPU time.
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

// Accept waits on the guest's side until the machine begins a session.
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

// newHere, with its line breaks, is longer than the header of a yamux frame and of a
// metered piece, so that the machine detects at once that it is neither.
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

// config is yamux's, with keep-alives that detect a silent peer, or one that was
// replaced in the middle of a frame. The limit is high, because a guest without
// hardware acceleration may get no CPU time for seconds.
func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.KeepAliveInterval = 10 * time.Second
	c.ConnectionWriteTimeout = 30 * time.Second
	c.LogOutput = io.Discard // the user of the session reports its end
	return c
}

// held is the pipe of a session. Close ends reads and writes and leaves the pipe open.
type held struct{ Pipe }

func (h held) Close() error { return h.SetDeadline(past) }

// past is a deadline that ends all blocked reads and writes.
var past = time.Unix(1, 0)

func send(pipe Pipe, line string) error {
	// The first line break ends an incomplete line of an earlier session.
	_, err := io.WriteString(pipe, "\n"+line+"\n")
	return err
}

// lineReader reads lines without reading ahead: the session follows the last line.
type lineReader struct{ pipe Pipe }

// lineLimit exceeds the length of the handshake's lines. A longer line is from an
// earlier session; it is split and ignored.
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

// Join copies from ra to b and from rb to a, until either ends. ra reads from a and rb
// from b; they may have read ahead.
func Join(a io.Writer, ra io.Reader, b io.Writer, rb io.Reader) {
	ended := make(chan struct{}, 2)
	carry := func(w io.Writer, r io.Reader) {
		_, _ = io.Copy(w, r) // any failure ends the connection
		ended <- struct{}{}
	}
	go carry(b, ra)
	go carry(a, rb)
	<-ended
}
