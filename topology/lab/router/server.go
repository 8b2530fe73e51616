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

	api "github.com/osrg/gobgp/v3/api"
	gobgp "github.com/osrg/gobgp/v3/pkg/server"
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
	// listenTimeout bounds the start of the gRPC API.
	listenTimeout = 5 * time.Second
)

// table is a writable routing table.
type table interface {
	Routes() ([]Route, error)
	Replace(Route) error
	Remove(Route) error
}

// server is a BGP router with a FIB.
type server struct {
	config Config
	log    *log.Logger
	bgp    *gobgp.BgpServer
	// paths lists the RIB.
	paths func(context.Context) ([]Path, error)
	// kick requests a reconciliation; it holds at most one request.
	kick chan struct{}
	// fatal gets the errors that end the router.
	fatal chan error

	// mu serializes reconciliations, and guards the fields below.
	mu      sync.Mutex
	table   table
	statics map[netip.Prefix]Static
	// status has Ready, Rejected, Synced and Error of the last reconciliation.
	status Status
}

// newServer is a server without GoBGP and without a kernel.
func newServer(c Config, t table, paths func(context.Context) ([]Path, error), l *log.Logger) *server {
	return &server{
		config:  c,
		log:     l,
		paths:   paths,
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
// be set (the error names it), or if a socket cannot be opened.
func Run(ctx context.Context, c Config, l *log.Logger) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	k, err := openKernel()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer k.Close()

	s := newServer(c, k, nil, l)
	s.paths = s.rib
	// Before any route is learned, guard is installed and old routes are removed.
	if err := s.reconcileWith(nil); err != nil {
		return fmt.Errorf("cleaning the FIB: %w", err)
	}
	defer func() { err = errors.Join(err, s.withdrawAll()) }()

	wg.Go(func() {
		if err := k.Watch(s.request); err != nil {
			s.fail(err)
		}
	})

	if err := s.startBGP(ctx); err != nil {
		return err
	}
	defer s.stopBGP()

	work, stop := context.WithCancel(ctx)
	var loop sync.WaitGroup
	loop.Go(func() { s.reconcileLoop(work) })
	defer loop.Wait()
	defer stop()

	if err := s.watchBGP(work); err != nil {
		return err
	}
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
	l.Printf("AS %d, router ID %s: ready", c.AS, c.RouterID)
	select {
	case <-ctx.Done():
		l.Printf("ending: %v", context.Cause(ctx))
		return nil
	case err := <-s.fatal:
		return err
	}
}

// serveHTTP serves the HTTP API until shutdown is called.
func (s *server) serveHTTP(wg *sync.WaitGroup) (shutdown func(), err error) {
	listener, err := listenUnix(filepath.Join(s.config.Sockets, FIBSocket))
	if err != nil {
		return nil, err
	}
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: stopTimeout, ErrorLog: s.log}
	wg.Go(func() {
		if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("serving %s: %w", FIBSocket, err))
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
	if err := removeSocket(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	return l, nil
}

func removeSocket(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing an old socket: %w", err)
	}
	return nil
}

// startBGP starts GoBGP with its two listeners.
func (s *server) startBGP(ctx context.Context) error {
	if err := os.MkdirAll(s.config.Sockets, 0o700); err != nil {
		return fmt.Errorf("making the folder for the sockets: %w", err)
	}
	socket := filepath.Join(s.config.Sockets, GoBGPSocket)
	if err := removeSocket(socket); err != nil {
		return err
	}
	s.bgp = gobgp.NewBgpServer(
		gobgp.LoggerOption(&bgpLogger{log: s.log, fatal: s.fail}),
		gobgp.GrpcListenAddress("unix://"+socket),
	)
	go s.bgp.Serve() // never ends: GoBGP cannot stop it

	var listen []string
	for _, a := range s.config.Listen {
		listen = append(listen, a.String())
	}
	err := s.bgp.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn:              s.config.AS,
		RouterId:         s.config.RouterID.String(),
		ListenPort:       bgpPort,
		ListenAddresses:  listen,
		UseMultiplePaths: true,
	}})
	if err != nil {
		return fmt.Errorf("starting BGP on %v: %w", listen, err)
	}
	for _, p := range s.config.Peers {
		if err := s.acceptPeers(ctx, p); err != nil {
			return fmt.Errorf("accepting peers of AS %d in %s: %w", p.AS, p.Prefix, err)
		}
	}
	return s.awaitListening(ctx, socket)
}

// acceptPeers creates a peer group for a range of dynamic neighbours.
func (s *server) acceptPeers(ctx context.Context, p Peers) error {
	hold := uint64(s.config.holdTime() / time.Second)
	group := p.Prefix.String()
	peers := &api.PeerGroup{
		Conf:   &api.PeerGroupConf{PeerGroupName: group, PeerAsn: p.AS},
		Timers: &api.Timers{Config: &api.TimersConfig{HoldTime: hold, KeepaliveInterval: hold / 3}},
	}
	if p.GracefulRestart {
		// The router retains routes of its peers (RFC 4724), but does not announce graceful
		// restart itself.
		peers.GracefulRestart = &api.GracefulRestart{Enabled: true, HelperOnly: true}
	}
	err := s.bgp.AddPeerGroup(ctx, &api.AddPeerGroupRequest{PeerGroup: peers})
	if err != nil {
		return err
	}
	return s.bgp.AddDynamicNeighbor(ctx, &api.AddDynamicNeighborRequest{DynamicNeighbor: &api.DynamicNeighbor{
		Prefix:    p.Prefix.String(),
		PeerGroup: group,
	}})
}

// awaitListening waits for the socket of the gRPC API, which GoBGP opens in another
// goroutine.
func (s *server) awaitListening(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for GoBGP's API: %w (last seen: %w)", ctx.Err(), err)
		case err := <-s.fatal:
			return err
		case <-tick.C:
		}
	}
}

// stopBGP closes every session with a notification.
func (s *server) stopBGP() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.bgp.Stop()
	}()
	select {
	case <-done:
	case <-time.After(stopTimeout):
		s.log.Printf("BGP sessions not closed after %s", stopTimeout)
	}
}

// watchBGP requests a reconciliation after every change of a best path, and logs
// when sessions come up or go down, until ctx ends.
func (s *server) watchBGP(ctx context.Context) error {
	up := map[string]bool{}
	err := s.bgp.WatchEvent(ctx, &api.WatchEventRequest{
		Peer: &api.WatchEventRequest_Peer{},
		Table: &api.WatchEventRequest_Table{Filters: []*api.WatchEventRequest_Table_Filter{
			{Type: api.WatchEventRequest_Table_Filter_BEST, Init: true},
		}},
	}, func(e *api.WatchEventResponse) {
		if e.GetTable() != nil {
			s.request()
			return
		}
		state := e.GetPeer().GetPeer().GetState()
		if e.GetPeer().GetType() != api.WatchEventResponse_PeerEvent_STATE {
			return
		}
		established := state.GetSessionState() == api.PeerState_ESTABLISHED
		if addr := state.GetNeighborAddress(); up[addr] != established {
			up[addr] = established
			word := "down"
			if established {
				word = "up"
			}
			s.log.Printf("session with %s (AS %d) is %s", addr, state.GetPeerAsn(), word)
		}
	})
	if err != nil {
		return fmt.Errorf("watching GoBGP: %w", err)
	}
	return nil
}

// rib lists GoBGP's global table.
func (s *server) rib(ctx context.Context) ([]Path, error) {
	var paths []Path
	var bad error
	err := s.bgp.ListPath(ctx, listRIB, func(d *api.Destination) {
		ps, err := pathsOf(d, s.config.AS)
		if err != nil {
			bad = errors.Join(bad, err)
		}
		paths = append(paths, ps...)
	})
	if err := errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("listing the RIB: %w", err)
	}
	return paths, nil
}

// neighbors lists GoBGP's peers.
func (s *server) neighbors(ctx context.Context) ([]Neighbor, error) {
	neighbors := []Neighbor{}
	err := s.bgp.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
		neighbors = append(neighbors, neighborOf(p))
	})
	if err != nil {
		return nil, fmt.Errorf("listing BGP peers: %w", err)
	}
	sortNeighbors(neighbors)
	return neighbors, nil
}

// request requests a reconciliation. It never blocks.
func (s *server) request() {
	select {
	case s.kick <- struct{}{}:
	default: // a pending request covers this change
	}
}

// reconcileLoop reconciles on request until ctx ends.
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

// reconcile makes the kernel's table match the RIB and the static routes. An error
// of one route does not affect the others.
func (s *server) reconcile(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reconcileLocked(ctx)
}

func (s *server) reconcileLocked(ctx context.Context) error {
	// Listed under the lock, so that no older list is applied after a newer one.
	paths, err := s.paths(ctx)
	if err != nil {
		return err
	}
	return s.applyLocked(paths)
}

// reconcileWith is reconcile for a given RIB.
func (s *server) reconcileWith(paths []Path) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applyLocked(paths)
}

func (s *server) applyLocked(paths []Path) error {
	present, err := s.table.Routes()
	if err != nil {
		return err
	}
	wanted, rejected := plan(paths, s.staticsLocked(), present)
	replace, remove := diff(present, wanted)
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
	s.status.Synced = time.Now()
	s.status.Error = ""
	if err != nil {
		s.status.Error = err.Error()
	}
	return err
}

// withdrawAll removes every route but the guard.
func (s *server) withdrawAll() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Ready = false
	clear(s.statics)
	if err := s.applyLocked(nil); err != nil {
		return fmt.Errorf("removing the router's routes: %w", err)
	}
	return nil
}

// staticsLocked are the static routes, by prefix.
func (s *server) staticsLocked() []Static {
	return slices.SortedFunc(maps.Values(s.statics), func(a, b Static) int { return comparePrefixes(a.Prefix, b.Prefix) })
}

// addStatic sets and installs the static route to a prefix. The error is
// errUnresolved if a next hop is not usable now. One that becomes unusable later is
// not in the FIB meanwhile.
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
	return s.reconcileLocked(ctx)
}

// removeStatic removes the static route to a prefix, if there is one.
func (s *server) removeStatic(ctx context.Context, prefix netip.Prefix) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.statics, prefix)
	return s.reconcileLocked(ctx)
}

// fib lists the kernel's table.
func (s *server) fib() ([]Route, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.Routes()
}
