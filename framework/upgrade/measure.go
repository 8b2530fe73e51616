package upgrade

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/each"
)

func beginning(u Upgrade, from, to string) history.Begin {
	s := u.scenario(from, to)
	return history.Begin{
		Scenario: s.Incident.Name, Variant: s.Variants[0].Name, Label: s.Variants[0].Name,
		Versions: map[string]string{u.Component + ".from": from, u.Component + ".to": to},
	}
}

// polling stores what the routers say, without detectors.
func polling() *history.Detection {
	return &history.Detection{Every: pollEvery, KeepRouters: true}
}

// Stored returns the measures of the upgrade whose record is in a folder. The error wraps fs.ErrNotExist if there is no
// record, is a *history.OtherSchemaError if an older relapse wrote it, or says that it is another upgrade's record.
func Stored(dir string, u Upgrade, from, to string) (Measures, error) {
	h, _, err := history.Read(dir, polling())
	if err != nil {
		return Measures{}, err
	}
	if got, want := h.Begin().Variant, beginning(u, from, to).Variant; got != want {
		return Measures{}, fmt.Errorf("the record in %s is of %s, not of %s", dir, got, want)
	}
	return MeasuresOf(u, h), nil
}

// Unclean begins the reason why an upgrade did not begin: paths were not clean before it.
const Unclean = "before the upgrade not every path was clean: "

// MeasuresOf returns the measures of an upgrade by its declaration and its history alone, live or stored.
func MeasuresOf(u Upgrade, h *history.History) Measures {
	versions := h.Begin().Versions
	from, to := versions[u.Component+".from"], versions[u.Component+".to"]
	r := reading{u, h, h.View().Timelines(), h.View().Polls()}
	m := Measures{Component: u.Component, Form: string(u.Form), Topology: u.about(), Resting: r.phase(r.watched(stepRest))}
	var stopped, upgrade, rollback, kernels string
	if err := unclean(u, h); err != nil {
		stopped = Unclean + err.Error()
	}
	m.Upgrade, upgrade = r.rollout(upgrading, from, to, u.changed())
	m.Back, rollback = r.rollout(rollingBack, to, from, touched(u, h))
	m.Failovers = r.failovers(from, to)
	m.Undone = r.undone()
	r.sources(&m)
	m.Left, kernels = r.left()
	why := slices.DeleteFunc([]string{stopped, upgrade, rollback, kernels}, func(why string) bool { return why == "" })
	m.Stopped = strings.Join(why, "; ")
	return m
}

// unclean says which probes were not clean before the upgrade; nil if all were, or while the wait goes on. A kind of
// path without any answer in the whole wait does not count if other kinds are clean: the upgrade may mend it.
func unclean(u Upgrade, h *history.History) error {
	s, ended := h.Step(framework.StepBaseline)
	if !ended {
		return nil
	}
	then, mark, waited := s.At(history.ProbesClean, "")
	if !waited {
		return nil // the wait was interrupted
	}
	all := then.Timelines()
	_, err := probe.JudgeClean(all, nil, mark.Began, cleanFor, mark.Bound)
	if err == nil {
		return nil
	}
	var served []string
	for _, k := range u.Paths {
		if p := k.measure(all, span{mark.Began, mark.Began.Add(mark.Bound)}); !p.Unserved() {
			served = append(served, p.Probes...)
		}
	}
	if len(served) == 0 {
		return err
	}
	_, err = probe.JudgeClean(all, served, mark.Began, cleanFor, mark.Bound)
	return err
}

func touched(u Upgrade, h *history.History) []string {
	return slices.DeleteFunc(slices.Clone(u.changed()), func(node string) bool {
		whole, _ := h.Step(stepOf(kindNode, upgrading, node))
		half, _ := h.Step(stepOf(kindHalf, upgrading, node))
		return whole.Began.IsZero() && half.Began.IsZero()
	})
}

type reading struct {
	upgrade   Upgrade
	h         *history.History
	timelines []probe.Timeline // as they were known last
	polls     []history.Poll
}

type span struct{ began, ended time.Time }

// watched is the time for which a step watched the lab, until it was interrupted at most.
func (r reading) watched(id framework.StepID) span {
	s, ended := r.h.Step(id)
	if !ended {
		return span{}
	}
	if _, mark, whole := s.At(history.Watched, ""); whole {
		return span{mark.Began, mark.Until}
	}
	return span{s.Began, s.Ended}
}

func (r reading) phase(s span) Phase {
	p := Phase{Began: s.began, Ended: s.ended, Paths: []Path{}, Routers: []Router{}}
	if s.ended.IsZero() {
		return p
	}
	for _, k := range r.upgrade.Paths {
		path := k.measure(r.timelines, s)
		path.Each = nil
		p.Paths = append(p.Paths, path)
	}
	p.Routers = routersOf(r.upgrade.Topology, r.polls, s, r.passing())
	return p
}

// sources fills in from which addresses packets arrived, in each phase but a restart: the addresses that are known at
// its end, less the addresses that were known at the end of the phase before.
func (r reading) sources(m *Measures) {
	type key struct {
		probe   string
		address netip.Addr
	}
	before := map[key]int{}
	add := func(p *Phase, ended time.Time) {
		if ended.IsZero() {
			return
		}
		now := map[key]int{}
		stored := r.h.PacketsAt(ended)
		for i, k := range r.upgrade.Paths {
			if !k.BySource {
				continue
			}
			for _, declared := range k.Probes {
				name := declared.WithDefaults().Name
				sent, _ := each.First(stored, func(s probe.Stored) bool { return s.Probe.Name == name })
				for _, s := range sent.Sources {
					at := key{name, s.Address}
					now[at] = s.Packets
					if packets := s.Packets - before[at]; packets > 0 && i < len(p.Paths) {
						owner := r.ownerOf(sent.Probe.From, s.Address, stored)
						p.Paths[i].Sources = append(p.Paths[i].Sources, Source{name, s.Address, owner, packets})
					}
				}
			}
		}
		maps.Copy(before, now)
	}
	ended := func(id framework.StepID) time.Time {
		s, _ := r.h.Step(id)
		return s.Ended
	}
	add(&Phase{}, ended(stepOf(kindKernels, beforeUpgrade, ""))) // the rest begins later
	add(&m.Resting, ended(stepRest))
	if m.Upgrade != nil {
		add(&m.Upgrade.During, m.Upgrade.During.Ended)
		add(&m.Upgrade.After, ended(stepOf(kindAfter, upgrading, "")))
	}
	if m.Back != nil {
		add(&m.Back.During, m.Back.During.Ended)
		add(&m.Back.After, ended(stepOf(kindAfter, rollingBack, "")))
	}
}

// ownerOf is the owner of the address from which a pod's packets arrive: OfPod (by probes' targets), OfNode, or empty.
func (r reading) ownerOf(pod string, address netip.Addr, all []probe.Stored) string {
	if slices.ContainsFunc(all, func(s probe.Stored) bool { return s.Probe.To == pod && s.Target.Addr() == address }) {
		return OfPod
	}
	if slices.Contains(nodeAddresses(r.upgrade.Topology, pod), address) {
		return OfNode
	}
	return ""
}

// passing reports whether Upgrade.Passing holds for a prefix, and no router had it until the end of the rest.
func (r reading) passing() func(netip.Prefix) bool {
	if r.upgrade.Passing == nil {
		return func(netip.Prefix) bool { return false }
	}
	rested := map[netip.Prefix]bool{}
	until := r.watched(stepRest).ended
	for _, poll := range r.polls {
		if !until.IsZero() && poll.Began.After(until) {
			break
		}
		for _, router := range poll.Routers {
			for _, p := range router.Paths.Items {
				rested[p.Prefix] = true
			}
		}
	}
	return func(p netip.Prefix) bool { return !rested[p] && r.upgrade.Passing(p) }
}

// rollout is the result of a rollout on some parts, nil if it did not begin, and why it failed, unless interrupted.
// It is long because it walks the steps once, and each changes what the next one says.
func (r reading) rollout(d direction, from, to string, parts []string) (*Rollout, string) {
	rolled := Rollout{From: from, To: to, Nodes: []NodeStep{}}
	var during span
	var stopped string
	var begun []begunStep
	ready := 0
	fails := func(where string, s history.StepView, act history.Act) {
		switch {
		case act.Saw != "":
			rolled.NotWorking = where + act.Saw
			stopped = rolled.NotWorking
		case !s.Interrupted:
			stopped = where + act.Error
		}
	}
	for _, step := range r.upgrade.rolloutSteps(d, from, to) {
		s, over := r.h.Step(step.id)
		act, done, acted := s.Act(step.what, step.part)
		if s.Began.IsZero() || step.what == history.Restart && !acted {
			continue
		}
		if during.began.IsZero() {
			during.began = s.Began
		}
		during.ended = s.Ended // zero if the record ends before the step does
		begun = append(begun, begunStep{step.name, s.Began})
		if step.what == history.Restart { // a failed restart does not stop the rollout
			rolled.Restart = r.restarted(d, step.part)
			continue
		}
		where := ""
		if step.part != "" {
			where = strings.TrimSuffix(r.upgrade.kind(), "s") + " " + step.part + ": "
		}
		works := over && acted && act.Error == ""
		if over && acted && !works && !s.Interrupted {
			stopped, rolled.Ends = where+act.Error, act.Saw
		}
		if step.id.Kind != kindNode {
			continue
		}
		if asked, answered, there := s.Act(history.Works, step.part); there && works {
			if done, works = answered, asked.Holds; !works {
				fails(where, s, asked)
			}
		}
		if works {
			ready++
		} else {
			done = time.Time{}
		}
		rolled.Nodes = append(rolled.Nodes, NodeStep{Node: step.part, Began: s.Began, Ready: done})
	}
	if during.began.IsZero() {
		return nil, ""
	}
	watch, _ := r.h.Step(stepOf(kindAfter, d, ""))
	for _, part := range parts {
		if act, _, asked := watch.Act(history.StillWorks, part); asked && !act.Holds {
			fails("some time later, on node "+part+": ", watch, act)
		}
	}
	rolled.During, rolled.After = r.phase(during), r.phase(r.watched(stepOf(kindAfter, d, "")))
	if rolled.Restart != nil { // a record of an older relapse is judged as it was then
		r.attribute(rolled.During.Paths, begun, during.ended)
	}
	if stopped != "" {
		stopped = fmt.Sprintf("%s %s took the place of %s on %d of %d %s: %s",
			r.upgrade.Component, to, from, ready, len(parts), r.upgrade.kind(), stopped)
	}
	return &rolled, stopped
}

// begunStep is a step of a rollout. It lasts until the next step begins.
type begunStep struct {
	name  string
	began time.Time
}

// attribute fills in the steps in which each path lost packets. The last step ended at ended.
func (r reading) attribute(paths []Path, steps []begunStep, ended time.Time) {
	for i := range paths {
		if paths[i].Lost == 0 {
			continue
		}
		for j, step := range steps {
			s := span{step.began, ended}
			if j+1 < len(steps) {
				s.ended = steps[j+1].began
			}
			if lost := r.upgrade.Paths[i].measure(r.timelines, s); lost.Lost > 0 {
				gap := min(lost.LongestGapMS, s.ended.Sub(s.began).Milliseconds()) // the gap may go on in the next step
				paths[i].LostIn = append(paths[i].LostIn, LostIn{step.name, lost.Lost, gap})
			}
		}
	}
}

func (r reading) undone() *Undone {
	s, over := r.h.Step(stepUndo)
	if s.Began.IsZero() || !over || s.Interrupted {
		return nil
	}
	u := &Undone{Node: r.upgrade.undone()}
	if act, _, acted := s.Act(history.Roll, u.Node); !acted || act.Error != "" {
		u.NotDone = cmp.Or(act.Error, "it was not tried")
		return u
	}
	u.Phase = r.phase(r.watched(stepUndo))
	return u
}

func (r reading) restarted(d direction, node string) *Restart {
	s, over := r.h.Step(stepOf(kindRestart, d, ""))
	act, done, _ := s.Act(history.Restart, node)
	restart := &Restart{Node: node, Began: act.Began, NotBack: act.Saw, NotDone: act.Error}
	if act.Holds {
		restart.Ready = done
	}
	switch later, _, asked := s.Act(history.StillWorks, node); {
	case asked:
		restart.NotBack, restart.NotDone = later.Saw, later.Error
	case act.Holds && over && s.Interrupted:
		restart.NotDone = "the watch after it was interrupted"
	}
	during := span{began: act.Began}
	if over {
		during.ended = s.Ended
	}
	restart.Phase = r.phase(during)
	for i, k := range r.upgrade.Paths {
		restart.Phase.Paths[i].Each = k.measure(r.timelines, during).Each
	}
	return restart
}

// left are the differences between the nodes' kernels, or nil, and why the kernels cannot be compared.
func (r reading) left() ([]Difference, string) {
	before, first := r.kernels(beforeUpgrade)
	after, second := r.kernels(afterRollback)
	if !first || !second {
		return nil, ""
	}
	all, err := r.upgrade.differences(before, after)
	if err != nil {
		return nil, "the nodes' kernels could not be compared: " + err.Error()
	}
	return all, ""
}

// kernels are the texts of all nodes' kernels at a moment; false if not all were read.
func (r reading) kernels(when string) (map[string]string, bool) {
	s, ended := r.h.Step(stepOf(kindKernels, when, ""))
	if !ended {
		return nil, false
	}
	all := map[string]string{}
	for _, node := range r.upgrade.Nodes {
		act, _, there := s.Act(history.ReadKernel, node)
		if !there || act.Error != "" {
			return nil, false
		}
		all[node] = act.Saw
	}
	return all, true
}

func (k PathKind) measure(all []probe.Timeline, s span) Path {
	p := Path{Name: k.Name, Probes: []string{}}
	var longest, silent time.Duration
	for _, declared := range k.Probes {
		name := declared.WithDefaults().Name
		p.Probes = append(p.Probes, name)
		i := slices.IndexFunc(all, func(t probe.Timeline) bool { return t.Probe.Name == name })
		if i < 0 {
			silent, p.SilenceProbe = s.ended.Sub(s.began), name // the probe was not started
			p.Each = append(p.Each, ProbeCount{Probe: name})
			continue
		}
		t := &all[i]
		c, gap, silence := t.Between(s.began, s.ended), t.LongestGap(s.began, s.ended, k.OneWay), t.LongestSilence(s.began, s.ended, k.OneWay)
		if k.OneWay {
			c = t.OneWay(s.began, s.ended)
		}
		one := ProbeCount{name, t.Due(s.began, s.ended), c.Received, c.Lost, c.Unjudged + c.InFlight}
		p.Each = append(p.Each, one)
		p.Due += one.Due
		p.Sent += c.Sent
		p.Answered += one.Answered
		p.Lost += one.Lost
		p.NotJudged += one.NotJudged
		p.Broken += t.Broken(s.began, s.ended)
		if gap.Lasted > longest {
			longest, p.GapProbe = gap.Lasted, name
		}
		if silence.Lasted > silent {
			silent, p.SilenceProbe = silence.Lasted, name
		}
	}
	p.LongestGapMS, p.LongestSilenceMS = longest.Milliseconds(), silent.Milliseconds()
	return p
}
