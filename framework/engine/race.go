package engine

import (
	"fmt"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
)

// rounds is how many rounds of a race a variant's component must stand: an
// affected one as many as any, another as many as the slowest affected one has
// needed, on record or in this run.
func (v *variantRun) rounds() int {
	race := v.script.Race
	switch {
	case race == nil:
		return 0
	case v.variant.Role == framework.Affected:
		return framework.MaxRounds
	}
	needed := framework.Needed(race.Rates[v.accelerator()]...)
	for _, other := range v.scenario.variants {
		if ran := other.result.Race; ran != nil && other.variant.Role == framework.Affected {
			needed = max(needed, framework.Needed(framework.Outcome{Rounds: ran.Rounds, Struck: ran.Struck}))
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
	v.result.Race = &report.Race{Round: race.Round, Rounds: rounds, Struck: struck, Accelerator: v.accelerator()}
	if stood, of := framework.Stood(rounds, race.Rates[v.accelerator()]...); !struck && of > 0 {
		v.result.Race.Luck = new(report.NewRate(stood, of))
	}
}

// tooFewRounds says so where an unhurt variant has stood fewer rounds than it
// must; empty where it has stood them.
func (v *variantRun) tooFewRounds() string {
	ran := v.result.Race
	if ran == nil || ran.Struck || ran.Rounds >= v.run.Rounds {
		return ""
	}
	return fmt.Sprintf("it was to stand %d rounds (%s), and stood %d", v.run.Rounds, ran.Round, ran.Rounds)
}
