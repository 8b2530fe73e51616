package verdict

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/each"
)

type observation struct {
	broken      error    // why the run broke before it could be judged
	baseline    string   // why the baseline was bad; empty if it was good
	noEffect    string   // why the fault did not take effect; empty if it did
	traffic     string   // why there was too little traffic; empty if there was enough
	images      string   // why the pods may not run the images that were built; empty if they do
	expected    []string // probes that lose packets in the incident
	impacted    []string // the impacted probes that lost packets after the fault
	unaffected  []string // probes that lost packets and must not
	active      int      // active findings after the fault
	missing     string   // expected findings that were not reported; empty if all were
	unavailable string   // sources that were unavailable when findings were expected
	stillActive string   // why there was no time without active findings, if no probe lost packets
	refuses     string   // the component's message if it does not start
}

func judge(o observation) (framework.Verdict, string) {
	impacted := each.Where(o.expected, func(name string) bool { return slices.Contains(o.impacted, name) })
	notImpacted := each.Where(o.expected, func(name string) bool { return !slices.Contains(o.impacted, name) })
	lost := strings.Join(impacted, ", ") + " lost packets"
	switch {
	case o.broken != nil:
		return framework.Unknown, o.broken.Error()
	case o.baseline != "":
		return framework.Vacuous, "the baseline was bad: " + o.baseline
	case o.noEffect != "":
		return framework.Vacuous, "the fault did not take effect: " + o.noEffect
	case o.traffic != "":
		return framework.Unknown, o.traffic
	case o.images != "":
		return framework.Unknown, o.images
	case len(o.unaffected) > 0:
		return framework.Unknown, "probes lost packets that must not: " + strings.Join(o.unaffected, ", ")
	case len(impacted) > 0 && len(notImpacted) > 0:
		return framework.Unknown, fmt.Sprintf("%s lost packets, but %s did not",
			strings.Join(impacted, ", "), strings.Join(notImpacted, ", "))
	case len(impacted) > 0 && (o.missing != "" || o.active == 0) && o.unavailable != "":
		return framework.Unknown, lost + "; whether a detector would have reported why is unknown: " + o.unavailable
	case len(impacted) > 0 && o.active == 0:
		return framework.Missed, lost + ", and no detector reported why"
	case len(impacted) > 0 && o.missing != "":
		return framework.Missed, lost + ", and no detector reported " + o.missing
	case len(impacted) > 0:
		return framework.Reproduced, lost + ", and detectors reported why"
	case o.active > 0:
		return framework.Unknown, "there is an active finding, but no probe lost packets"
	case o.unavailable != "" || o.stillActive != "":
		return framework.Unknown, "no probe lost packets, but " + o.unavailable + o.stillActive
	case o.refuses != "":
		return framework.Refused, "the component does not start, and no probe lost packets: " + o.refuses
	}
	return framework.Prevented, "no probe lost packets, and there was no active finding"
}
