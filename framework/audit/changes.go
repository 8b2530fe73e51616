package audit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Changes finds what changes from one audit of a cluster to the next.
//
// A finding comes when both of the last two reads of an audit have it, and goes when both lack it. It stays while its
// detector reads less than when it came. The zero Changes has seen no audit.
type Changes struct {
	began time.Time
	reads int
	// last is the last audit that could be judged; unreadable is why the latest audit could not be judged.
	last       *Result
	unreadable error
	findings   map[string]standing
	unread     map[string]snapshot.Missing
	gaps       map[string]detect.Gap
	// firstGaps are the gaps of the first audit. Later gaps mean that something was lost.
	firstGaps sets.Set[string]
}

// standing is a finding that holds, with what its detector could not read when it last found it.
type standing struct {
	Finding
	unseen []string
}

// What an Event says.
const (
	FindingCame  = "finding"    // a finding holds, or has another state
	FindingGone  = "gone"       // it does not hold any more
	SourceUnread = "unread"     // something is not read any more
	SourceRead   = "read"       // it is read again
	GapCame      = "not-judged" // something is not judged
	GapGone      = "judged"     // it is judged again
)

// Event is one change from an audit to the next.
type Event struct {
	Time time.Time `json:"time"`
	What string    `json:"event"`
	// Finding is set for FindingCame and FindingGone.
	Finding *Finding `json:"finding,omitempty"`
	// Source and Why, the reason, are set for SourceUnread and SourceRead.
	Source string `json:"source,omitempty"`
	Why    string `json:"why,omitempty"`
	// Gap is set for GapCame and GapGone.
	Gap *detect.Gap `json:"gap,omitempty"`
}

// Take takes the reads of an audit and its result, or why it has none, and returns what has changed.
func (c *Changes) Take(reads []snapshot.Snapshot, r Result, unreadable error) []Event {
	if c.reads == 0 {
		c.began = reads[0].Time
		c.findings, c.unread, c.gaps = map[string]standing{}, map[string]snapshot.Missing{}, map[string]detect.Gap{}
	}
	c.reads += len(reads)
	c.unreadable = unreadable
	last := reads[len(reads)-1]
	at := last.Time.Add(last.Took)
	if unreadable != nil {
		// Nothing can be judged: findings neither come nor go.
		return c.sources(at, last.Unavailable())
	}
	if c.firstGaps == nil {
		c.firstGaps = sets.New(each.Of(r.NotJudged, func(g detect.Gap) string { return g.Says })...)
	}
	for i, g := range r.NotJudged {
		r.NotJudged[i].Open = g.Open || !c.firstGaps.Has(g.Says)
	}
	c.last = &r
	return slices.Concat(c.sources(at, r.Unread), c.found(at, r, reads[max(0, len(reads)-2):]), c.judging(at, r.NotJudged))
}

// differences returns the events of items that came, in their order, and of items that went, by name. It updates state.
func differences[T any](state map[string]T, now []T, came, gone string, name func(T) string, event func(string, T) Event) (events []Event) {
	there := map[string]bool{}
	for _, one := range now {
		there[name(one)] = true
		if _, was := state[name(one)]; !was {
			events = append(events, event(came, one))
		}
		state[name(one)] = one
	}
	for _, n := range sorted(state) {
		if !there[n] {
			events = append(events, event(gone, state[n]))
			delete(state, n)
		}
	}
	return events
}

func (c *Changes) sources(at time.Time, unread []snapshot.Missing) []Event {
	source := func(m snapshot.Missing) string { return m.Source }
	return differences(c.unread, unread, SourceUnread, SourceRead, source, func(what string, m snapshot.Missing) Event {
		return Event{Time: at, What: what, Source: m.Source, Why: m.Reason}
	})
}

func (c *Changes) judging(at time.Time, gaps []detect.Gap) []Event {
	says := func(g detect.Gap) string { return g.Says }
	return differences(c.gaps, gaps, GapCame, GapGone, says, func(what string, g detect.Gap) Event {
		return Event{Time: at, What: what, Gap: &g}
	})
}

func (c *Changes) found(at time.Time, r Result, reads []snapshot.Snapshot) []Event {
	var events []Event
	unseen, there := unseenIn(reads), map[string]bool{}
	for _, f := range r.Findings { // the worst first: of findings with the same ID only the first counts
		if there[f.ID] {
			continue
		}
		there[f.ID] = true
		was, ok := c.findings[f.ID]
		c.findings[f.ID] = standing{f, unseen[f.Detector]}
		if !ok || was.State != f.State {
			events = append(events, Event{Time: at, What: FindingCame, Finding: &f})
		}
	}
	for _, f := range r.Once {
		there[f.ID] = true
	}
	for _, id := range sorted(c.findings) {
		was := c.findings[id]
		blind := slices.ContainsFunc(unseen[was.Detector], func(name string) bool { return !slices.Contains(was.unseen, name) })
		if !there[id] && !blind {
			delete(c.findings, id)
			events = append(events, Event{Time: at, What: FindingGone, Finding: &was.Finding})
		}
	}
	return events
}

// unseenIn returns, by detector, the sources that at least one of the reads lacks.
func unseenIn(reads []snapshot.Snapshot) map[string][]string {
	all := map[string][]string{}
	for _, d := range slices.Concat(detectors, overTime) {
		for _, s := range reads {
			all[d.Name()] = append(all[d.Name()], unread(s.Only(d.Reads()...))...)
		}
	}
	return all
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// ErrNotAudited is the error of State before the end of the first audit.
var ErrNotAudited = errors.New("the first audit has not ended")

// State is the last result, with all findings that hold, also if their detector now reads less. The error is an
// *UnreadableError if the last audit could not be judged.
func (c *Changes) State() (Result, error) {
	if c.unreadable != nil {
		return Result{}, c.unreadable
	}
	if c.last == nil {
		return Result{}, ErrNotAudited
	}
	r := *c.last
	r.Began, r.Reads = c.began, c.reads
	r.Findings = slices.Clone(r.Findings)
	for _, id := range sorted(c.findings) {
		if !slices.ContainsFunc(slices.Concat(r.Findings, r.Once), func(f Finding) bool { return f.ID == id }) {
			r.Findings = append(r.Findings, c.findings[id].Finding)
		}
	}
	r.sort()
	return r, nil
}

// String is the event in one line.
func (e Event) String() string {
	line := e.Time.UTC().Format(time.RFC3339) + " "
	switch e.What {
	case FindingCame:
		return line + fmt.Sprintf("+ %s %s %s, %s: %s", e.Finding.State, e.Finding.ID, e.Finding.Detector, e.Finding.Kind, e.Finding.Says)
	case FindingGone:
		return line + fmt.Sprintf("- gone %s %s, %s: %s", e.Finding.ID, e.Finding.Detector, e.Finding.Kind, e.Finding.Object)
	case SourceUnread:
		return line + "+ not read: " + e.Source + ": " + hinted(e.Why)
	case SourceRead:
		return line + "- not read: " + e.Source
	case GapCame:
		return line + "+ not judged: " + e.Gap.Says
	default:
		return line + "- not judged: " + e.Gap.Says
	}
}
