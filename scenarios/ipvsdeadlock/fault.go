package ipvsdeadlock

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeproxy"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
)

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
	// takes time from kube-proxy. hangPause is the same where kube-proxy may be hanging.
	pollPause = 3 * time.Second
	hangPause = 2 * time.Second
)

// standing is how kube-proxy survived the load.
type standing struct {
	mode  kubeproxy.Mode
	hung  bool
	syncs int // when the load ended
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

// ticks is the number of ticks under the load that walked the whole list, with the one in
// which kube-proxy hangs, if it does. An endpoint is logged once when it is added to the
// list, and then by each tick. A mode without IPVS has no ticks, and neither has a version
// that deletes endpoints at once: there the load's time is counted in periods.
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

// fault is the load, until kube-proxy hangs or has survived its ticks, and then what
// happens every day: a rollout, and a new Service.
func (s *story) fault() framework.Fault {
	return framework.Fault{
		Name: "load kube-proxy through ticks, then roll " + web + " out",
		Inject: func(ctx context.Context, r *framework.Run) error {
			if err := s.throughTicks(ctx, r); err != nil {
				return err
			}
			if err := s.app.Expose(ctx, labaccess.Cluster(r), nameOf(s.node, late), vip(s.node, late)); err != nil {
				return err
			}
			if err := s.app.Serve(ctx, labaccess.Cluster(r), nameOf(s.node, idle)); err != nil {
				return err
			}
			return s.app.Roll(ctx, labaccess.Cluster(r), func(ctx context.Context) error { return s.fairChance(ctx, r) })
		},
		TookEffect: s.held,
		// A kube-proxy that is not needed any more would take CPU time from the others.
		Undo: func(ctx context.Context, r *framework.Run) error {
			s.stopLoad()
			return s.proxy.Delete(ctx, labaccess.Lab(r))
		},
	}
}

// throughTicks runs the load, and notes how kube-proxy survived it.
func (s *story) throughTicks(ctx context.Context, r *framework.Run) error {
	s.after, s.hang, s.polls = standing{}, kubeproxy.Hang{}, nil
	if err := s.services.Restore(ctx, labaccess.Cluster(r)); err != nil {
		return err
	}
	if err := s.busyIsServed(ctx, r); err != nil {
		return err
	}
	before, _, err := s.poll(ctx, r)
	if err != nil {
		return err
	}
	began := time.Now()
	// IPVS goes round robin, iptables by chance.
	if s.load, err = s.services.Start(ctx, labaccess.Lab(r), s.proxy.Mode == kubeproxy.IPVS, r.Meet); err != nil {
		return err
	}
	defer s.stopLoad()
	open, _ := s.load.Open()
	r.Note(fmt.Sprintf("%d connections are open, %d endpoints taken away, %d Services churn", open, heldEndpoints, churn.Services))
	var a standing
	var met kubeproxy.State
	var changes int64
	err = await.Until(ctx, "kube-proxy to hang under the load or to survive it", time.Second/4, framework.MaxTrials*tickTakes+loadTakes,
		func(ctx context.Context) (bool, string, error) {
			if s.load.Err() != nil {
				return true, "", nil // the load is over
			}
			if !s.pollIsDue() {
				return false, "", nil
			}
			l, hangs, err := s.poll(ctx, r)
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
			s.ticks = r.TrialsDue()
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

// String says how kube-proxy survived the load.
func (a standing) String() string {
	how := "survived the load"
	if a.hung {
		how = "hung under the load"
	}
	text := fmt.Sprintf("kube-proxy (%s) %s, which lasted %s: %d connections to %d endpoints; %d syncs, %d log lines about endpoints to be deleted; since the tick began %d syncs and %d changes of Endpoints",
		a.mode, how, a.took.Round(time.Second), a.connections, a.endpoints, a.syncs, a.walked, a.metSyncs, a.metChanges)
	if a.atOnce {
		text += "; it deletes endpoints at once, and has no ticks"
	}
	return text
}

// heldIsEmpty reports whether the node's kernel has no real server left for the busy
// Service. Graceful termination leaves a real server to which connections are open.
func (s *story) heldIsEmpty(r *framework.Run) bool {
	v := s.virtualServer(r, s.services.HeldVIP, 80)
	return v.Address.IsValid() && len(v.Servers) == 0
}

// fairChance waits until kube-proxy has had time to apply the current Services: two syncs,
// the second of which has begun after the call. It also ends when kube-proxy hangs.
func (s *story) fairChance(ctx context.Context, r *framework.Run) error {
	before, hangs, err := s.poll(ctx, r)
	if err != nil || hangs {
		return err
	}
	return await.Until(ctx, "kube-proxy to finish two syncs or to hang", time.Second/4, kubeproxy.FrozenFor+loadTakes,
		func(ctx context.Context) (bool, string, error) {
			if !s.pollIsDue() {
				return false, "", nil
			}
			l, hangs, err := s.poll(ctx, r)
			return err == nil && (hangs || l.Syncs >= before.Syncs+2), l.String(), err
		})
}

func (s *story) pollIsDue() bool {
	pause := pollPause
	if len(s.hang.Last.Waiting) > 1 {
		pause = hangPause
	}
	return time.Since(s.hang.Last.At) >= pause
}

// poll reads the state of kube-proxy, and reports whether it hangs.
func (s *story) poll(ctx context.Context, r *framework.Run) (kubeproxy.State, bool, error) {
	l, err := s.proxy.State(ctx, labaccess.Lab(r))
	if err != nil {
		return l, false, err
	}
	s.polls = append(s.polls, l)
	return l, s.hang.See(l), nil
}

// log lists the polls of kube-proxy since the load began.
func (s *story) log() string {
	var text strings.Builder
	for _, l := range s.polls {
		fmt.Fprintf(&text, "%s %s; waiting: %v\n", l.At.Format("15:04:05.0"), l, l.Waiting)
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
				return n == heldEndpoints, fmt.Sprintf("%d of %d endpoints get connections", n, heldEndpoints), nil
			}
			rules, err := labaccess.Lab(r).Node(s.node).Exec(ctx, "iptables-save", "-t", "nat")
			first := netip.AddrPortFrom(busyRange.Addr().Next(), s.services.Port)
			return strings.Contains(rules, "--to-destination "+first.String()+"\n"), "no rule in the nat table leads to its first endpoint", err
		})
}

// held reports whether the load was one under which 1.13.0 would hang.
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
		return false, fmt.Sprintf("no tick walked the list while syncs went on: %d entries in the log, %d syncs finished since it began",
			a.walked, a.metSyncs), nil
	case a.metChanges < int64(churn.Services):
		return false, fmt.Sprintf("the churn stopped: %d changes since the tick began", a.metChanges), nil
	}
	return true, "", nil
}

// again breaks the lab for the next remedy: the version under test under the load.
func (s *story) again(ctx context.Context, r *framework.Run) error {
	if s.proxy != s.tested {
		if err := s.services.Restore(ctx, labaccess.Cluster(r)); err != nil {
			return err
		}
		if err := s.replace(ctx, r, s.tested); err != nil {
			return err
		}
	}
	if err := s.fault().Inject(ctx, r); err != nil {
		return err
	}
	held, saw, err := s.held(ctx, r)
	if err == nil && !held {
		err = errors.New(saw)
	}
	return err
}
