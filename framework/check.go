package framework

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Check is a fact that must hold at one point of the script.
type Check struct {
	// ID is unique among the checks of the script: lower-case words and digits, with
	// hyphens between them. Name is the fact, in a sentence.
	ID   string
	Name string
	// Reads are the sources that Holds reads from Run.Snapshot. That snapshot begins after
	// the check does, and contains these sources only.
	Reads []snapshot.Source
	Holds Condition
	// Bound is how long the fact may take to become true. Zero: it must hold at once.
	Bound time.Duration
	// AsksDetectors is set if the fact is about findings. Without detectors it is not checked.
	AsksDetectors bool
}

// Condition reports whether a fact holds, and what it saw.
type Condition func(ctx context.Context, r *Run) (holds bool, saw string, err error)

// Mismatches collects the differences from what a Check expects. The zero value is ready for use.
type Mismatches struct{ sentences []string }

// Addf adds one difference, in the words of fmt.Sprintf.
func (m *Mismatches) Addf(format string, args ...any) {
	m.sentences = append(m.sentences, fmt.Sprintf(format, args...))
}

// Result is for Check.Holds to return: the fact holds if nothing was added; otherwise saw is one
// sentence with all differences, in the order in which they were added. The error is always nil.
func (m *Mismatches) Result() (holds bool, saw string, err error) {
	return len(m.sentences) == 0, strings.Join(m.sentences, "; "), nil
}

// Finding is an expected finding of a detector. An empty field must be empty in the
// detector's finding, too. Pods and sentence are not compared: they differ from run to run.
type Finding struct {
	// The fields have the meaning that they have in detect.Finding; Routers are in any order.
	Detector, Kind, Owner, Announcer string
	State                            detect.State
	Object                           detect.Object
	Routers                          []string
	// AnyObject is set if the object's name is not known beforehand.
	AnyObject bool
	// Words must all be in its sentence (detect.Finding.Says).
	Words []string
}

// Matches reports whether a detector's finding is the expected one.
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

// String is the finding by the fields that are set.
func (f Finding) String() string {
	text := f.id().String()
	if len(f.Words) > 0 {
		text += fmt.Sprintf(" that says %q", f.Words)
	}
	return text
}

// As is the expectation that a detector's finding matches.
func As(found detect.Finding) Finding {
	return Finding{
		Detector: found.Detector, Kind: found.Kind, State: found.State, Object: found.Object,
		Owner: found.Owner, Announcer: found.Announcer, Routers: found.Routers,
	}
}

// DetectorsSay is a Check that the newest findings contain each of the wanted ones.
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

// Missing returns the wanted findings that were not found.
func Missing(wanted []Finding, found []detect.Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(wanted), func(w Finding) bool {
		return slices.ContainsFunc(found, w.Matches)
	})
}

// Unexpected returns the findings that match no expected finding. A finding on only some routers
// of an expected finding is not unexpected: the other routers may follow.
func Unexpected(found []detect.Finding, expected ...Finding) []detect.Finding {
	return slices.DeleteFunc(slices.Clone(found), func(f detect.Finding) bool {
		return slices.ContainsFunc(expected, func(e Finding) bool {
			other := slices.ContainsFunc(f.Routers, func(r string) bool { return !slices.Contains(e.Routers, r) })
			if other || len(f.Routers) == 0 && len(e.Routers) > 0 {
				return false
			}
			e.Routers = f.Routers
			return e.Matches(f)
		})
	})
}

// DescribeFindings is one line for some findings.
func DescribeFindings(findings []detect.Finding) string {
	if len(findings) == 0 {
		return "no finding"
	}
	return each.Joined(findings, "; ", func(f detect.Finding) string { return fmt.Sprintf("%s: %s", As(f), f.Says) })
}
