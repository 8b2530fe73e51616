package report_test

import (
	"fmt"

	"github.com/relapse-dev/relapse/framework/report"
)

// A race that showed in 19 of 20 runs may show as seldom as three times in four.
func ExampleNewRate() {
	rate := report.NewRate(19, 20)
	fmt.Printf("%d of %d, 95%% interval: %.0f to %.0f%%\n", rate.Count, rate.Runs, rate.Low*100, rate.High*100)
	// Output:
	// 19 of 20, 95% interval: 76 to 99%
}
