package framework

import (
	"encoding/json"
	"fmt"
	"math"
)

// Bounds of the rounds that a variant must stand in one run which is not to be struck.
const (
	minTrials = 2
	MaxTrials = 4
)

// Race is what a script tells of an incident that strikes by chance, in rounds
// of the same length. An affected component may stand a round by luck: so an
// unhurt one must stand as many as the slowest affected one has needed.
type Trials struct {
	// Round is what a round is, such as "tick".
	Unit string
	// Rates are those on record, and File where they stand, from the project's
	// root.
	Rates Rates
	File  string
	// Ran returns how many rounds the component under test has begun and ended,
	// and whether the last of them has struck. It is asked after the fault, which
	// ends when it strikes or after as many as Run.Rounds says then.
	Result func() (rounds int, struck bool)
}

// Rates are what became of affected components, by the accelerator of the
// guests (report.Guest) or "" where nodes share the machine's kernel.
type Rates map[string][]Outcome

// Outcome is what became of some affected components alike: struck in that
// round, or, where they were not struck, watched for so many rounds.
type Outcome struct {
	Trials   int  `json:"rounds"`
	Occurred bool `json:"struck"`
	Count    int  `json:"count"`
}

// ParseRates reads rates from JSON.
func ParseRates(text []byte) (Rates, error) {
	var r Rates
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("reading rates: %w", err)
	}
	for accelerator, outcomes := range r {
		for _, o := range outcomes {
			if o.Trials < 1 || o.Count < 1 {
				return nil, fmt.Errorf("reading rates: %q: %+v: rounds and count start at 1", accelerator, o)
			}
		}
	}
	return r, nil
}

// Add counts one more affected component.
func (r Rates) Add(accelerator string, rounds int, struck bool) {
	for i, o := range r[accelerator] {
		if o.Trials == rounds && o.Occurred == struck {
			r[accelerator][i].Count++
			return
		}
	}
	r[accelerator] = append(r[accelerator], Outcome{Trials: rounds, Occurred: struck, Count: 1})
}

// Needed returns in which round the slowest of some affected components was
// struck. One that was not struck in the rounds that it was watched needs one
// more at least.
func TrialsNeeded(outcomes ...Outcome) int {
	needed := 0
	for _, o := range outcomes {
		if !o.Occurred {
			o.Trials++
		}
		needed = max(needed, o.Trials)
	}
	return needed
}

// ToStand returns how many rounds an unhurt component must stand where the
// slowest affected one needed so many.
func TrialsRequired(needed int) int { return min(max(needed, minTrials), MaxTrials) }

// Luck is the chance that an affected component stands one round, as some outcomes
// have it: by the rule of succession, so that without any it is one half.
func Luck(outcomes ...Outcome) float64 {
	stood, rounds := 0, 0
	for _, o := range outcomes {
		rounds += o.Trials * o.Count
		stood += o.Trials * o.Count
		if o.Occurred {
			stood -= o.Count
		}
	}
	return float64(stood+1) / float64(rounds+2)
}

// WrongStep is the chance that is accepted of taking an affected component for one
// that is not, because it was lucky.
const MaxErrorRate = 0.01

// ToConvince returns how many rounds a component of which nothing is known must
// stand until luck alone would explain that in less than WrongStep of all cases.
func TrialsToConvince(outcomes ...Outcome) int {
	return int(math.Floor(math.Log(MaxErrorRate)/math.Log(Luck(outcomes...)))) + 1
}

// Stood returns how many affected components of those that were watched so long
// have stood some rounds.
func Survived(rounds int, outcomes ...Outcome) (stood, of int) {
	for _, o := range outcomes {
		switch {
		case o.Occurred && o.Trials <= rounds:
			of += o.Count
		case o.Trials >= rounds:
			stood += o.Count
			of += o.Count
		}
	}
	return stood, of
}
