package bisect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report/stored"
	"github.com/relapse-dev/relapse/topology/each"
)

// Bisection searches versions, and stores its Record after each judged version. Start makes one.
type Bisection struct {
	Record Record
	// Dir is the folder of the record and of the reports. Run needs it.
	Dir string

	search *Search
}

// Versions judges one version. An error ends the search.
type Versions interface {
	Judge(ctx context.Context, version string) (Step, error)
}

// Start begins a bisection of versions. Unbuildable says why some of them cannot run. Earlier are lower versions of
// their lowest minor, as in Record.
func Start(
	scenario, component string, with map[string]string, versions []string, unbuildable map[string]string, earlier ...string,
) (*Bisection, error) {
	b := &Bisection{Record: Record{
		Schema: Schema, Scenario: scenario, Component: component, With: with, Versions: versions, Earlier: earlier,
		Began: time.Now().UTC().Truncate(time.Second),
	}}
	var err error
	if b.search, err = New(versions, earlier...); err != nil {
		return nil, err
	}
	for _, v := range slices.SortedFunc(maps.Keys(unbuildable), Compare) {
		b.Record.Steps = append(b.Record.Steps, Step{Version: v, Outcome: Skipped, Why: unbuildable[v]})
		b.search.Tell(v, Skipped)
	}
	return b, nil
}

// Run judges versions until the result is known, and stores each result in Dir. It writes its progress with note. An
// interrupt ends it with engine.ErrInterrupted.
func (b *Bisection) Run(ctx context.Context, versions Versions, note func(text string)) error {
	if err := b.Record.write(b.Dir); err != nil {
		return err
	}
	for {
		version, more := b.search.Next()
		if !more {
			return nil
		}
		if ctx.Err() != nil {
			return engine.ErrInterrupted
		}
		note(fmt.Sprintf("%s is next; %s", version, b.left()))
		step, err := versions.Judge(ctx, version)
		switch {
		case ctx.Err() != nil:
			return engine.ErrInterrupted
		case err != nil:
			return err
		}
		b.Record.Steps = append(b.Record.Steps, step)
		b.search.Tell(version, step.Outcome)
		if err := b.Record.write(b.Dir); err != nil {
			return err
		}
		note(version + ": " + step.String())
	}
}

// left says how many runs remain, and how long they take if each takes the mean of the runs before.
func (b *Bisection) left() string {
	n := b.search.Left()
	text := fmt.Sprintf("at most %d runs remain", n)
	if n == 1 {
		text = "at most one run remains"
	}
	var took time.Duration
	runs := 0
	for _, s := range b.Record.Steps {
		if s.ran() {
			took, runs = took+s.took(), runs+1
		}
	}
	if runs > 0 {
		text += fmt.Sprintf(", about %s", (took / time.Duration(runs) * time.Duration(n)).Round(time.Second))
	}
	return text
}

// Verdict is Pass if the version of each change is known, Fail if the ends of all minors are alike, else Inconclusive.
func (b *Bisection) Verdict() framework.RunVerdict {
	_, _, beyond := b.judged()
	switch r := b.search.Result(); {
	case r.Alike != "" && len(beyond) == 0 && len(r.Unjudged) == 0:
		return framework.Fail
	case !r.Exact():
		return framework.Inconclusive
	}
	return framework.Pass
}

func (b *Bisection) sorted() []Step {
	return slices.SortedStableFunc(slices.Values(b.Record.Steps), func(x, y Step) int { return Compare(x.Version, y.Version) })
}

// judged are the lowest and the highest version that could be judged, and the skipped versions below and above them.
func (b *Bisection) judged() (low, high string, beyond []string) {
	judged := each.Where(b.sorted(), func(s Step) bool { return s.Outcome != Skipped })
	all := each.Of(judged, func(s Step) string { return s.Version })
	if len(all) > 0 {
		low, high = all[0], all[len(all)-1]
	}
	for _, s := range b.sorted() {
		outside := Compare(s.Version, low) < 0 || Compare(s.Version, high) > 0
		if s.Outcome == Skipped && outside {
			beyond = append(beyond, s.Version)
		}
	}
	return low, high, beyond
}

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

type Step struct {
	Version string  `json:"version"`
	Outcome Outcome `json:"outcome"`
	// Verdict is empty if the version did not run. Why is the reason why it did not, or the reason for the verdict.
	Verdict string `json:"verdict,omitempty"`
	Why     string `json:"why,omitempty"`
	// Report is the path of the last run's report, relative to the record's folder.
	Report string `json:"report,omitempty"`
	// TookMS is the time of all runs of the version, BuiltMS the time of building its images.
	TookMS  int64 `json:"took_ms,omitempty"`
	BuiltMS int64 `json:"built_ms,omitempty"`
	// Rounds are the trials of a probabilistic incident that the version survived, and Luck is the probability that
	// an affected version would have survived them.
	Rounds int     `json:"rounds,omitempty"`
	Luck   float64 `json:"luck,omitempty"`

	// Err is why the version did not run. It is not stored.
	Err error `json:"-"`
}

func (s Step) ran() bool { return s.Verdict != "" }

func (s Step) took() time.Duration { return time.Duration(s.TookMS) * time.Millisecond }

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
