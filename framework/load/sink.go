package load

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// sink accepts every connection to the load's endpoints and keeps it open, in the network of the host that has them.
type sink struct {
	listener net.Listener
	mu       sync.Mutex
	open     map[net.Conn]netip.Addr // the destination of each
}

// openSink gives a host all addresses of a range, and listens there.
func openSink(ctx context.Context, host *kindlab.Host, addresses netip.Prefix, port uint16) (*sink, error) {
	// Any address of the range is the host's own (AnyIP).
	if _, err := host.Exec(ctx, "ip", "route", "replace", "local", addresses.String(), "dev", "lo"); err != nil {
		return nil, fmt.Errorf("giving the load's endpoints to %s: %w", host.Name(), err)
	}
	s := &sink{open: map[net.Conn]netip.Addr{}}
	err := host.InNetns(ctx, func() (err error) {
		s.listener, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening the load's endpoints on %s: %w", host.Name(), err)
	}
	go s.accept()
	return s, nil
}

func (s *sink) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.open[conn] = conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		s.mu.Unlock()
		go func() {
			_, _ = io.Copy(io.Discard, conn) // until the client goes
			s.mu.Lock()
			delete(s.open, conn)
			s.mu.Unlock()
			conn.Close()
		}()
	}
}

func (s *sink) counts() (connections, endpoints int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := map[netip.Addr]bool{}
	for _, a := range s.open {
		to[a] = true
	}
	return len(s.open), len(to)
}

func (s *sink) close() {
	s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.open {
		conn.Close()
	}
}
