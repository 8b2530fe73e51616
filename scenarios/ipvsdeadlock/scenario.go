package ipvsdeadlock

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeproxy"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/load"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// The versions under test.
const (
	affected = "1.13.0"
	// deadlockOnly has the deadlock without the inverted condition in remove().
	deadlockOnly = "1.13.1"
	fixed        = "1.13.2"
)

// The variants.
const (
	hangs    = "kube-proxy-" + affected
	hangsToo = "kube-proxy-" + deadlockOnly
	works    = "kube-proxy-" + fixed
	iptables = hangs + "-iptables"
)

// Scenario is the incident on a lab: all variants under one load, each on a node of its own.
var Scenario = func() framework.Scenario {
	s := scenarioOn(edges...)
	for i := range s.Variants {
		s.Variants[i].Nodes = edges[i : i+1]
	}
	small := scenarioOn(edges[0], edges[0], edges[0], edges[0])
	s.MinMemoryGiB, s.Small = room, &small
	return s
}()

// room is the memory, in GiB, for four guests and the control plane. With less,
// the variants have one guest in turn.
const room = 8

// scenarioOn is the scenario with its variants on these nodes, in their order.
func scenarioOn(nodes ...string) framework.Scenario {
	return framework.Scenario{
		Incident: Record,
		Owner:    framework.Maintainers, Slow: true,
		Labels: []framework.Label{framework.Probabilistic, framework.Services},
		// A fixed kube-proxy survives a load for two to four minutes, and one that was restarted
		// must have run for a minute before it can hang again.
		Budget:     framework.Budget{Whole: 320 * time.Second, Lab: time.Minute, Detect: 7 * time.Second},
		OnlyOwnLab: "kube-proxy in IPVS mode needs nodes with kernels of their own, which containers do not have",
		Topology:   lab(nodes...),
		Tested:     []framework.Tested{{Name: "kube-proxy", Default: affected, Varied: true}},
		// IPVS tables outlive kube-proxy. One that has hung leaves real servers with the
		// weight 0, which 1.13.2 corrects and 1.13.12 does not.
		NewLabs: true,
		At: func(versions map[string]string) framework.Variant {
			version := versions["kube-proxy"]
			v := variant("kube-proxy-"+version, framework.Unclassified, unclassifiedScript, edges[0], version)
			v.Nodes = edges[:1]
			return v
		},
		Variants: []framework.Variant{
			variant(hangs, framework.Affected, affectedScript(restarted, toFixed), nodes[0], affected, fixed),
			variant(hangsToo, framework.Affected, affectedScript(toIPTables), nodes[1], deadlockOnly),
			variant(works, framework.Fixed, unhurtScript(kubeproxy.IPVS), nodes[2], fixed),
			variant(iptables, framework.Workaround, unhurtScript(kubeproxy.IPTables), nodes[3], affected),
		},
	}
}

// variant is one of kube-proxy on a node; the first version is the one under test.
func variant(name string, role framework.Role, script func(kubeproxy.Proxy) framework.Script, node string, versions ...string) framework.Variant {
	v := framework.Variant{
		Name: name, Role: role, Form: framework.Whole,
		Script:     func() framework.Script { return script(proxy(node, versions[0], kubeproxy.IPVS)) },
		Components: map[string]string{"kube-proxy": versions[0]},
		Images:     []string{workload.ProbeImage},
	}
	for _, version := range versions {
		v.Images = append(v.Images, kubeproxy.Image(version))
	}
	return v
}

func proxy(node, version string, mode kubeproxy.Mode) kubeproxy.Proxy {
	return kubeproxy.Proxy{Version: version, Mode: mode, Node: node, PodCIDR: podCIDR, Watched: vip(node, busy)}
}

// Each node has Services of its own. The application is web's: one pod on master,
// which is replaced as in a rollout.
const (
	busy = "busy" // that the load's connections are held through
	web  = "web"
	idle = "idle" // has no pods until the load is over, and then web's
	late = "late" // for web's pods, and created after the load
)

// vip is the cluster IP of a node's Service.
func vip(node, service string) netip.Addr {
	number := 10*slices.Index(edges, node) + slices.Index([]string{busy, web, idle, late}, service)
	return netip.AddrFrom4([4]byte{10, 96, 0, 100 + byte(number)})
}

// nameOf is the name of a node's Service in the cluster.
func nameOf(node, service string) string { return service + "-" + node }

const (
	// heldEndpoints are removed while connections to them are open. Each stays in the
	// list of the graceful termination, and costs a dump of all with each tick: the
	// longer a tick takes, the more of a sync runs beside it.
	heldEndpoints = 250
	// connections are more than the endpoints: round robin gives each endpoint one at least.
	connections = 300
)

// loadName names the load in rates.json. Rates under another load are not this one's.
var loadName = fmt.Sprintf("%d endpoints, %d connections, %d Services every %s", heldEndpoints, connections, churn.Services, churn.Every)

// churn keeps a sync with netlink calls always in progress, on every node. Its Services
// have no connections: an endpoint with one would be added to the list, which the tick
// walks without a lock, and kube-proxy would crash instead of hanging.
var churn = &load.Churn{
	Services: 60, Range: churnRange,
	// A sync takes 2 to 5 s without hardware support for guests: it finds most of
	// the Services changed. With 40 of them and 4 s a 1.13.0 survived its first tick.
	Every: 3 * time.Second,
}

// servicesOf are the load of a node. Its numbers were not compared with others.
func servicesOf(node string) load.Services {
	return load.Services{
		Node: node, Host: backends,
		Held: nameOf(node, busy), HeldVIP: vip(node, busy), HeldRange: busyRange,
		Port:          8081 + uint16(slices.Index(edges, node)),
		HeldEndpoints: heldEndpoints, Connections: connections, Churn: churn,
	}
}

// The detector's settings: a sync under the load takes 4 to 6 s without hardware support
// for guests, and several times that on a busy machine. The churn goes on while any
// variant needs it, and some of its Services are always pending. For 1.13.2 a check
// asserts that they are served (churnFollows); after a remedy nothing does.
var convergence = detect.IPVSConvergence{SlowSync: kubeproxy.FrozenFor, Except: load.IsChurned}

// patience bounds waits for what kube-proxy has already had time to do, and for healthz
// and the detectors, which follow some seconds later.
const patience = time.Minute

// recovers bounds a remedy: a new pod of kube-proxy, its first syncs and the detectors'
// next polls took up to 108 s on a busy machine.
const recovers = 5 * time.Minute

// probeEvery is the time between two packets: each takes time from kube-proxy
// on a guest without hardware support.
const probeEvery = 200 * time.Millisecond

// story is the state that the steps of one variant share.
type story struct {
	node     string
	tested   kubeproxy.Proxy // the one under test
	proxy    kubeproxy.Proxy // the one that runs
	app      workload.App
	services load.Services
	load     *load.Load
	// ticks is how many ticks kube-proxy must survive. It is probabilistic: of 66 loads, 61 hung an
	// affected one in the first tick, four in the second, and one survived both (rates.json).
	ticks int
	// after is how kube-proxy survived the load; polls are its states since the load began.
	after standing
	hang  kubeproxy.Hang
	polls []kubeproxy.State
}

func newStory(p kubeproxy.Proxy) *story {
	return &story{node: p.Node, tested: p, proxy: p, services: servicesOf(p.Node), app: workload.App{Name: nameOf(p.Node, web), Node: master}}
}

// ratesJSON are the outcomes of affected kube-proxies under the load; run writes them,
// with --repeat and --record.
//
//go:embed rates.json
var ratesJSON []byte

// race counts the ticks under the load.
func (s *story) race() *framework.Trials {
	return &framework.Trials{
		Unit: "tick of the graceful termination", Load: loadName, Rates: framework.EmbeddedRates(ratesJSON), File: "scenarios/ipvsdeadlock/rates.json",
		Result: func() (int, bool) { return s.after.ticks(), s.after.hung },
	}
}

func (s *story) common() framework.Script {
	// The pod on the node that the probes come from; the Service, and the pod that
	// the next rollout puts behind it.
	client := framework.PodEndpoint(framework.ProbePod{Name: s.node, Node: s.node})
	client.Name = "edge" // on each node: reports of all variants name the same probes
	service := framework.Server(web, func(*framework.Run) netip.AddrPort {
		return netip.AddrPortFrom(vip(s.node, web), wire.DefaultPort)
	})
	pod := framework.Server("pod", func(*framework.Run) netip.AddrPort {
		return netip.AddrPortFrom(s.app.Standby.IP, wire.DefaultPort)
	})
	from := func(to framework.Endpoint) probe.Probe {
		return probe.Probe{From: client.Name, To: to.Name, Protocol: probe.TCP, Interval: probeEvery}.WithDefaults()
	}
	return framework.Script{
		Install:   s.install,
		Endpoints: []framework.Endpoint{client, service, pod},
		Probes:    []probe.Probe{from(service), from(pod)},
		Detectors: []detect.Detector{convergence},
		PollEvery: 3 * time.Second, // each takes a command in the guest
		// What is pending when the load ends takes as long as a sync may take.
		ExpectedWithin: kubeproxy.FrozenFor + patience,
		Baseline: []framework.Check{
			{ID: "proxy-mode", Name: "kube-proxy says that it runs in mode " + string(s.proxy.Mode), Holds: s.mode},
		},
		Fault:    s.fault(),
		Trials:   s.race(),
		Impacted: []probe.Probe{from(service)},
		// On a busy machine a guest without hardware support was once cut off
		// for 2 s altogether. The incident is for good.
		MinOutage: 5 * time.Second,
		Observe:   20 * time.Second,
	}
}

// affectedScript is the script of a kube-proxy which hangs, with these remedies.
func affectedScript(remedies ...func(*story) framework.Remedy) func(kubeproxy.Proxy) framework.Script {
	return func(p kubeproxy.Proxy) framework.Script {
		st := newStory(p)
		script := st.affected()
		for i, remedy := range remedies {
			r := remedy(st)
			if i < len(remedies)-1 {
				r.Undo = st.again
			}
			script.Remedies = append(script.Remedies, r)
		}
		return script
	}
}

func (s *story) affected() framework.Script {
	script := s.common()
	script.Aftermath = []framework.Check{
		{ID: "syncs-stopped", Name: "no sync was finished since the load ended", Holds: s.syncs(false)},
		{ID: "healthz-failed", Name: "healthz answers 503, with a last sync before the load ended", Reads: proxies, Holds: s.healthFrozen, Bound: patience},
		{ID: "goroutines-wait", Name: "two goroutines wait for IPVS in nl.(*NetlinkSocket).Receive under ipvs.execute", Holds: s.twoStacks},
		{ID: "late-service-missing", Name: "a Service created after the load has no virtual server", Reads: proxies, Holds: s.lateIsMissing},
		{ID: "idle-service-empty", Name: "the virtual server of a Service that got its first pod after the load has no real server", Reads: proxies, Holds: s.idleIsEmpty},
		{ID: "web-stale", Name: "the virtual server of " + web + " has the deleted pod, and not the new one", Reads: proxies, Holds: s.webIsStale},
	}
	script.Expected = s.deadlocked()
	return script
}

// deadlocked are the findings of a kube-proxy that hangs: the effects on users, and the
// cause: the syncs have stopped, and which goroutines wait.
func (s *story) deadlocked() []framework.Finding {
	return []framework.Finding{
		s.says(detect.StaleRealServer, s.node), s.says(detect.MissingRealServer, s.node), s.says(detect.MissingVirtualServer, s.node),
		s.says(detect.FrozenSync, "kube-proxy"), s.says(detect.NetlinkDeadlock, "kube-proxy"),
	}
}

// unclassifiedScript is the script of a version without an expectation.
func unclassifiedScript(p kubeproxy.Proxy) framework.Script {
	s := newStory(p)
	script := s.common()
	script.Expected = s.deadlocked()
	return script
}

// restarted is the remedy that does not last: its undo is the next load.
func restarted(s *story) framework.Remedy {
	return framework.Remedy{
		ID: "restart", Name: "restart kube-proxy, which helps until the next load", Helps: true, Bound: recovers, ReplacesEndpoints: true,
		Apply: s.restart,
	}
}

func toFixed(s *story) framework.Remedy {
	return s.moveTo("fixed-version", "kube-proxy "+fixed, proxy(s.node, fixed, kubeproxy.IPVS))
}

func toIPTables(s *story) framework.Remedy {
	return s.moveTo("iptables-mode", "mode iptables", proxy(s.node, s.proxy.Version, kubeproxy.IPTables))
}

// moveTo is the remedy that replaces kube-proxy by another one.
func (s *story) moveTo(id, name string, p kubeproxy.Proxy) framework.Remedy {
	return framework.Remedy{
		ID: id, Name: name, Helps: true, Bound: recovers, ReplacesEndpoints: true,
		Apply: func(ctx context.Context, r *framework.Run) error { return s.replace(ctx, r, p) },
	}
}

// unhurtScript is the script of a kube-proxy which the load does not harm in this mode.
func unhurtScript(mode kubeproxy.Mode) func(kubeproxy.Proxy) framework.Script {
	return func(p kubeproxy.Proxy) framework.Script {
		p.Mode = mode
		return newStory(p).unhurt()
	}
}

func (s *story) unhurt() framework.Script {
	script := s.common()
	script.Aftermath = []framework.Check{
		{ID: "syncs-go-on", Name: "syncs are finished since the load ended", Holds: s.syncs(true), Bound: patience},
	}
	if s.proxy.Mode == kubeproxy.IPVS {
		script.Aftermath = append(script.Aftermath,
			framework.Check{ID: "late-service-served", Name: "a Service created after the load has a virtual server", Reads: proxies, Holds: s.served(late), Bound: patience},
			framework.Check{ID: "idle-service-served", Name: "the virtual server of a Service that got its first pod after the load has that pod", Reads: proxies, Holds: s.served(idle), Bound: patience},
			framework.Check{ID: "web-updated", Name: "the virtual server of " + web + " has the new pod and no other", Reads: proxies, Holds: s.served(web), Bound: patience},
			framework.Check{ID: "churn-followed", Name: "the virtual servers of the churned Services are up to date", Reads: churned, Holds: s.churnFollows, Bound: patience},
		)
	}
	return script
}

// says is a finding of the detector about the node.
func (s *story) says(kind, object string) framework.Finding {
	return framework.Finding{Detector: convergence.Name(), Kind: kind, State: detect.Active, Object: detect.Named(object), Announcer: s.node}
}

// install installs kube-proxy, the application and the load's Services, in place of earlier ones.
func (s *story) install(ctx context.Context, r *framework.Run) error {
	s.stopLoad()
	s.after = standing{}
	if err := network(ctx, r, s.node); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := s.app.Install(ctx, labaccess.Cluster(r), nameOf(s.node, web), vip(s.node, web)); err != nil {
			return err
		}
		return s.app.Reserve(ctx, labaccess.Cluster(r), nameOf(s.node, idle), vip(s.node, idle))
	})
	group.Go(func() error { return workload.AddProbes(ctx, labaccess.Cluster(r), workload.OnEach(s.node)) })
	// The first tick is a minute after the start of kube-proxy.
	group.Go(func() error { return s.proxy.Apply(ctx, labaccess.Lab(r)) })
	group.Go(func() error { return s.services.Create(ctx, labaccess.Cluster(r)) })
	return group.Wait()
}

// restart restarts kube-proxy. The load's endpoints are restored before that, for the next load.
func (s *story) restart(ctx context.Context, r *framework.Run) error {
	if err := s.services.Restore(ctx, labaccess.Cluster(r)); err != nil {
		return err
	}
	return s.proxy.Restart(ctx, labaccess.Lab(r))
}

func (s *story) replace(ctx context.Context, r *framework.Run, p kubeproxy.Proxy) error {
	s.proxy = p
	return p.Apply(ctx, labaccess.Lab(r))
}

// wiring is held while what is common to all nodes is set up.
var wiring sync.Mutex

// network connects pods on master and on a node, and routes to the load's endpoints:
// none of it is part of the incident.
func network(ctx context.Context, r *framework.Run, node string) error {
	if err := workload.Wire(ctx, labaccess.Lab(r), node); err != nil {
		return err
	}
	if err := kubeproxy.MarkDrop(ctx, labaccess.Lab(r).Node(node)); err != nil {
		return err
	}
	wiring.Lock()
	defer wiring.Unlock()
	if err := workload.Wire(ctx, labaccess.Lab(r), master); err != nil {
		return err
	}
	at, _ := r.Topology.AddressOn(backends, nodeNet.Name)
	for _, p := range []netip.Prefix{busyRange, churnRange} {
		if err := labaccess.Lab(r).AddStatic(ctx, p, at); err != nil {
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
