package history

import (
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestScope(t *testing.T) {
	s := Scope{Own: []string{"mine"}, Others: []string{"theirs"}}
	for _, c := range []struct {
		name string
		detect.Finding
		counts bool
	}{
		{"announced by a node of another variant", detect.Finding{Object: detect.Named("kube-proxy"), Announcer: "theirs"}, false},
		{"about such a node", detect.Finding{Object: detect.Named("theirs")}, false},
		{"of a node of the variant's own", detect.Finding{Object: detect.Named("x"), Owner: "mine"}, true},
		{"between both", detect.Finding{Object: detect.Named("x"), Owner: "mine", Announcer: "theirs"}, true},
		{"of a node that is nobody's", detect.Finding{Object: detect.Named("x"), Owner: "common"}, true},
		{"of no node", detect.Finding{Object: detect.Named("x")}, true},
	} {
		must.Equal(t, c.name, c.counts, len(s.of([]detect.Finding{c.Finding})) == 1)
	}
}

// A detection does not grow with the connections of a lab: it has flows for as far back as
// detectors look at them, and when it has ended those of the last snapshot alone.
func TestDetectionForgetsFlows(t *testing.T) {
	d := Detection{Every: 200 * time.Millisecond}
	flows := func() (n int) {
		for _, s := range d.snapshots[:cap(d.snapshots)] {
			for _, of := range s.NAT {
				n += len(of.Flows.Items)
			}
		}
		return n
	}
	began := time.Now()
	for i := range 400 {
		at := began.Add(time.Duration(i) * d.Every)
		d.Poll(snapshot.Snapshot{Time: at, NAT: []snapshot.NodeNAT{{
			Node: "node1", Flows: snapshot.List[snapshot.Flow]{Read: true, Items: make([]snapshot.Flow, 1000)},
		}}}, at)
	}
	if n, had := len(d.snapshots), flows(); n < 140 || had > 12*1000 {
		t.Errorf("%d snapshots with %d flows", n, had)
	}
	d.End()
	if last := d.Last(); len(last.NAT) != 1 || len(last.NAT[0].Flows.Items) != 1000 || flows() != 1000 {
		t.Errorf("after its end it has %d flows, and the last snapshot %+v", flows(), last.NAT)
	}
}

type longest int

func (*longest) Name() string             { return "longest" }
func (*longest) Reads() []snapshot.Source { return nil }
func (l *longest) Detect(h []snapshot.Snapshot, _ *detect.Index) []detect.Finding {
	*l = max(*l, longest(len(h)))
	return nil
}

func TestDetectorsSeeABoundedPast(t *testing.T) {
	var l longest
	d := Detection{Detectors: []detect.Detector{&l}, Every: 200 * time.Millisecond}
	want := int(detect.History / d.Every)
	for range 2 * want {
		d.Poll(snapshot.Snapshot{}, time.Time{})
	}
	if int(l) != want {
		t.Errorf("%d snapshots, want %d: %s of them", l, want, detect.History)
	}
}
