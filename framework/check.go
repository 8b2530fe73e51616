package framework

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Check is a fact that must hold at a certain point of the script.
type Check struct {
	// ID identifies the check among those of its script: lower-case words, with
	// dashes between them. Name is the fact, in a sentence.
	ID   string
	Name string
	// Reads are the sources that Holds looks at in Run.Snapshot. They are in
	// every snapshot of the variant, from the baseline on. Holds sees one that began
	// after the check did, and of that only these sources.
	Reads []snapshot.Source
	Holds Condition
	// Bound is how long the fact may take to come true. Zero: it must hold at
	// once.
	Bound time.Duration
	// AsksDetectors is set where the fact is what the detectors say. With the
	// detectors switched off it is not checked.
	AsksDetectors bool
}

// Condition returns whether a fact holds, and what it saw.
type Condition func(ctx context.Context, r *Run) (holds bool, saw string, err error)

// Mismatches collects what differs from what a Check expects, and turns that
// into the Check's answer. The zero value is ready for use.
type Mismatches struct{ sentences []string }

// Addf adds one difference, in the words of fmt.Sprintf.
func (m *Mismatches) Addf(format string, args ...any) {
	m.sentences = append(m.sentences, fmt.Sprintf(format, args...))
}

// Result is what Check.Holds returns: the fact holds where nothing was added;
// otherwise saw is one sentence that tells all differences, in the order in
// which they were added. The error is always nil: the caller returns errors of
// reading itself.
func (m *Mismatches) Result() (holds bool, saw string, err error) {
	return len(m.sentences) == 0, strings.Join(m.sentences, "; "), nil
}

// Finding is an expected finding of a detector. A field that is left empty must be empty
// in the finding. Its pods and its sentence are not compared: both differ from run to
// run.
type Finding struct {
	// The fields are those of detect.Finding; Routers are in any order.
	Detector, Kind, Owner, Announcer string
	State                            detect.State
	Object                           detect.Object
	Routers                          []string
	// AnyObject is set where the object's name cannot be known beforehand.
	AnyObject bool
	// Words are what its sentence (detect.Finding.Says) must contain, each of
	// them.
	Words []string
}

// Matches tells whether a detector's finding is the wanted one.
func (f Finding) Matches(found detect.Finding) bool {
	if f.AnyObject {
		f.Object = found.Object
	}
	return f.id() == found.ID() &&
		!slices.ContainsFunc(f.Words, func(word string) bool { return !strings.Contains(found.Says, word) })
}

func (f Finding) id() detect.ID {
	return detect.Finding{
		Detector: f.Detector, Kind: f.Kind, State: f.State, Object: f.Object, Owner: f.Owner, Announcer: f.Announcer, Routers: f.Routers,
	}.ID()
}

// String names the finding by those of its fields that are set.
func (f Finding) String() string {
	text := f.id().String()
	if len(f.Words) > 0 {
		text += fmt.Sprintf(" that says %q", f.Words)
	}
	return text
}

// As is a detector's finding in the form in which findings are named.
func As(found detect.Finding) Finding {
	return Finding{
		Detector: found.Detector, Kind: found.Kind, State: found.State, Object: found.Object,
		Owner: found.Owner, Announcer: found.Announcer, Routers: found.Routers,
	}
}

// DetectorsSay is a Check that the newest findings have each of the wanted ones among
// them.
func DetectorsSay(id, name string, want ...Finding) Check {
	return Check{
		ID: id, Name: name, AsksDetectors: true,
		Holds: func(_ context.Context, r *Run) (bool, string, error) {
			found := r.Findings()
			var missing Mismatches
			for _, f := range Missing(want, found) {
				missing.Addf("no finding %s", f)
			}
			holds, saw, err := missing.Result()
			return holds, saw + "; seen: " + DescribeFindings(found), err
		},
	}
}

// Missing returns what is wanted and was not found.
func Missing(wanted []Finding, found []detect.Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(wanted), func(w Finding) bool {
		return slices.ContainsFunc(found, w.Matches)
	})
}

// Unnamed returns the unexpected findings: those that are none of the named ones. A
// finding on only some of a named one's routers is not unexpected: the rest may follow.
func Unexpected(found []detect.Finding, named ...Finding) []detect.Finding {
	return slices.DeleteFunc(slices.Clone(found), func(f detect.Finding) bool {
		return slices.ContainsFunc(named, func(n Finding) bool {
			other := slices.ContainsFunc(f.Routers, func(r string) bool { return !slices.Contains(n.Routers, r) })
			if other || len(f.Routers) == 0 && len(n.Routers) > 0 {
				return false
			}
			n.Routers = f.Routers
			return n.Matches(f)
		})
	})
}

// DescribeFindings says in one line what detectors have found.
func DescribeFindings(findings []detect.Finding) string {
	if len(findings) == 0 {
		return "no finding"
	}
	var says []string
	for _, f := range findings {
		says = append(says, fmt.Sprintf("%s: %s", As(f), f.Says))
	}
	return strings.Join(says, "; ")
}
