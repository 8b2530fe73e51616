package bisect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/each"
)

// Bisection searches versions and stores what it knows after each. Start makes one.
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

// Start begins a bisection. Versions are all that are searched, and unbuildable are the reasons why
// some of them cannot run. Earlier are versions of the lowest minor below them, see Earlier.
func Start(
	scenario, component string, with map[string]string, versions []string, unbuildable map[string]string, earlier ...string,
) (*Bisection, error) {
	b := &Bisection{Record: Record{
		Schema: Schema, Scenario: scenario, Component: component, Began: time.Now().UTC().Truncate(time.Second), With: with, Versions: versions, Earlier: earlier,
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

// Run judges versions until the result is known, and stores each result in Dir. It
// writes its progress with note. An interrupt ends it with engine.ErrInterrupted.
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

// left says how many runs remain, and how long they take at the mean of those before.
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

// Verdict is Pass if the version of each change is known, Fail if the ends of the range and of
// each minor are alike, and else Inconclusive.
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

// judged are the lowest and the highest version that could be judged, and those outside
// of them that could not, lowest first.
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
