package page

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// axis is the time of a variant: lanes with what happened in them, and marks that go through all.
type axis struct {
	ID          string
	From, Until time.Time
	Marks       []mark
	Lanes, Rest []lane // Rest are of probes that lost nothing
	Ticks       []tick
	Events      []event
	Omitted     int // events that are in the evidence only
}

// mark is a moment that matters: the fault, the first loss, a remedy.
type mark struct {
	At  float64 // in percent of the axis
	Row int     // neighbours are in different rows, because flags are wider than their lines
	event
}

// label names a moment by a sign, and by a word for readers who have not read the list.
type label struct{ Sign, Word string }

// End reports whether the flag is left of its line, because there is no room on the right.
func (m mark) End() bool { return m.At > 80 }

type tick struct {
	At   float64
	Says string
}

type lane struct {
	Kind, Name, Says string
	// Spans are lines (thin: running, without loss), filled blocks (thick: lost, or active) and blocks
	// without filling (hollow: latent or settling). Diamonds are changes.
	Spans    []span
	Diamonds []tick
}

// span is a time of a lane, in percent of the axis.
type span struct {
	Class         string
	At, Width     float64
	Height, Above float64 // in percent of the lane
}

type event struct {
	ID    string
	At    time.Time
	Since string // the fault
	Kind  string
	label
	Says string
}

// maxChangeEvents bounds the changes of layers in the list of events, and
// maxChangeLanes the lanes for them.
const (
	maxChangeEvents = 80
	maxChangeLanes  = 24
)

func newAxis(id string, s stored) *axis {
	a := &axis{ID: id}
	a.bound(s)
	if !a.Until.After(a.From) {
		return nil
	}
	a.events(s)
	a.probeLanes(s)
	a.findingLanes(s)
	a.changeLanes(s.changes)
	a.ticks(s.faultAt())
	return a
}

// bound sets the axis to the time from the first packet to the last, as far as it is known.
func (a *axis) bound(s stored) {
	moments := []time.Time{s.faultAt(), timeOf(s.Onset)}
	for _, t := range s.traffic {
		moments = append(moments, t.Started, lastOf(t))
	}
	for _, f := range s.Findings {
		moments = append(moments, timeOf(f.At))
	}
	for _, r := range s.Remedies {
		moments = append(moments, timeOf(r.Began), recovered(r))
	}
	moments = slices.DeleteFunc(moments, time.Time.IsZero)
	if len(moments) > 0 {
		a.From, a.Until = slices.MinFunc(moments, time.Time.Compare), slices.MaxFunc(moments, time.Time.Compare)
	}
}

// recovered is when traffic was back; zero if it was not, or if this is unknown.
func recovered(r report.Remedy) time.Time {
	if r.Began == nil || r.TimeToRecoverMS == nil {
		return time.Time{}
	}
	return r.Began.Add(milliseconds(*r.TimeToRecoverMS))
}

func lastOf(t probe.Timeline) time.Time {
	if !t.Stopped.IsZero() {
		return t.Stopped
	}
	return t.Reported
}

func (a *axis) at(t time.Time) float64 {
	share := float64(t.Sub(a.From)) / float64(a.Until.Sub(a.From))
	return math.Round(1e5*min(max(share, 0), 1)) / 1e3
}

func (a *axis) span(class string, from, until time.Time) span {
	at := a.at(from)
	return span{class, at, math.Round(1e3*(a.at(until)-at)) / 1e3, 100, 0}
}

// events lists what happened, and marks the moments that matter.
func (a *axis) events(s stored) {
	a.faultEvents(s)
	for i, r := range slices.DeleteFunc(slices.Clone(s.Remedies), func(r report.Remedy) bool { return r.Began == nil }) {
		a.remedyEvents(i+1, r)
	}
	a.Omitted = s.more + max(0, len(s.changes)-maxChangeEvents)
	for _, c := range s.changes[:min(len(s.changes), maxChangeEvents)] {
		a.add(c.At, "change", label{}, "%s", change(c))
	}
	slices.SortStableFunc(a.Events, func(x, y event) int { return x.At.Compare(y.At) })
	fault := s.faultAt()
	for i := range a.Events {
		e := &a.Events[i]
		e.ID = fmt.Sprintf("%s-e%d", a.ID, i+1)
		if !fault.IsZero() {
			e.Since = signed(e.At.Sub(fault))
		}
	}
	for _, e := range a.Events {
		if e.Sign != "" {
			a.Marks = append(a.Marks, mark{a.at(e.At), len(a.Marks) % rows, e})
		}
	}
}

func (a *axis) add(at time.Time, kind string, l label, format string, args ...any) {
	if !at.IsZero() {
		a.Events = append(a.Events, event{At: at, Kind: kind, label: l, Says: fmt.Sprintf(format, args...)})
	}
}

func (a *axis) faultEvents(s stored) {
	a.add(s.faultAt(), "fault", label{"F", "fault"}, "the fault begins")
	if s.Fault != nil {
		a.add(s.Fault.Struck, "fault", label{}, "fault is injected")
	}
	if s.Onset != nil {
		a.add(*s.Onset, "loss", label{"L", "first loss"}, "first packet lost by %s", strings.Join(s.firstImpacted(), ", "))
	}
	key := s.key()
	for i, f := range s.Findings {
		var mark label
		if key == &s.Findings[i] {
			mark = label{"D", "found"}
		}
		a.add(timeOf(f.At), "finding", mark, "%s: %s %s, %s: %s", f.Detector, f.State, f.Kind, f.Object, f.Says)
	}
}

func (a *axis) remedyEvents(n int, r report.Remedy) {
	a.add(*r.Began, "remedy", label{fmt.Sprintf("R%d", n), r.Name}, "remedy %q begins", r.Name)
	a.add(timeOf(r.Applied), "remedy", label{}, "remedy %q is applied", r.Name)
	if r.TimeToRecoverMS != nil {
		back := label{fmt.Sprintf("✓%d", n), "back"}
		a.add(recovered(r), "recovery", back, "traffic is back, %s after %q began", report.SpanMS(*r.TimeToRecoverMS), r.Name)
	}
	if r.TimeToQuietMS != nil {
		a.add(r.Began.Add(milliseconds(*r.TimeToQuietMS)), "recovery", label{}, "no active findings from here on, with %q", r.Name)
	}
	if r.Verdict == "does-not-help" && r.Applied != nil {
		a.add(r.Applied.Add(time.Microsecond), "remedy", label{}, "%q does not help", r.Name)
	}
}

const rows = 4

// firstImpacted are the impacted probes that lost the first packet; all if that is not known.
func (s stored) firstImpacted() []string {
	var names []string
	for _, t := range s.traffic {
		if first, lost := t.FirstOutage(timeOf(s.Onset), 0); lost && first.Equal(timeOf(s.Onset)) {
			names = append(names, t.Probe.Name)
		}
	}
	if len(names) == 0 || len(names) > 4 {
		return s.ProbesHurt
	}
	return names
}

func change(c snapshot.Change) string {
	from, to := cmp.Or(c.From, "nothing"), cmp.Or(c.To, "nothing")
	return fmt.Sprintf("%s, %s, %s: %s → %s", c.Layer, c.Where, c.Object, from, to)
}

// pieces is how many pieces of loss a lane has at most, however many packets there were.
const pieces = 500

// probeLanes adds the lanes of probes that lost packets, the impacted probes first. The lanes of
// the other probes are in Rest.
func (a *axis) probeLanes(s stored) {
	lanes, impacted := map[string]*lane{}, slices.Clone(s.ProbesHurt)
	lost, sent := map[string]int{}, map[string]int{}
	joined := max(100*time.Millisecond, a.Until.Sub(a.From)/pieces) // answers between two losses that are not drawn
	for _, t := range s.traffic {
		name, packets := t.Probe.Name, t.Counts()
		if lanes[name] == nil {
			lanes[name] = &lane{Kind: "probe", Name: name}
			if !slices.Contains(impacted, name) {
				impacted = append(impacted, name)
			}
		}
		l := lanes[name]
		lost[name], sent[name] = lost[name]+packets.Lost, sent[name]+packets.Sent
		l.Spans = append(l.Spans, a.span("thin", t.Started, lastOf(t)))
		for _, w := range t.Windows(joined) {
			loss := a.span("thick", w.Start, w.End)
			loss.Height = math.Ceil(100 * min(1, float64(w.Lost)/(float64(w.Last-w.First)+1)))
			loss.Above = 100 - loss.Height
			l.Spans = append(l.Spans, loss)
		}
	}
	for _, name := range impacted {
		switch l := lanes[name]; {
		case l == nil:
		case lost[name] == 0:
			l.Says = "none lost"
			a.Rest = append(a.Rest, *l)
		default:
			l.Says = fmt.Sprintf("%d of %d lost", lost[name], sent[name])
			a.Lanes = append(a.Lanes, *l)
		}
	}
	if len(a.Lanes) == 0 && len(a.Rest) <= 8 { // nothing to set apart
		a.Lanes, a.Rest = a.Rest, nil
	}
}

func (a *axis) findingLanes(s stored) {
	drawn := map[detect.ID]bool{}
	laneOf := func(f detect.Finding) lane {
		drawn[f.ID()] = true
		return lane{Kind: "finding", Name: f.Kind + " " + f.Object.String(), Says: string(f.State)}
	}
	for _, seen := range s.presences {
		l, class := laneOf(seen.Finding), "hollow"
		if seen.State == detect.Active {
			class = "thick"
		}
		for _, t := range seen.Times {
			l.Spans = append(l.Spans, a.span(class, t.From, t.Until))
		}
		a.Lanes = append(a.Lanes, l)
	}
	for _, f := range s.Findings {
		if at := timeOf(f.At); !at.IsZero() && !drawn[f.ID()] {
			l := laneOf(f.Finding)
			l.Says += " from here on"
			l.Diamonds = []tick{{a.at(at), f.Says}}
			a.Lanes = append(a.Lanes, l)
		}
	}
}

// changeLanes adds a lane for each session and each table that changed.
func (a *axis) changeLanes(changes []snapshot.Change) {
	index := map[string]int{}
	first := len(a.Lanes)
	for _, c := range changes {
		name := fmt.Sprintf("%s %s", c.Layer, c.Where)
		if c.Layer == snapshot.BGP {
			name += " – " + c.Object
		}
		i, there := index[name]
		if !there {
			if len(index) == maxChangeLanes {
				continue
			}
			i, index[name] = len(a.Lanes), len(a.Lanes)
			a.Lanes = append(a.Lanes, lane{Kind: "change", Name: name, Spans: []span{a.span("thin", a.From, a.Until)}})
		}
		l := &a.Lanes[i]
		if n := len(l.Diamonds); n > 0 && a.at(c.At)-l.Diamonds[n-1].At < 0.1 {
			l.Diamonds[n-1].Says += "\n" + change(c)
			continue
		}
		l.Diamonds = append(l.Diamonds, tick{a.at(c.At), change(c)})
	}
	for i := first; i < len(a.Lanes); i++ {
		a.Lanes[i].Says = Count(len(a.Lanes[i].Diamonds), "change")
	}
}

// ticks are round seconds from the fault on, ten of them or so.
func (a *axis) ticks(zero time.Time) {
	if zero.IsZero() {
		zero = a.From
	}
	length := a.Until.Sub(a.From)
	step := time.Second
	for _, s := range []time.Duration{2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600} {
		if length/step <= 12 {
			break
		}
		step = s * time.Second
	}
	for n := -(zero.Sub(a.From) / step); ; n++ {
		at := zero.Add(n * step)
		if at.After(a.Until) {
			return
		}
		a.Ticks = append(a.Ticks, tick{At: a.at(at), Says: signed(n * step)})
	}
}

func signed(d time.Duration) string {
	sign := "+"
	if d < 0 {
		sign, d = "−", -d
	}
	if d%time.Second == 0 {
		return fmt.Sprintf("%s%d s", sign, d/time.Second)
	}
	return fmt.Sprintf("%s%.3f s", sign, d.Seconds())
}

// Count is a number of things.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
