package channel

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

// window is the limit of bytes in transit to a guest over a metered pipe. A terminal buffers 4096.
// User Mode Linux permanently stops reading the line when fewer than 128 of them are free
// (line_throttle in arch/um/drivers/line.c disables the descriptor's interrupt, and nothing enables
// it again). The rest is a reserve for bytes of an earlier handshake.
const window = 2048

// Kinds of messages from a guest over a metered pipe. Each has a length in two bytes;
// a piece also has that many bytes of content.
const (
	piece   byte = iota
	receipt      // the guest has read length bytes
)

// errReplaced ends a session whose guest process was replaced.
var errReplaced = errors.New("the guest's side of the channel was replaced")

// meter is the machine's side of a metered pipe. It reads pieces and receipts, and
// writes as many bytes as receipts allow.
type meter struct {
	held
	left int // unread bytes of the current piece

	mu     sync.Mutex
	change *sync.Cond
	free   int // bytes that may be written now
	closed bool
}

func newMeter(pipe Pipe) *meter {
	m := &meter{held: held{pipe}, free: window}
	m.change = sync.NewCond(&m.mu)
	return m
}

// Read reads from a piece. It also handles receipts, on which Write depends, so the
// user must read all the time, as a yamux session does.
func (m *meter) Read(p []byte) (int, error) {
	for m.left == 0 {
		kind, length, err := readHeader(m.Pipe)
		if err != nil {
			m.end()
			return 0, err
		}
		switch kind {
		case receipt:
			m.allow(length)
		case piece:
			m.left = length
		default:
			m.end()
			return 0, errReplaced
		}
	}
	n, err := m.Pipe.Read(p[:min(len(p), m.left)])
	m.left -= n
	if err != nil {
		m.end()
	}
	return n, err
}

func (m *meter) allow(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free += n
	m.change.Signal()
}

// Write waits for receipts if p is longer than the free window.
func (m *meter) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n, err := m.take(len(p) - written)
		if err != nil {
			return written, err
		}
		n, err = m.Pipe.Write(p[written : written+n])
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// take waits until bytes may be written, and returns how many, at most want.
func (m *meter) take(want int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.free == 0 && !m.closed {
		m.change.Wait()
	}
	if m.closed {
		return 0, io.ErrClosedPipe
	}
	n := min(want, m.free)
	m.free -= n
	return n, nil
}

func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.change.Broadcast()
}

// Close ends reads and writes and leaves the pipe open.
func (m *meter) Close() error {
	m.end()
	return m.held.Close()
}

// meteredGuest is the guest's side of a metered pipe.
type meteredGuest struct {
	held
	read int // since the last receipt

	mu sync.Mutex // serialises messages
}

// Read reads the machine's bytes and sends receipts.
func (g *meteredGuest) Read(p []byte) (int, error) {
	n, err := g.Pipe.Read(p)
	g.read += n
	if err == nil && g.read >= window/2 {
		err = g.send(receipt, g.read, nil)
		g.read = 0
	}
	return n, err
}

// Write writes pieces.
func (g *meteredGuest) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		part := p[written:min(len(p), written+0xffff)]
		if err := g.send(piece, len(part), part); err != nil {
			return written, err
		}
		written += len(part)
	}
	return written, nil
}

func (g *meteredGuest) send(kind byte, length int, content []byte) error {
	message := append(make([]byte, 0, 3+len(content)), kind)
	message = binary.BigEndian.AppendUint16(message, uint16(length))
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := g.Pipe.Write(append(message, content...))
	return err
}

func readHeader(r io.Reader) (kind byte, length int, err error) {
	var header [3]byte
	_, err = io.ReadFull(r, header[:])
	return header[0], int(binary.BigEndian.Uint16(header[1:])), err
}
