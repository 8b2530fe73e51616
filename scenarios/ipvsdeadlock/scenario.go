package ipvsdeadlock

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeproxy"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/load"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

const (
	affected     = "1.13.0"
	deadlockOnly = "1.13.1" // without the inverted condition in remove()
	fixed        = "1.13.2"

	hangs    = "kube-proxy-" + affected
	hangsToo = "kube-proxy-" + deadlockOnly
	works    = "kube-proxy-" + fixed
	iptables = hangs + "-iptables"
)

const (
	master   = "master"
	backends = "backends"
)

var (
	edges   = []string{"edge1", "edge2", "edge3", "edge4"}
	podCIDR = netip.MustParsePrefix("10.30.64.0/20")
	nodeNet = topology.NewNetwork("nodes", "10.30.4.0/24")
	// Both ranges are routed to backends: endpoints of the load's connections are in busyRange,
	// and endpoints of the churned Services in the other range.
	busyRange  = netip.MustParsePrefix("10.30.132.0/24")
	churnRange = netip.MustParsePrefix("10.30.133.0/24")
)

// lab is the cluster that Record draws, with these edges. A kube-proxy runs on each edge,
// and none on master. The edges have a kernel of their own, because the machine's may have
// no IPVS. Endpoints of Services are elsewhere, so that every connection through an edge's
// IPVS table crosses a network.
func lab(nodes ...string) topology.Topology {
	cluster := topology.Cluster{PodCIDR: podCIDR, NodeMask: 24, Nodes: []topology.Node{nodeNet.Node(master, 11)}}
	for _, name := range slices.Compact(slices.Clone(nodes)) {
		edge := nodeNet.Node(name, 21+byte(slices.Index(edges, name)))
		edge.Kernel = "6.1"
		cluster.Nodes = append(cluster.Nodes, edge)
	}
	return topology.Topology{
		Name: "ipvs-deadlock", Networks: []topology.Network{nodeNet}, Clusters: []topology.Cluster{cluster},
		Routed: []netip.Prefix{busyRange, churnRange}, Hosts: []topology.Host{nodeNet.Host(backends, 31)},
	}.Behind(topology.OneToR(nodeNet))
}

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
		Variants: []framework.Variant{
			variant(hangs, framework.Affected, proxy(nodes[0], affected, kubeproxy.IPVS), restartAndUpgrade, fixed),
			variant(hangsToo, framework.Affected, proxy(nodes[1], deadlockOnly, kubeproxy.IPVS), toIPTables),
			variant(works, framework.Fixed, proxy(nodes[2], fixed, kubeproxy.IPVS), nil),
			variant(iptables, framework.Workaround, proxy(nodes[3], affected, kubeproxy.IPTables), nil),
		},
		Tested: []framework.Tested{{Name: "kube-proxy", Default: affected, Varied: true}},
		// IPVS tables outlive kube-proxy. One that has hung leaves real servers with the
		// weight 0, which 1.13.2 corrects and 1.13.12 does not.
		NewLabs: true,
		At: func(versions map[string]string) framework.Variant {
			version := versions["kube-proxy"]
			v := variant("kube-proxy-"+version, framework.Unclassified, proxy(edges[0], version, kubeproxy.IPVS), nil)
			v.Nodes = edges[:1]
			return v
		},
	}
}

// variant runs a kube-proxy. Others are the versions that remedies move to.
func variant(name string, role framework.Role, p kubeproxy.Proxy, remedies func(*trial) []framework.Remedy,
	others ...string) framework.Variant {
	return framework.Variant{
		Name: name, Role: role, Form: framework.Whole,
		Script:     func() framework.Script { return script(role, p, remedies) },
		Components: map[string]string{"kube-proxy": p.Version},
		Images:     append([]string{workload.ProbeImage, kubeproxy.Image(p.Version)}, each.Of(others, kubeproxy.Image)...),
	}
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

func vip(node, service string) netip.Addr {
	number := 10*slices.Index(edges, node) + slices.Index([]string{busy, web, idle, late}, service)
	return netip.AddrFrom4([4]byte{10, 96, 0, 100 + byte(number)})
}

func nameOf(node, service string) string { return service + "-" + node }

// recovers bounds a remedy: a new pod of kube-proxy, its first syncs and the detectors'
// next polls took up to 108 s on a busy machine.
const recovers = 5 * time.Minute

// The detector's settings: a sync under the load takes 4 to 6 s without hardware support
// for guests, and several times that on a busy machine. The churn goes on while any
// variant needs it, and some of its Services are always pending.
var convergence = detect.ProxyConvergence{SlowSync: kubeproxy.FrozenFor, Except: load.IsChurned}

// ratesJSON are the outcomes of affected kube-proxies under the load, from the reports of runs with
// --repeat.
//
//go:embed rates.json
var ratesJSON []byte

func script(role framework.Role, p kubeproxy.Proxy, remedies func(*trial) []framework.Remedy) framework.Script {
	t := newTrial(p)
	// The pod on the node that the probes come from; the Service, and the pod that
	// the next rollout puts behind it.
	client := framework.PodOn(p.Node)
	client.Name = "edge" // on each node: reports of all variants name the same probes
	service := framework.ServerAt(web, netip.AddrPortFrom(vip(p.Node, web), wire.DefaultPort))
	pod := framework.Server("pod", func(*framework.Run) netip.AddrPort {
		return netip.AddrPortFrom(t.standbyIP, wire.DefaultPort)
	})
	from := func(to framework.Endpoint) probe.Probe {
		p := client.Over(probe.TCP, to)
		p.Interval = 200 * time.Millisecond // a guest without hardware support takes time from kube-proxy for each packet
		return p
	}
	s := framework.Script{
		Install: framework.InOrder(workload.Wired(p.Node, master), framework.AtOnce(
			// The first tick is a minute after the start of kube-proxy.
			p.Apply, t.services.Create, t.startApp, workload.Added(workload.OnEach(p.Node)...),
		)),
		Endpoints: []framework.Endpoint{client, service, pod},
		Probes:    []probe.Probe{from(service), from(pod)},
		Detectors: []detect.Detector{convergence},
		PollEvery: 3 * time.Second, // each takes a command in the guest
		// What is pending when the load ends takes as long as a sync may take.
		ExpectedWithin: kubeproxy.FrozenFor + time.Minute,
		Baseline: []framework.Check{{
			ID: "proxy-mode", Name: "kube-proxy says that it runs in mode " + string(p.Mode),
			Holds: func(ctx context.Context, r *framework.Run) (bool, string, error) {
				mode, err := p.RunsIn(ctx, labaccess.Lab(r)) // it may have fallen back to another
				return mode == p.Mode, fmt.Sprintf("it runs in mode %q", mode), err
			},
		}},
		Fault: framework.Fault{
			Name:   "load kube-proxy through ticks, then roll " + web + " out",
			Inject: t.inject, TookEffect: t.tookEffect,
			Undo: p.Delete, // one that is not needed any more would take CPU time from the others
		},
		Trials: &framework.Trials{
			Unit: "tick of the graceful termination", Load: loadName, Rates: framework.EmbeddedRates(ratesJSON),
			Result: func() (int, bool) { return t.result.ticks(), t.result.hung },
		},
		Impacted: []probe.Probe{from(service)},
		// On a busy machine a guest without hardware support was once cut off
		// for 2 s altogether. The incident is for good.
		MinOutage: 5 * time.Second,
		Observe:   20 * time.Second,
	}
	if role == framework.Affected || role == framework.Unclassified {
		s.Expected = deadlocked(p.Node)
	}
	if remedies != nil {
		s.Remedies = remedies(t)
	}
	return s
}

// deadlocked are the findings of a kube-proxy that hangs: the effects on users, and the
// cause: the syncs have stopped, and which goroutines wait.
func deadlocked(node string) []framework.Finding {
	says := func(kind, object string, words ...string) framework.Finding {
		return framework.Finding{
			Detector: convergence.Name(), Kind: kind, State: detect.Active, Object: detect.Named(object), Announcer: node, Words: words,
		}
	}
	return []framework.Finding{
		says(detect.StaleEndpoint, node),
		says(detect.MissingEndpoint, node, "of default/"+nameOf(node, idle)), says(detect.MissingService, node,
			"default/"+nameOf(node, late)),
		says(detect.FrozenSync, "kube-proxy", "healthz: 503"), says(detect.NetlinkDeadlock, "kube-proxy"),
	}
}

// restartAndUpgrade are a remedy that does not last, whose undo is the next load, and one that does.
func restartAndUpgrade(t *trial) []framework.Remedy {
	restart := replaceBy("restart", "restart kube-proxy, which helps until the next load", t.proxy)
	restart.Apply, restart.Undo = framework.InOrder(t.services.Restore, t.proxy.Restart), t.inject
	return []framework.Remedy{restart, replaceBy("fixed-version", "kube-proxy "+fixed, proxy(t.proxy.Node, fixed, kubeproxy.IPVS))}
}

func toIPTables(t *trial) []framework.Remedy {
	return []framework.Remedy{replaceBy("iptables-mode", "mode iptables", proxy(t.proxy.Node, t.proxy.Version, kubeproxy.IPTables))}
}

func replaceBy(id, name string, p kubeproxy.Proxy) framework.Remedy {
	return framework.Remedy{ID: id, Name: name, Helps: true, Bound: recovers, ReplacesEndpoints: true, Apply: p.Apply}
}
