package history

import (
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Detection runs detectors on one snapshot after the other.
type Detection struct {
	Detectors []detect.Detector
	Every     time.Duration // from one snapshot to the next
	Scope     Scope
	// KeepRouters has each poll keep what the routers said, for measures of what changed
	// on them. Else polls hold findings alone, which take little memory.
	KeepRouters bool

	snapshots []snapshot.Snapshot
}

// Scope is the part of a lab that belongs to a variant: all but the nodes of Others.
type Scope struct{ Own, Others []string }

// of returns the findings that name no node of another variant, or one of its own as well.
func (s Scope) of(findings []detect.Finding) []detect.Finding {
	return slices.DeleteFunc(findings, func(f detect.Finding) bool {
		names := func(nodes []string) bool {
			named := []string{f.Object.String(), f.Owner, f.Announcer}
			return slices.ContainsFunc(named, func(n string) bool { return slices.Contains(nodes, n) })
		}
		return names(s.Others) && !names(s.Own)
	})
}

// Poll runs the detectors on the next snapshot, which was complete at ended.
func (d *Detection) Poll(now snapshot.Snapshot, ended time.Time) Poll {
	d.snapshots = append(d.snapshots, now)
	d.snapshots = slices.Delete(d.snapshots, 0, max(0, len(d.snapshots)-int(detect.History/d.Every)))
	detect.Forget(d.snapshots) // else two nodes with 2,400 flows each take a hundred MB
	p := Poll{Began: now.Time, Ended: ended, Unavailable: now.Unavailable(), Findings: d.Scope.of(detect.Run(d.Detectors, d.snapshots))}
	if d.KeepRouters {
		p.Routers = now.Routers
	}
	return p
}

// Last is the newest snapshot; empty before the first.
func (d *Detection) Last() snapshot.Snapshot {
	if len(d.snapshots) == 0 {
		return snapshot.Snapshot{}
	}
	return d.snapshots[len(d.snapshots)-1]
}

// End forgets all snapshots but the newest.
func (d *Detection) End() { d.snapshots = slices.Delete(d.snapshots, 0, max(0, len(d.snapshots)-1)) }
