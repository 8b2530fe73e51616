package ipvsdeadlock

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

const (
	// period is from one tick of the graceful termination to the next
	// (rsCheckDeleteInterval); the first comes with the start of kube-proxy.
	period = time.Minute
	// ticks is how many ticks a kube-proxy must stand under the load.
	ticks = 2
	// tickTakes bounds the time that a tick takes.
	tickTakes = 30 * time.Second
	// looksHung is in how many looks in a row, 3 s apart, the same goroutines
	// wait for IPVS if kube-proxy hangs.
	looksHung = 3
	// churnPause is the longest pause of the churn with which it still is one.
	churnPause = 5 * time.Second
)

// standing is how kube-proxy stood when the load ended.
type standing struct {
	mode  string
	syncs int
	hung  bool
	// walked is how many entries of the list the log tells of.
	walked int
	took   time.Duration // of the load
	// What the load was like.
	connections, endpoints int
	changes                int64
	worst                  time.Duration // pause between two changes
	load                   error
}

// fault is the load, for as long as kube-proxy stands it or for two ticks,
// and then what happens every day: a rollout, and a new Service.
func (s *story) fault(r *framework.Run) fault.Fault {
	return fault.Fault{
		Name: "load kube-proxy through its ticks, then roll " + web + " out",
		Inject: func(ctx context.Context) error {
			if err := s.throughTicks(ctx, r); err != nil {
				return err
			}
			if err := s.app.createLate(ctx, r); err != nil {
				return err
			}
			return s.app.roll(ctx, r)
		},
		Held: func(ctx context.Context) (bool, string, error) { return s.held(ctx, r) },
		Undo: func(context.Context) error { s.stopLoad(); return nil },
	}
}

// throughTicks runs the load, and notes how kube-proxy stood it.
func (s *story) throughTicks(ctx context.Context, r *framework.Run) error {
	s.after = standing{}
	if err := setEndpoints(ctx, r, "busy", busyEndpoints()...); err != nil {
		return err
	}
	if err := s.busyIsServed(ctx, r); err != nil {
		return err
	}
	began := time.Now()
	var err error
	if s.load, err = startLoad(ctx, r, s.proxy.Mode); err != nil {
		return err
	}
	defer s.stopLoad()
	r.Note(fmt.Sprintf("%d connections are open, %d endpoints taken away, %d Services churn", connections, endpointsOfBusy, churned))
	age, err := proxyAge(ctx, r)
	if err != nil {
		return err
	}
	started := time.Now().Add(-age)
	// Both goroutines may be in a call at one look, and again at the next.
	var last []int
	alike := 0
	err = await.Until(ctx, "the ticks of kube-proxy", 3*time.Second, (ticks+1)*period+2*tickTakes,
		func(ctx context.Context) (bool, string, error) {
			age := time.Since(started)
			if age < period {
				return false, "the first tick is to come", nil
			}
			waiting, _, err := waitingGoroutines(ctx, r)
			if err != nil {
				return false, "", err
			}
			if slices.Equal(ids(waiting), last) {
				alike++
			} else {
				alike = 1
			}
			last = ids(waiting)
			s.after.hung = len(last) > 1 && alike >= looksHung
			return s.after.hung || age > ticks*period+tickTakes/2, fmt.Sprintf("kube-proxy is %s old", age), nil
		})
	if err != nil {
		return err
	}
	s.after.took = time.Since(began)
	s.after.connections, s.after.endpoints = s.load.sink.counts()
	s.after.changes, s.after.worst = s.load.changes.Load(), time.Duration(s.load.worst.Load())
	s.after.load = s.load.why()
	if s.after.mode, err = ask(ctx, r, "10249/proxyMode"); err != nil {
		return err
	}
	if s.after.syncs, err = syncs(ctx, r); err != nil {
		return err
	}
	if s.after.walked, err = walked(ctx, r); err != nil {
		return err
	}
	r.Note(s.after.String())
	r.Evidence("load", s.after.String()+"\n")
	return nil
}

// String says how kube-proxy stood the load.
func (a standing) String() string {
	how := "stood the load"
	if a.hung {
		how = "hung under the load"
	}
	return fmt.Sprintf("kube-proxy (%s) %s, which lasted %s: %d connections to %d endpoints, %d changes of Endpoints with pauses up to %s; %d syncs, %d looks at endpoints to be deleted",
		a.mode, how, a.took.Round(time.Second), a.connections, a.endpoints, a.changes, a.worst.Round(time.Millisecond), a.syncs, a.walked)
}

// busyIsServed waits until connections to the busy Service go to all of its
// endpoints, or in iptables mode, whose rules come all at once, to one.
func (s *story) busyIsServed(ctx context.Context, r *framework.Run) error {
	return await.Until(ctx, "kube-proxy to serve the busy Service", time.Second, 2*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			if s.proxy.Mode == ipvs {
				n := 0
				for _, server := range virtualServer(r, busyVIP, 80).Servers {
					n += min(1, server.Weight)
				}
				return n == endpointsOfBusy, fmt.Sprintf("%d endpoints of %d", n, endpointsOfBusy), nil
			}
			rules, err := r.Lab.Node(edge).Exec(ctx, "iptables-save", "-t", "nat")
			return strings.Contains(rules, nth(busyRange, 1).String()+":"), "no rule for its endpoints", err
		})
}

// proxyAge is how long the process of kube-proxy has run.
func proxyAge(ctx context.Context, r *framework.Run) (time.Duration, error) {
	text, err := r.Lab.Node(edge).Exec(ctx, "ps", "-o", "etimes=", "-C", "kube-proxy")
	if err != nil {
		return 0, err
	}
	seconds, err := strconv.Atoi(strings.TrimSpace(text))
	return time.Duration(seconds) * time.Second, err
}

// walked is how many entries of the graceful-termination list the log tells
// of, for the busy Service.
func walked(ctx context.Context, r *framework.Run) (int, error) {
	text, err := r.Lab.Node(edge).Exec(ctx, "sh", "-c",
		`cat $(ls -t /var/log/pods/kube-system_kube-proxy-*/kube-proxy/*.log | head -n 1) | grep -c "Trying to delete rs: `+busyVIP.String()+`" || true`)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(text))
}

// waitingGoroutines are those of kube-proxy that wait for IPVS, and the dump
// that says so.
func waitingGoroutines(ctx context.Context, r *framework.Run) ([]snapshot.Goroutine, string, error) {
	dump, err := ask(ctx, r, "10249/debug/pprof/goroutine?debug=2")
	if err != nil {
		return nil, "", err
	}
	var waiting []snapshot.Goroutine
	for _, g := range snapshot.ParseGoroutines(dump) {
		if g.WaitsForIPVS() {
			waiting = append(waiting, g)
		}
	}
	return waiting, dump, nil
}

func ids(goroutines []snapshot.Goroutine) []int {
	var all []int
	for _, g := range goroutines {
		all = append(all, g.ID)
	}
	return all
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
	case a.worst > churnPause:
		return false, fmt.Sprintf("the churn paused for %s", a.worst), nil
	case a.connections < connections, s.proxy.Mode == ipvs && a.endpoints < endpointsOfBusy:
		return false, fmt.Sprintf("%d connections to %d endpoints were left", a.connections, a.endpoints), nil
	case a.hung: // whatever the tick met, it met it
	case s.proxy.Mode == ipvs && a.walked <= endpointsOfBusy:
		// Each endpoint is told of once when it goes onto the list.
		return false, fmt.Sprintf("no tick walked the list: the log tells of %d entries", a.walked), nil
	}
	return true, "", nil
}

// mode asserts that kube-proxy did not fall back to another mode.
func (s *story) mode(ctx context.Context, r *framework.Run) (bool, string, error) {
	mode, err := ask(ctx, r, "10249/proxyMode")
	return mode == s.proxy.Mode, fmt.Sprintf("it runs in mode %q", mode), err
}

func (s *story) syncsFrozen(ctx context.Context, r *framework.Run) (bool, string, error) {
	n, err := syncs(ctx, r)
	r.Evidence("syncs", fmt.Sprintf("%s: %d when the load ended, %d now\n", syncMetric, s.after.syncs, n))
	return n == s.after.syncs, fmt.Sprintf("%d syncs when the load ended, %d now", s.after.syncs, n), err
}

func (s *story) syncsGoOn(ctx context.Context, r *framework.Run) (bool, string, error) {
	n, err := syncs(ctx, r)
	r.Evidence("syncs", fmt.Sprintf("%s: %d when the load ended, %d now\n", syncMetric, s.after.syncs, n))
	return n > s.after.syncs, fmt.Sprintf("%d syncs when the load ended, %d now", s.after.syncs, n), err
}

// onEdge is kube-proxy on edge as the detectors saw it last.
func onEdge(r *framework.Run) snapshot.Proxy {
	for _, p := range r.Snapshot().Proxies {
		if p.Node == edge {
			return p
		}
	}
	return snapshot.Proxy{}
}

func (s *story) healthFrozen(_ context.Context, r *framework.Run) (bool, string, error) {
	h := onEdge(r).Health
	return h.Status == http.StatusServiceUnavailable && h.Age() > healthTimeout,
		fmt.Sprintf("healthz says %d, last sync %s ago", h.Status, h.Age()), nil
}

func (s *story) twoStacks(ctx context.Context, r *framework.Run) (bool, string, error) {
	waiting, dump, err := waitingGoroutines(ctx, r)
	if err == nil {
		r.Evidence("goroutines", dump)
	}
	return len(waiting) == 2, fmt.Sprintf("%d goroutines wait for IPVS", len(waiting)), err
}

func (s *story) lateIsMissing(_ context.Context, r *framework.Run) (bool, string, error) {
	v := virtualServerOf(r, late)
	return !v.Address.IsValid(), fmt.Sprintf("it has %v", v), nil
}

func (s *story) lateIsServed(_ context.Context, r *framework.Run) (bool, string, error) {
	servers := serving(r, late)
	return len(servers) == 1 && servers[0] == s.app.serving.ip, fmt.Sprintf("it leads to %v", servers), nil
}

func (s *story) webIsStale(_ context.Context, r *framework.Run) (bool, string, error) {
	v := virtualServerOf(r, web)
	servers := serving(r, web)
	stale := len(servers) == 1 && servers[0] != s.app.serving.ip
	return stale, fmt.Sprintf("it is %v", v), nil
}

func (s *story) webIsNew(_ context.Context, r *framework.Run) (bool, string, error) {
	servers := serving(r, web)
	return len(servers) == 1 && servers[0] == s.app.serving.ip, fmt.Sprintf("it leads to %v, not to %s", servers, s.app.serving.ip), nil
}

// deadlockIsReported asserts that the detectors name the cause, and not only
// what follows from it.
func deadlockIsReported(_ context.Context, r *framework.Run) (bool, string, error) {
	kinds := map[string]bool{}
	for _, f := range r.Findings() {
		kinds[f.Kind] = f.State == detect.Active
	}
	return kinds[detect.FrozenSync] && kinds[detect.NetlinkDeadlock], fmt.Sprintf("active findings: %v", kinds), nil
}
