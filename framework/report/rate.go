package report

import "math"

// Rate is how often something occurred in a number of independent runs.
type Rate struct {
	Runs int `json:"runs"`
	// Count is in how many of them it occurred.
	Count int `json:"count"`
	// Low and High are the bounds of the 95% confidence interval of the
	// probability, by Wilson's score without correction for continuity.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// z95 is the 97.5% quantile of the standard normal distribution.
const z95 = 1.959963984540054

// NewRate makes the Rate of count in runs. There must be at least one run.
//
// Wilson's interval (JASA 22, 1927) is honest for few runs and for counts of
// none and all, where the textbook's shrinks to a point.
func NewRate(count, runs int) Rate {
	n, k := float64(runs), float64(count)
	center := (k + z95*z95/2) / (n + z95*z95)
	half := z95 / (n + z95*z95) * math.Sqrt(k*(n-k)/n+z95*z95/4)
	r := Rate{Runs: runs, Count: count, Low: max(0, center-half), High: min(1, center+half)}
	// These bounds are exact, but for rounding.
	switch count {
	case 0:
		r.Low = 0
	case runs:
		r.High = 1
	}
	return r
}
