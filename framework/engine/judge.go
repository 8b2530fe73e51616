package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework"
)

// observation is what a verdict is made of.
type observation struct {
	broken   error    // the run broke before it could be judged
	baseline string   // why the baseline was bad; empty if it was good
	held     string   // why the fault did not take hold; empty if it did
	expected []string // probes that the incident hurts
	hurt     []string // probes that were hurt, of those that are judged
	active   int      // findings of something broken, after the fault
}

// judge turns what was seen into a verdict, and says why.
func judge(o observation) (framework.Verdict, string) {
	var hurt, unhurt []string
	for _, name := range o.expected {
		if slices.Contains(o.hurt, name) {
			hurt = append(hurt, name)
		} else {
			unhurt = append(unhurt, name)
		}
	}
	switch {
	case o.broken != nil:
		return framework.Unknown, o.broken.Error()
	case o.baseline != "":
		return framework.Vacuous, "the baseline was bad: " + o.baseline
	case o.held != "":
		return framework.Vacuous, "the fault never took hold: " + o.held
	case len(o.hurt) > len(hurt):
		return framework.Unknown, fmt.Sprintf("the fault hurt probes that it should not: %s", strings.Join(o.hurt, ", "))
	case len(hurt) > 0 && len(unhurt) > 0:
		return framework.Unknown, fmt.Sprintf("the fault hurt %s, but not %s", strings.Join(hurt, ", "), strings.Join(unhurt, ", "))
	case len(hurt) > 0 && o.active == 0:
		return framework.Missed, fmt.Sprintf("%s were hurt, and no detector said why", strings.Join(hurt, ", "))
	case len(hurt) > 0:
		return framework.Reproduced, fmt.Sprintf("%s were hurt, and detectors said why", strings.Join(hurt, ", "))
	case o.active > 0:
		return framework.Unknown, "detectors raised an alarm, but no probe was hurt"
	}
	return framework.Prevented, "no probe was hurt, and no detector raised an alarm"
}
