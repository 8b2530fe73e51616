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
	"github.com/relapse-dev/relapse/topology/bgp"
)

const (
	// maxMessage is the size in bytes of the longest BMP message: a BGP message of 64 KiB
	// (RFC 8654), or two of 4 KiB, and headers.
	maxMessage = 1 << 17
	// young is for how long a session that has come up late is reported as possibly incomplete: FRR sends
	// no End-of-RIB for it.
	young = time.Minute
	// nextVersion is a version of BMP with the same header. Its peers are not read.
	nextVersion = 4
	// maxStrangers bounds how many refused addresses are reported.
	maxStrangers = 20
	maxFeeds     = 4
)

// quiet is how long a router must send nothing before its initial routes count as complete, and
// quietAfterEnd if it has sent an End-of-RIB for each session. Tests wait for less.
var quiet, quietAfterEnd = 5 * time.Second, time.Second

// keepAlive ends an idle connection 11 s after the router has lost its power. The system's default takes
// minutes, during which the routes of a dead router would be taken for present ones.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}

// Station is a BMP station that the routers of a file feed.
type Station struct {
	listener net.Listener
	feeds    map[netip.Addr]*feeding
	tell     func(string)
	ended    sync.WaitGroup

	mu        sync.Mutex
	strangers []netip.Addr
}

type feeding struct {
	router Declared

	mu sync.Mutex
	// open are its connections, in the order in which they began. There are several if two programs have
	// one address, or if a router has started anew before the end of its old connection is seen.
	open []*feed
	// last is the feed that has ended last.
	last *feed
}

type feed struct {
	*bgp.Feed
	conn net.Conn
	// err is why it has ended.
	err error
	// last is when the last message came, and complete is set once the initial routes have come.
	last     time.Time
	complete bool
	// late are the sessions that had no End-of-RIB at that time.
	late []string
}

// Listen opens a station on an address such as :11019, for the routers of kind bmp. Tell gets its events,
// in short sentences. A connection from another address is refused, and reported.
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

func bmpAddress(text string) netip.Addr {
	a, _ := netip.ParseAddr(text) // Parse has read it
	return a.Unmap()
}

// acceptAgain is how long a station waits after a connection that it could not take.
const acceptAgain = 100 * time.Millisecond

func (s *Station) accept() {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // one connection failed, or all descriptors are in use
			time.Sleep(acceptAgain)
			continue
		}
		from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone("")
		f := s.feeds[from]
		if f == nil {
			conn.Close()
			s.refused(from)
			continue
		}
		begun, open := f.begin(conn)
		switch {
		case begun == nil:
			conn.Close()
			s.tell(fmt.Sprintf("refused a BMP connection of %s from %s: it has %d", f.router.Name, from, open))
			continue
		case open > 1:
			s.tell(fmt.Sprintf("%s: %s", f.router.Name, severalFeeds(open, from)))
		default:
			s.tell(fmt.Sprintf("%s feeds from %s", f.router.Name, from))
		}
		s.ended.Go(func() { f.end(begun, f.read(begun)) })
	}
}

func severalFeeds(n int, from netip.Addr) string {
	return fmt.Sprintf("%d BMP connections from %s are open at once, as of two programs, or of one for each VRF: which "+
		"routes are whose is not known", n, from)
}

// refused reports a connection from an address that no router has, once for each address.
func (s *Station) refused(from netip.Addr) {
	s.mu.Lock()
	seen := slices.Contains(s.strangers, from) || len(s.strangers) == maxStrangers
	if !seen {
		s.strangers = append(s.strangers, from)
	}
	s.mu.Unlock()
	if !seen {
		s.tell(fmt.Sprintf("refused a BMP connection from %s: no router of the file has that address", from))
	}
}

// begin begins a feed, and returns how many are open; nil if there are too many. A feed that was open
// before stays open: two programs would close each other's connections in turns. The old feed of a router
// that has lost its power, or has started anew, ends by TCP's keepalive.
func (f *feeding) begin(conn net.Conn) (*feed, int) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		// After an error the system's defaults hold, which take longer.
		_ = tcp.SetKeepAliveConfig(keepAlive)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.open) == maxFeeds {
		return nil, maxFeeds
	}
	begun := &feed{Feed: bgp.NewFeed(), conn: conn, last: time.Now()}
	f.open = append(f.open, begun)
	return begun, len(f.open)
}

func (f *feeding) end(ended *feed, err error) {
	ended.conn.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	ended.err = err
	f.last = ended
	f.open = slices.DeleteFunc(f.open, func(o *feed) bool { return o == ended })
}

func (f *feeding) read(from *feed) error {
	reader := bufio.NewReaderSize(from.conn, 1<<16)
	for {
		message, err := readMessage(reader)
		if err != nil {
			return err
		}
		f.mu.Lock()
		err = from.Add(message)
		from.last = time.Now()
		f.mu.Unlock()
		if err != nil {
			return err
		}
		if message[5] == bmp.BMP_MSG_TERMINATION {
			return errors.New("the router has ended it")
		}
	}
}

func readMessage(r io.Reader) ([]byte, error) {
	head := make([]byte, bmp.BMP_HEADER_SIZE)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head[1:5])
	switch {
	case head[0] != bmp.BMP_VERSION && head[0] != nextVersion:
		return nil, fmt.Errorf("a message is of version %d of BMP: expected %d", head[0], bmp.BMP_VERSION)
	case length < bmp.BMP_HEADER_SIZE || length > maxMessage:
		return nil, fmt.Errorf("a message has %d bytes: expected %d to %d", length, bmp.BMP_HEADER_SIZE, maxMessage)
	}
	message := append(head, make([]byte, int(length)-len(head))...)
	_, err := io.ReadFull(r, message[len(head):])
	return message, err
}

// Await waits until each router has fed its initial routes, or a bound has passed: the others are then not
// read. It tells which routers it waits for, each time that this changes.
func (s *Station) Await(ctx context.Context, bound time.Duration) error {
	lastMessage := ""
	err := await.Until(ctx, "routers to feed by BMP", 100*time.Millisecond, bound, func(context.Context) (bool, string, error) {
		var missing []string
		for _, f := range s.feeds {
			if err := f.state(); err != nil {
				missing = append(missing, fmt.Sprintf("%s: %s", f.router.Name, err))
			}
		}
		slices.Sort(missing)
		now := strings.Join(missing, "; ")
		if now != lastMessage && now != "" {
			s.tell(fmt.Sprintf("waiting for BMP, for at most %s: %s", bound, now))
		}
		lastMessage = now
		return len(missing) == 0, now, nil
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if late, ok := errors.AsType[*await.TimeoutError](err); ok {
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
		for _, o := range f.open {
			o.conn.Close()
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
	_, err := f.feedLocked()
	return err
}

// feedLocked is the feed by which a router can be read. The error is why it cannot.
func (f *feeding) feedLocked() (*feed, error) {
	switch {
	case len(f.open) > 1:
		return nil, errors.New(severalFeeds(len(f.open), bmpAddress(f.router.Address)))
	case len(f.open) == 0 && f.last == nil:
		return nil, fmt.Errorf("it has not connected from %s", f.router.Address)
	case len(f.open) == 0:
		return nil, fmt.Errorf("its BMP connection has ended, and the last message came at %s: %w", f.last.last.UTC().Format(time.RFC3339),
			f.last.err)
	}
	current := f.open[0]
	if current.complete {
		return current, nil
	}
	idle := time.Since(current.last)
	if idle < quietAfterEnd || idle < quiet && !current.Ended() {
		return nil, errors.New("it has not fed all of its routes yet")
	}
	missing, late := current.Unended()
	if len(missing) > 0 {
		return nil, fmt.Errorf("it has fed no End-of-RIB of %s, so that its routes may not be whole", strings.Join(missing, ", "))
	}
	current.complete, current.late = true, late
	return current, nil
}

func (f *feeding) RIB(context.Context) ([]bgp.Path, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	current, err := f.feedLocked()
	if err != nil {
		return nil, err
	}
	if view := current.View(); !view.IPv4 && !view.IPv6 {
		return nil, errors.New("it has fed neither a route nor an End-of-RIB of IPv4 or IPv6")
	}
	return current.RIB(), nil
}

func (f *feeding) Neighbors(context.Context) ([]bgp.Neighbor, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	current, err := f.feedLocked()
	if err != nil {
		return nil, err
	}
	return current.Neighbors(), nil
}

func (f *feeding) FIB(context.Context) ([]bgp.Route, error) { return nil, errNoFIB }

func (f *feeding) Describe(router *snapshot.Router) {
	f.router.Describe(router)
	f.mu.Lock()
	defer f.mu.Unlock()
	from, err := f.feedLocked()
	if err != nil {
		return
	}
	view := from.View()
	router.IPv6, router.NoIPv4 = view.IPv6, view.IPv6 && !view.IPv4
	says, open := "the routes of its peers after its import policy, of which the best path is computed", false
	switch {
	case view.Filtered:
		says, open = "a part of its Loc-RIB, so that other routes may be wrong unseen", true
	case view.LocRIB:
		says = "its Loc-RIB: the best path to each prefix, and no other"
		if view.Endless {
			says += fmt.Sprintf("; it does not say when that is whole, and said nothing for %s", quiet)
			open = true
		}
	case view.Before:
		says, open = "the routes of its peers before its import policy: one that the policy refuses counts as a route", true
	}
	remark(router, open, "%s feeds %s.", router.Name, says)
	_, late := from.Unended()
	since := from.Young(young)
	still := slices.DeleteFunc(late, func(a string) bool { return !slices.Contains(from.late, a) && !slices.Contains(since, a) })
	if len(still) > 0 {
		remark(router, true, "%s has fed no End-of-RIB of %s: routes from there may be missing.", router.Name, strings.Join(still, ", "))
	}
	if from.HasOwnPeer() {
		remark(router, false, "%s feeds a peer of its own, without an address, which is passed over.", router.Name)
	}
	if unread := from.Unread(); len(unread) > 0 {
		remark(router, true, "What %s feeds of %s cannot be read: whether that session is up, and the routes from there, are not known.",
			router.Name, strings.Join(unread, ", "))
	}
	if unfed := from.Unfed(); len(unfed) > 0 {
		remark(router, true, "%s feeds %s no more, for its configuration: whether that session is up, and the routes from there, are not known.",
			router.Name, strings.Join(unfed, ", "))
	}
}
