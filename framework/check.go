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
	Name string
	// Reads are the sources that Holds looks at in Run.Snapshot. They are in
	// every snapshot of the variant, from the baseline on.
	Reads []snapshot.Source
	// Holds returns whether the fact holds and what it saw.
	Holds func(ctx context.Context, r *Run) (holds bool, saw string, err error)
	// Bound is how long the fact may take to come true. Zero: it must hold at
	// once.
	Bound time.Duration
	// AsksDetectors is set where the fact is what the detectors say. With the
	// detectors switched off it is not checked.
	AsksDetectors bool
}

// Mismatches collects what differs from what a Check expects, and turns that
// into the Check's answer. The zero value is ready for use.
type Mismatches struct{ sentences []string }

// Addf adds one difference, in the words of fmt.Sprintf.
func (m *Mismatches) Addf(format string, args ...any) {
	m.sentences = append(m.sentences, fmt.Sprintf(format, args...))
}

// Result is what Check.Holds returns: the fact holds where nothing was added;
// otherwise saw is one sentence that tells all differences, in the order in
// which they were added. The error is always nil: if something could not be
// looked at, the caller returns that error itself.
func (m *Mismatches) Result() (holds bool, saw string, err error) {
	return len(m.sentences) == 0, strings.Join(m.sentences, "; "), nil
}

// Finding is what a detector must say. Empty fields match anything.
type Finding struct {
	// Kind, Object, Owner and State are those of detect.Finding.
	Kind, Owner string
	Object      detect.Object
	State       detect.State
	// Words are what its sentence (detect.Finding.Says) must contain, each of
	// them.
	Words []string
}

// Matches tells whether a detector's finding is the wanted one.
func (f Finding) Matches(found detect.Finding) bool {
	return (f.Kind == "" || f.Kind == found.Kind) &&
		(f.Object == (detect.Object{}) || f.Object == found.Object) &&
		(f.Owner == "" || f.Owner == found.Owner) &&
		(f.State == "" || f.State == found.State) &&
		!slices.ContainsFunc(f.Words, func(word string) bool { return !strings.Contains(found.Says, word) })
}

// String names the finding by those of its fields that are set.
func (f Finding) String() string {
	fields := []string{string(f.State), f.Kind, f.Object.String()}
	if f.Owner != "" {
		fields = append(fields, "of "+f.Owner)
	}
	if len(f.Words) > 0 {
		fields = append(fields, fmt.Sprintf("that says %q", f.Words))
	}
	return strings.Join(slices.DeleteFunc(fields, func(field string) bool { return field == "" }), " ")
}

// DetectorsSay is a Check that the detectors have come to each of the wanted
// findings at their last look. What they say besides is no matter.
func DetectorsSay(name string, want ...Finding) Check {
	return Check{
		Name: name, AsksDetectors: true,
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

// DescribeFindings says in one line what detectors have found.
func DescribeFindings(findings []detect.Finding) string {
	if len(findings) == 0 {
		return "no finding"
	}
	var says []string
	for _, f := range findings {
		says = append(says, fmt.Sprintf("%s (%s): %s", f.Kind, f.State, f.Says))
	}
	return strings.Join(says, "; ")
}
