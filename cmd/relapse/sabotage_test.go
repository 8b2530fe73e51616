package main

import (
	"context"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
)

// Variables that change the scenarios of that program, each set to 1.
const (
	// withoutRemedies leaves precursors and remedies out, which take the time of several runs.
	withoutRemedies = "RELAPSE_TEST_WITHOUT_REMEDIES"
	// guestMemory leaves a guest of ipvs-deadlock without memory, right before the fault.
	guestMemory = "RELAPSE_TEST_GUEST_MEMORY"
)

// changeScripts changes each script of variants after it was made.
func changeScripts(variants []framework.Variant, change func(*framework.Script)) {
	for i, v := range variants {
		variants[i].Script = func() framework.Script {
			made := v.Script()
			change(&made)
			return made
		}
	}
}

func leaveRemediesOut(s *framework.Script) { s.Precursors, s.Remedies = nil, nil }

// takeGuestMemory makes the fault fill a guest's memory: what is in a tmpfs, no kernel
// can take back.
func takeGuestMemory(s *framework.Script) {
	inject := s.Fault.Inject
	s.Fault.Inject = func(ctx context.Context, r *framework.Run) error {
		_, err := labaccess.Lab(r).Node("edge3").Exec(ctx, "sh", "-c",
			"mkdir -p /filler && mount -t tmpfs -o size=100% tmpfs /filler && (cat /dev/zero >/filler/x &) >/dev/null 2>&1")
		if err != nil {
			return err
		}
		return inject(ctx, r)
	}
}
