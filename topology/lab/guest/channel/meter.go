package channel

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

// window is how many bytes may be on their way to a guest over a metered pipe.
// A terminal holds 4096; User Mode Linux stops reading the line for good when
// fewer than 128 of them are free (line_throttle in arch/um/drivers/line.c takes
// the descriptor's interrupt away, and nothing gives it back). The rest is for
// what a handshake may have left.
const window = 2048

// Kinds of what a guest sends over a metered pipe. Each is followed by a length
// in two bytes, and a piece by as many bytes.
const (
	piece   byte = iota
	receipt      // so many bytes were read
)

// errReplaced ends a session whose other end is no longer the one that it began with.
var errReplaced = errors.New("the guest's end of the channel was replaced")

// meter is the machine's end of a metered pipe. It reads pieces and receipts,
// and writes what receipts allow.
type meter struct {
	held
	left int // of the piece that is being read

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

// Read reads from a piece. Writing goes on with the receipts that Read finds:
// somebody must be reading all the time, as a yamux session does.
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

// Write waits for receipts where p is longer than what may be written.
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

// take waits until bytes may be written and returns how many of want.
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

// end ends whoever waits for receipts: none will come.
func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.change.Broadcast()
}

// Close ends reading and writing but not the pipe.
func (m *meter) Close() error {
	m.end()
	return m.held.Close()
}

// meteredGuest is the guest's end of a metered pipe.
type meteredGuest struct {
	held
	read int // since the last receipt

	mu sync.Mutex // one header, with what follows it, is written at a time
}

// Read reads what the machine wrote, and gives receipts for it.
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
