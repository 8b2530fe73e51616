package history

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// named is a detector that finds what a snapshot's Nodes are called.
type named struct{}

func (named) Name() string             { return "named" }
func (named) Reads() []snapshot.Source { return []snapshot.Source{snapshot.Nodes} }
func (named) Detect(h []snapshot.Snapshot, _ *detect.Index) []detect.Finding {
	var all []detect.Finding
	for _, n := range h[len(h)-1].Nodes.Items {
		all = append(all, detect.Finding{Detector: "named", Kind: "seen", State: detect.Active, Object: detect.Named(n.Name)})
	}
	return all
}

// write makes a history of two polls, with a mark after the first.
func write(t *testing.T, dir string) *History {
	t.Helper()
	h := &History{}
	h.Create(dir, time.Now(), Begin{Scenario: "fake", Variant: "old"})
	d := &Detection{Detectors: []detect.Detector{named{}}, Every: time.Second}
	poll := func(node string) View {
		s := snapshot.Snapshot{Time: time.Now(), Sources: []snapshot.Asked{{Name: snapshot.Nodes.String()}}, Nodes: snapshot.List[snapshot.Node]{Read: true, Items: []snapshot.Node{{Name: node}}}}
		h.AddPoll(s, d.Poll(s, time.Now()))
		return h.View()
	}
	h.BeginStep(framework.StepObserve)
	saw := poll("a")
	poll("b")
	h.MarkPolls(Mark{Moment: NoFindings}, saw)
	h.Do(Apply, "", func(a *Act) { a.Err = errors.New("it is broken") })
	h.EndStep(framework.StepObserve, errors.New("no step"), true)
	must.NoError(t, h.Close())
	return h
}

// A history that was read gives the same answers as when it was written.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	written := write(t, dir)
	read, others, err := Read(dir, &Detection{Detectors: []detect.Detector{named{}}, Every: time.Second})
	must.NoError(t, err)
	for name, h := range map[string]*History{"written": written, "read": read} {
		s, ended := h.Step(framework.StepObserve)
		if !ended || s.Error != "no step" || !s.Interrupted || s.Panicked {
			t.Errorf("%s: %+v, ended %v", name, s, ended)
		}
		if a, _, there := s.Act(Apply, ""); !there || a.Error != "it is broken" {
			t.Errorf("%s: %+v", name, a)
		}
		// The wait had not seen the second poll when it ended, although it was there.
		at, _, marked := s.At(NoFindings, "")
		if found := at.Findings(); !marked || len(found) != 1 || found[0].Object != detect.Named("a") {
			t.Errorf("%s: %v, marked %v", name, found, marked)
		}
		if seen := h.View().Seen(time.Time{}); len(seen) != 2 {
			t.Errorf("%s: %v", name, seen)
		}
	}
	if begin := read.Begin(); begin.Scenario != "fake" || begin.Schema != Schema || others.All != 2 || others.Differ != 0 {
		t.Errorf("%+v, %+v", begin, others)
	}
	_, others, err = Read(dir, &Detection{Every: time.Second})
	if err != nil || others.Differ != 2 || others.Number != 1 || len(others.Then) != 1 || len(others.Now) != 0 {
		t.Errorf("without detectors: %+v, %v", others, err)
	}
}

// The file of a killed run lacks its end; its beginning is read.
func TestReadAfterACrash(t *testing.T) {
	dir := t.TempDir()
	write(t, dir)
	path := filepath.Join(dir, FileName)
	whole := must.Read(t, path)
	must.NoError(t, os.WriteFile(path, whole[:len(whole)*3/4], 0o644))
	h, _, err := Read(dir, &Detection{Every: time.Second})
	must.NoError(t, err)
	if _, ended := h.Step(framework.StepObserve); ended {
		t.Error("the step has ended, although its end was cut off")
	}
}

// A record of an older relapse is refused in one sentence.
func TestOtherSchema(t *testing.T) {
	dir := t.TempDir()
	encoder, err := zstd.NewWriter(nil)
	must.NoError(t, err)
	old := encoder.EncodeAll([]byte(`{"at":"2026-01-02T03:04:05Z","begin":{"schema":"relapse.record/v2"}}`+"\n"), nil)
	must.NoError(t, os.WriteFile(filepath.Join(dir, FileName), old, 0o644))
	_, err = ReadBegin(dir)
	var other *OtherSchemaError
	if !errors.As(err, &other) || other.Schema != "relapse.record/v2" {
		t.Errorf("%v", err)
	}
}

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
		must.Equal(t, c.name, c.counts, len(s.filter([]detect.Finding{c.Finding})) == 1)
	}
}

// A detection does not grow with the connections of a lab: it keeps flows for as far back as
// detectors look, and after its end the flows of the last snapshot alone.
func TestDetectionForgetsFlows(t *testing.T) {
	d := Detection{Every: 200 * time.Millisecond}
	flows := func() (n int) {
		for _, s := range d.snapshots[:cap(d.snapshots)] {
			for _, nat := range s.NAT {
				n += len(nat.Flows.Items)
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
