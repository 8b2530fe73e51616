package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/schema"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// world is the state of a fake lab: which probes lose packets, what the detectors find, which sources do not answer.
// The steps of a script change it as vendors' programs would. It has the clock of a synctest bubble.
type world struct {
	// node is the node of the variant that has this world, if variants run side by side.
	node        string
	mu          sync.Mutex
	lost        map[string]bool // by the name of the probe
	late        map[string]bool // probes whose packets are answered late, but early enough
	silent      map[string]bool // probes that send nothing
	found       []detect.Finding
	unavailable string // why nothing can be read; empty: all can
	leak        string // why packets of the lab could leave the machine; empty: they could not
	frozen      string // the end whose agent neither answers nor reports
	past        []traffic
}

// traffic is the outcome of packets from a moment on, on the agents' clock.
type traffic struct {
	from               int64
	lost, late, silent map[string]bool
}

func (w *world) do(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	w.past = append(w.past, traffic{wire.Monotonic(), maps.Clone(w.lost), maps.Clone(w.late), maps.Clone(w.silent)})
}

func (w *world) freezes(end string) { w.do(func() { w.frozen = end }) }

func (w *world) isFrozen(end string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.frozen == end
}

// breaks is the incident: probes lose their packets, and a little later the detectors find it.
func (w *world) breaks(probes ...string) {
	w.loses(probes...)
	time.AfterFunc(300*time.Millisecond, func() {
		w.do(func() {
			if len(w.lost) > 0 { // false if the world was healed in the meantime
				w.found = []detect.Finding{theFinding}
			}
		})
	})
}

func (w *world) loses(probes ...string) { w.do(func() { mark(w.lost, probes) }) }

func mark(set map[string]bool, names []string) {
	for _, name := range names {
		set[name] = true
	}
}

func (w *world) finds(found ...detect.Finding) { w.do(func() { w.found = found }) }

func (w *world) heals() {
	w.do(func() {
		w.lost, w.late, w.silent, w.found = map[string]bool{}, map[string]bool{}, map[string]bool{}, nil
	})
}

// delays: from now on the packets of a probe are answered later than lateBy, and for lateFor.
func (w *world) delays(probe string) {
	w.do(func() { w.late[probe] = true })
	runAfter(lateFor, func() { w.do(func() { delete(w.late, probe) }) })
}

// A reply is so late that its packet seemed lost, and still counts.
const (
	lateBy  = probe.Patience + 250*time.Millisecond
	lateFor = 100 * time.Millisecond
)

func (w *world) stopsSending(probes ...string) { w.do(func() { mark(w.silent, probes) }) }

// alternates loses every other packet of a probe for ten seconds.
func (w *world) alternates(probe string) {
	for i := range 200 {
		runAfter(time.Duration(i)*sendsEvery, func() { w.do(func() { w.lost[probe] = i%2 == 0 }) })
	}
}

// sendsEvery is the interval of the fake scenario's probes.
const sendsEvery = 50 * time.Millisecond

func runAfter(d time.Duration, do func()) { time.AfterFunc(d, do) }

// leaks makes packets of the lab leave the machine; an empty why stops them.
func (w *world) leaks(why string) { w.do(func() { w.leak = why }) }

func (w *world) losesSources(why string) { w.do(func() { w.unavailable = why }) }

// sends reports whether a probe sent a packet at a moment, and whether that was lost, or answered late.
func (w *world) sends(name string, at int64) (sends, loses, late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, then := range slices.Backward(w.past) {
		if then.from <= at {
			return !then.silent[name], then.lost[name], then.late[name]
		}
	}
	return true, false, false
}

var theFinding = detect.Finding{
	Detector: "told", Kind: "lost-route", State: detect.Active, Object: detect.Named("a"), Owner: "a", Announcer: "c", Routers: []string{"tor1", "tor2"},
	Says: "The route to a is lost.",
}

// fakeDetector is a detector of the world's findings: a snapshot has a Node for each world, whose UID has the findings.
type fakeDetector struct{ *world }

func (fakeDetector) Name() string             { return "told" }
func (fakeDetector) Reads() []snapshot.Source { return []snapshot.Source{snapshot.Nodes} }

func (d fakeDetector) Detect(history []snapshot.Snapshot, _ *detect.Index) []detect.Finding {
	for _, n := range history[len(history)-1].Nodes.Items {
		var found []detect.Finding
		if n.Name == d.nodeName() && json.Unmarshal([]byte(n.UID), &found) == nil {
			return found
		}
	}
	return nil
}

func (w *world) nodeName() string { return cmp.Or(w.node, "a") }

func (w *world) asNode() snapshot.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, _ := json.Marshal(w.found) // cannot fail
	return snapshot.Node{Name: w.nodeName(), UID: string(text)}
}

// fakeLabs makes one fake lab after the other, and counts them by their end.
type fakeLabs struct {
	world *world
	// beside are the worlds of variants side by side, by their nodes.
	beside                        map[string]*world
	prepare, up, dial, read, down error
	// cpu is what the lab and the machine use from one question to the next.
	cpu, used CPUTime
	noCPU     error // why the CPU time is unknown
	// digests are the digests of the built images, and running are the images that pods run.
	digests map[string]string
	running snapshot.List[snapshot.PodImages]

	// For the second lab Prepare, Up and Down end with these errors; panics has its Up panic.
	noImages, noSecond, noDown error
	panics                     bool

	names                         []string // of the topologies that came up
	made, removed, released, open int
}

func (l *fakeLabs) Prepare(_ context.Context, s framework.Scenario, _ []framework.Variant) (Prepared, error) {
	if l.noImages != nil && s.Topology.Name == "fake-2" {
		return Prepared{}, l.noImages
	}
	if l.digests != nil {
		return Prepared{Digests: l.digests}, l.prepare
	}
	return Prepared{Digests: map[string]string{"relapse.dev/node:1": "sha256:1"}}, l.prepare
}

func (l *fakeLabs) Up(_ context.Context, s framework.Scenario, _ []framework.Variant, _ bool) (Lab, error) {
	counting.Lock()
	defer counting.Unlock()
	if l.up != nil {
		return nil, l.up
	}
	if isSecond := s.Topology.Name == "fake-2"; isSecond && l.panics {
		panic("the second lab")
	} else if isSecond && l.noSecond != nil {
		return nil, l.noSecond
	}
	l.made++
	l.names = append(l.names, s.Topology.Name)
	return &fakeLab{l, s}, nil
}

func (l *fakeLabs) Down(_ context.Context, s framework.Scenario) error {
	counting.Lock()
	defer counting.Unlock()
	l.removed++
	if l.noDown != nil && s.Topology.Name == "fake-2" {
		return l.noDown
	}
	return l.down
}

// fakeLab is a lab in which nothing runs but the agents of the probes.
type fakeLab struct {
	*fakeLabs
	scenario framework.Scenario
}

func (l *fakeLab) Attach(*framework.Run)                          {}
func (l *fakeLab) Guests(context.Context) ([]report.Guest, error) { return nil, nil }
func (l *fakeLab) Logs(context.Context, time.Time, []string) (map[string]string, error) {
	return nil, nil
}
func (l *fakeLab) Release()                       { l.released++ }
func (l *fakeLab) Down(ctx context.Context) error { return l.fakeLabs.Down(ctx, l.scenario) }
func (l *fakeLab) CPUTime(context.Context) (CPUTime, error) {
	counting.Lock()
	defer counting.Unlock()
	l.used = CPUTime{l.used.Lab + l.cpu.Lab, l.used.Machine + l.cpu.Machine, l.used.All + l.cpu.All}
	return l.used, l.noCPU
}

func (l *fakeLab) Open(context.Context, []snapshot.Source, []string) (Reader, error) {
	if l.read != nil {
		return (*fakeReader)(nil), l.read // the engine must survive the nil reader
	}
	counting.Lock()
	defer counting.Unlock()
	l.open++
	return &fakeReader{l}, nil
}

var counting sync.Mutex

func (l *fakeLabs) worldOf(declared []framework.Endpoint) *world {
	for _, d := range declared {
		if d.Pod != nil && l.beside[d.Pod.Node] != nil {
			return l.beside[d.Pod.Node]
		}
	}
	return l.world
}

// Probes makes an agent for each end. The agent finds a probe's name by its addresses.
func (l *fakeLab) Probes(ctx context.Context, _ *framework.Run, declared []framework.Endpoint, probes []probe.Probe) (Probes, error) {
	names := map[netip.AddrPort]string{}
	var ends []probe.End
	for i, d := range declared {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), wire.DefaultPort)
		names[at] = d.Name
		ends = append(ends, probe.End{Name: d.Name, Address: at})
	}
	for i := range ends {
		ours, theirs := net.Pipe()
		go (&fakeAgent{world: l.worldOf(declared), name: ends[i].Name, names: names, conn: theirs}).serve()
		var err error
		if ends[i].Agent, err = probe.Connect(ctx, ends[i].Name, ours); err != nil {
			for _, connected := range ends[:i] { // the context ended between two of them
				err = errors.Join(err, connected.Agent.Close())
			}
			return nil, err
		}
	}
	set, err := probe.New(ends, probes)
	if l.dial != nil {
		return nil, errors.Join(l.dial, set.Close())
	}
	return set, err
}

type fakeReader struct{ *fakeLab }

func (r *fakeReader) Timeout() time.Duration { return time.Second }

func (r *fakeReader) Close() error {
	counting.Lock()
	defer counting.Unlock()
	r.open--
	return nil
}

func (r *fakeReader) Collect(context.Context) snapshot.Snapshot {
	nodes := []snapshot.Node{r.world.asNode()}
	for _, name := range slices.Sorted(maps.Keys(r.beside)) {
		nodes = append(nodes, r.beside[name].asNode())
	}
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	s := snapshot.Snapshot{
		Time: time.Now(), Sources: []snapshot.Asked{{Name: snapshot.Nodes.String()}},
		Nodes: snapshot.List[snapshot.Node]{Read: r.world.unavailable == "", Error: r.world.unavailable},
	}
	if s.Nodes.Read {
		s.Nodes.Items = nodes
	}
	if r.world.leak != "" {
		s.Sources = append(s.Sources, snapshot.Asked{Name: snapshot.Isolation, Unreachable: r.world.leak})
	}
	if r.digests != nil {
		s.Sources, s.PodImages = append(s.Sources, snapshot.Asked{Name: snapshot.RunningImages.String()}), r.running
	}
	return s
}

// fakeAgent reports every packet as sent, and as answered unless the world loses it.
type fakeAgent struct {
	world *world
	name  string
	names map[netip.AddrPort]string
	conn  net.Conn

	mu     sync.Mutex
	probes map[uint32]*fakeProbe
}

type fakeProbe struct {
	wire.Probe
	name    string
	epoch   int64
	next    uint32 // the first slot that was not reported
	late    []uint32
	stopped bool
}

func (a *fakeAgent) serve() {
	a.probes = map[uint32]*fakeProbe{}
	ended := make(chan struct{})
	var reports sync.WaitGroup
	reports.Go(func() {
		tick := time.NewTicker(wire.ReportInterval)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				a.report()
			}
		}
	})
	lines := wire.Lines(a.conn)
	for lines.Scan() {
		r, err := wire.DecodeRequest(lines.Bytes())
		if err != nil {
			panic(err)
		}
		if a.world.isFrozen(a.name) {
			continue
		}
		answer := wire.Message{N: r.N, At: wire.Monotonic()}
		a.mu.Lock()
		switch r.Op {
		case wire.Hello:
			a.probes = map[uint32]*fakeProbe{}
		case wire.Start:
			answer.Epoch = answer.At
			a.probes[r.Probe.ID] = &fakeProbe{Probe: *r.Probe, name: a.name + "->" + a.names[r.Probe.To], epoch: answer.At}
		case wire.Stop:
			a.probes[r.ID].stopped = true
		}
		a.mu.Unlock()
		if wire.Encode(a.conn, answer) != nil {
			break
		}
	}
	close(ended)
	a.conn.Close()
	reports.Wait()
}

func (a *fakeAgent) report() {
	if a.world.isFrozen(a.name) {
		return
	}
	a.mu.Lock()
	now := wire.Monotonic()
	var r wire.Report
	for id, p := range a.probes {
		s := wire.Sender{ID: id}
		for ; !p.stopped && p.epoch+int64(p.next)*int64(p.Interval) < now; p.next++ {
			sends, loses, late := a.world.sends(p.name, p.epoch+int64(p.next)*int64(p.Interval))
			if sends {
				s.Sent.Add(p.next)
			}
			if sends && late && !loses {
				p.late = append(p.late, p.next)
			} else if sends && !loses {
				s.Got.Add(p.next)
				s.RTT = append(s.RTT, 200)
			}
		}
		for len(p.late) > 0 && p.epoch+int64(p.late[0])*int64(p.Interval)+int64(lateBy) <= now {
			s.Got.Add(p.late[0])
			s.RTT = append(s.RTT, uint32(lateBy/time.Microsecond))
			p.late = p.late[1:]
		}
		r.Probes = append(r.Probes, s)
	}
	a.mu.Unlock()
	_ = wire.Encode(a.conn, wire.Message{At: now, Report: &r}) // the harness may have gone
}

// Probes of the fake scenario, and the probes that lose packets in its incident.
const (
	outToA = "out->a"
	outToB = "out->b"
	aToB   = "a->b"
)

// In the affected variant the world breaks at the fault; one remedy does not help, two heal it.
func fakeScenario(w *world) framework.Scenario {
	return framework.Scenario{
		Incident: framework.Incident{Name: "fake"},
		Variants: []framework.Variant{
			{Name: "old", Role: framework.Affected, Form: framework.Whole, Script: func() framework.Script { return w.affected() }},
			{Name: "new", Role: framework.Fixed, Form: framework.Whole, Script: func() framework.Script { return w.common(func() {}) }},
		},
	}
}

// sideBySide gives the variants of the fake scenario, and a third one, nodes and worlds of their own.
func sideBySide() (framework.Scenario, map[string]*world) {
	s := fakeScenario(nil)
	s.Variants = append(s.Variants, framework.Variant{Name: "way", Role: framework.Workaround, Form: framework.Whole})
	worlds := map[string]*world{}
	for i := range s.Variants {
		w := newWorld()
		w.node = fmt.Sprintf("node%d", i+1)
		worlds[w.node] = w
		s.Variants[i].Nodes = []string{w.node}
		s.Variants[i].Script = func() framework.Script { return w.common(func() {}) }
		if s.Variants[i].Role == framework.Affected {
			s.Variants[i].Script = w.affected
		}
	}
	return s, worlds
}

// common is a script whose fault is this change of the world.
func (w *world) common(change func()) framework.Script {
	out, b := framework.Endpoint{Name: "out", Host: "out"}, framework.PodOn("b")
	a := framework.PodEndpoint(framework.ProbePod{Name: "a", Node: cmp.Or(w.node, "a")})
	every := func(p probe.Probe) probe.Probe { p.Interval = sendsEvery; return p }
	var injected bool
	return framework.Script{
		Install:   func(context.Context, *framework.Run) error { w.heals(); return nil },
		Endpoints: []framework.Endpoint{out, a, b},
		Probes:    []probe.Probe{every(out.To(a)), every(out.To(b)), every(a.To(b))},
		Impacted:  []probe.Probe{out.To(a)}, Detectors: []detect.Detector{fakeDetector{w}}, Observe: 3 * time.Second,
		Fault: framework.Fault{
			Name:   "change",
			Inject: func(context.Context, *framework.Run) error { injected = true; change(); return nil },
			TookEffect: func(context.Context, *framework.Run) (bool, string, error) {
				return injected, "nothing has changed", nil
			},
			Undo: func(context.Context, *framework.Run) error { injected = false; w.heals(); return nil },
		},
	}
}

func (w *world) affected() framework.Script {
	s := w.common(func() { w.breaks(outToA) })
	s.Expected = []framework.Finding{framework.As(theFinding)}
	heal := func(context.Context, *framework.Run) error { w.heals(); return nil }
	s.Remedies = []framework.Remedy{
		{ID: "restart", Name: "restart", Apply: func(context.Context, *framework.Run) error { return nil }},
		{ID: "route", Name: "route", Helps: true, Bound: 20 * time.Second, Apply: heal,
			Undo: func(context.Context, *framework.Run) error { w.breaks(outToA); return nil }},
		{ID: "upgrade", Name: "upgrade", Helps: true, Bound: 20 * time.Second, Apply: heal},
	}
	return s
}

func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// played is an execution that has ended in the fake lab.
type played struct {
	*Execution
	labs *fakeLabs
}

func play(t *testing.T, w *world, s framework.Scenario, labs *fakeLabs, o Options) played {
	t.Helper()
	o.Output = t.TempDir()
	labs.world = w
	e := New(s, labs, o)
	e.withoutPage = true
	e.Run(t.Context(), UndoWithin)
	meetsSchemas(t, o.Output)
	judgesTheSame(t, s, e)
	return played{e, labs}
}

func meetsSchemas(t *testing.T, dir string) {
	t.Helper()
	must.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name := schema.Of(path)
		if err != nil || e.IsDir() || name == "" {
			return err
		}
		must.Equal(t, path, nil, schema.Validate(name, must.Read(t, path)))
		return nil
	}))
}

func fakeWorld() (*world, framework.Scenario) {
	w := newWorld()
	return w, fakeScenario(w)
}

func newWorld() *world {
	return &world{lost: map[string]bool{}, late: map[string]bool{}, silent: map[string]bool{}}
}

// status is the exit status that the CLI makes of an execution.
func (p played) status() int {
	r, there := p.Report()
	switch {
	case !there:
		return 3
	case r.Verdict == string(framework.Fail):
		return 1
	case (r.Verdict == string(framework.Pass) || r.Verdict == string(framework.Observed)) && p.Left() == nil:
		return 0
	}
	return 4
}

var errBroken = errors.New("it is broken")

func (p played) String() string {
	r, _ := p.Report()
	return fmt.Sprintf("%+v, broken: %v, left: %v", r, p.Broken(), p.Left())
}
