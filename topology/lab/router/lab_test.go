//go:build lab

package router

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/client"
	api "github.com/osrg/gobgp/v3/api"
	gobgp "github.com/osrg/gobgp/v3/pkg/server"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/bgp"
	"github.com/relapse-dev/relapse/topology/must"
)

// The lab: a router of a kind with a link to each of two peers, each in a network
// namespace and a process of its own (GoBGP keeps some of its settings in
// package variables). A router that is not GoBGP runs in the file system of its image.
//
//	peer 1, AS 64513             router, AS 64524            peer 2, AS 64513
//	192.0.2.2/25 ---- 192.0.2.1/25 r1   r2 192.0.2.129/25 ---- 192.0.2.130/25
const (
	routerAS, peersAS = 64524, 64513
	roleVariable      = "RELAPSE_ROUTER_TEST_ROLE"
)

var (
	shared = prefix("10.5.112.0/24") // announced by both peers
	once   = prefix("10.5.113.0/24") // announced by peer 1
	hops   = []bgp.NextHop{{Address: addr("192.0.2.2"), Interface: "r1"}, {Address: addr("192.0.2.130"), Interface: "r2"}}
)

// TestMain is also the main function of the router and of its peers: they are
// this program, started again with a role.
func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		flag.Parse()
		// The labs mostly wait: there need not be a CPU for each.
		if err := flag.Set("test.parallel", "9"); err != nil {
			panic(err)
		}
		os.Exit(m.Run())
	case "router":
		child(func(ctx context.Context, l *log.Logger) error {
			c, err := ReadConfig(strings.NewReader(os.Args[1]))
			if err != nil {
				return err
			}
			if len(os.Args) > 2 {
				if err := enter(os.Args[2], os.Args[3], c.Sockets); err != nil {
					return err
				}
			}
			return Run(ctx, c, l)
		})
	case "peer":
		child(runPeer)
	default:
		fmt.Fprintf(os.Stderr, "no role %q\n", role)
		os.Exit(2)
	}
}

// forEachKind runs a test with each kind of router, all at the same time and beside other
// tests: each has namespaces, a file system and sockets of its own.
func forEachKind(t *testing.T, test func(t *testing.T, kind topology.RouterKind)) {
	t.Parallel()
	for _, kind := range topology.RouterKinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// imageOf are the images of the routers that run in one.
var imageOf = map[topology.RouterKind]string{topology.FRR: "relapse.dev/frr:10.3", topology.BIRD: "relapse.dev/bird:2.17"}

func fileSystem(t *testing.T, ref string) string {
	t.Helper()
	docker := must.Get(client.New(client.FromEnv))(t)
	defer docker.Close()
	catalogue := must.Get(images.Open("../../.."))(t)
	must.Get(catalogue.Build(t.Context(), []string{ref}, func(images.Event) {}))(t)
	loaded := must.Get(catalogue.LoadDocker(t.Context(), docker, ref))(t)
	made := must.Get(docker.ContainerCreate(t.Context(), client.ContainerCreateOptions{Image: loaded}))(t)
	defer docker.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{})
	archive := must.Get(docker.ContainerExport(t.Context(), made.ID, client.ContainerExportOptions{}))(t)
	defer archive.Close()
	dir := t.TempDir()
	tar := exec.Command("tar", "--extract", "--numeric-owner", "--directory="+dir)
	tar.Stdin, tar.Stderr = archive, os.Stderr
	must.NoError(t, tar.Run())
	return dir
}

// enter moves this process, which has a mount namespace of its own, into the file system in lower.
// Changes go to a folder under scratch. The folder of the socket is the same in and outside.
func enter(lower, scratch, sockets string) error {
	root := filepath.Join(scratch, "root")
	for _, dir := range []string{"root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(scratch, dir), 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%[2]s/work", lower, scratch)
	if err := unix.Mount("overlay", root, "overlay", 0, layers); err != nil {
		return fmt.Errorf("mounting %s: %w", layers, err)
	}
	for _, dir := range []string{"/proc", "/dev", sockets} {
		if err := os.MkdirAll(root+dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(dir, root+dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", dir, err)
		}
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	return os.Chdir("/")
}

func child(run func(context.Context, *log.Logger) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l := log.New(os.Stderr, os.Getenv(roleVariable)+" ", log.Lmicroseconds)
	if err := run(ctx, l); err != nil {
		l.Print(err)
		os.Exit(1)
	}
}

// restartTime is what a peer asks of routers that help it to restart: more
// than GoBGP takes to dial again (5 to 9 s).
const restartTime = 12 * time.Second

// runPeer is a BGP speaker that dials the router, and asks for help when it restarts. Its arguments
// are its AS, its own address, the router's, and the socket for its API.
func runPeer(ctx context.Context, l *log.Logger) error {
	as, err := strconv.ParseUint(os.Args[1], 10, 32)
	if err != nil {
		return err
	}
	own, router, socket := os.Args[2], os.Args[3], os.Args[4]
	b := gobgp.NewBgpServer(
		gobgp.LoggerOption(&bgpLogger{log: l, fatal: func(err error) { l.Fatal(err) }}),
		gobgp.GrpcListenAddress("unix://"+socket),
	)
	go b.Serve()
	if err := b.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: uint32(as), RouterId: own, ListenPort: -1,
	}}); err != nil {
		return err
	}
	if err := b.AddPeer(ctx, &api.AddPeerRequest{Peer: &api.Peer{
		Conf:            &api.PeerConf{NeighborAddress: router, PeerAsn: routerAS},
		Timers:          &api.Timers{Config: &api.TimersConfig{ConnectRetry: 1, IdleHoldTimeAfterReset: 1}},
		GracefulRestart: &api.GracefulRestart{Enabled: true, RestartTime: uint32(restartTime / time.Second), LocalRestarting: true},
		AfiSafis: []*api.AfiSafi{{
			Config:            &api.AfiSafiConfig{Family: bgp.GoBGPFamilies[0], Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
		}, {Config: &api.AfiSafiConfig{Family: bgp.GoBGPFamilies[1], Enabled: true}}}, // which a router of IPv4 does not negotiate
	}}); err != nil {
		return err
	}
	<-ctx.Done()
	b.Stop()
	return nil
}

// within calls f in a network namespace, on a thread that does nothing else meanwhile.
func within(t *testing.T, ns netns.NsHandle, f func() error) {
	t.Helper()
	runtime.LockOSThread()
	home := must.Get(netns.Get())(t)
	defer home.Close()
	must.NoError(t, netns.Set(ns))
	err := f()
	if back := netns.Set(home); back != nil {
		t.Fatal(back) // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	must.NoError(t, err)
}

func namespace(t *testing.T) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := must.Get(netns.Get())(t)
	defer home.Close()
	ns, err := netns.New()
	if err != nil {
		t.Skipf("making a network namespace: %v (root needed)", err)
	}
	t.Cleanup(func() { ns.Close() })
	must.NoError(t, netns.Set(home))
	return ns
}

// cable links two namespaces: interface name with address at in a, eth0 with address bt in b.
func cable(t *testing.T, a netns.NsHandle, name, at string, b netns.NsHandle, bt string) {
	t.Helper()
	within(t, a, func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(b)),
		})
	})
	end := func(name, address string) func() error {
		return func() error {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr(address)
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(l, a); err != nil {
				return err
			}
			return netlink.LinkSetUp(l)
		}
	}
	within(t, a, end(name, at))
	within(t, b, end("eth0", bt))
}

// labProcess is a child that runs in a namespace.
type labProcess struct {
	cmd    *exec.Cmd
	exited chan error
}

func start(t *testing.T, ns netns.NsHandle, role string, args ...string) *labProcess {
	t.Helper()
	p := &labProcess{cmd: exec.Command("/proc/self/exe", args...), exited: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: unix.CLONE_NEWNS,  // for enter
		Cloneflags:   unix.CLONE_NEWPID, // a killed router takes its programs with it, as in a container
	}
	p.cmd.Stderr = t.Output()
	within(t, ns, p.cmd.Start)
	go func() { p.exited <- p.cmd.Wait(); close(p.exited) }()
	t.Cleanup(func() { p.cmd.Process.Kill(); <-p.exited })
	return p
}

func (p *labProcess) end(t *testing.T, s os.Signal) error {
	t.Helper()
	must.NoError(t, p.cmd.Process.Signal(s))
	select {
	case err := <-p.exited:
		return err
	case <-time.After(10 * time.Second):
		t.Fatalf("process not ended 10 s after %s", s)
		return nil
	}
}

// eventually waits for a condition, for 30 s at most: a peer whose session ended without
// a notification sees that at its next keepalive, and dials up to 9 s later.
func eventually(t *testing.T, what string, check func() (ok bool, last any)) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		ok, last := check()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting until %s: last seen: %v", what, last)
		}
		time.Sleep(time.Millisecond)
	}
}

type peer struct {
	*labProcess
	own netip.Addr
	api api.GobgpApiClient
}

// startPeer starts a peer that announces prefixes, and waits until its session is up.
func startPeer(t *testing.T, ns netns.NsHandle, as int, own, router string, announced ...netip.Prefix) *peer {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "peer.sock")
	p := &peer{labProcess: start(t, ns, "peer", strconv.Itoa(as), own, router, socket), own: addr(own)}
	conn := must.Get(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { conn.Close() })
	p.api = api.NewGobgpApiClient(conn)
	for _, a := range announced {
		eventually(t, own+" announces "+a.String(), func() (bool, any) {
			_, err := p.api.AddPath(t.Context(), &api.AddPathRequest{Path: p.path(t, a, p.own)})
			return err == nil, err
		})
	}
	eventually(t, "the session of "+own+" is up", func() (bool, any) {
		peers, err := p.api.ListPeer(t.Context(), &api.ListPeerRequest{})
		if err != nil {
			return false, err
		}
		r, err := peers.Recv()
		return err == nil && bgp.GoBGPNeighbor(r.Peer).State == bgp.StateEstablished, fmt.Sprint(r, err)
	})
	return p
}

// path is the path that announces p.
func (p *peer) path(t *testing.T, announced netip.Prefix, nextHop netip.Addr) *api.Path {
	t.Helper()
	family := bgp.GoBGPFamilies[0]
	if announced.Addr().Is6() {
		family = bgp.GoBGPFamilies[1]
	}
	return &api.Path{
		Family: family,
		Nlri:   must.Get(anypb.New(&api.IPAddressPrefix{Prefix: announced.Addr().String(), PrefixLen: uint32(announced.Bits())}))(t),
		Pattrs: []*anypb.Any{
			must.Get(anypb.New(&api.OriginAttribute{Origin: 0}))(t),
			must.Get(anypb.New(&api.NextHopAttribute{NextHop: nextHop.String()}))(t),
		},
	}
}

func (p *peer) announce(t *testing.T, announced netip.Prefix, nextHop netip.Addr) {
	t.Helper()
	must.Get(p.api.AddPath(t.Context(), &api.AddPathRequest{Path: p.path(t, announced, nextHop)}))(t)
}

func (p *peer) withdraw(t *testing.T, announced netip.Prefix) {
	t.Helper()
	must.Get(p.api.DeletePath(t.Context(), &api.DeletePathRequest{Family: bgp.GoBGPFamilies[0], Path: p.path(t, announced, p.own)}))(t)
}

type lab struct {
	*labProcess
	config       Config
	image        string // its file system; empty for GoBGP
	client       *Client
	ns, ns1, ns2 netns.NsHandle
	handle       *netlink.Handle
}

func newLab(t *testing.T, kind topology.RouterKind) *lab {
	t.Helper()
	l := &lab{ns: namespace(t), ns1: namespace(t), ns2: namespace(t)}
	if ref := imageOf[kind]; ref != "" {
		l.image = fileSystem(t, ref)
	}
	cable(t, l.ns, "r1", "192.0.2.1/25", l.ns1, "192.0.2.2/25")
	cable(t, l.ns, "r2", "192.0.2.129/25", l.ns2, "192.0.2.130/25")
	l.handle = must.Get(netlink.NewHandleAt(l.ns))(t)
	t.Cleanup(l.handle.Close)
	l.config = Config{
		Kind: kind, AS: routerAS, RouterID: addr("192.0.2.1"),
		Listen:  []netip.Addr{addr("192.0.2.1"), addr("192.0.2.129")},
		Peers:   []Peers{{Prefix: prefix("192.0.2.0/25"), AS: peersAS}, {Prefix: prefix("192.0.2.128/25"), AS: peersAS}},
		Sockets: t.TempDir(),
	}
	return l
}

// start starts the router and waits until it is ready.
func (l *lab) start(t *testing.T) {
	t.Helper()
	args := []string{string(must.Get(json.Marshal(l.config))(t))}
	if l.image != "" {
		args = append(args, l.image, t.TempDir())
	}
	l.labProcess = start(t, l.ns, "router", args...)
	l.client = must.Get(Open(l.config.Sockets))(t)
	t.Cleanup(func() { l.client.Close() })
	eventually(t, "the router is ready", func() (bool, any) {
		s, err := l.client.Status(t.Context())
		return err == nil && s.Ready, err
	})
}

// routes is what the kernel says of a prefix; not by way of the router.
func (l *lab) routes(t *testing.T, p netip.Prefix) []bgp.Route {
	t.Helper()
	all := must.Get(bgp.Routes(t.Context(), l.handle, true))(t)
	return slices.DeleteFunc(all, func(r bgp.Route) bool { return r.Prefix != p })
}

// awaitRoutes waits until the kernel has these routes to p and no other, and
// returns how long that took.
func (l *lab) awaitRoutes(t *testing.T, p netip.Prefix, want ...bgp.Route) time.Duration {
	t.Helper()
	began := time.Now()
	eventually(t, fmt.Sprintf("the FIB has %v", want), func() (bool, any) {
		got := l.routes(t, p)
		return cmp.Equal(want, got, byValue), got
	})
	return time.Since(began)
}

func (l *lab) bgpRoute(p netip.Prefix, hops ...bgp.NextHop) bgp.Route {
	r := bgp.Route{Prefix: p, Type: bgp.RouteUnicast, Protocol: bgp.RouteBGP, Metric: DistanceEBGP, NextHops: hops}
	if l.config.Kind == topology.BIRD {
		r.Protocol, r.Metric = bgp.RouteBIRD, birdMetric
	}
	return r
}

// birdMetric is the metric of all routes of BIRD (the option metric of its protocol kernel).
const birdMetric = 32

func (l *lab) staticRoute(p netip.Prefix, hops ...bgp.NextHop) bgp.Route {
	r := bgp.Route{Prefix: p, Type: bgp.RouteUnicast, Protocol: bgp.RouteStatic, Metric: DistanceStatic, NextHops: hops}
	switch l.config.Kind {
	case topology.FRR:
		r.Metric = frrMetric
	case topology.BIRD:
		r.Protocol, r.Metric = bgp.RouteBIRD, birdMetric
	}
	return r
}

// protocolOf is the protocol of the one route to a prefix that the client lists.
func (l *lab) protocolOf(t *testing.T, p netip.Prefix) bgp.RouteProtocol {
	t.Helper()
	fib := must.Get(l.client.FIB(t.Context()))(t)
	fib = slices.DeleteFunc(fib, func(r bgp.Route) bool { return r.Prefix != p })
	if len(fib) != 1 {
		t.Fatalf("the client lists %v, want one route to %s", fib, p)
	}
	return fib[0].Protocol
}

func TestLabRouter(t *testing.T) { forEachKind(t, testRouter) }

func testRouter(t *testing.T, kind topology.RouterKind) {
	l := newLab(t, kind)
	// What a container engine and an earlier life may leave behind.
	left := prefix("198.51.100.0/24")
	gateway := net.IPv4(192, 0, 2, 2)
	for _, r := range []*netlink.Route{
		{Gw: gateway, Protocol: unix.RTPROT_BOOT},
		{Gw: gateway, Protocol: unix.RTPROT_BGP, Priority: 20, Dst: &net.IPNet{IP: left.Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}},
	} {
		must.NoError(t, l.handle.RouteAdd(r))
	}
	within(t, l.ns, func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/r1/rp_filter", []byte("2"), 0o644) })
	l.start(t)
	l.awaitRoutes(t, left)
	l.awaitRoutes(t, guard.Prefix, guard)
	within(t, l.ns, func() error {
		for file, want := range map[string]string{
			"ip_forward": "1", "conf/r1/rp_filter": "0", "conf/r2/send_redirects": "0", "conf/all/send_redirects": "0",
		} {
			if got, err := os.ReadFile("/proc/sys/net/ipv4/" + file); err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("%s is %q (%v), want %s", file, got, err, want)
			}
		}
		return nil
	})

	p1 := startPeer(t, l.ns1, peersAS, "192.0.2.2", "192.0.2.1")
	p2 := startPeer(t, l.ns2, peersAS, "192.0.2.130", "192.0.2.129")

	p1.announce(t, once, p1.own)
	t.Logf("announced, in FIB after %s", l.awaitRoutes(t, once, l.bgpRoute(once, hops[0])))
	p1.announce(t, shared, p1.own)
	l.awaitRoutes(t, shared, l.bgpRoute(shared, hops[0]))
	p2.announce(t, shared, p2.own)
	t.Logf("second path, in FIB after %s", l.awaitRoutes(t, shared, l.bgpRoute(shared, hops...)))

	t.Run("RIB", func(t *testing.T) {
		rib := must.Get(l.client.RIB(t.Context()))(t)
		// The older eBGP path is best.
		path := func(p netip.Prefix, from string) bgp.Path {
			return bgp.Path{
				Prefix: p, NextHop: addr(from), Neighbor: addr(from), ASPath: []uint32{peersAS},
				Origin: "igp", LocalPref: 100, Best: from == "192.0.2.2", Multipath: true,
			}
		}
		want := []bgp.Path{path(shared, "192.0.2.2"), path(shared, "192.0.2.130"), path(once, "192.0.2.2")}
		must.Equal(t, "RIB", want, rib, byValue)
	})
	t.Run("neighbours", func(t *testing.T) {
		neighbors := must.Get(l.client.Neighbors(t.Context()))(t)
		for i := range neighbors {
			if up := time.Since(neighbors[i].Established); up < 0 || up > time.Minute {
				t.Errorf("session with %s up for %s", neighbors[i].Address, up)
			}
			neighbors[i].Established = time.Time{}
		}
		want := []bgp.Neighbor{
			{Address: p1.own, AS: peersAS, RouterID: p1.own, State: bgp.StateEstablished, Received: 2, Accepted: 2},
			{Address: p2.own, AS: peersAS, RouterID: p2.own, State: bgp.StateEstablished, Received: 1, Accepted: 1},
		}
		must.Equal(t, "neighbours", want, neighbors, byValue)
	})
	t.Run("times stay the same", func(t *testing.T) {
		first := must.Get(l.client.RIB(t.Context()))(t)
		sessions := must.Get(l.client.Neighbors(t.Context()))(t)
		for began := time.Now(); time.Since(began) < 2*time.Second; { // the seconds of both clocks change
			rib := must.Get(l.client.RIB(t.Context()))(t)
			neighbors := must.Get(l.client.Neighbors(t.Context()))(t)
			if d := cmp.Diff(first, rib, byValue) + cmp.Diff(sessions, neighbors, byValue); d != "" {
				t.Fatalf("two answers (-first +later):\n%s", d)
			}
		}
	})
	t.Run("next hop not on-link", func(t *testing.T) {
		off := prefix("10.5.114.0/24")
		p1.announce(t, off, addr("203.0.113.1"))
		// The announcement after it: the router has both when it has the second.
		last := prefix("10.5.115.0/24")
		p1.announce(t, last, p1.own)
		l.awaitRoutes(t, last, l.bgpRoute(last, hops[0]))
		rejected := func() bool {
			s, err := l.client.Status(t.Context())
			return err == nil && slices.ContainsFunc(s.Rejected, func(r Rejected) bool {
				return r.Prefix == off && r.NextHop == addr("203.0.113.1")
			})
		}
		rib := must.Get(l.client.RIB(t.Context()))(t)
		i := slices.IndexFunc(rib, func(p bgp.Path) bool { return p.Prefix == off })
		switch kind {
		case topology.FRR:
			if i < 0 || rib[i].Best || rib[i].Multipath {
				t.Errorf("the RIB is %+v, want the path, and not as best", rib)
			}
		case topology.BIRD:
			if i >= 0 {
				t.Errorf("the RIB has %+v, which BIRD rejects", rib[i])
			}
		default:
			eventually(t, "the next hop is reported", func() (bool, any) { return rejected(), rib })
		}
		must.Equal(t, "installed anyway", nil, l.routes(t, off), byValue)
		p1.withdraw(t, off)
		p1.withdraw(t, last)
		l.awaitRoutes(t, last)
	})
	t.Run("static route", func(t *testing.T) {
		static := l.staticRoute(once, hops[1])
		must.Fail(t, l.client.AddStatic(t.Context(), once, addr("203.0.113.1"))) // it is not on-link
		must.NoError(t, l.client.AddStatic(t.Context(), once, p2.own))
		must.Equal(t, "FIB with the static route", []bgp.Route{static}, l.routes(t, once), byValue)
		must.Equal(t, "the client says that its protocol", bgp.RouteStatic, l.protocolOf(t, once))
		if rib, err := l.client.RIB(t.Context()); err != nil || !slices.ContainsFunc(rib, func(p bgp.Path) bool { return p.Prefix == once && p.Best }) {
			t.Errorf("the RIB is %+v (%v), want the path as best: the static route is none", rib, err)
		}
		both := l.staticRoute(once, hops...)
		must.NoError(t, l.client.AddStatic(t.Context(), once, p2.own, p1.own))
		must.Equal(t, "FIB with two next hops", []bgp.Route{both}, l.routes(t, once), byValue)
		must.NoError(t, l.client.RemoveStatic(t.Context(), once))
		must.Equal(t, "FIB without it", []bgp.Route{l.bgpRoute(once, hops[0])}, l.routes(t, once), byValue)
		must.Equal(t, "the client says that the protocol", bgp.RouteBGP, l.protocolOf(t, once))
		must.NoError(t, l.client.RemoveStatic(t.Context(), once)) // twice
	})
	t.Run("default route that comes later", func(t *testing.T) {
		must.NoError(t, l.handle.RouteAdd(&netlink.Route{Gw: gateway, Protocol: unix.RTPROT_BOOT}))
		t.Logf("removed after %s", l.awaitRoutes(t, guard.Prefix, guard))
	})
	t.Run("link goes down and up", func(t *testing.T) {
		link := must.Get(l.handle.LinkByName("r1"))(t)
		must.NoError(t, l.handle.LinkSetDown(link))
		l.awaitRoutes(t, shared, l.bgpRoute(shared, hops[1]))
		session := func(up bool) {
			eventually(t, fmt.Sprintf("session with %s is up: %t", p1.own, up), func() (bool, any) {
				n, err := l.client.Neighbors(t.Context())
				return err == nil && bgp.Established(n, p1.own) == up, fmt.Sprint(n, err)
			})
		}
		if kind != topology.GoBGP {
			session(false) // FRR and BIRD close it when its link is down
		}
		must.NoError(t, l.handle.LinkSetUp(link))
		session(true)
		l.awaitRoutes(t, shared, l.bgpRoute(shared, hops...))
	})
	t.Run("session closes", func(t *testing.T) {
		p2.end(t, syscall.SIGKILL)
		t.Logf("session closed, ECMP shrunk after %s", l.awaitRoutes(t, shared, l.bgpRoute(shared, hops[0])))
		p1.end(t, syscall.SIGKILL)
		t.Logf("session closed, route gone after %s", l.awaitRoutes(t, shared))
		l.awaitRoutes(t, once)
		must.Equal(t, "RIB", nil, must.Get(l.client.RIB(t.Context()))(t), byValue)
		if n, err := l.client.Neighbors(t.Context()); err != nil || bgp.Established(n, p1.own) || bgp.Established(n, p2.own) {
			t.Errorf("neighbours are %+v (%v), want no session", n, err)
		}
	})
	t.Run("session cleared", func(t *testing.T) {
		p := startPeer(t, l.ns1, peersAS, "192.0.2.2", "192.0.2.1", once)
		l.awaitRoutes(t, once, l.bgpRoute(once, hops[0]))
		began := time.Now()
		for _, neighbor := range []netip.Addr{p.own, addr("192.0.2.99")} { // the second is unknown
			must.NoError(t, l.client.Clear(t.Context(), neighbor))
		}
		l.awaitRoutes(t, once)
		t.Logf("cleared, route gone after %s", time.Since(began))
		l.awaitRoutes(t, once, l.bgpRoute(once, hops[0]))
		p.end(t, syscall.SIGKILL)
		l.awaitRoutes(t, once)
	})

	p1 = startPeer(t, l.ns1, peersAS, "192.0.2.2", "192.0.2.1")
	p1.announce(t, once, p1.own)
	l.awaitRoutes(t, once, l.bgpRoute(once, hops[0]))
	if rss, cpu := l.usage(t); rss > 64<<20 {
		t.Errorf("router uses %d MB (CPU %s), want 64 at most", rss>>20, cpu)
	} else {
		t.Logf("router uses %d MB, CPU so far %s", rss>>20, cpu)
	}
	began := time.Now()
	must.NoError(t, l.end(t, syscall.SIGTERM))
	t.Logf("router ended after %s", time.Since(began))
	must.Equal(t, "left behind", nil, l.routes(t, once), byValue)
	l.awaitRoutes(t, guard.Prefix, guard)
	must.Equal(t, "sockets left behind", 0, len(must.Get(os.ReadDir(l.config.Sockets))(t)))
}

// TestLabInternalPeer is a router with iBGP peers.
func TestLabInternalPeer(t *testing.T) { forEachKind(t, testInternalPeer) }

func testInternalPeer(t *testing.T, kind topology.RouterKind) {
	l := newLab(t, kind)
	l.config.Peers = []Peers{{Prefix: prefix("192.0.2.0/25"), AS: routerAS}}
	l.start(t)
	p := startPeer(t, l.ns1, routerAS, "192.0.2.2", "192.0.2.1")
	p.announce(t, once, p.own)
	want := l.bgpRoute(once, hops[0])
	if kind == topology.GoBGP {
		want.Metric = DistanceIBGP
	}
	l.awaitRoutes(t, once, want)
	rib := must.Get(l.client.RIB(t.Context()))(t)
	if len(rib) != 1 || !rib[0].Internal || !rib[0].Multipath || len(rib[0].ASPath) > 0 {
		t.Errorf("RIB is %+v, want one internal path", rib)
	}
}

// TestLabGracefulRestart kills a peer that comes back in time, and then for
// good. (That a router which is not asked to help drops the paths at once,
// though the peer offers graceful restart, is TestLabLatency.)
func TestLabGracefulRestart(t *testing.T) { forEachKind(t, testGracefulRestart) }

func testGracefulRestart(t *testing.T, kind topology.RouterKind) {
	l := newLab(t, kind)
	l.config.Peers[0].GracefulRestart = true
	l.start(t)
	kill := func(p *peer) time.Time {
		began := time.Now()
		must.NoError(t, p.cmd.Process.Kill())
		eventually(t, "the router has no session", func() (bool, any) {
			n, err := l.client.Neighbors(t.Context())
			up := slices.ContainsFunc(n, func(n bgp.Neighbor) bool { return n.State == bgp.StateEstablished })
			return err == nil && !up, fmt.Sprint(n, err)
		})
		return began
	}
	p := startPeer(t, l.ns1, peersAS, "192.0.2.2", "192.0.2.1", once)
	l.awaitRoutes(t, once, l.bgpRoute(once, hops[0]))

	kill(p)
	if got := l.routes(t, once); len(got) != 1 {
		t.Errorf("without a session: %v, want the route kept", got)
	}
	p = startPeer(t, l.ns1, peersAS, "192.0.2.2", "192.0.2.1", once)
	l.awaitRoutes(t, once, l.bgpRoute(once, hops[0]))

	began := kill(p)
	if kind == topology.FRR {
		must.Fail(t, l.client.Clear(t.Context(), p.own), "FRR cannot clear 192.0.2.2")
	} else {
		for range 2 { // the second time it has no paths
			must.NoError(t, l.client.Clear(t.Context(), p.own))
			l.awaitRoutes(t, once)
		}
		if took := time.Since(began); took >= restartTime {
			t.Errorf("cleared after %s, and without a request the paths go after %s", took, restartTime)
		}
	}
	p = startPeer(t, l.ns1, peersAS, "192.0.2.2", "192.0.2.1", once)
	l.awaitRoutes(t, once, l.bgpRoute(once, hops[0]))

	began = kill(p)
	if got := l.routes(t, once); len(got) != 1 {
		t.Errorf("without a session: %v, want the route kept", got)
	}
	l.awaitRoutes(t, once)
	if retained := time.Since(began); retained < restartTime-500*time.Millisecond {
		t.Errorf("the route was kept for %s, want %s", retained, restartTime)
	}
}

// usage is the router's resident memory in bytes, and its CPU time.
func (l *lab) usage(t *testing.T) (int, time.Duration) {
	t.Helper()
	stat := must.Read(t, fmt.Sprintf("/proc/%d/stat", l.cmd.Process.Pid))
	// Fields 14, 15 and 24 of proc(5), counted from behind the name.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	number := func(i int) int { return must.Get(strconv.Atoi(fields[i-3]))(t) }
	return number(24) * os.Getpagesize(), time.Duration(number(14)+number(15)) * 10 * time.Millisecond
}

// TestLabLatency measures how soon the FIB follows the peers: from before the
// announcement is asked of the peer, and from before the peer is killed. No other lab runs
// beside it, because that would add to the time.
func TestLabLatency(t *testing.T) {
	for _, kind := range topology.RouterKinds {
		t.Run(string(kind), func(t *testing.T) { testLatency(t, kind) })
	}
}

func testLatency(t *testing.T, kind topology.RouterKind) {
	const rounds = 10
	l := newLab(t, kind)
	l.start(t)
	var announced, closed []time.Duration
	for range rounds {
		p := startPeer(t, l.ns1, peersAS, "192.0.2.2", "192.0.2.1")
		began := time.Now()
		p.announce(t, once, p.own)
		l.awaitRoutes(t, once, l.bgpRoute(once, hops[0]))
		announced = append(announced, time.Since(began))
		began = time.Now()
		must.NoError(t, p.cmd.Process.Kill())
		l.awaitRoutes(t, once)
		closed = append(closed, time.Since(began))
		<-p.exited
	}
	slices.Sort(announced)
	slices.Sort(closed)
	t.Logf("announcement to FIB: median %s, worst %s", announced[rounds/2], announced[rounds-1])
	t.Logf("session close to FIB: median %s, worst %s", closed[rounds/2], closed[rounds-1])
	// The budget for detection is a second; the router may take little of it.
	if worst := max(announced[rounds-1], closed[rounds-1]); worst > 250*time.Millisecond {
		t.Errorf("the FIB followed after %s, want 250 ms at most", worst)
	}
}

// A router of two families has routes of both, by one session and by two, and no way out for either.
func TestDual(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind topology.RouterKind) {
		l := newLab(t, kind)
		l.config.Dual = true
		l.config.Peers = append(l.config.Peers,
			Peers{Prefix: prefix("fd00:1::/64"), AS: peersAS}, Peers{Prefix: prefix("fd00:2::/64"), AS: peersAS})
		l.start(t)
		// Its addresses of IPv6 come after its start, as in a lab.
		for _, end := range []struct {
			ns            netns.NsHandle
			link, address string
		}{{l.ns, "r1", "fd00:1::1/64"}, {l.ns, "r2", "fd00:2::1/64"}, {l.ns1, "eth0", "fd00:1::2/64"}, {l.ns2, "eth0", "fd00:2::2/64"}} {
			within(t, end.ns, func() error {
				link := must.Get(netlink.LinkByName(end.link))(t)
				address := must.Get(netlink.ParseAddr(end.address))(t)
				address.Flags = unix.IFA_F_NODAD
				return netlink.AddrAdd(link, address)
			})
		}
		one, two, three := prefix("fd00:99:1::/64"), prefix("fd00:99:2::/64"), prefix("10.99.1.0/24")
		hop1, hop2 := bgp.NextHop{Address: addr("fd00:1::2"), Interface: "r1"}, bgp.NextHop{Address: addr("fd00:2::2"), Interface: "r2"}
		p1 := startPeer(t, l.ns1, peersAS, "192.0.2.2", "192.0.2.1", three)
		p1.announce(t, one, hop1.Address)
		l.awaitRoutes(t, three, l.bgpRoute(three, bgp.NextHop{Address: p1.own, Interface: "r1"}))
		l.awaitRoutes(t, one, l.bgpRoute(one, hop1))
		p2 := startPeer(t, l.ns2, peersAS, "192.0.2.130", "fd00:2::1")
		p2.announce(t, one, hop2.Address)
		l.awaitRoutes(t, one, l.bgpRoute(one, hop1, hop2))
		must.NoError(t, l.client.AddStatic(t.Context(), two, hop2.Address))
		if r := l.routes(t, two); len(r) != 1 || len(r[0].NextHops) != 1 || r[0].NextHops[0] != hop2 {
			t.Errorf("the static route is %v", r)
		}
		l.awaitRoutes(t, guardV6.Prefix, guardV6)
		paths := must.Get(l.client.RIB(t.Context()))(t)
		if n := len(slices.DeleteFunc(paths, func(p bgp.Path) bool { return p.Prefix != one })); n != 2 {
			t.Errorf("the RIB has %d paths to %s: %v", n, one, paths)
		}
		p2.withdraw(t, one)
		l.awaitRoutes(t, one, l.bgpRoute(one, hop1))
		must.NoError(t, l.client.RemoveStatic(t.Context(), two))
		must.Equal(t, "after the static route was removed", nil, l.routes(t, two), byValue)
	})
}
