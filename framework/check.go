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
	// every snapshot of the variant, from the baseline on. Holds is asked about one
	// that began when the check had begun and has read them, and sees nothing else of it.
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

// Finding is what a detector must say, whole: a field that is left empty is
// empty in the finding. Only the pods and the sentence of a finding are not
// compared, as both differ from run to run.
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
	return f.Detector == found.Detector && f.Kind == found.Kind && f.State == found.State && (f.AnyObject || f.Object == found.Object) &&
		f.Owner == found.Owner && f.Announcer == found.Announcer &&
		slices.Equal(slices.Sorted(slices.Values(f.Routers)), slices.Sorted(slices.Values(found.Routers))) &&
		!slices.ContainsFunc(f.Words, func(word string) bool { return !strings.Contains(found.Says, word) })
}

// String names the finding by those of its fields that are set.
func (f Finding) String() string {
	fields := []string{f.Detector + ":", string(f.State), f.Kind, f.Object.String()}
	if f.Owner != "" {
		fields = append(fields, "of "+f.Owner)
	}
	if f.Announcer != "" {
		fields = append(fields, "announced by "+f.Announcer)
	}
	if len(f.Routers) > 0 {
		fields = append(fields, "on "+strings.Join(f.Routers, ", "))
	}
	if len(f.Words) > 0 {
		fields = append(fields, fmt.Sprintf("that says %q", f.Words))
	}
	return strings.Join(slices.DeleteFunc(fields, func(field string) bool { return field == "" }), " ")
}

// As is a detector's finding in the form in which findings are named.
func As(found detect.Finding) Finding {
	return Finding{
		Detector: found.Detector, Kind: found.Kind, State: found.State, Object: found.Object,
		Owner: found.Owner, Announcer: found.Announcer, Routers: found.Routers,
	}
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

// Unnamed returns what was found and is none of the named findings. A finding
// that is seen on some of the named one's routers is no other: the rest may
// follow.
func Unnamed(found []detect.Finding, named ...Finding) []detect.Finding {
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
