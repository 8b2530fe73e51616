package scenarios

import (
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// asksSnapshot tells whether a check asks for a snapshot before it asks for
// anything that only a lab has.
func asksSnapshot(t *testing.T, lab topology.Topology, c framework.Check) (asked bool) {
	defer func() { _ = recover() }() // it wanted the lab
	_, _, _ = c.Holds(t.Context(), &framework.Run{
		Topology: lab,
		Snapshot: func() snapshot.Snapshot { asked = true; return snapshot.Snapshot{} },
		Findings: func() []detect.Finding { return nil },
		Timelines: func() []probe.Timeline {
			return []probe.Timeline{{Record: probe.Record{Probe: probe.Probe{From: "node1", To: "node2"}}}}
		},
		Evidence: func(string, any) {},
		Note:     func(string) {},
	})
	return asked
}

// A check that looks at snapshots must name its sources: they are not read
// otherwise in a variant whose detectors do not need them.
func TestChecksSayWhatTheyRead(t *testing.T) {
	found := 0
	for _, s := range All {
		for _, v := range s.Variants {
			for _, c := range v.Script().Checks() {
				switch asked := asksSnapshot(t, s.Topology, c); {
				case asked && len(c.Reads) == 0:
					t.Errorf("%s, %s: the check %q asks for a snapshot, and says of no source that it reads it", s.Incident.Name, v.Name, c.Name)
				case asked:
					found++
				}
			}
		}
	}
	must.Equal(t, "checks that ask for a snapshot", true, found > 0)
}
