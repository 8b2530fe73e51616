package bisect

import (
	"fmt"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report/stored"
)

// Schema names the format of FileJSON, which is the record's name in its folder.
const (
	Schema   = "relapse.bisect/v2"
	FileJSON = "bisect.json"
)

// Record is what a bisection stores.
type Record struct {
	Schema    string            `json:"schema"`
	Scenario  string            `json:"scenario"`
	Component string            `json:"component"`
	Began     time.Time         `json:"began,omitzero"`
	With      map[string]string `json:"with,omitempty"`    // versions of other components
	Versions  []string          `json:"versions"`          // all that are searched, lowest first
	Earlier   []string          `json:"earlier,omitempty"` // of the lowest minor, below Versions; they are not judged
	Steps     []Step            `json:"steps"`             // in the order in which they ran
}

// Step is the result for one version.
type Step struct {
	Version string  `json:"version"`
	Outcome Outcome `json:"outcome"`
	// Verdict is empty if the version did not run. Why is the reason for that, or for the verdict.
	Verdict string `json:"verdict,omitempty"`
	Why     string `json:"why,omitempty"`
	// Report is relative to the record's folder. Of several runs it is the last one's.
	Report string `json:"report,omitempty"`
	// TookMS is the time of all runs of the version, BuiltMS the time of building its images.
	TookMS  int64 `json:"took_ms,omitempty"`
	BuiltMS int64 `json:"built_ms,omitempty"`
	// Rounds are the trials of a probabilistic incident that the version survived, and
	// Luck is the probability that an affected version would have survived them.
	Rounds int     `json:"rounds,omitempty"`
	Luck   float64 `json:"luck,omitempty"`

	// Err is why the version did not run. It is not stored.
	Err error `json:"-"`
}

func (s Step) ran() bool { return s.Verdict != "" }

func (s Step) took() time.Duration { return time.Duration(s.TookMS) * time.Millisecond }

// String is the result in one line.
func (s Step) String() string {
	switch {
	case !s.ran():
		return fmt.Sprintf("%s: %s", s.Outcome, s.Why)
	case s.Outcome == Skipped:
		return fmt.Sprintf("%s: %s: %s", s.Outcome, s.Verdict, s.Why)
	case s.Verdict == string(framework.Refused):
		return fmt.Sprintf("%s, because it refuses to start: %s", s.Outcome, s.Why)
	}
	text := fmt.Sprintf("%s: %s, in %s", s.Outcome, s.Verdict, s.took().Round(time.Second))
	if s.Rounds > 0 {
		text += fmt.Sprintf("; it survived %d trials, which an affected version does with a probability of %.2g%%", s.Rounds, 100*s.Luck)
	}
	return text
}

func (r Record) write(dir string) error {
	if err := stored.Write(dir, FileJSON, r, nil); err != nil {
		return fmt.Errorf("storing the bisection's progress: %w", err)
	}
	return nil
}
