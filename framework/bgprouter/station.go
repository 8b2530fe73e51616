package bgprouter

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bmp"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

const (
	// maxMessage is the size in bytes of the longest BMP message: a BGP message of 64 KiB
	// (RFC 8654), or two of 4 KiB, and headers.
	maxMessage = 1 << 17
	// quiet is how long a router must have told nothing for its initial routes to be complete, and
	// quietAfterEnd where it has sent an End-of-RIB for each session.
	quiet, quietAfterEnd = 5 * time.Second, time.Second
	// maxStrangers bounds how many of the addresses that are refused are told.
	maxStrangers = 20
)

// Station is a BMP station that the routers of a file feed.
type Station struct {
	listener net.Listener
	feeds    map[netip.Addr]*feeding
	tell     func(string)
	ended    sync.WaitGroup

	mu        sync.Mutex
	strangers []netip.Addr
}

// feeding is one router of a station.
type feeding struct {
	router Declared

	mu   sync.Mutex
	conn net.Conn     // nil before the first connection
	feed *router.Feed // of the last connection
	// err is why that has ended.
	err error
	// last is when the last message came, and complete is set once the initial routes have.
	last     time.Time
	complete bool
}

// Listen opens a station on an address such as :11019, for the routers of kind bmp. Tell gets what
// happens, in short sentences. A connection from the address of none of them is refused, and told.
func Listen(address string, routers []Declared, tell func(string)) (*Station, error) {
	s := &Station{feeds: map[netip.Addr]*feeding{}, tell: tell}
	for _, d := range routers {
		if d.Kind == BMP {
			s.feeds[bmpAddress(d.Address)] = &feeding{router: d}
		}
	}
	var err error
	if s.listener, err = net.Listen("tcp", address); err != nil {
		return nil, err
	}
	s.ended.Go(s.accept)
	return s, nil
}

// bmpAddress is the address from which a router connects.
func bmpAddress(text string) netip.Addr {
	a, _ := netip.ParseAddr(text) // Parse has read it
	return a.Unmap()
}

// accept accepts connections until the station is closed.
func (s *Station) accept() {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // of one connection
			continue
		}
		from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone("")
		f := s.feeds[from]
		if f == nil {
			conn.Close()
			s.refused(from)
			continue
		}
		feed := f.begin(conn)
		s.tell(fmt.Sprintf("%s feeds from %s", f.router.Name, from))
		s.ended.Go(func() { f.end(feed, f.read(conn, feed)) })
	}
}

// refused tells a connection from an address that no router has, once.
func (s *Station) refused(from netip.Addr) {
	s.mu.Lock()
	known := slices.Contains(s.strangers, from) || len(s.strangers) == maxStrangers
	if !known {
		s.strangers = append(s.strangers, from)
	}
	s.mu.Unlock()
	if !known {
		s.tell(fmt.Sprintf("refused a BMP connection from %s: no router of the file has that address", from))
	}
}

// begin begins a feed. A connection of the router that is open is closed: it has started anew.
func (f *feeding) begin(conn net.Conn) *router.Feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		f.conn.Close()
	}
	f.conn, f.feed, f.err, f.last, f.complete = conn, router.NewFeed(), nil, time.Now(), false
	return f.feed
}

// end notes why a feed has ended, unless there is another one by now.
func (f *feeding) end(feed *router.Feed, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.feed == feed {
		f.conn.Close()
		f.err = err
	}
}

// read reads messages until the connection ends.
func (f *feeding) read(conn net.Conn, feed *router.Feed) error {
	in := bufio.NewReaderSize(conn, 1<<16)
	for {
		message, err := readMessage(in)
		if err != nil {
			return err
		}
		f.mu.Lock()
		err = feed.Add(message)
		if f.feed == feed {
			f.last = time.Now()
		}
		f.mu.Unlock()
		if err != nil {
			return err
		}
		if message[5] == bmp.BMP_MSG_TERMINATION {
			return errors.New("the router has ended it")
		}
	}
}

// readMessage reads one message with its header.
func readMessage(in io.Reader) ([]byte, error) {
	head := make([]byte, bmp.BMP_HEADER_SIZE)
	if _, err := io.ReadFull(in, head); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head[1:5])
	switch {
	case head[0] != bmp.BMP_VERSION:
		return nil, fmt.Errorf("a message is of version %d of BMP: expected %d", head[0], bmp.BMP_VERSION)
	case length < bmp.BMP_HEADER_SIZE || length > maxMessage:
		return nil, fmt.Errorf("a message has %d bytes: expected %d to %d", length, bmp.BMP_HEADER_SIZE, maxMessage)
	}
	message := append(head, make([]byte, int(length)-len(head))...)
	_, err := io.ReadFull(in, message[len(head):])
	return message, err
}

// Await waits until each router has fed its initial routes, or a bound has passed. It tells what it
// waits for, each time that this changes. What is missing then is not read.
func (s *Station) Await(ctx context.Context, bound time.Duration) error {
	told := ""
	err := await.Until(ctx, "routers to feed by BMP", 100*time.Millisecond, bound, func(context.Context) (bool, string, error) {
		var missing []string
		for _, f := range s.feeds {
			if err := f.state(); err != nil {
				missing = append(missing, fmt.Sprintf("%s: %s", f.router.Name, err))
			}
		}
		slices.Sort(missing)
		now := strings.Join(missing, "; ")
		if now != told && now != "" {
			s.tell(fmt.Sprintf("waiting for BMP, for at most %s: %s", bound, now))
		}
		told = now
		return len(missing) == 0, now, nil
	})
	var late *await.TimeoutError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &late):
		s.tell(late.Error())
		return nil
	}
	return err
}

// Close ends all feeds.
func (s *Station) Close() error {
	err := s.listener.Close()
	for _, f := range s.feeds {
		f.mu.Lock()
		if f.conn != nil {
			f.conn.Close()
		}
		f.mu.Unlock()
	}
	s.ended.Wait()
	return err
}

// state is why a router cannot be read; nil if it can.
func (f *feeding) state() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stateLocked()
}

func (f *feeding) stateLocked() error {
	switch idle := time.Since(f.last); {
	case f.conn == nil:
		return fmt.Errorf("it has not connected from %s", f.router.Address)
	case f.err != nil:
		return fmt.Errorf("its BMP connection has ended: %w", f.err)
	case !f.complete && (idle < quietAfterEnd || idle < quiet && !f.feed.Ended()):
		return errors.New("it has not fed all of its routes yet")
	}
	f.complete = true
	return nil
}

// RIB implements Source.
func (f *feeding) RIB(context.Context) ([]router.Path, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.stateLocked(); err != nil {
		return nil, err
	}
	if !f.feed.View().IPv4 {
		return nil, errors.New("it has fed neither a route nor an End-of-RIB of IPv4")
	}
	return f.feed.RIB(), nil
}

// Neighbors implements Source.
func (f *feeding) Neighbors(context.Context) ([]router.Neighbor, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.stateLocked(); err != nil {
		return nil, err
	}
	return f.feed.Neighbors(), nil
}

// FIB implements Source.
func (f *feeding) FIB(context.Context) ([]router.Route, error) { return nil, errNoFIB }

// Describe implements snapshot.RouterDescriber.
func (f *feeding) Describe(is *snapshot.Router) {
	f.router.Describe(is)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stateLocked() != nil {
		return
	}
	view := f.feed.View()
	is.IPv6 = view.IPv6
	remark := snapshot.Remark{Says: "the routes of its peers after its import policy, of which the best path is computed"}
	switch {
	case view.Filtered:
		remark = snapshot.Remark{Says: "a part of its Loc-RIB, so that other routes may be wrong unseen", Open: true}
	case view.LocRIB:
		remark.Says = "its Loc-RIB: the best path to each prefix, and no other"
	case view.Before:
		remark = snapshot.Remark{Says: "the routes of its peers before its import policy: one that the policy refuses counts as a route", Open: true}
	}
	remark.Says = fmt.Sprintf("%s feeds %s.", is.Name, remark.Says)
	is.Remarks = append(is.Remarks, remark)
}
