package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/relapse-dev/relapse/topology/lab/guest/channel"
)

// Socket is the file name of the channel's socket in the folder of Run.
const Socket = "guest.sock"

// server connects each connection to its socket to a stream of the channel.
type server struct {
	dir string
	l   net.Listener

	mu       sync.Mutex
	session  *channel.Session // nil while the guest does not answer
	forwards map[string]net.Listener
}

func listen(dir string) (*server, error) {
	l, err := listenUnix(filepath.Join(dir, Socket))
	if err != nil {
		return nil, fmt.Errorf("serving the channel: %w", err)
	}
	return &server{dir: dir, l: l, forwards: map[string]net.Listener{}}, nil
}

func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// run maintains a session on the pipe and serves it until ctx ends.
func (s *server) run(ctx context.Context, pipe channel.Pipe, metered bool) error {
	stop := context.AfterFunc(ctx, func() { s.l.Close() })
	defer stop()
	go s.accept(s.l, s.serve)
	for {
		session, err := channel.Open(ctx, pipe, metered)
		if err != nil {
			return err
		}
		s.set(session)
		select {
		case <-session.CloseChan():
		case <-ctx.Done():
		}
		s.set(nil)
		session.Close()
	}
}

func (s *server) set(session *channel.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = session
}

// accept serves a listener's connections concurrently.
func (s *server) accept(l net.Listener, serve func(net.Conn)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // it is closed
		}
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}

// serve answers one connection with a stream to the guest, or with a forwarded socket.
// If the guest does not answer, the connection is closed.
func (s *server) serve(conn net.Conn) {
	r := bufio.NewReader(conn)
	var request channel.Request
	if err := channel.ReadLine(r, &request); err != nil {
		return
	}
	if request.Forward == "" {
		if stream := s.open(request); stream != nil {
			defer stream.Close()
			channel.Join(conn, r, stream, stream)
		}
		return
	}
	name, err := s.forward(request.Forward)
	reply := channel.Reply{Socket: name}
	if err != nil {
		reply.Error = err.Error()
	}
	_ = channel.WriteLine(conn, reply) // the caller may have closed the connection
}

// open opens a stream of the channel for a request. It returns nil if the guest does not answer.
func (s *server) open(request channel.Request) net.Conn {
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	if session == nil {
		return nil
	}
	stream, err := session.Open()
	if err != nil {
		return nil
	}
	if err := channel.WriteLine(stream, request); err != nil {
		stream.Close()
		return nil
	}
	return stream
}

func (s *server) forward(path string) (string, error) {
	h := fnv.New64a()
	_, _ = io.WriteString(h, path) // a hash does not fail
	name := fmt.Sprintf("%016x.sock", h.Sum64())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forwards[name] != nil {
		return name, nil
	}
	l, err := listenUnix(filepath.Join(s.dir, name))
	if err != nil {
		return "", fmt.Errorf("forwarding %s: %w", path, err)
	}
	s.forwards[name] = l
	go s.accept(l, func(conn net.Conn) { s.dial(conn, path) })
	return name, nil
}

func (s *server) dial(conn net.Conn, path string) {
	stream := s.open(channel.Request{Dial: path})
	if stream == nil {
		return
	}
	defer stream.Close()
	r := bufio.NewReader(stream)
	var reply channel.Reply
	if err := channel.ReadLine(r, &reply); err != nil || reply.Error != "" {
		return
	}
	channel.Join(conn, conn, stream, r)
}
