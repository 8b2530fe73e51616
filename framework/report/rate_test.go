package report_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
)

// The intervals are method 3 of table I in R. G. Newcombe, "Two-sided confidence intervals for the
// single proportion", Statistics in Medicine 17 (1998).
func TestNewRate(t *testing.T) {
	for _, c := range []struct {
		count, runs int
		low, high   float64
	}{
		{81, 263, 0.2553, 0.3662},
		{15, 148, 0.0624, 0.1605},
		{0, 20, 0, 0.1611},
		{1, 29, 0.0061, 0.1718},
		{20, 20, 0.8389, 1}, // the mirror image of none
		{1, 1, 0.2065, 1},
	} {
		r := report.NewRate(c.count, c.runs)
		if r.Runs != c.runs || r.Count != c.count || math.Abs(r.Low-c.low) > 0.00005 || math.Abs(r.High-c.high) > 0.00005 {
			t.Errorf("%d of %d: %+v, want %.4f to %.4f", c.count, c.runs, r, c.low, c.high)
		}
	}
}

// A race that showed in 19 of 20 runs may show as seldom as three times in four.
func ExampleNewRate() {
	rate := report.NewRate(19, 20)
	fmt.Printf("%d of %d, 95%% interval: %.0f to %.0f%%\n", rate.Count, rate.Runs, rate.Low*100, rate.High*100)
	// Output:
	// 19 of 20, 95% interval: 76 to 99%
}
