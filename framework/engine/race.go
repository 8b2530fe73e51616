package engine

import (
	"fmt"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
)

// raceBegins notes that the variant is at its race. What it returns notes that
// it is no more.
func (v *variantRun) raceBegins() (ends func()) {
	is := func(racing bool) {
		v.scenario.mu.Lock()
		defer v.scenario.mu.Unlock()
		v.racing = racing
	}
	is(v.script.Race != nil)
	return func() { is(false) }
}

// rounds is how many rounds of a race a variant's component must stand: an
// affected one as many as any, one that nobody has classified as many as convince
// (framework.ToConvince), as far as one run has them, another as many as the slowest affected one has
// needed, on record or in this run. As long as one beside it is at its race, that
// is not known, and may be as many as any.
func (v *variantRun) rounds() int {
	race := v.script.Race
	switch {
	case race == nil:
		return 0
	case v.variant.Role == framework.Affected:
		return framework.MaxRounds
	case !v.classified():
		return framework.ToStand(framework.ToConvince(race.Rates[v.accelerator()]...))
	}
	needed := framework.Needed(race.Rates[v.accelerator()]...)
	v.scenario.mu.Lock()
	defer v.scenario.mu.Unlock()
	for _, other := range v.scenario.variants {
		switch {
		case other.variant.Role != framework.Affected:
		case other.racing:
			return framework.MaxRounds
		case other.raced != nil:
			needed = max(needed, framework.Needed(*other.raced))
		}
	}
	return framework.ToStand(needed)
}

// accelerator is that of the lab's guests; empty where there are none.
func (v *variantRun) accelerator() string {
	if guests := v.scenario.report.Guests; len(guests) > 0 {
		return guests[0].Accelerator
	}
	return ""
}

// raceRan notes how a race went, and how likely an affected component would
// have stood as many rounds by luck.
func (v *variantRun) raceRan() {
	race := v.script.Race
	if race == nil {
		return
	}
	rounds, struck := race.Ran()
	v.scenario.mu.Lock()
	v.racing, v.raced = false, &framework.Outcome{Rounds: rounds, Struck: struck, Count: 1}
	v.scenario.mu.Unlock()
	v.result.Race = &report.Race{Round: race.Round, Rounds: rounds, Struck: struck, Accelerator: v.accelerator()}
	if stood, of := framework.Stood(rounds, race.Rates[v.accelerator()]...); !struck && of > 0 {
		v.result.Race.Luck = new(report.NewRate(stood, of))
	}
}

// tooFewRounds says so where an unhurt variant has stood fewer rounds than it
// must; empty where it has stood them.
func (v *variantRun) tooFewRounds() string {
	ran, due := v.result.Race, v.rounds()
	if ran == nil || ran.Struck || ran.Rounds >= due {
		return ""
	}
	return fmt.Sprintf("it was to stand %d rounds (%s), and stood %d", due, ran.Round, ran.Rounds)
}
