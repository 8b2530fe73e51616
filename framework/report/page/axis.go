package page

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// columns is the resolution of the axis: a lane has at most so many pieces, however many
// packets there were.
const columns = 1000

// axis is the time of a variant: lanes with what happened in them, and marks that go through all.
type axis struct {
	ID          string
	From, Until time.Time
	Marks       []mark
	MarkRows    int
	Lanes, Rest []lane // Rest are of probes that lost nothing
	Ticks       []tick
	Events      []event
	Omitted     int // events that are in the evidence only
}

// mark is a moment that matters: the fault, the first loss, a remedy.
type mark struct {
	At  float64 // in percent of the axis
	Row int     // flags that would cover each other are in different rows
	label
	Kind    string
	Says    string
	EventID string
}

// label names a moment: by a sign, and by a word for readers who have not read the list.
type label struct{ Sign, Word string }

// End reports whether the flag is left of its line, because there is no room on the right.
func (m mark) End() bool { return m.At > 80 }

type tick struct {
	At   float64
	Says string
}

type lane struct {
	Kind, Name, Says string
	// Thin is a line: running, without loss. Thick are filled blocks: lost, or active.
	// Hollow are blocks without filling: latent or settling. Diamonds are changes.
	Thin, Thick, Hollow template.HTMLAttr
	Diamonds            []diamond
}

type diamond struct {
	At   float64
	Says string
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
	a.span(s)
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

// span sets the axis to the time from the first packet to the last, as far as it is known.
func (a *axis) span(s stored) {
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

// recovered is when traffic was back; zero if it was not, or if that is not known.
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

func (a *axis) column(t time.Time) int { return min(int(a.at(t)/100*columns), columns-1) }

// letter is how wide one of a flag is on a wide screen, in percent of the axis.
const letter = 0.62

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
	a.marks()
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

// remedyEvents adds the events of the nth remedy, which has begun.
func (a *axis) remedyEvents(n int, r report.Remedy) {
	a.add(*r.Began, "remedy", label{fmt.Sprintf("R%d", n), r.Name}, "remedy %q begins", r.Name)
	if r.Applied != nil {
		a.add(*r.Applied, "remedy", label{}, "remedy %q is applied", r.Name)
	}
	if r.TimeToRecoverMS != nil {
		back := label{fmt.Sprintf("✓%d", n), "back"}
		a.add(recovered(r), "recovery", back, "traffic is back, %s after %q began", seconds(*r.TimeToRecoverMS), r.Name)
	}
	if r.TimeToQuietMS != nil {
		a.add(r.Began.Add(milliseconds(*r.TimeToQuietMS)), "recovery", label{}, "no active findings from here on, with %q", r.Name)
	}
	if r.Verdict == "does-not-help" && r.Applied != nil {
		a.add(r.Applied.Add(time.Microsecond), "remedy", label{}, "%q does not help", r.Name)
	}
}

// marks are the events with a label, in as many rows as keep flags from covering each other.
func (a *axis) marks() {
	var rows []float64 // the place up to which each is taken
	for _, e := range a.Events {
		if e.Sign == "" {
			continue
		}
		m := mark{At: a.at(e.At), label: e.label, Kind: e.Kind, Says: e.Says, EventID: e.ID}
		if n := []rune(m.Word); len(n) > 24 {
			m.Word = string(n[:23]) + "…"
		}
		width := 2.5 + letter*float64(len([]rune(m.Word)))
		from := m.At
		if m.End() {
			from -= width
		}
		for m.Row < len(rows) && rows[m.Row] > from {
			m.Row++
		}
		if m.Row == len(rows) {
			rows = append(rows, 0)
		}
		rows[m.Row] = from + width
		a.Marks = append(a.Marks, m)
	}
	a.MarkRows = len(rows)
}

// firstImpacted are the impacted probes that lost the first packet; all if that is not known.
func (s stored) firstImpacted() []string {
	var names []string
	for _, t := range s.traffic {
		if first, lost := t.FirstLoss(timeOf(s.Onset)); lost && first.At.Equal(timeOf(s.Onset)) {
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

// joinedLoss is the time up to which answers between two losses are not drawn.
const joinedLoss = 100 * time.Millisecond

// probeLanes adds the lanes of probes that lost packets, the impacted probes first. The lanes of
// the other probes are in Rest.
func (a *axis) probeLanes(s stored) {
	var names []string
	byName := map[string][]probe.Timeline{}
	for _, t := range s.traffic {
		name := t.Probe.Name
		if byName[name] == nil {
			names = append(names, name)
		}
		byName[name] = append(byName[name], t)
	}
	spared := func(name string) int { return level(!slices.Contains(s.ProbesHurt, name)) }
	slices.SortStableFunc(names, func(x, y string) int { return spared(x) - spared(y) })
	for _, name := range names {
		l := lane{Kind: "probe", Name: name}
		loss, alive := make([]float64, columns), make([]bool, columns)
		lost, sent := 0, 0
		for _, t := range byName[name] {
			packets := t.Counts()
			lost, sent = lost+packets.Lost, sent+packets.Sent
			for c := a.column(t.Started); c <= a.column(lastOf(t)); c++ {
				alive[c] = true
			}
			for _, w := range t.Windows(joinedLoss) {
				first, last := a.column(w.Start), a.column(w.End)
				due := float64(w.Last-w.First) + 1
				for c := first; c <= last; c++ {
					loss[c] = max(loss[c], min(1, float64(w.Lost)/due))
				}
			}
		}
		l.Thin = blocks(columns, func(c int) int { return level(alive[c]) }, 5, 7)
		l.Thick = bars(loss)
		l.Says = fmt.Sprintf("%d of %d lost", lost, sent)
		if lost == 0 {
			l.Says = "none lost"
			a.Rest = append(a.Rest, l)
			continue
		}
		a.Lanes = append(a.Lanes, l)
	}
	if len(a.Lanes) == 0 && len(a.Rest) <= 8 { // nothing to set apart
		a.Lanes, a.Rest = a.Rest, nil
	}
}

func level(is bool) int {
	if is {
		return 1
	}
	return 0
}

func (a *axis) findingLanes(s stored) {
	drawn := map[detect.ID]bool{}
	for _, seen := range s.presences {
		drawn[seen.ID()] = true
		on := make([]bool, columns)
		for _, t := range seen.Times {
			for c := a.column(t.From); c <= a.column(t.Until); c++ {
				on[c] = true
			}
		}
		a.Lanes = append(a.Lanes, findingLane(seen.Finding, on))
	}
	for _, f := range s.Findings {
		at := timeOf(f.At)
		if at.IsZero() || drawn[f.ID()] {
			continue
		}
		drawn[f.ID()] = true
		on := make([]bool, columns)
		on[a.column(at)] = true
		l := findingLane(f.Finding, on)
		l.Thin, l.Thick, l.Hollow = "", "", ""
		l.Says, l.Diamonds = string(f.State)+" from here on", []diamond{{At: a.at(at), Says: f.Says}}
		a.Lanes = append(a.Lanes, l)
	}
}

func findingLane(f detect.Finding, on []bool) lane {
	l := lane{Kind: "finding", Name: f.Kind + " " + f.Object.String(), Says: string(f.State)}
	draw := blocks(columns, func(c int) int { return level(on[c]) }, 2, 10)
	if f.State == detect.Active {
		l.Thick = draw
	} else {
		l.Hollow = draw
	}
	return l
}

// changeLanes are one for each session and each table that changed.
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
			a.Lanes = append(a.Lanes, lane{Kind: "change", Name: name, Thin: blocks(columns, func(int) int { return 1 }, 5, 7)})
		}
		l := &a.Lanes[i]
		if n := len(l.Diamonds); n > 0 && a.column(c.At) == int(l.Diamonds[n-1].At/100*columns) {
			l.Diamonds[n-1].Says += "\n" + change(c)
			continue
		}
		l.Diamonds = append(l.Diamonds, diamond{At: a.at(c.At), Says: change(c)})
	}
	for i := first; i < len(a.Lanes); i++ {
		a.Lanes[i].Says = count(len(a.Lanes[i].Diamonds), "change")
	}
}

// blocks draws the runs of columns in which a level is not zero, as the attribute d
// of a path, from one height to the other.
func blocks(n int, level func(int) int, top, bottom int) template.HTMLAttr {
	var d strings.Builder
	for c := 0; c < n; {
		from, now := c, level(c)
		for c < n && level(c) == now {
			c++
		}
		if now != 0 {
			fmt.Fprintf(&d, "M%d %dH%dV%dH%dZ", from, top, max(c, from+2), bottom, from)
		}
	}
	return pathOf(d.String())
}

// bars draws shares of loss, a quarter at a time. The least is still seen.
func bars(loss []float64) template.HTMLAttr {
	quarter := func(c int) int { return int(math.Ceil(4 * loss[c])) }
	var d strings.Builder
	for c := 0; c < len(loss); {
		from, now := c, quarter(c)
		for c < len(loss) && quarter(c) == now {
			c++
		}
		if now > 0 {
			fmt.Fprintf(&d, "M%d 12H%dV%dH%dZ", from, max(c, from+2), 12-3*now, from)
		}
	}
	return pathOf(d.String())
}

// pathOf is the attribute d; empty for an empty path. It holds only numbers and letters
// that this package writes.
func pathOf(d string) template.HTMLAttr {
	if d == "" {
		return ""
	}
	return template.HTMLAttr(`d="` + d + `"`)
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

// seconds says how long something took, as exactly as it is worth.
func seconds(ms int64) string {
	switch {
	case ms < 1000:
		return fmt.Sprintf("%d ms", ms)
	case ms < 100_000:
		return fmt.Sprintf("%.1f s", float64(ms)/1000)
	}
	return fmt.Sprintf("%d min %d s", ms/60_000, ms%60_000/1000)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func kinds(events []event) []string {
	var all []string
	for _, e := range events {
		if !slices.Contains(all, e.Kind) {
			all = append(all, e.Kind)
		}
	}
	return all
}
