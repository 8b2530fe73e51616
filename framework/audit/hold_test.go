package audit

import (
	"net/netip"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
)

func twinOf(state detect.State, routers ...string) detect.Finding {
	return detect.Finding{Detector: "route-ownership", Kind: detect.TwinRange, State: state, Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")), Owner: "a", Announcer: "b", Routers: routers}
}

// A router that has a finding in one of two reads alone is not hidden by a suppression of the other.
func TestRoutersOfOneRead(t *testing.T) {
	for _, state := range []detect.State{detect.Active, detect.Latent} {
		for _, both := range [][2][]string{{{"tor1", "tor2"}, {"tor1"}}, {{"tor1"}, {"tor1", "tor2"}}} {
			var r Result
			r.add([]detect.Finding{twinOf(state, both[0]...)}, []detect.Finding{twinOf(state, both[1]...)}, nil)
			r.Suppress([]Suppression{{ID: id(twinOf(state)), Routers: []string{"tor1"}, Active: true, Reason: "r", Expires: "2027-01-31"}}, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))
			if r.Outcome() == Nothing {
				t.Errorf("%s %v: nothing", state, both)
			}
		}
	}
}
