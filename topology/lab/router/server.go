package router

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/bgp"
)

const (
	// settle is the minimum time between two reconciliations. Events within it share
	// one reconciliation, so that a full table does not cause one for each path.
	settle = 10 * time.Millisecond
	// retryAfter is the delay before a failed reconciliation is repeated, unless there
	// is an event before.
	retryAfter = time.Second
	// stopTimeout bounds each step of the shutdown.
	stopTimeout = 3 * time.Second
	// installWithin bounds how long FRR or BIRD may take to install a static route.
	installWithin = 5 * time.Second
)

type table interface {
	Routes() ([]bgp.Route, error)
	Replace(bgp.Route) error
	Remove(bgp.Route) error
}

type server struct {
	config  Config
	log     *log.Logger
	speaker speaker
	arp     arp
	// kick requests a reconciliation; it holds at most one request.
	kick chan struct{}
	// fatal gets the errors that end the router.
	fatal chan error

	// mu serializes reconciliations, and guards the fields below.
	mu      sync.Mutex
	table   table
	statics map[netip.Prefix]Static
	status  Status
}

func newServer(c Config, t table, l *log.Logger) *server {
	return &server{
		config:  c,
		log:     l,
		kick:    make(chan struct{}, 1),
		fatal:   make(chan error, 1),
		table:   t,
		statics: map[netip.Prefix]Static{},
	}
}

// Run runs a router in the process's network namespace until ctx ends. Then it
// closes its sessions, removes its routes and returns nil. The unreachable default
// route stays, so that no packet leaves the lab after the router's end.
//
// Run fails if the configuration is not valid, if a sysctl of the namespace cannot
// be set (the error names it), if a socket cannot be opened, or if a program of FRR or
// BIRD does not start or ends.
func Run(ctx context.Context, c Config, l *log.Logger) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	k, err := openKernel(c.Dual)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer k.Close()

	s := newServer(c, k, l)
	s.speaker = newSpeaker(c, l, s.request, s.fail)
	// Before any route is learned, guard is installed and old routes are removed.
	if err := s.withdrawAll(); err != nil {
		return fmt.Errorf("cleaning the FIB: %w", err)
	}
	defer func() { err = errors.Join(err, s.withdrawAll()) }()

	wg.Go(func() {
		if err := k.Watch(s.request); err != nil {
			s.fail(err)
		}
	})

	if err := s.speaker.start(ctx); err != nil {
		return err
	}
	defer s.speaker.stop()

	work, stop := context.WithCancel(ctx)
	var loop sync.WaitGroup
	loop.Go(func() { s.reconcileLoop(work) })
	defer loop.Wait()
	defer stop()

	if err := s.reconcile(ctx); err != nil {
		return err
	}

	shutdown, err := s.serveHTTP(&wg)
	if err != nil {
		return err
	}
	defer shutdown()

	s.mu.Lock()
	s.status.Ready = true
	s.mu.Unlock()
	l.Printf("%s, AS %d, router ID %s: ready", c.kind(), c.AS, c.RouterID)
	select {
	case <-ctx.Done():
		l.Printf("ending: %v", context.Cause(ctx))
		return nil
	case err := <-s.fatal:
		return err
	}
}

func (s *server) serveHTTP(wg *sync.WaitGroup) (shutdown func(), err error) {
	if err := os.MkdirAll(s.config.Sockets, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder for the socket: %w", err)
	}
	listener, err := listenUnix(filepath.Join(s.config.Sockets, Socket))
	if err != nil {
		return nil, err
	}
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: stopTimeout, ErrorLog: s.log}
	wg.Go(func() {
		if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("serving %s: %w", Socket, err))
		}
	})
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		_ = web.Shutdown(ctx) // fails if a response is not finished in time
	}, nil
}

// fail ends Run with err, unless it is ending already.
func (s *server) fail(err error) {
	select {
	case s.fatal <- err:
	default:
	}
}

// listenUnix listens on a socket. It removes the file of an earlier socket.
func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing an old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	return l, nil
}

func (s *server) request() {
	select {
	case s.kick <- struct{}{}:
	default: // a pending request covers this change
	}
}

func (s *server) reconcileLoop(ctx context.Context) {
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-retry:
		}
		retry = nil
		if err := s.reconcile(ctx); err != nil && ctx.Err() == nil {
			s.log.Printf("FIB: %v", err)
			retry = time.After(retryAfter)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
	}
}

func (s *server) reconcile(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reconcileLocked(ctx)
}

func (s *server) reconcileLocked(ctx context.Context) error {
	if _, installs := s.speaker.(installer); installs {
		return s.applyLocked(nil, nil, foreignDefault)
	}
	// Listed under the lock, so that no older list is applied after a newer one.
	paths, err := s.speaker.paths(ctx)
	if err != nil {
		return err
	}
	return s.applyLocked(paths, s.staticsLocked(), owned)
}

// applyLocked installs the routes of the RIB, the static ones and guard, and removes
// other routes for which removable returns true.
func (s *server) applyLocked(paths []bgp.Path, statics []Static, removable func(bgp.Route) bool) error {
	present, err := s.table.Routes()
	if err != nil {
		return err
	}
	wanted, rejected := plan(s.config.Dual, paths, statics, present)
	replace, remove := diff(present, wanted, removable)
	var errs []error
	for _, r := range replace {
		if err := s.table.Replace(r); err != nil {
			errs = append(errs, err)
			continue
		}
		s.log.Printf("FIB: + %s", r)
	}
	for _, r := range remove {
		if err := s.table.Remove(r); err != nil {
			errs = append(errs, err)
			continue
		}
		s.log.Printf("FIB: - %s", r)
	}
	for _, r := range rejected {
		if !slices.Contains(s.status.Rejected, r) {
			s.log.Printf("FIB: next hop %s of %s (%s): %s", r.NextHop, r.Prefix, r.Protocol, r.Reason)
		}
	}
	err = errors.Join(errs...)
	s.status.Rejected = rejected
	s.status.Error = ""
	if err != nil {
		s.status.Error = err.Error()
	}
	return err
}

// withdrawAll removes every route of a router but the guard.
func (s *server) withdrawAll() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Ready = false
	clear(s.statics)
	if err := s.applyLocked(nil, nil, owned); err != nil {
		return fmt.Errorf("removing the router's routes: %w", err)
	}
	return nil
}

func (s *server) staticsLocked() []Static {
	return slices.SortedFunc(maps.Values(s.statics), func(a, b Static) int { return bgp.ComparePrefixes(a.Prefix, b.Prefix) })
}

// addStatic sets and installs the static route to a prefix. The error is errUnresolved if a next
// hop is not usable now. One that becomes unusable later is not in the FIB meanwhile.
func (s *server) addStatic(ctx context.Context, st Static) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	present, err := s.table.Routes()
	if err != nil {
		return err
	}
	ls := links(present)
	for _, a := range st.NextHops {
		if _, err := resolve(ls, a); err != nil {
			return fmt.Errorf("static route to %s: next hop %s: %w", st.Prefix, a, err)
		}
	}
	s.statics[st.Prefix] = st
	return s.installLocked(ctx, st.Prefix)
}

func (s *server) removeStatic(ctx context.Context, prefix netip.Prefix) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.statics, prefix)
	return s.installLocked(ctx, prefix)
}

// installLocked installs the changed static routes. It returns when the kernel's table has the route
// to the prefix that plan gives.
func (s *server) installLocked(ctx context.Context, prefix netip.Prefix) error {
	i, installs := s.speaker.(installer)
	if !installs {
		return s.reconcileLocked(ctx)
	}
	if err := i.setStatics(ctx, s.staticsLocked()); err != nil {
		return err
	}
	return await.Until(ctx, "the route to "+prefix.String(), time.Millisecond, installWithin, func(ctx context.Context) (bool, string, error) {
		paths, err := i.paths(ctx)
		if err != nil {
			return false, "", err
		}
		present, err := s.table.Routes()
		if err != nil {
			return false, "", err
		}
		wanted, _ := plan(s.config.Dual, paths, s.staticsLocked(), present)
		want, got := nextHopsTo(prefix, wanted), nextHopsTo(prefix, s.namedLocked(present))
		return fmt.Sprint(want) == fmt.Sprint(got), fmt.Sprintf("%v, want %v", got, want), nil
	})
}

func nextHopsTo(prefix netip.Prefix, table []bgp.Route) map[bgp.RouteProtocol][]bgp.NextHop {
	hops := map[bgp.RouteProtocol][]bgp.NextHop{}
	for _, r := range table {
		if r.Prefix == prefix && r.Type == bgp.RouteUnicast && (r.Protocol == bgp.RouteBGP || r.Protocol == bgp.RouteStatic) {
			hops[r.Protocol] = r.NextHops
		}
	}
	return hops
}

func (s *server) fib() ([]bgp.Route, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	routes, err := s.table.Routes()
	return s.namedLocked(routes), err
}

// namedLocked replaces BIRD's protocol, which all its routes have in the kernel's table, by bgp or static as
// other kinds of routers have.
func (s *server) namedLocked(table []bgp.Route) []bgp.Route {
	named := slices.Clone(table)
	for i, r := range named {
		if r.Protocol != bgp.RouteBIRD {
			continue
		}
		named[i].Protocol = bgp.RouteBGP
		if s.isStaticLocked(r) {
			named[i].Protocol = bgp.RouteStatic
		}
	}
	return named
}

// isStaticLocked reports whether a route is the requested static route to its prefix.
func (s *server) isStaticLocked(r bgp.Route) bool {
	st, requested := s.statics[r.Prefix]
	return requested && len(r.NextHops) == len(st.NextHops) && !slices.ContainsFunc(r.NextHops, func(h bgp.NextHop) bool {
		return !slices.Contains(st.NextHops, h.Address)
	})
}
