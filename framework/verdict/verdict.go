package verdict

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
	traffic  string   // why there was too little traffic to tell; empty if there was enough
	expected []string // probes that the incident hurts
	hurt     []string // those of them that were hurt after the fault
	others   []string // other probes that were hurt since the baseline
	active   int      // active findings after the fault
	missing  string   // named findings that no detector came to; empty if there are all
	blind    string   // sources that were not read when something was to be found
	loud     string   // why the detectors did not fall quiet where nobody was hurt
	refuses  string   // what the component under test says when it does not start
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
	are := strings.Join(hurt, ", ") + " lost packets"
	switch {
	case o.broken != nil:
		return framework.Unknown, o.broken.Error()
	case o.baseline != "":
		return framework.Vacuous, "the baseline was bad: " + o.baseline
	case o.held != "":
		return framework.Vacuous, "the fault did not take effect: " + o.held
	case o.traffic != "":
		return framework.Unknown, o.traffic
	case len(o.others) > 0:
		return framework.Unknown, "probes lost packets that must not: " + strings.Join(o.others, ", ")
	case len(hurt) > 0 && len(unhurt) > 0:
		return framework.Unknown, fmt.Sprintf("%s lost packets, but %s did not", strings.Join(hurt, ", "), strings.Join(unhurt, ", "))
	case len(hurt) > 0 && (o.missing != "" || o.active == 0) && o.blind != "":
		return framework.Unknown, are + "; whether a detector would have reported why is unknown: " + o.blind
	case len(hurt) > 0 && o.active == 0:
		return framework.Missed, are + ", and no detector reported why"
	case len(hurt) > 0 && o.missing != "":
		return framework.Missed, are + ", and no detector reported " + o.missing
	case len(hurt) > 0:
		return framework.Reproduced, are + ", and detectors reported why"
	case o.active > 0:
		return framework.Unknown, "there is an active finding, but no probe lost packets"
	case o.blind != "" || o.loud != "":
		return framework.Unknown, "no probe lost packets, but " + o.blind + o.loud
	case o.refuses != "":
		return framework.Refused, "the component does not start, and no probe lost packets: " + o.refuses
	}
	return framework.Prevented, "no probe lost packets, and there was no active finding"
}
