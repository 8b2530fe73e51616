package ipvsdeadlock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeproxy"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/load"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

const (
	// period is from one tick of the graceful termination to the next
	// (rsCheckDeleteInterval); the first comes with the start of kube-proxy.
	period = time.Minute
	// tickTakes bounds a tick and the wait for it: under the load, on a guest
	// without hardware support, one that walks the whole list takes two minutes.
	tickTakes = 4 * time.Minute
	// syncsMet is how many syncs must be finished after the tick has begun, so
	// that at least one of them ran beside it: the first may have been nearly
	// over when the tick began.
	syncsMet = 2
	// loadTakes bounds what the load takes beside waiting for ticks, on a busy
	// machine.
	loadTakes = 4 * time.Minute
	// lookPause is the time from the end of one look at kube-proxy to the next
	// one, while there is nothing to see: each look takes time from kube-proxy.
	// hangPause is the same after a look at which kube-proxy may be hanging.
	lookPause = 3 * time.Second
	hangPause = 2 * time.Second
)

// standing is how kube-proxy came through the load.
type standing struct {
	mode  kubeproxy.Mode
	hung  bool
	syncs int // when the load ended
	// walked is how many entries of the list the log tells of since the load
	// began.
	walked int
	// atOnce says that kube-proxy took the endpoints out of the table while connections
	// to them were open, as versions without graceful termination do: 1.12.0 has no list,
	// and so no ticks.
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

// ticks is how many ticks there were under the load that walked the whole list,
// the one among them in which kube-proxy hangs, if it does. An endpoint is looked
// at once when it comes into the list, and then by each tick. A mode without IPVS
// has no ticks, and neither has a version that deletes endpoints at once: there it is
// the time from one to the next that counts.
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

// fault is the load, for as long as kube-proxy stands it or for its ticks, and
// then what happens every day: a rollout, and a new Service.
func (s *story) fault(r *framework.Run) fault.Fault {
	return fault.Fault{
		Name: "load kube-proxy through ticks, then roll " + web + " out",
		Inject: func(ctx context.Context) error {
			if err := s.throughTicks(ctx, r); err != nil {
				return err
			}
			if err := s.app.Expose(ctx, r.Cluster, nameOf(s.node, late), vip(s.node, late)); err != nil {
				return err
			}
			if err := s.app.Serve(ctx, r.Cluster, nameOf(s.node, idle)); err != nil {
				return err
			}
			return s.app.Roll(ctx, r.Cluster, func(ctx context.Context) error { return s.fairChance(ctx, r) })
		},
		Held: func(ctx context.Context) (bool, string, error) { return s.held(ctx, r) },
		// A kube-proxy that nobody looks at any more takes the CPU from the others. So
		// a lab that is kept has none until the next installation.
		Undo: func(ctx context.Context) error {
			s.stopLoad()
			return s.proxy.Delete(ctx, r.Lab)
		},
	}
}

// throughTicks runs the load, and notes how kube-proxy stood it.
func (s *story) throughTicks(ctx context.Context, r *framework.Run) error {
	s.after, s.hang, s.looks = standing{}, kubeproxy.Hang{}, nil
	if err := s.services.Restore(ctx, r.Cluster); err != nil {
		return err
	}
	if err := s.busyIsServed(ctx, r); err != nil {
		return err
	}
	before, _, err := s.look(ctx, r)
	if err != nil {
		return err
	}
	began := time.Now()
	// IPVS goes round robin, iptables by chance.
	if s.load, err = s.services.Start(ctx, r.Lab, s.proxy.Mode == kubeproxy.IPVS, r.Meet); err != nil {
		return err
	}
	defer s.stopLoad()
	open, _ := s.load.Open()
	r.Note(fmt.Sprintf("%d connections are open, %d endpoints taken away, %d Services churn", open, heldEndpoints, churn.Services))
	var a standing
	var met kubeproxy.Look
	var changes int64
	err = await.Until(ctx, "kube-proxy to hang under the load, or to stand it", time.Second/4, framework.MaxRounds*tickTakes+loadTakes,
		func(ctx context.Context) (bool, string, error) {
			if s.load.Err() != nil {
				return true, "", nil // there is nothing more to stand
			}
			if !s.lookIsDue() {
				return false, "", nil
			}
			l, hangs, err := s.look(ctx, r)
			if err != nil {
				return false, "", err
			}
			a.mode, a.hung, a.syncs, a.walked, a.took = l.Mode, hangs, l.Syncs, l.Walked-before.Walked, time.Since(began)
			a.atOnce = a.atOnce || a.walked == 0 && s.heldIsEmpty(r)
			if !a.met && (s.proxy.Mode != kubeproxy.IPVS || a.atOnce || a.walked > heldEndpoints) {
				a.met, met, changes = true, l, s.load.Changes()
			}
			if a.met {
				a.metSyncs, a.metChanges = l.Syncs-met.Syncs, s.load.Changes()-changes
			}
			s.ticks = r.Rounds()
			return a.hung || a.ticks() >= s.ticks, l.String(), nil
		})
	if err != nil {
		return err
	}
	a.connections, a.endpoints = s.load.Open()
	a.load = s.load.Err()
	s.after = a
	r.Note(a.String())
	r.Evidence("load", a.String()+"\n"+s.log())
	return nil
}

// String says how kube-proxy stood the load.
func (a standing) String() string {
	how := "stood the load"
	if a.hung {
		how = "hung under the load"
	}
	text := fmt.Sprintf("kube-proxy (%s) %s, which lasted %s: %d connections to %d endpoints; %d syncs, %d looks at endpoints to be deleted; since the tick began %d syncs and %d changes of Endpoints",
		a.mode, how, a.took.Round(time.Second), a.connections, a.endpoints, a.syncs, a.walked, a.metSyncs, a.metChanges)
	if a.atOnce {
		text += "; it deletes endpoints at once, and has no ticks"
	}
	return text
}

// heldIsEmpty tells whether the node's kernel has no real server left for the busy
// Service. Graceful termination leaves those that connections are open to.
func (s *story) heldIsEmpty(r *framework.Run) bool {
	v := s.virtualServer(r, s.services.HeldVIP, 80)
	return v.Address.IsValid() && len(v.Servers) == 0
}

// fairChance waits until kube-proxy has had the time to do what Kubernetes says
// now: two syncs, the second of which has begun after the call; or until it is
// plain that it hangs.
func (s *story) fairChance(ctx context.Context, r *framework.Run) error {
	before, hangs, err := s.look(ctx, r)
	if err != nil || hangs {
		return err
	}
	return await.Until(ctx, "kube-proxy to finish two syncs, or to hang", time.Second/4, kubeproxy.FrozenFor+loadTakes,
		func(ctx context.Context) (bool, string, error) {
			if !s.lookIsDue() {
				return false, "", nil
			}
			l, hangs, err := s.look(ctx, r)
			return err == nil && (hangs || l.Syncs >= before.Syncs+2), l.String(), err
		})
}

// lookIsDue tells whether it is time for the next look.
func (s *story) lookIsDue() bool {
	pause := lookPause
	if len(s.hang.Last.Waiting) > 1 {
		pause = hangPause
	}
	return time.Since(s.hang.Last.At) >= pause
}

// look looks at kube-proxy, and tells whether it hangs.
func (s *story) look(ctx context.Context, r *framework.Run) (kubeproxy.Look, bool, error) {
	l, err := s.proxy.Look(ctx, r.Lab)
	if err != nil {
		return l, false, err
	}
	s.looks = append(s.looks, l)
	return l, s.hang.See(l), nil
}

// log lists the looks at kube-proxy since the load began.
func (s *story) log() string {
	var text strings.Builder
	for _, l := range s.looks {
		fmt.Fprintln(&text, l)
	}
	return text.String()
}

// busyIsServed waits until connections to the busy Service go to all of its
// endpoints, or in iptables mode, whose rules come all at once, to one.
func (s *story) busyIsServed(ctx context.Context, r *framework.Run) error {
	return await.Until(ctx, "kube-proxy to serve the busy Service", time.Second, 2*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			if s.proxy.Mode == kubeproxy.IPVS {
				n := 0
				for _, server := range s.virtualServer(r, s.services.HeldVIP, 80).Servers {
					n += min(1, server.Weight)
				}
				return n == heldEndpoints, fmt.Sprintf("%d endpoints of %d", n, heldEndpoints), nil
			}
			rules, err := r.Lab.Node(s.node).Exec(ctx, "iptables-save", "-t", "nat")
			first := netip.AddrPortFrom(busyRange.Addr().Next(), s.services.Port)
			return strings.Contains(rules, "--to-destination "+first.String()+"\n"), "no rule for its endpoints", err
		})
}

// held tells whether the load was one under which 1.13.0 would hang.
func (s *story) held(context.Context, *framework.Run) (bool, string, error) {
	a := s.after
	switch {
	case a.mode == "":
		return false, "there was no load", nil
	case a.mode != s.proxy.Mode:
		return false, fmt.Sprintf("kube-proxy runs in mode %q, not %q", a.mode, s.proxy.Mode), nil
	case a.load != nil:
		return false, "the load ended early: " + a.load.Error(), nil
	// Where endpoints are deleted at once their connections break.
	case !a.atOnce && (a.connections < connections || s.proxy.Mode == kubeproxy.IPVS && a.endpoints < heldEndpoints):
		return false, fmt.Sprintf("%d connections to %d endpoints were left", a.connections, a.endpoints), nil
	case a.hung: // the load has done what it is for
	case a.ticks() < s.ticks:
		return false, fmt.Sprintf("no tick walked the list while syncs went on: the log tells of %d entries, %d syncs were finished since it began",
			a.walked, a.metSyncs), nil
	case a.metChanges < int64(churn.Services):
		return false, fmt.Sprintf("the churn stopped: %d changes since the tick began", a.metChanges), nil
	}
	return true, "", nil
}

// mode asserts that kube-proxy did not fall back to another mode.
func (s *story) mode(ctx context.Context, r *framework.Run) (bool, string, error) {
	mode, err := s.proxy.RunsIn(ctx, r.Lab)
	return mode == s.proxy.Mode, fmt.Sprintf("it runs in mode %q", mode), err
}

// syncsSince looks how many syncs were finished since the load ended.
func (s *story) syncsSince(ctx context.Context, r *framework.Run) (finished int, saw string, err error) {
	l, _, err := s.look(ctx, r)
	if err != nil {
		return 0, "", err
	}
	saw = fmt.Sprintf("%d syncs when the load ended, %d now", s.after.syncs, l.Syncs)
	r.Evidence("syncs", fmt.Sprintf("%s: %s\n%s", kubeproxy.SyncMetric, saw, s.log()))
	return l.Syncs - s.after.syncs, saw, nil
}

func (s *story) syncsFrozen(ctx context.Context, r *framework.Run) (bool, string, error) {
	n, saw, err := s.syncsSince(ctx, r)
	return err == nil && n == 0, saw, err
}

func (s *story) syncsGoOn(ctx context.Context, r *framework.Run) (bool, string, error) {
	n, saw, err := s.syncsSince(ctx, r)
	return err == nil && n > 0, saw, err
}

// proxies tell of kube-proxies and the nodes' IPVS tables; churned, besides, of
// what Kubernetes says.
var (
	proxies = []snapshot.Source{snapshot.Proxies}
	churned = []snapshot.Source{snapshot.Proxies, snapshot.Services, snapshot.EndpointSlices}
)

// seen is kube-proxy on the node as the detectors saw it last.
func (s *story) seen(r *framework.Run) snapshot.Proxy {
	for _, p := range r.Snapshot().Proxies {
		if p.Node == s.node {
			return p
		}
	}
	return snapshot.Proxy{}
}

func (s *story) healthFrozen(_ context.Context, r *framework.Run) (bool, string, error) {
	h := s.seen(r).Health
	return h.Status == http.StatusServiceUnavailable && h.Age() > kubeproxy.HealthTimeout,
		fmt.Sprintf("healthz says %d, last sync %s ago", h.Status, h.Age()), nil
}

func (s *story) twoStacks(ctx context.Context, r *framework.Run) (bool, string, error) {
	dump, err := s.proxy.Goroutines(ctx, r.Lab)
	if err != nil {
		return false, "", err
	}
	r.Evidence("goroutines", dump)
	waiting := kubeproxy.WaitingForIPVS(dump)
	return len(waiting) == 2, fmt.Sprintf("%d goroutines wait for IPVS", len(waiting)), nil
}

func (s *story) lateIsMissing(_ context.Context, r *framework.Run) (bool, string, error) {
	if s.seen(r).Table == nil {
		return false, "", errors.New("the table was not read")
	}
	v := s.virtualServerOf(r, late)
	return !v.Address.IsValid(), fmt.Sprintf("it has %v", v), nil
}

// idleIsEmpty asserts what the reports saw by ipvsadm: a virtual server without a
// real one, though the Service has a pod.
func (s *story) idleIsEmpty(_ context.Context, r *framework.Run) (bool, string, error) {
	v := s.virtualServerOf(r, idle)
	return v.Address.IsValid() && len(v.Servers) == 0, fmt.Sprintf("it is %v", v), nil
}

func (s *story) idleIsServed(_ context.Context, r *framework.Run) (bool, string, error) {
	servers := s.serving(r, idle)
	return len(servers) == 1 && servers[0] == s.app.Serving.IP, fmt.Sprintf("it leads to %v", servers), nil
}

func (s *story) lateIsServed(_ context.Context, r *framework.Run) (bool, string, error) {
	servers := s.serving(r, late)
	return len(servers) == 1 && servers[0] == s.app.Serving.IP, fmt.Sprintf("it leads to %v", servers), nil
}

func (s *story) webIsStale(_ context.Context, r *framework.Run) (bool, string, error) {
	v := s.virtualServerOf(r, web)
	servers := s.serving(r, web)
	stale := len(servers) == 1 && servers[0] != s.app.Serving.IP
	return stale, fmt.Sprintf("it is %v", v), nil
}

func (s *story) webIsNew(_ context.Context, r *framework.Run) (bool, string, error) {
	servers := s.serving(r, web)
	return len(servers) == 1 && servers[0] == s.app.Serving.IP, fmt.Sprintf("it leads to %v, not to %s", servers, s.app.Serving.IP), nil
}

// churnFollows asserts that each churned Service leads to the endpoint that it has.
// While other variants' loads still change it, it may be one of a little before, or
// after: EndpointSlices are made from the Endpoints that kube-proxy reads.
func (s *story) churnFollows(_ context.Context, r *framework.Run) (bool, string, error) {
	if churn.Goes() {
		return s.churnIsServed(r, int(2*detect.DefaultSettle/churn.Every))
	}
	return s.churnIsServed(r, 0)
}

// churnIsServed tells whether each churned Service has what the table leads to, or is
// no more than so many changes apart.
func (s *story) churnIsServed(r *framework.Run, apart int) (bool, string, error) {
	seen := r.Snapshot()
	if !seen.Services.Read || !seen.EndpointSlices.Read || s.seen(r).Table == nil {
		return false, "", errors.New("the Services, their EndpointSlices or the table were not read")
	}
	var late framework.Mismatches
	found := 0
	for _, service := range seen.Services.Items {
		if !load.IsChurned(service.String()) {
			continue
		}
		found++
		servers := weighted(s.virtualServer(r, service.ClusterIPs[0], 80))
		ready := readyOf(seen, service)
		switch {
		case len(servers) != 1 || len(ready) != 1:
			late.Addf("%s leads to %v, and has %v", service.Name, servers, ready)
		case churn.Apart(servers[0], ready[0]) > apart:
			late.Addf("%s leads to %s, and has %s", service.Name, servers[0], ready[0])
		}
	}
	if found != churn.Services {
		late.Addf("there are %d churned Services", found)
	}
	return late.Result()
}

// readyOf are the endpoints of a Service that are to get connections.
func readyOf(s snapshot.Snapshot, service snapshot.Service) []netip.Addr {
	var ready []netip.Addr
	for _, slice := range s.EndpointSlices.Items {
		if slice.Namespace == service.Namespace && slice.Service == service.Name {
			ready = append(ready, slice.Ready...)
		}
	}
	return ready
}

// again breaks the lab for the next remedy, with the version under test under the load.
func (s *story) again(ctx context.Context, r *framework.Run) error {
	if s.proxy != s.tested {
		if err := s.services.Restore(ctx, r.Cluster); err != nil {
			return err
		}
		if err := s.replace(ctx, r, s.tested); err != nil {
			return err
		}
	}
	f := s.fault(r)
	if err := f.Inject(ctx); err != nil {
		return err
	}
	held, saw, err := f.Held(ctx)
	if err == nil && !held {
		err = errors.New(saw)
	}
	return err
}
