package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
)

// FailoverKind is a way to change which node answers for an address by ARP. It is tried with both versions.
type FailoverKind struct {
	Name string
	// Path is the prefix of the names of the paths to the address.
	Path    string
	address func() netip.Addr
	chance  time.Duration
	// returns is set if the node answers again once it is undone.
	returns bool
	// do causes the failover from the node that answers. undo may be returned with an error, too.
	do func(ctx context.Context, r *framework.Run, node string) (undo func(context.Context) error, err error)
}

const (
	// movesWithin bounds the wait for a router to send to another node. A kernel that hears no announcement keeps its
	// entry for up to 30 s and asks the old station for 8 s more (arp(7)). A long lease adds to that.
	movesWithin = 2 * time.Minute
	// comesBackWithin bounds the wait for clean paths after a failover, and after its undo.
	comesBackWithin = 90 * time.Second
)

const (
	oldVersion = "old"
	newVersion = "new"
)

func stepFailover(with, kind string) framework.StepID {
	return framework.StepID{Kind: kindFailover, Part: with + "/" + kind}
}

func (t *trip) failovers(with, version string, due func() bool) []engine.PlanStep {
	var steps []engine.PlanStep
	for _, kind := range t.upgrade.Failovers {
		steps = append(steps, engine.PlanStep{
			ID: stepFailover(with, kind.Name), Name: fmt.Sprintf("with %s %s", version, kind.Name), Due: due,
			Do: func(ctx context.Context) error { return t.failover(ctx, kind) },
		})
	}
	return steps
}

// failover causes a failover, waits until the router sends to another node and the paths are clean, and undoes it.
func (t *trip) failover(ctx context.Context, kind FailoverKind) (err error) {
	address := kind.address()
	node := ""
	if polls := t.h.View().Polls(); len(polls) > 0 {
		node = answerer(t.upgrade, polls[len(polls)-1], address)
	}
	if !slices.Contains(t.upgrade.Nodes, node) {
		t.h.Do(history.Failover, kind.Name, func(a *history.Act) {
			a.Err = fmt.Errorf("no node answers for %s: %s", address, cmp.Or(node, "nobody does"))
		})
		return notAsExpected(fmt.Errorf("no node answers for %s", address))
	}
	over := each.Where(t.upgrade.probes(), func(p probe.Probe) bool { return p.To == kind.Path })
	names := each.Of(over, func(p probe.Probe) string { return p.Name })
	var undo func(context.Context) error
	act := t.h.Do(history.Failover, kind.Name, func(a *history.Act) {
		a.Saw = address.String()
		if undo, a.Err = kind.do(ctx, t.Run(), node); a.Err != nil {
			return
		}
		moved := t.sentTo(ctx, address, movesWithin, "to another node than "+node, func(now string) bool {
			return now != node && slices.Contains(t.upgrade.Nodes, now)
		})
		_, clean := t.Probes().WaitClean(ctx, names, cleanFor, comesBackWithin)
		a.Holds = moved == nil && clean == nil
		if said := errors.Join(moved, clean); said != nil {
			t.Run().Note(said.Error())
		}
	})
	if undo != nil {
		err = undo(context.WithoutCancel(ctx))
	}
	if kind.returns && ctx.Err() == nil { // a later change back would count as the rollout's
		if back := t.sentTo(ctx, address, comesBackWithin, "to "+node+" again", func(now string) bool { return now == node }); back != nil {
			t.Run().Note(back.Error())
		}
	}
	if _, clean := t.Probes().WaitClean(ctx, nil, cleanFor, comesBackWithin); clean != nil && ctx.Err() == nil {
		t.Run().Note("after the failover was undone: " + clean.Error())
	}
	if err = errors.Join(err, act.Err); err != nil {
		return notAsExpected(err)
	}
	return ctx.Err()
}

func (t *trip) sentTo(ctx context.Context, address netip.Addr, bound time.Duration, where string, matches func(string) bool) error {
	what := fmt.Sprintf("the routers to send %s %s", address, where)
	return await.Until(ctx, what, pollEvery, bound, func(context.Context) (bool, string, error) {
		polls := t.h.View().Polls()
		now := answerer(t.upgrade, polls[len(polls)-1], address)
		return matches(now), "it is sent to " + cmp.Or(now, "nobody"), nil
	})
}

// answerer is the node to which a router sends packets for an address on its link; empty if no router has an entry.
func answerer(u Upgrade, poll history.Poll, address netip.Addr) string {
	for _, r := range poll.Routers {
		if node := linksOf(u.Topology, r.Links.Items).entries[address]; node != "" {
			return node
		}
	}
	return ""
}

// Failover is the result of a failover with a version.
type Failover struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Began   time.Time `json:"began"`
	// From is the node that answered, and To the node to which the router sent afterwards; empty: none.
	From string `json:"from"`
	To   string `json:"to,omitempty"`
	// AnsweredMS is the time until To answered, and MovedMS the time until the router sent to To: in between, its entry
	// was wrong. Announced counts the gratuitous ARP of To.
	AnsweredMS int64 `json:"answered_ms"`
	MovedMS    int64 `json:"moved_ms"`
	Announced  int   `json:"announced"`
	// ChanceMS is by how much these times depend on chance, such as when a lease was renewed last.
	ChanceMS int64 `json:"chance_ms,omitempty"`
	// Paths are the paths to the address, from the failover until they were clean.
	Paths []Path `json:"paths"`
	// NotBack is set if some path was not clean in the end, and NotDone says why there is no result.
	NotBack bool   `json:"not_back,omitempty"`
	NotDone string `json:"not_done,omitempty"`
}

func (r reading) failovers(from, to string) []Failover {
	var all []Failover
	for _, kind := range r.upgrade.Failovers {
		for _, with := range []struct{ which, version string }{{oldVersion, from}, {newVersion, to}} {
			s, _ := r.h.Step(stepFailover(with.which, kind.Name))
			act, ended, there := s.Act(history.Failover, kind.Name)
			if !there {
				continue
			}
			f := Failover{Name: kind.Name, Version: with.version, Began: act.Began, Paths: []Path{}}
			f.ChanceMS, f.NotBack, f.NotDone = kind.chance.Milliseconds(), !act.Holds, act.Error
			if f.NotDone == "" {
				r.moved(&f, netip.MustParseAddr(act.Saw), ended)
				for _, k := range r.upgrade.Paths {
					if strings.HasPrefix(k.Name, kind.Path+", outside, ") {
						path := k.measure(r.timelines, span{act.Began, ended})
						path.Each = nil
						f.Paths = append(f.Paths, path)
					}
				}
			}
			all = append(all, f)
		}
	}
	return all
}

// moved fills in who answered for an address in the polls of a failover.
func (r reading) moved(f *Failover, address netip.Addr, ended time.Time) {
	heard := map[string]int{} // gratuitous ARP before the failover
	for _, poll := range r.polls {
		for _, router := range poll.Routers {
			s := linksOf(r.upgrade.Topology, router.Links.Items)
			node := s.entries[address]
			switch {
			case poll.Ended.Before(f.Began):
				f.From = cmp.Or(node, f.From)
				for n, a := range s.answers[address] {
					heard[n] = a.Gratuitous
				}
			case poll.Began.After(ended) || poll.Began.Before(f.Began):
			case node != "" && node != f.From && (f.To == "" || node == f.To):
				if f.To == "" {
					f.To, f.MovedMS = node, poll.Began.Sub(f.Began).Milliseconds()
				}
				f.Announced = s.answers[address][node].Gratuitous - heard[node]
			}
		}
	}
	for _, poll := range r.polls {
		for _, router := range poll.Routers {
			a := linksOf(r.upgrade.Topology, router.Links.Items).answers[address][f.To]
			if first := firstOf(a, f.Began); f.AnsweredMS == 0 && !first.IsZero() {
				f.AnsweredMS = first.Sub(f.Began).Milliseconds()
			}
		}
	}
}

// firstOf is the earlier one of a station's times of reply and announcement that are after a moment; else zero.
func firstOf(a snapshot.Answer, moment time.Time) (first time.Time) {
	for _, at := range []time.Time{a.Replied, a.Announced} {
		if at.After(moment) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}
