package ipvsdeadlock

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeproxy"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/load"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// The versions under test.
const (
	affected = "1.13.0"
	fixed    = "1.13.2"
)

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Topology: lab,
	Variants: []framework.Variant{
		variant("kube-proxy-"+affected, framework.Affected, affectedScript, affected, fixed),
		variant("kube-proxy-"+fixed, framework.Fixed, unhurtScript(proxy(fixed, kubeproxy.IPVS)), fixed),
		variant("kube-proxy-"+affected+"-iptables", framework.Workaround, unhurtScript(proxy(affected, kubeproxy.IPTables)), affected),
	},
}

// variant is one of kube-proxy; the first version is the one under test.
func variant(name string, role framework.Role, script func() framework.Script, versions ...string) framework.Variant {
	v := framework.Variant{
		Name: name, Role: role, Form: framework.Whole, Script: script,
		Components: map[string]string{"kube-proxy": versions[0]},
		Images:     []string{workload.ProbeImage},
	}
	for _, version := range versions {
		v.Images = append(v.Images, kubeproxy.Image(version))
	}
	return v
}

// proxy is a kube-proxy on edge.
func proxy(version string, mode kubeproxy.Mode) kubeproxy.Proxy {
	return kubeproxy.Proxy{Version: version, Mode: mode, Node: edge, PodCIDR: podCIDR, Watched: services.HeldVIP}
}

// The application whose users are hurt: a Service with one pod on master, which
// is replaced as a rollout does it.
const (
	web = "web"
	// late is a Service for the same pods that is created after the load.
	late = "late"
)

var vips = map[string]netip.Addr{web: netip.MustParseAddr("10.96.0.101"), late: netip.MustParseAddr("10.96.0.102")}

// services are the load. Its numbers were chosen, not measured against others.
var services = load.Services{
	Node: edge, Host: backends,
	HeldVIP: netip.MustParseAddr("10.96.0.100"), HeldRange: busyRange,
	// These are taken away while connections to them are open. Each stays in the
	// list of the graceful termination, and with each tick each one costs a dump
	// of all: the longer a tick takes, the more of a sync it meets.
	HeldEndpoints: 250,
	// Some more than the endpoints: round robin gives each endpoint one at least.
	Connections: 300,
	// A sync with netlink calls in it is always under way. The churned Services
	// have no connections: an endpoint with one would go into the list, which the
	// tick walks without a lock, and kube-proxy would crash and not hang.
	Churned: 60, ChurnRange: churnRange,
	// A sync takes 2 to 5 s without hardware support for guests: it finds most of
	// the Services changed. With 40 of them and 4 s a 1.13.0 stood its first tick.
	ChurnEvery: 3 * time.Second,
}

// What the detectors are told: a sync under the load takes 4 to 6 s without
// hardware support for guests, and several times that on a busy machine.
var convergence = detect.IPVSConvergence{SlowSync: kubeproxy.FrozenFor}

// patience bounds waits for what kube-proxy has had its chance to do already,
// and for what healthz and the detectors say some seconds after that.
const patience = time.Minute

// onEdge is the pod on the node with IPVS that the probes come from.
var onEdge = framework.PodOn(edge)

// recovers bounds a remedy: a new pod of kube-proxy, its first syncs and the
// detectors' next looks took up to 108 s on a busy machine.
const recovers = 5 * time.Minute

// probeEvery is the time between two packets: each takes time from kube-proxy
// on a guest without hardware support.
const probeEvery = 200 * time.Millisecond

// story is what the steps of one variant know of each other.
type story struct {
	proxy kubeproxy.Proxy
	app   workload.App
	load  *load.Load
	// ticks is how many ticks kube-proxy must stand. It is a race: of 46 loads on
	// a guest without hardware support, 43 hung 1.13.0 in the first tick, two in the
	// second, and one stood both.
	ticks int
	// after is how kube-proxy stood the load; looks are those since it began.
	after standing
	hang  kubeproxy.Hang
	looks []kubeproxy.Look
}

func newStory(p kubeproxy.Proxy) *story {
	return &story{proxy: p, app: workload.App{Name: web, Node: master}}
}

// ratesJSON is what became of kube-proxy 1.13.0 under the load; run writes it,
// with --repeat and --record.
//
//go:embed rates.json
var ratesJSON []byte

var rates = func() framework.Rates {
	r, err := framework.ParseRates(ratesJSON)
	if err != nil {
		panic(err) // it is a part of the program
	}
	return r
}()

// race tells of the ticks that the load met.
func (s *story) race() *framework.Race {
	return &framework.Race{
		Round: "tick of the graceful termination", Rates: rates, File: "scenarios/ipvsdeadlock/rates.json",
		Ran: func() (int, bool) { return s.after.ticks(), s.after.hung },
	}
}

// common is what all variants do.
func (s *story) common() framework.Script {
	// The Service, and the pod that the next rollout puts behind it.
	service := framework.Server(web, func(*framework.Run) netip.AddrPort {
		return netip.AddrPortFrom(vips[web], wire.DefaultPort)
	})
	pod := framework.Server("pod", func(*framework.Run) netip.AddrPort {
		return netip.AddrPortFrom(s.app.Standby.IP, wire.DefaultPort)
	})
	from := func(to framework.End) probe.Probe {
		return probe.Probe{From: onEdge.Name, To: to.Name, Protocol: probe.TCP, Interval: probeEvery}.WithDefaults()
	}
	return framework.Script{
		Install:   s.install,
		Ends:      []framework.End{onEdge, service, pod},
		Probes:    []probe.Probe{from(service), from(pod)},
		Detectors: []detect.Detector{convergence},
		LookEvery: 3 * time.Second, // each takes a command in the guest
		// What is settling when the load ends takes as long as a sync may take.
		NamedWithin: kubeproxy.FrozenFor + patience,
		Baseline: []framework.Check{
			{Name: "kube-proxy says that it runs in mode " + string(s.proxy.Mode), Holds: s.mode},
		},
		Fault: func(r *framework.Run) fault.Fault { return s.fault(r) },
		Race:  s.race(),
		Hurt:  []probe.Probe{from(service)},
		// On a busy machine a guest without hardware support was once cut off
		// for 2 s altogether. The incident is for good.
		HurtFor: 5 * time.Second,
		Observe: 20 * time.Second,
	}
}

func affectedScript() framework.Script {
	st := newStory(proxy(affected, kubeproxy.IPVS))
	s := st.common()
	s.Aftermath = []framework.Check{
		{Name: "no sync was finished since the load ended", Holds: st.syncsFrozen},
		{Name: "healthz says 503 and when the last sync was, before the load ended", Reads: proxies, Holds: st.healthFrozen, Bound: patience},
		{Name: "two goroutines wait for IPVS in nl.(*NetlinkSocket).Receive under ipvs.execute", Holds: st.twoStacks},
		{Name: "a Service that was created after the load has no virtual server", Reads: proxies, Holds: st.lateIsMissing},
		{Name: "the virtual server of " + web + " has the pod that is gone, and not the new one", Reads: proxies, Holds: st.webIsStale},
	}
	s.Named = []framework.Finding{
		// What users meet, and the cause: the syncs have stopped, and on which
		// goroutines.
		says(detect.StaleRealServer, edge), says(detect.MissingRealServer, edge), says(detect.MissingVirtualServer, edge),
		says(detect.FrozenSync, "kube-proxy"), says(detect.NetlinkDeadlock, "kube-proxy"),
	}
	moveTo := func(p kubeproxy.Proxy) func(context.Context, *framework.Run) error {
		return func(ctx context.Context, r *framework.Run) error { return st.moveTo(ctx, r, p) }
	}
	s.Remedies = []framework.Remedy{
		{
			Name: "restart kube-proxy, which lasts until the load comes back", Helps: true, Bound: recovers, ReplacesEnds: true,
			Apply: st.restart, Undo: st.again,
		},
		{
			Name: "kube-proxy " + fixed, Helps: true, Bound: recovers, ReplacesEnds: true,
			Apply: moveTo(proxy(fixed, kubeproxy.IPVS)), Undo: st.again,
		},
		{
			Name: "mode iptables", Helps: true, Bound: recovers, ReplacesEnds: true,
			Apply: moveTo(proxy(affected, kubeproxy.IPTables)),
		},
	}
	return s
}

// unhurtScript is that of a kube-proxy which the load does not harm.
func unhurtScript(p kubeproxy.Proxy) func() framework.Script {
	return func() framework.Script { return newStory(p).unhurt() }
}

func (s *story) unhurt() framework.Script {
	script := s.common()
	script.Aftermath = []framework.Check{
		{Name: "syncs are finished since the load ended", Holds: s.syncsGoOn, Bound: patience},
	}
	if s.proxy.Mode == kubeproxy.IPVS {
		script.Aftermath = append(script.Aftermath,
			framework.Check{Name: "a Service that was created after the load has a virtual server", Reads: proxies, Holds: s.lateIsServed, Bound: patience},
			framework.Check{Name: "the virtual server of " + web + " has the new pod and no other", Reads: proxies, Holds: s.webIsNew, Bound: patience},
		)
	}
	return script
}

// says is what the detector says of edge.
func says(kind, object string) framework.Finding {
	return framework.Finding{Detector: convergence.Name(), Kind: kind, State: detect.Active, Object: detect.Named(object), Announcer: edge}
}

// install puts kube-proxy, the application and the load's Services into the
// lab, in place of what is there.
func (s *story) install(ctx context.Context, r *framework.Run) error {
	s.stopLoad()
	s.after = standing{}
	if err := network(ctx, r); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.app.Install(ctx, r.Cluster, web, vips[web]) })
	group.Go(func() error { return workload.StartProbes(ctx, r.Cluster, workload.OnEach(edge)) })
	// The first tick is a minute after the start of kube-proxy: the sooner it
	// starts the better.
	group.Go(func() error { return s.proxy.Apply(ctx, r.Lab) })
	group.Go(func() error { return services.Create(ctx, r.Cluster) })
	return group.Wait()
}

// restart restarts kube-proxy. The load's endpoints are put back before: they
// are to be there when the next load comes, which has a tick to wait for anyway.
func (s *story) restart(ctx context.Context, r *framework.Run) error {
	if err := services.Restore(ctx, r.Cluster); err != nil {
		return err
	}
	return s.proxy.Restart(ctx, r.Lab)
}

// moveTo replaces kube-proxy by one of another version or mode.
func (s *story) moveTo(ctx context.Context, r *framework.Run, p kubeproxy.Proxy) error {
	s.proxy = p
	return p.Apply(ctx, r.Lab)
}

// conflist is a node's CNI configuration: the pods' range is Node.spec's.
const conflist = `{"cniVersion": "1.0.0", "name": "relapse", "plugins": [{"type": "ptp", "mtu": 1500, "ipMasq": false,
 "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

// markDrop makes the chain that kubelets made up to 1.27. kube-proxy of this
// age jumps to it in IPVS mode: without it no sync ends well.
const markDrop = `iptables -w -t nat -N KUBE-MARK-DROP 2>/dev/null || exit 0
iptables -w -t nat -A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000`

// network wires pods, and has the ToR route to them and to the load's
// endpoints: none of it is what the incident is about.
func network(ctx context.Context, r *framework.Run) error {
	tor, err := r.Lab.Router("tor")
	if err != nil {
		return err
	}
	defer tor.Close()
	for _, name := range []string{master, edge} {
		pods, err := r.Cluster.PodRange(ctx, name)
		if err != nil {
			return err
		}
		at, _ := lab.AddressOn(name, "nodes")
		if err := tor.AddStatic(ctx, pods, at); err != nil {
			return err
		}
		text := strings.NewReader(fmt.Sprintf(conflist, pods))
		if _, err := r.Lab.Node(name).ExecInput(ctx, text, "sh", "-c", "mkdir -p /etc/cni/net.d && cat >/etc/cni/net.d/10-relapse.conflist"); err != nil {
			return fmt.Errorf("writing the CNI configuration of %s: %w", name, err)
		}
	}
	if _, err := r.Lab.Node(edge).Exec(ctx, "sh", "-c", markDrop); err != nil {
		return fmt.Errorf("making the chain KUBE-MARK-DROP on %s: %w", edge, err)
	}
	at, _ := lab.AddressOn(backends, "nodes")
	for _, p := range []netip.Prefix{busyRange, churnRange} {
		if err := tor.AddStatic(ctx, p, at); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) stopLoad() {
	if s.load != nil {
		s.load.Stop()
		s.load = nil
	}
}
