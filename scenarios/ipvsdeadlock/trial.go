package ipvsdeadlock

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeproxy"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/load"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

const (
	// heldEndpoints are removed while connections to them are open. Each stays in the
	// list of the graceful termination, and costs a dump of all with each tick: the
	// longer a tick takes, the more of a sync runs beside it.
	heldEndpoints = 250
	// connections are more than the endpoints: round robin gives each endpoint one at least.
	connections = 300
)

// churn keeps a sync with netlink calls always in progress, on every node. Its Services
// have no connections: an endpoint with one would be added to the list, which the tick
// walks without a lock, and kube-proxy would crash instead of hanging.
var churn = &load.Churn{
	Services: 60, Range: churnRange,
	// A sync takes 2 to 5 s without hardware support for guests: it finds most of
	// the Services changed. With 40 of them and 4 s a 1.13.0 survived its first tick.
	Every: 3 * time.Second,
}

// loadName names the load in rates.json. Rates under another load are not this one's.
var loadName = fmt.Sprintf("%d endpoints, %d connections, %d Services every %s", heldEndpoints, connections, churn.Services, churn.Every)

const (
	// period is from one tick of the graceful termination to the next
	// (rsCheckDeleteInterval); the first comes with the start of kube-proxy.
	period = time.Minute
	// tickTakes bounds a tick and the wait for it: under the load, on a guest
	// without hardware support, one that walks the whole list takes two minutes.
	tickTakes = 4 * time.Minute
	// syncsMet is how many syncs must be finished after the tick has begun, so that at
	// least one of them ran beside it: the first may have been nearly over by then.
	syncsMet = 2
	// loadTakes bounds the rest of the load's time, on a busy machine.
	loadTakes = 4 * time.Minute
	// pollPause is the time from the end of one poll of kube-proxy to the next: each poll
	// takes time from kube-proxy.
	pollPause = 2 * time.Second
)

// trial is a load on the kube-proxy of a node, and how kube-proxy survived it.
type trial struct {
	proxy kubeproxy.Proxy
	// serving is web's pod, and standby the one that is put in its place by the next rollout.
	serving, standby framework.ProbePod
	standbyIP        netip.Addr
	services         load.Services
	hang             kubeproxy.Hang
	// ticks is how many ticks kube-proxy must survive. It is probabilistic: of 66 loads, 61 hung an
	// affected one in the first tick, four in the second, and one survived both (rates.json).
	ticks   int
	running *load.Load // nil: none runs
	result  standing
}

func newTrial(p kubeproxy.Proxy) *trial {
	name := nameOf(p.Node, web)
	return &trial{
		proxy:   p,
		serving: framework.ProbePod{Name: name + "-1", Node: master}, standby: framework.ProbePod{Name: name + "-2", Node: master},
		services: load.Services{
			Node: p.Node, Host: backends, Held: nameOf(p.Node, busy), HeldVIP: vip(p.Node, busy), HeldRange: busyRange,
			Port:          8081 + uint16(slices.Index(edges, p.Node)),
			HeldEndpoints: heldEndpoints, Connections: connections, Churn: churn,
		},
	}
}

type standing struct {
	mode kubeproxy.Mode
	hung bool
	// walked is the number of list entries in the log since the load began.
	walked int
	// atOnce is set where kube-proxy deleted the endpoints from the table while connections to them
	// were open, as versions without graceful termination do: 1.12.0 has no list, and so no ticks.
	atOnce bool
	took   time.Duration // of the load
	// met is set once the tick has begun; where there are none, once the
	// load has. metSyncs and metChanges count from then on.
	met         bool
	metSyncs    int
	metChanges  int64 // of Endpoints
	connections int   // at the end, and to how many endpoints
	endpoints   int
	load        error
}

// ticks is the number of ticks under the load that walked the whole list, including a tick in which
// kube-proxy hangs. The log has an endpoint once when it joins the list, and then with each tick. Without
// IPVS, and in versions that delete endpoints at once, the load's time is counted in periods instead.
func (a standing) ticks() int {
	switch {
	case a.metSyncs < syncsMet && !a.hung:
		return 0 // nothing has met the tick yet
	case a.mode != kubeproxy.IPVS, a.atOnce:
		return int(a.took / period)
	case a.hung:
		return max(1, (a.walked-1)/heldEndpoints)
	}
	return max(0, a.walked/heldEndpoints-1)
}

func (a standing) String() string {
	how := "survived the load"
	if a.hung {
		how = "hung under the load"
	}
	text := fmt.Sprintf("kube-proxy (%s) %s, which lasted %s: %d connections to %d endpoints; %d log lines about "+
		"endpoints to be deleted; since the tick began %d syncs and %d changes of Endpoints",
		a.mode, how, a.took.Round(time.Second), a.connections, a.endpoints, a.walked, a.metSyncs, a.metChanges)
	if a.atOnce {
		text += "; it deletes endpoints at once, and has no ticks"
	}
	return text
}

// startApp runs the application behind web, and creates idle without pods.
func (t *trial) startApp(ctx context.Context, r *framework.Run) error {
	return framework.InOrder(
		workload.ServiceRemoved(nameOf(t.proxy.Node, late)), // of an earlier run
		t.selects(idle, "none"), workload.Added(t.serving), t.startStandby, t.selects(web, t.serving.Name),
	)(ctx, r)
}

func (t *trial) startStandby(ctx context.Context, r *framework.Run) (err error) {
	if err = workload.Added(t.standby)(ctx, r); err == nil {
		t.standbyIP, err = workload.ProbeIP(ctx, labaccess.Cluster(r), t.standby)
	}
	return err
}

func (t *trial) selects(service, pod string) framework.Action {
	address := netip.AddrPortFrom(vip(t.proxy.Node, service), wire.DefaultPort)
	return workload.ClusterIP(nameOf(t.proxy.Node, service), corev1.ProtocolTCP, address, pod)
}

// roll replaces the pod of the application: the standby serves in its place, also behind idle and late, and it still
// answers until kube-proxy has had time to learn of that.
func (t *trial) roll(ctx context.Context, r *framework.Run) error {
	t.serving, t.standby = t.standby, t.serving
	steps := []framework.Action{workload.ServiceRemoved(nameOf(t.proxy.Node, late))}
	for _, service := range []string{late, idle, web} {
		steps = append(steps, t.selects(service, t.serving.Name))
	}
	return framework.InOrder(append(steps, t.endpointsFollow, t.fairChance, t.startStandby)...)(ctx, r)
}

func (t *trial) endpointsFollow(ctx context.Context, r *framework.Run) error {
	want := t.standbyIP.String()
	return await.Until(ctx, "the Services to lead to "+want, 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var wrong framework.Mismatches
			for _, service := range []string{late, idle, web} {
				//lint:ignore SA1019 kube-proxy 1.13 reads v1 Endpoints and nothing else.
				var e corev1.Endpoints
				key := client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: nameOf(t.proxy.Node, service)}
				if err := client.IgnoreNotFound(labaccess.Cluster(r).Kube().Get(ctx, key, &e)); err != nil {
					return false, "", err
				}
				if s := e.Subsets; len(s) != 1 || len(s[0].Addresses) != 1 || s[0].Addresses[0].IP != want {
					wrong.Addf("%s leads to %v", service, s)
				}
			}
			return wrong.Result()
		})
}

// inject is the load, until kube-proxy hangs or has survived its ticks, and then what happens
// every day: a rollout, and a new Service.
func (t *trial) inject(ctx context.Context, r *framework.Run) error {
	if err := t.throughTicks(ctx, r); err != nil {
		return err
	}
	return t.roll(ctx, r)
}

// throughTicks runs the load, and notes how kube-proxy survived it.
func (t *trial) throughTicks(ctx context.Context, r *framework.Run) error {
	t.result, t.hang = standing{}, kubeproxy.Hang{}
	if err := framework.InOrder(t.services.Restore, t.busyIsServed)(ctx, r); err != nil {
		return err
	}
	before, err := t.proxy.State(ctx, labaccess.Lab(r))
	if err != nil {
		return err
	}
	began := time.Now()
	// IPVS goes round robin, iptables by chance.
	running, err := t.services.Start(ctx, labaccess.Lab(r), t.proxy.Mode == kubeproxy.IPVS, r.Meet)
	if err != nil {
		return err
	}
	t.running = running
	defer func() {
		running.Stop()
		t.running = nil
	}()
	open, _ := running.Open()
	r.Note(fmt.Sprintf("%d connections are open, %d endpoints taken away, %d Services churn", open, heldEndpoints, churn.Services))
	var a standing
	var met kubeproxy.State
	var changes int64
	err = t.poll(ctx, r, "kube-proxy to hang under the load or to survive it", framework.MaxTrials*tickTakes+loadTakes,
		func(l kubeproxy.State, hangs bool) bool {
			a.mode, a.hung, a.walked, a.took = l.Mode, hangs, l.Walked-before.Walked, time.Since(began)
			// Graceful termination leaves a real server to which connections are open.
			servers, there := t.busyServers(r)
			a.atOnce = a.atOnce || a.walked == 0 && there && len(servers) == 0
			if !a.met && (t.proxy.Mode != kubeproxy.IPVS || a.atOnce || a.walked > heldEndpoints) {
				a.met, met, changes = true, l, running.Changes()
			}
			if a.met {
				a.metSyncs, a.metChanges = l.Syncs-met.Syncs, running.Changes()-changes
			}
			t.ticks = r.TrialsDue()
			return a.hung || a.ticks() >= t.ticks
		})
	if err != nil {
		return err
	}
	a.connections, a.endpoints = running.Open()
	a.load = running.Err()
	t.result = a
	r.Note(a.String())
	return nil
}

// fairChance waits until kube-proxy has had time to apply the current Services: two syncs, so that
// the second one began after the call. It also ends when kube-proxy hangs.
func (t *trial) fairChance(ctx context.Context, r *framework.Run) error {
	first := -1
	return t.poll(ctx, r, "kube-proxy to finish two syncs or to hang", kubeproxy.FrozenFor+loadTakes,
		func(l kubeproxy.State, hangs bool) bool {
			if first < 0 {
				first = l.Syncs
			}
			return hangs || l.Syncs >= first+2
		})
}

func (t *trial) poll(ctx context.Context, r *framework.Run, what string, bound time.Duration,
	enough func(l kubeproxy.State, hangs bool) bool) error {
	return await.Until(ctx, what, time.Second/4, bound, func(ctx context.Context) (bool, string, error) {
		switch {
		case t.running != nil && t.running.Err() != nil:
			return true, "", nil
		case time.Since(t.hang.Last.At) < pollPause:
			return false, "", nil
		}
		l, err := t.proxy.State(ctx, labaccess.Lab(r))
		return err == nil && enough(l, t.hang.See(l)), l.String(), err
	})
}

// busyIsServed waits until connections to the busy Service go to all of its
// endpoints, or in iptables mode, whose rules come all at once, to one.
func (t *trial) busyIsServed(ctx context.Context, r *framework.Run) error {
	return await.Until(ctx, "kube-proxy to serve the busy Service", time.Second, 2*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			if t.proxy.Mode == kubeproxy.IPVS {
				n := 0
				servers, _ := t.busyServers(r)
				for _, server := range servers {
					n += min(1, server.Weight)
				}
				return n == heldEndpoints, fmt.Sprintf("%d of %d endpoints get connections", n, heldEndpoints), nil
			}
			rules, err := labaccess.Lab(r).Node(t.proxy.Node).Exec(ctx, "iptables-save", "-t", "nat")
			first := netip.AddrPortFrom(busyRange.Addr().Next(), t.services.Port)
			return strings.Contains(rules, "--to-destination "+first.String()+"\n"), "no rule in the nat table leads to its first endpoint", err
		})
}

// busyServers are the real servers of the busy Service in the kernel of the node, in the newest
// snapshot; false if it has no virtual server.
func (t *trial) busyServers(r *framework.Run) (servers []snapshot.RealServer, there bool) {
	for _, p := range r.Snapshot().Proxies {
		for _, v := range p.Table {
			if p.Node == t.proxy.Node && v.Protocol == "TCP" && v.Address == netip.AddrPortFrom(t.services.HeldVIP, 80) {
				return v.Servers, true
			}
		}
	}
	return nil, false
}

// tookEffect reports whether the load was one under which 1.13.0 would hang.
func (t *trial) tookEffect(context.Context, *framework.Run) (bool, string, error) {
	a := t.result
	switch {
	case a.mode == "":
		return false, "there was no load", nil
	case a.mode != t.proxy.Mode:
		return false, fmt.Sprintf("kube-proxy runs in mode %q, not %q", a.mode, t.proxy.Mode), nil
	case a.load != nil:
		return false, "the load ended early: " + a.load.Error(), nil
	// Where endpoints are deleted at once their connections break.
	case !a.atOnce && (a.connections < connections || t.proxy.Mode == kubeproxy.IPVS && a.endpoints < heldEndpoints):
		return false, fmt.Sprintf("%d connections to %d endpoints were left", a.connections, a.endpoints), nil
	case a.hung: // the load has done what it is for
	case a.ticks() < t.ticks:
		return false, fmt.Sprintf("no tick walked the list while syncs went on: %d entries in the log, %d syncs finished since it began",
			a.walked, a.metSyncs), nil
	case a.metChanges < int64(churn.Services):
		return false, fmt.Sprintf("the churn stopped: %d changes since the tick began", a.metChanges), nil
	}
	return true, "", nil
}
