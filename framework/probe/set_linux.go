package probe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/each"
)

// End is a place that traffic comes from or goes to.
type End struct {
	Name string
	// Address is where IPv4 probes to this end are sent, and V6 where IPv6 probes are.
	Address, V6 netip.AddrPort
	// Agent runs there. It may be nil for an end that only answers, and then the side of a loss is unknown.
	Agent *Agent
}

func (e End) at(p Probe) netip.AddrPort {
	if p.V6 {
		return e.V6
	}
	return e.Address
}

// Set is a number of probes that are started, read and stopped together.
type Set struct {
	// id distinguishes this set's packets from the packets of any other run.
	id     uint64
	ends   map[string]End
	names  map[string]int
	agents []*Agent // each once

	mu        sync.Mutex
	timelines []*Timeline
}

// New declares a set. The error names all that is wrong with it.
func New(ends []End, probes []Probe) (*Set, error) {
	s := &Set{
		id:   rand.Uint64()>>11 | 1, // 53 bits: exact in every JSON reader
		ends: map[string]End{}, names: map[string]int{},
	}
	var errs []error
	if len(probes) == 0 {
		errs = append(errs, errors.New("no probe is given"))
	}
	for _, e := range ends {
		if _, twice := s.ends[e.Name]; twice || e.Name == "" {
			errs = append(errs, fmt.Errorf("endpoint %q: the name is empty or in use", e.Name))
			continue
		}
		s.ends[e.Name] = e
		if e.Agent != nil && !slices.Contains(s.agents, e.Agent) {
			s.agents = append(s.agents, e.Agent)
		}
	}
	for _, p := range probes {
		p = p.WithDefaults()
		errs = append(errs, p.Validate())
		if _, twice := s.names[p.Name]; twice {
			errs = append(errs, fmt.Errorf("probe %s: the name is in use", p.Name))
		}
		from, found := s.ends[p.From]
		switch {
		case !found:
			errs = append(errs, fmt.Errorf("probe %s: there is no endpoint %q", p.Name, p.From))
		case from.Agent == nil:
			errs = append(errs, fmt.Errorf("probe %s: endpoint %q has no agent to send from", p.Name, p.From))
		}
		to, found := s.ends[p.To]
		switch {
		case !found:
			errs = append(errs, fmt.Errorf("probe %s: there is no endpoint %q", p.Name, p.To))
		case to.at(p).Addr().Is4() == p.V6 || !to.at(p).IsValid() || to.at(p).Port() == 0:
			errs = append(errs, fmt.Errorf("probe %s: address %s of endpoint %q is not an address of its family with a port",
				p.Name, to.at(p), p.To))
		}
		s.names[p.Name] = len(s.timelines)
		s.timelines = append(s.timelines, &Timeline{Record: Record{Probe: p, Target: to.at(p)}})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("declaring probes: %w", err)
	}
	return s, nil
}

// number is the number of an agent in the set, from 1 on; 0 if the set has no such agent.
func (s *Set) number(a *Agent) uint32 { return uint32(slices.Index(s.agents, a) + 1) }

// Start starts every probe. ctx bounds the start alone: the probes run until Stop, or until
// their agent is closed. After an error none runs.
func (s *Set) Start(ctx context.Context) error {
	err := s.eachAgent(func(a *Agent) error { return a.join(ctx, s) })
	if err == nil {
		// One goroutine an agent: they are far apart, each answers in turn.
		err = s.eachAgent(func(a *Agent) error { return s.startFrom(ctx, a) })
	}
	if err == nil {
		return nil
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = s.Stop(stop) // the first error is the one to report
	return fmt.Errorf("starting probes: %w", err)
}

// Close closes the agents of all ends.
func (s *Set) Close() error { return s.eachAgent((*Agent).Close) }

func (s *Set) eachAgent(do func(*Agent) error) error {
	errs := make([]error, len(s.agents))
	var all sync.WaitGroup
	for i, a := range s.agents {
		all.Go(func() { errs[i] = do(a) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (s *Set) startFrom(ctx context.Context, a *Agent) error {
	for i, t := range s.timelines {
		if s.ends[t.Probe.From].Agent != a {
			continue
		}
		_, err := a.askThen(ctx, wire.Request{Op: wire.Start, Probe: &wire.Probe{
			ID: uint32(i), Kind: t.Probe.Protocol, To: t.Target, Interval: t.Probe.Interval, Timeout: t.Probe.Timeout,
			RefusalAnswers: t.Probe.RefusalAnswers, Server: s.number(s.ends[t.Probe.To].Agent), Login: t.Probe.Login, Lookup: t.Probe.Lookup,
		}}, func(r reply) {
			started := a.time(r.Epoch)
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Started, t.Reported = started, started
		})
		if err != nil {
			return fmt.Errorf("probe %s: %w", t.Probe.Name, err)
		}
	}
	return nil
}

// poll is the interval of waits. It is small beside ReportInterval, which bounds the news.
const poll = 20 * time.Millisecond

// reportWithin bounds how much later than the Timeout an agent's report comes: one
// in a guest without a CPU for itself was seen to take more than a second.
const reportWithin = 15 * time.Second

// Stop stops the named probes, all without a name, and waits for the replies
// that are under way: until all have come, or the Timeout has passed. After a
// stop of all the agents are free for another set.
func (s *Set) Stop(ctx context.Context, names ...string) error {
	which, err := s.find(names)
	if err != nil {
		return fmt.Errorf("stopping probes: %w", err)
	}
	err = s.eachAgent(func(a *Agent) error {
		for _, i := range which {
			if err := s.stopOne(ctx, a, i); err != nil {
				return err
			}
		}
		return nil
	})
	wait := time.Duration(0)
	for _, i := range which {
		wait = max(wait, s.timelines[i].Probe.Timeout)
	}
	wait += reportWithin
	_, late := s.wait(ctx, which, wait, event{"the last replies", func(t *Timeline) (time.Time, bool, error) {
		return t.Reported, t.Started.IsZero() || !t.Gone.IsZero() || t.settled(), nil
	}, time.Time.Compare})
	err = errors.Join(err, late)
	if len(names) == 0 {
		for _, a := range s.agents {
			a.leave(s)
		}
	}
	if err != nil {
		return fmt.Errorf("stopping probes: %w", err)
	}
	return nil
}

// stopOne stops a probe if it starts at the agent and runs.
func (s *Set) stopOne(ctx context.Context, a *Agent, i int) error {
	t := s.timelines[i]
	if s.ends[t.Probe.From].Agent != a {
		return nil
	}
	s.mu.Lock()
	runs := !t.Started.IsZero() && t.Stopped.IsZero() && t.Gone.IsZero()
	s.mu.Unlock()
	if !runs {
		return nil
	}
	r, err := a.ask(ctx, wire.Request{Op: wire.Stop, ID: uint32(i)})
	select {
	case <-a.done: // an agent that is gone has stopped
		return nil
	default:
	}
	if err != nil {
		return fmt.Errorf("probe %s: %w", t.Probe.Name, err)
	}
	s.mu.Lock()
	t.Stopped = a.time(r.At)
	s.mu.Unlock()
	return nil
}

// settled says whether nothing more can change after a stop.
func (t *Timeline) settled() bool {
	if t.Reported.Before(t.Stopped) {
		return false
	}
	end := t.sent.end()
	if end == 0 || t.Reported.Sub(t.at(end-1)) > t.Probe.Timeout {
		return true
	}
	for slot := t.from(t.Reported.Add(-t.Probe.Timeout)); slot < end; slot++ {
		if t.sent.has(slot) && !t.answered.has(slot) {
			return false
		}
	}
	return true
}

// Timelines returns all timelines as of one moment, in the order in which the probes were declared.
func (s *Set) Timelines() []Timeline {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Timeline, len(s.timelines))
	for i, t := range s.timelines {
		all[i] = t.clone()
	}
	return all
}

// find returns the probes of the given names, all for none.
func (s *Set) find(names []string) ([]int, error) {
	var which []int
	for _, name := range names {
		i, ok := s.names[name]
		if !ok {
			have := each.Of(s.timelines, func(t *Timeline) string { return t.Probe.Name })
			return nil, fmt.Errorf("no probe %q: there are %v", name, have)
		}
		which = append(which, i)
	}
	if len(names) == 0 {
		for i := range s.timelines {
			which = append(which, i)
		}
	}
	return which, nil
}

// add takes an agent's report up to a time. An error means that the agent
// talks nonsense, and ends the connection.
func (s *Set) add(a *Agent, by time.Time, r *wire.Report) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The agent may have been held up, for seconds on a busy machine, between taking
	// the time and writing the report: what is in it was sent by now at the latest.
	sent := time.Now()
	if by.After(sent) {
		sent = by
	}
	for _, sender := range r.Probes {
		if int64(sender.ID) >= int64(len(s.timelines)) || s.ends[s.timelines[sender.ID].Probe.From].Agent != a {
			return fmt.Errorf("the probe agent of %s reports probe %d, which does not start there", a.name, sender.ID)
		}
		t := s.timelines[sender.ID]
		if t.Started.IsZero() {
			return fmt.Errorf("the probe agent of %s reports probe %d, which was not started", a.name, sender.ID)
		}
		if err := t.addSender(sender, sent); err != nil {
			return fmt.Errorf("the probe agent of %s: %w", a.name, err)
		}
	}
	for _, seen := range r.Seen {
		if int64(seen.ID) >= int64(len(s.timelines)) {
			return fmt.Errorf("the probe agent of %s has seen probe %d, which does not exist", a.name, seen.ID)
		}
		// The agent that starts a probe answers some time before its first packet
		// (agent.lead), so that what the far end sees finds it started.
		if t := s.timelines[seen.ID]; !t.Started.IsZero() {
			if err := t.addResponder(seen, sent); err != nil {
				return fmt.Errorf("the probe agent of %s: %w", a.name, err)
			}
		}
	}
	still := each.Of(r.Still, func(span [2]int64) StillTime { return StillTime{a.time(span[0]), a.time(span[1])} })
	for _, t := range s.timelines {
		if s.ends[t.Probe.From].Agent == a {
			t.Still = append(t.Still, still...)
			if !t.Started.IsZero() && by.After(t.Reported) {
				t.Reported = by
			}
		}
		if s.ends[t.Probe.To].Agent == a {
			t.FarStill, t.FarReported = append(t.FarStill, still...), by
		}
	}
	return nil
}

func (s *Set) left(a *Agent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.timelines {
		if s.ends[t.Probe.From].Agent == a {
			t.Gone, t.GoneWhy = a.gone, a.why.Error()
		}
		if s.ends[t.Probe.To].Agent == a {
			t.FarGone = a.gone
		}
	}
}
