package upgrade_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/must"
)

// opens reports whether each packet opens a connection or a flow, which connection tracking puts into state NEW.
func opens(p probe.Probe) bool { return p.Protocol == probe.TCP || p.Protocol == probe.UDPFlow }

func judged(m *upgrade.Measures) qualify.Qualification {
	return qualify.Judge(qualify.Inputs{
		Component: upgrade.FakeComponent, From: "1", To: "2", Upgrade: qualify.Upgrade{Measures: m},
		Configuration: qualify.Configuration{NotAsked: "none was given"},
	}, qualify.Thresholds{MaxGapMS: 1000, MaxLost: 0.001}, "again")
}

// A rule that refuses state NEW on one kind of path alone is a NO-GO, although each open flow goes on.
func TestRefusedNewConnections(t *testing.T) {
	isPod := func(name string) bool { return name != "outside" && !strings.Contains(name, " ") }
	for _, test := range []struct {
		name    string
		refuses func(probe.Probe) bool
		verdict qualify.Verdict
	}{
		{"nothing", func(probe.Probe) bool { return false }, qualify.Go},
		{"everywhere", func(probe.Probe) bool { return true }, qualify.NoGo},
		{"outside to pod", func(p probe.Probe) bool { return p.From == "outside" && isPod(p.To) }, qualify.NoGo},
		{"pod to outside", func(p probe.Probe) bool { return p.To == "outside" }, qualify.NoGo},
		{"pod to pod, same node", func(p probe.Probe) bool { return p.To == "beside" }, qualify.NoGo},
		{"pod to pod, other node", func(p probe.Probe) bool { return isPod(p.From) && isPod(p.To) && p.To != "beside" }, qualify.NoGo},
		{"UDP to one pod", func(p probe.Probe) bool { return p.To == "beside" && p.Protocol == probe.UDPFlow }, qualify.NoGo},
		{"UDP to the cluster IP", func(p probe.Probe) bool { return p.To == "cluster IP" && p.Protocol == probe.UDPFlow }, qualify.NoGo},
		{"UDP to the node port", func(p probe.Probe) bool { return strings.HasPrefix(p.To, "node port") && p.Protocol == probe.UDPFlow }, qualify.NoGo},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				m := upgrade.FakeTrip(t, filepath.Join(dir, qualify.PartUpgrade), func(p probe.Probe) bool { return opens(p) && test.refuses(p) })
				q := judged(&m)
				must.Equal(t, q.Heading(), test.verdict, q.Verdict)
				must.NoError(t, q.Write(dir))
				then, now, err := qualify.Rejudge(dir)
				must.NoError(t, err)
				must.Equal(t, "of the record", test.verdict, then.Verdict)
				must.Equal(t, "of the record", then.Rows, now.Rows)
			})
		})
	}
}

// A killed run's record is a GO only if it has everything that decides.
func TestRecordThatEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		record := filepath.Join(dir, qualify.PartUpgrade)
		m := upgrade.FakeTrip(t, record, func(probe.Probe) bool { return false })
		must.NoError(t, judged(&m).Write(dir))
		path := filepath.Join(record, history.FileName)
		whole := must.Read(t, path)
		early := 0
		for part := 1; part < 20; part++ {
			must.NoError(t, os.WriteFile(path, whole[:len(whole)*part/20], 0o644))
			_, now, err := qualify.Rejudge(dir)
			must.NoError(t, err)
			got := now.Inputs.Upgrade.Measures
			complete := got.Back != nil && got.Back.After.Ended.Equal(m.Back.After.Ended)
			if !complete {
				early++
			}
			must.Equal(t, fmt.Sprintf("%d/20: %s", part, now.Heading()), complete, now.Verdict == qualify.Go)
		}
		must.Equal(t, "ten of 19 records end before the end of the watch", true, early >= 10)
	})
}
