package framework

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/relapse-dev/relapse/framework/report"
)

// Bounds of the trials in one run in which the incident must not occur.
const (
	minTrials = 2
	MaxTrials = 4
)

// Trials describe a probabilistic incident: it occurs in some of a series of equal trials.
// An affected component may survive a trial by luck. So an unaffected one must survive as
// many trials as the slowest affected one has needed, and as many as luck alone would hardly explain
// (TrialsToConvince), but MaxTrials at most: the report says how likely an affected one survives as many.
type Trials struct {
	// Unit is what a trial is, such as "tick".
	Unit string
	// Load names the load on the component under test. Rates of another load do not count.
	Load string
	// Rates are the recorded outcomes.
	Rates Rates
	// Most bounds how many trials a component without an expectation must survive; zero means MaxTrials. No
	// affected one runs beside it, and where few rates are recorded, MaxTrials are too few to convince.
	Most int
	// Result returns how many trials the component under test has completed, and whether
	// the incident occurred in the last one. It is called after the fault, which ends when
	// the incident occurs or after Run.TrialsDue trials.
	Result func() (trials int, occurred bool)
}

// Rates are the outcomes of affected components, by the accelerator of the guests
// (report.Guest), or "" if nodes share the machine's kernel.
type Rates map[string][]Outcome

// Outcome is the same outcome of some affected components under a load: the incident
// occurred in that trial, or it did not occur in that many trials.
type Outcome struct {
	Load     string `json:"load,omitempty"`
	Trials   int    `json:"rounds"`
	Occurred bool   `json:"struck"`
	Count    int    `json:"count"`
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

// EmbeddedRates reads rates that are a part of the program. It panics if they are invalid.
func EmbeddedRates(text []byte) Rates {
	r, err := ParseRates(text)
	if err != nil {
		panic(err)
	}
	return r
}

// On are the recorded outcomes of the same load with an accelerator.
func (t *Trials) On(accelerator string) []Outcome {
	return slices.DeleteFunc(slices.Clone(t.Rates[accelerator]), func(o Outcome) bool { return o.Load != t.Load })
}

// TrialsNeeded returns in which trial the incident occurred with the slowest affected component.
// A component with which it did not occur needs at least one trial more than it had.
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

// TrialsRequired returns how many trials an unaffected component must survive if the
// slowest affected one needed so many.
func TrialsRequired(needed int) int { return min(max(needed, minTrials), MaxTrials) }

// Luck bounds the probability that an affected component survives one trial, from some
// outcomes: the upper bound of Wilson's 95% interval, which a few outcomes leave wide.
// Without any it is assumed to be one half.
func Luck(outcomes ...Outcome) float64 {
	survived, trials := 0, 0
	for _, o := range outcomes {
		trials += o.Trials * o.Count
		survived += o.Trials * o.Count
		if o.Occurred {
			survived -= o.Count
		}
	}
	if trials == 0 {
		return 0.5
	}
	return report.NewRate(survived, trials).High
}

// MaxErrorRate is the accepted probability of taking an affected component for an
// unaffected one, because it was lucky.
const MaxErrorRate = 0.01

// TrialsToConvince returns how many trials a component without an expectation must survive
// so that an affected one would do so with less than MaxErrorRate.
func TrialsToConvince(outcomes ...Outcome) int {
	luck := Luck(outcomes...)
	if luck >= 1 {
		return math.MaxInt32 // the incident never occurred: no number convinces
	}
	return int(math.Floor(math.Log(MaxErrorRate)/math.Log(luck))) + 1
}

// Convincing returns how many trials a component without an expectation must survive with an
// accelerator: TrialsToConvince, if that is not more than Most.
func (t *Trials) Convincing(accelerator string) int {
	return min(max(TrialsToConvince(t.On(accelerator)...), minTrials), cmp.Or(t.Most, MaxTrials))
}

// Survived returns how many affected components have survived this many trials. total counts the
// components whose result for this many trials is known.
func Survived(trials int, outcomes ...Outcome) (survived, total int) {
	for _, o := range outcomes {
		switch {
		case o.Occurred && o.Trials <= trials:
			total += o.Count
		case o.Trials >= trials:
			survived += o.Count
			total += o.Count
		}
	}
	return survived, total
}
