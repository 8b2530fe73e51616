package probe_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/agent"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var addresses atomic.Uint32

// address returns an address of the loopback network that no other test, and
// no other run of the tests, uses.
func address() netip.AddrPort {
	pid, n := os.Getpid(), addresses.Add(1)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(1 + pid>>8%254), byte(pid), byte(n)}), wire.DefaultPort)
}

func startEnd(t *testing.T, name string) probe.End {
	t.Helper()
	end := probe.End{Name: name, Address: address()}
	a := must.Get(agent.Open(end.Address, false))(t)
	t.Cleanup(func() { a.Close() })
	end.Agent = connect(t, name, a)
	return end
}

// A probe of IPv6 is named and counted apart, and each protocol has one.
func TestBothFamilies(t *testing.T) {
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	} else {
		l.Close()
	}
	both := func(name string, port uint16) probe.End {
		a := must.Get(agent.Open(netip.AddrPortFrom(netip.IPv4Unspecified(), port), true))(t)
		t.Cleanup(func() { a.Close() })
		return probe.End{
			Name: name, Address: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port),
			V6: netip.AddrPortFrom(netip.IPv6Loopback(), port), Agent: connect(t, name, a),
		}
	}
	port := uint16(20000 + os.Getpid()%10000)
	ends := []probe.End{both("a", port), both("b", port+1)}
	probes := []probe.Probe{{From: "a", To: "b"}}
	for _, protocol := range []probe.Protocol{probe.UDP, probe.UDPFlow, probe.UDPConnected, probe.TCP, probe.Stream} {
		probes = append(probes, probe.Probe{From: "a", To: "b", V6: true, Protocol: protocol})
	}
	s := start(t, ends, probes...)
	names := []string{"a->b", "a->b/v6", "a->b/udp-flow/v6", "a->b/udp-connected/v6", "a->b/tcp/v6", "a->b/stream/v6"}
	waitClean(t, s, 300*time.Millisecond, names...)
	stop(t, s)
	for _, name := range names {
		line := timeline(t, s, name)
		if line.Target.Addr().Is6() != line.Probe.V6 || len(line.Sources) > 0 && line.Sources[0].Address.Is6() != line.Probe.V6 {
			t.Errorf("%s goes to %s, from %v", name, line.Target, line.Sources)
		}
	}
	hops := timeline(t, s, "a->b/v6").RequestTTL
	must.Equal(t, hops, true, hops[64] > 0)
	// To an end without an address of IPv6.
	must.Fail(t, must.Err(probe.New([]probe.End{ends[0], {Name: "c", Address: ends[1].Address}}, []probe.Probe{{From: "a", To: "c", V6: true}})))
}

func connect(t *testing.T, name string, a *agent.Agent) *probe.Agent {
	t.Helper()
	ours, theirs := net.Pipe()
	var session sync.WaitGroup
	session.Go(func() { _ = a.Session(context.Background(), theirs) })
	t.Cleanup(session.Wait)
	c := must.Get(probe.Connect(t.Context(), name, ours))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

func start(t *testing.T, ends []probe.End, probes ...probe.Probe) *probe.Set {
	t.Helper()
	s := must.Get(probe.New(ends, probes))(t)
	must.NoError(t, s.Start(t.Context()))
	return s
}

func stop(t *testing.T, s *probe.Set) {
	t.Helper()
	must.NoError(t, s.Stop(t.Context()))
}

func timeline(t *testing.T, s *probe.Set, name string) probe.Timeline {
	t.Helper()
	line, there := each.First(s.Timelines(), func(l probe.Timeline) bool { return l.Probe.Name == name })
	must.Equal(t, "there is a probe "+name, true, there)
	return line
}

// seenWithin bounds waits for what comes within a moment, unless the machine is busy.
const seenWithin = 30 * time.Second

func waitClean(t *testing.T, s *probe.Set, window time.Duration, names ...string) time.Time {
	t.Helper()
	return must.Get(s.WaitClean(t.Context(), names, window, seenWithin))(t)
}

func waitLoss(t *testing.T, s *probe.Set, since time.Time, names ...string) time.Time {
	t.Helper()
	return must.Get(s.WaitOutage(t.Context(), names, since, 0, seenWithin))(t)
}

// relay is between two ends and drops what a test asks for.
type relay struct {
	conn   *net.UDPConn
	target netip.AddrPort
	drop   atomic.Pointer[func(wire.Packet) bool]
}

func startRelay(t *testing.T, target netip.AddrPort) *relay {
	t.Helper()
	conn := must.Get(net.ListenUDP("udp4", net.UDPAddrFromAddrPort(address())))(t)
	r := &relay{conn: conn, target: target}
	r.dropping(func(wire.Packet) bool { return false })
	var loop sync.WaitGroup
	loop.Go(r.run)
	t.Cleanup(func() { conn.Close(); loop.Wait() })
	return r
}

func (r *relay) dropping(drop func(wire.Packet) bool) { r.drop.Store(&drop) }

func (r *relay) address() netip.AddrPort { return r.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

func (r *relay) run() {
	b := make([]byte, 64)
	var client netip.AddrPort
	for {
		n, from, err := r.conn.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		p, err := wire.ParsePacket(b[:n])
		if err != nil {
			continue
		}
		to := client
		if p.Kind == wire.RequestPacket {
			client, to = from, r.target
		}
		if drop := *r.drop.Load(); !drop(p) {
			_, _ = r.conn.WriteToUDPAddrPort(b[:n], to)
		}
	}
}

func TestNoLossIsNoLoss(t *testing.T) {
	t.Parallel()
	a, b := startEnd(t, "a"), startEnd(t, "b")
	tcp := probe.Probe{From: "b", To: "a", Protocol: probe.TCP, Interval: 20 * time.Millisecond}
	began := time.Now()
	s := start(t, []probe.End{a, b}, append(both("a", "b"), tcp)...)
	since := waitClean(t, s, 400*time.Millisecond)
	if since.Before(began) || since.After(time.Now()) {
		t.Errorf("clean since %s, but the test ran from %s to %s", since, began, time.Now())
	}
	stop(t, s)
	for _, line := range s.Timelines() {
		c := line.Counts()
		if c.Lost != 0 || c.InFlight != 0 || c.Received != c.Sent || c.Sent < int(400*time.Millisecond/line.Probe.Interval)/2 {
			t.Errorf("%s", line.String())
		}
		if line.Probe.Protocol == probe.TCP {
			continue
		}
		if line.RequestTTL[64] != c.Sent {
			t.Errorf("%s: %+v, TTLs of requests %v", line.Probe.Name, c, line.RequestTTL)
		}
		from := map[string]probe.End{"a": a, "b": b}[line.Probe.From].Address.Addr()
		if len(line.Sources) == 0 || slices.ContainsFunc(line.Sources, func(s probe.Source) bool { return s.Address != from }) {
			t.Errorf("%s: seen from %v, want %s", line.Probe.Name, line.Sources, from)
		}
	}
}

// TestFivePercent makes sure that the measure measures: a loss of 5% must not
// pass for less than 1%.
func TestFivePercent(t *testing.T) {
	t.Parallel()
	a, b := startEnd(t, "a"), startEnd(t, "b")
	r := startRelay(t, b.Address)
	// Every 20th that comes, and not every 20th slot: a busy machine skips slots.
	var mu sync.Mutex
	requests, dropped := 0, []uint32{}
	r.dropping(func(p wire.Packet) bool {
		if p.Kind != wire.RequestPacket {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		requests++
		if requests%20 == 10 {
			dropped = append(dropped, p.Slot)
			return true
		}
		return false
	})
	b.Address = r.address()
	s := start(t, []probe.End{a, b}, probe.Probe{From: "a", To: "b", Interval: 2 * time.Millisecond, Timeout: 400 * time.Millisecond})
	first := waitLoss(t, s, time.Time{}, "a->b")
	// To be clean takes a tenth of the packets that are due in that time: 20.
	must.Is(t, must.Err(s.WaitClean(t.Context(), nil, 400*time.Millisecond, 800*time.Millisecond)), probe.ErrBound)
	stop(t, s)
	mu.Lock() // the relay may be at a last packet
	defer mu.Unlock()
	line := timeline(t, s, "a->b")
	c := line.Counts()
	// While the far endpoint is stalled, dropped packets are unjudged.
	ratio := float64(c.Lost) / float64(c.Lost+c.Received)
	if c.Lost > len(dropped) || c.Lost+c.Unjudged < len(dropped) || ratio < 0.02 {
		t.Errorf("%d dropped packets were measured as %.1f%%: %+v", len(dropped), 100*ratio, c)
	}
	must.Equal(t, c, c.Lost, c.LostRequest)
	// What was lost first may be unjudged in the end, on a machine that is busy.
	lost, _ := line.FirstOutage(time.Time{}, 0)
	if slot := uint32(lost.Sub(line.Started) / line.Probe.Interval); lost.Before(first) || !slices.Contains(dropped, slot) {
		t.Errorf("the first loss is %d at %s, WaitOutage said %s, and %v were dropped", slot, lost, first, dropped)
	}
	for _, w := range line.Windows(0) {
		if w.Lost != 1 || w.First != w.Last || !slices.Contains(dropped, w.First) {
			t.Errorf("window %+v; dropped were %v", w, dropped)
		}
	}
}

func TestSidesAndRecovery(t *testing.T) {
	t.Parallel()
	a, b := startEnd(t, "a"), startEnd(t, "b")
	r := startRelay(t, b.Address)
	b.Address = r.address()
	s := start(t, []probe.End{a, b}, probe.Probe{From: "a", To: "b", Timeout: 400 * time.Millisecond})
	for _, lost := range []probe.Side{probe.Request, probe.Reply} {
		waitClean(t, s, 100*time.Millisecond)
		kind := wire.RequestPacket
		if lost == probe.Reply {
			kind = wire.ReplyPacket
		}
		broken := time.Now()
		r.dropping(func(p wire.Packet) bool { return p.Kind == kind })
		first := waitLoss(t, s, broken)
		if d := first.Sub(broken); d < 0 || d > 200*time.Millisecond {
			t.Errorf("the first lost %s was found %s after the fault", lost, d)
		}
		mended := time.Now()
		r.dropping(func(wire.Packet) bool { return false })
		since := waitClean(t, s, 50*time.Millisecond)
		if d := since.Sub(mended); d < -20*time.Millisecond || d > 200*time.Millisecond {
			t.Errorf("recovery is dated %s after the mending", d)
		}
		// A window of 50 ms, 100 ms to the report, and some for the machine:
		// well under the timeout of 1 s.
		if d := time.Since(mended); d > 600*time.Millisecond {
			t.Errorf("recovery was found %s after the mending", d)
		}
	}
	stop(t, s)
	line := timeline(t, s, "a->b")
	ws := line.Windows(50 * time.Millisecond)
	if len(ws) != 2 {
		t.Fatalf("want a window of lost requests and one of lost replies, got %+v", ws)
	}
	requests, replies := line.Between(ws[0].Start, ws[0].End.Add(1)), line.Between(ws[1].Start, ws[1].End.Add(1))
	must.Equal(t, "lost requests, lost replies", [2]int{ws[0].Lost, ws[1].Lost}, [2]int{requests.LostRequest, replies.LostReply})
}

// TestLateReplies delays replies beyond the patience: the loss that was presumed is taken back.
func TestLateReplies(t *testing.T) {
	t.Parallel()
	a, b := startEnd(t, "a"), startEnd(t, "b")
	r := startRelay(t, b.Address)
	b.Address = r.address()
	s := start(t, []probe.End{a, b}, probe.Probe{From: "a", To: "b"})
	waitClean(t, s, 50*time.Millisecond)
	var once sync.Once
	r.dropping(func(p wire.Packet) bool {
		if p.Kind == wire.ReplyPacket {
			// The relay stops, and what queues up before it is late.
			once.Do(func() { <-time.After(probe.Patience + 250*time.Millisecond) })
		}
		return false
	})
	waitLoss(t, s, time.Time{})
	waitClean(t, s, 700*time.Millisecond)
	stop(t, s)
	line := timeline(t, s, "a->b")
	must.Equal(t, line.String(), 0, line.Counts().Lost) // all replies came, late
}

// program builds cmd/probe, once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "probe")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "probe")
	out, err := exec.Command("go", "build", "-o", path, "github.com/relapse-dev/relapse/cmd/probe").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building cmd/probe: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func spawn(tb testing.TB, dir, name string) (probe.End, *exec.Cmd) {
	tb.Helper()
	end := probe.End{Name: name, Address: address()}
	socket := filepath.Join(dir, name)
	cmd := exec.Command(must.Get(program())(tb), "agent", "--socket", socket, "--listen", end.Address.String())
	end.Agent = launched(tb, cmd, name, func() string { return socket })
	return end, cmd
}

// launched starts an agent, and connects to it. The path of its socket may depend on its process.
func launched(tb testing.TB, cmd *exec.Cmd, name string, socket func() string) *probe.Agent {
	tb.Helper()
	cmd.Stderr = os.Stderr
	must.NoError(tb, cmd.Start())
	tb.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	deadline := time.Now().Add(5 * time.Second)
	for ; ; <-time.After(10 * time.Millisecond) {
		agent, err := probe.Dial(tb.Context(), name, socket())
		if err == nil {
			tb.Cleanup(func() { agent.Close() })
			return agent
		}
		if time.Now().After(deadline) {
			tb.Fatalf("after 5s: %v", err)
		}
	}
}

// TestRunFirstIsForAgents leaves a process alone that is no agent, though it speaks for
// one: here, the test.
func TestRunFirstIsForAgents(t *testing.T) {
	a := must.Get(agent.Open(address(), false))(t)
	defer a.Close()
	socket := filepath.Join(t.TempDir(), "socket")
	l := must.Get(net.Listen("unix", socket))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() { _ = a.Serve(ctx, l) })
	defer served.Wait()
	defer cancel()
	c := must.Get(probe.Dial(ctx, "a", socket))(t)
	defer c.Close()
	must.Fail(t, c.RunFirst(), "is probe.test")
}

// TestKilledAgent kills one end of two probes: the one from it ends without a
// loss, the one to it loses everything from then on.
func TestKilledAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, _ := spawn(t, dir, "a")
	b, process := spawn(t, dir, "b")
	s := start(t, []probe.End{a, b}, both("a", "b")...)
	waitClean(t, s, 100*time.Millisecond)
	killed := time.Now()
	must.NoError(t, process.Process.Kill())
	first := waitLoss(t, s, killed.Add(-20*time.Millisecond), "a->b")
	if d := first.Sub(killed); d > 200*time.Millisecond {
		t.Errorf("the first loss is dated %s after the kill", d)
	}
	must.Is(t, must.Err(s.WaitClean(t.Context(), []string{"b->a"}, 50*time.Millisecond, seenWithin)), probe.ErrGone)
	must.NoError(t, s.Stop(t.Context(), "a->b"))
	stop(t, s)
	from, to := timeline(t, s, "b->a"), timeline(t, s, "a->b")
	if c := from.Counts(); c.Lost != 0 || from.Gone.Before(killed) || from.GoneWhy == "" {
		t.Errorf("%s", from.String())
	}
	if c := to.Counts(); c.LostRequest < 5 || c.LostReply > 2 || !to.Gone.IsZero() || to.Stopped.Before(killed) {
		t.Errorf("%s", to.String())
	}
}

// TestStoppedAgent keeps an agent from running for longer than a reply may take. While it does,
// what was sent to it counts as lost; when it runs again it says so, and no loss is reported.
func TestStoppedAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, _ := spawn(t, dir, "a")
	b, process := spawn(t, dir, "b")
	s := start(t, []probe.End{a, b}, probe.Probe{From: "a", To: "b", Timeout: 300 * time.Millisecond})
	waitClean(t, s, 100*time.Millisecond)
	stopped := time.Now()
	must.NoError(t, process.Process.Signal(syscall.SIGSTOP))
	waitLoss(t, s, stopped.Add(400*time.Millisecond))
	if line := timeline(t, s, "a->b"); line.Known(stopped.Add(200 * time.Millisecond)) {
		t.Error("the far end has reported nothing, and the outcome is known")
	}
	must.NoError(t, process.Process.Signal(syscall.SIGCONT))
	waitClean(t, s, 100*time.Millisecond)
	stop(t, s)
	line := timeline(t, s, "a->b")
	if c := line.Counts(); c.Lost != 0 || c.Unjudged < 5 { // 40 were due, and a busy machine sends fewer
		t.Errorf("%s; %d unjudged", line.String(), c.Unjudged)
	}
}

func TestSetsInTurn(t *testing.T) {
	t.Parallel()
	a, b := startEnd(t, "a"), startEnd(t, "b")
	ends := []probe.End{a, b}
	first := start(t, ends, both("a", "b")...)
	second := must.Get(probe.New(ends, []probe.Probe{{From: "b", To: "a", Protocol: probe.TCP}}))(t)
	must.Fail(t, second.Start(t.Context()), "busy")
	waitClean(t, first, 50*time.Millisecond)
	stop(t, first)
	before := timeline(t, first, "a->b")
	must.NoError(t, second.Start(t.Context()))
	waitClean(t, second, 200*time.Millisecond)
	stop(t, second)
	after := timeline(t, first, "a->b")
	must.Equal(t, "the first set went on", after.Counts(), before.Counts())
}

// TestForeignClock lets an agent speak of a clock that began elsewhere.
func TestForeignClock(t *testing.T) {
	t.Parallel()
	a, b := startEnd(t, "a"), startEnd(t, "b")
	a.Agent.Close()
	a.Agent, _ = connectForeign(t, -time.Hour)
	s := start(t, []probe.End{a, b}, probe.Probe{From: "a", To: "b"})
	line := timeline(t, s, "a->b")
	if d := time.Since(line.Started); d < -time.Second || d > time.Second {
		t.Errorf("started %s ago by a clock that is an hour behind", d)
	}
	stopped, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	must.Is(t, s.Stop(stopped), context.DeadlineExceeded)
}

// foreignAgent answers requests by a clock that is off, and does nothing.
func foreignAgent(conn net.Conn, off time.Duration) {
	lines := wire.Lines(conn)
	for lines.Scan() {
		r, err := wire.DecodeRequest(lines.Bytes())
		if err != nil {
			return
		}
		now := wire.Monotonic() + int64(off)
		if wire.Encode(conn, wire.Message{N: r.N, At: now, Epoch: now}) != nil {
			return
		}
	}
}

// connectForeign connects to an agent that is not ours, and returns it with the end on
// which the test speaks for it.
func connectForeign(t *testing.T, off time.Duration) (*probe.Agent, net.Conn) {
	t.Helper()
	ours, theirs := net.Pipe()
	var fake sync.WaitGroup
	fake.Go(func() { foreignAgent(theirs, off) })
	t.Cleanup(fake.Wait)
	a := must.Get(probe.Connect(t.Context(), "a", ours))(t)
	t.Cleanup(func() { a.Close() })
	return a, theirs
}

// TestHeldUpAgent: a report that was begun long ago may include what was sent since.
func TestHeldUpAgent(t *testing.T) {
	t.Parallel()
	a, theirs := connectForeign(t, 0)
	p := probe.Probe{From: "a", To: "a"}.WithDefaults()
	s := start(t, []probe.End{{Name: "a", Address: address(), Agent: a}}, p)
	// At 1 ns of the agent's clock slot 30 was not due, nor a second later.
	_, _ = theirs.Write([]byte(`{"at":1,"report":{"probes":[{"id":0,"sent":[[30,30]]}]}}` + "\n"))
	err := await.Until(t.Context(), "the packet of slot 30", time.Millisecond, 5*time.Second, func(context.Context) (bool, string, error) {
		line := timeline(t, s, p.Name)
		return line.Counts().Sent == 1, line.String(), nil
	})
	must.NoError(t, err)
}

// TestNonsenseEndsTheAgent: an agent that reports what cannot be is cut off,
// and nothing of it is believed.
func TestNonsenseEndsTheAgent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, line, want string }{
		{"no JSON", "hello\n", "invalid character"},
		{"no such probe", `{"at":1,"report":{"probes":[{"id":9}]}}` + "\n", "probe 9"},
		{"seen no such probe", `{"at":1,"report":{"seen":[{"id":9,"src":"10.0.0.1","seen":[[0,1]]}]}}` + "\n", "probe 9"},
		{"the future", `{"at":1,"report":{"probes":[{"id":0,"sent":[[4000000000,4000000000]]}]}}` + "\n", "not due"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, theirs := connectForeign(t, 0)
			s := start(t, []probe.End{{Name: "a", Address: address(), Agent: a}}, probe.Probe{From: "a", To: "a"})
			_, _ = theirs.Write([]byte(c.line))
			_, err := s.WaitOutage(t.Context(), nil, time.Time{}, 0, seenWithin)
			if !errors.Is(err, probe.ErrGone) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestNewNamesAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := probe.New([]probe.End{{Name: "a"}, {Name: "a"}, {Name: "b", Address: address()}}, []probe.Probe{
		{From: "a", To: "nowhere"}, {From: "b", To: "a"}, {From: "b", To: "a"},
		{Name: "fast", From: "b", To: "b", Interval: 1}, {Name: "short", From: "b", To: "b", Timeout: 1}, {Name: "odd", From: "b", To: "b", Protocol: "sctp"},
	})
	must.Fail(t, err, `endpoint "a": the name is empty or in use`, `no endpoint "nowhere"`, `endpoint "a" has no agent`,
		`probe b->a: the name is in use`, `address invalid AddrPort of endpoint "a"`, "interval 1ns", "timeout 1ns", `unknown protocol "sctp"`)
	must.Fail(t, must.Err(probe.New(nil, nil)))
}

func TestLeavesNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("a run", func(t *testing.T) {
		a, b := startEnd(t, "a"), startEnd(t, "b")
		s := start(t, []probe.End{a, b}, both("a", "b")...)
		waitClean(t, s, 50*time.Millisecond)
		stop(t, s)
	})
	deadline := time.Now().Add(time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		<-time.After(5 * time.Millisecond)
	}
	if now := runtime.NumGoroutine(); now > before {
		t.Errorf("%d goroutines before, %d after", before, now)
	}
}

// both are the UDP probes between two ends, there and back.
func both(a, b string) []probe.Probe { return []probe.Probe{{From: a, To: b}, {From: b, To: a}} }
