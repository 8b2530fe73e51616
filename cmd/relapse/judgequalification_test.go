package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/must"
)

// A qualification is judged again by the record of its upgrade. That a whole record gives
// the verdict again is tested in package upgrade.
func TestJudgeQualification(t *testing.T) {
	// store stores a qualification whose upgrade was interrupted before it began.
	store := func(change func(*qualify.Qualification)) string {
		dir := t.TempDir()
		record := filepath.Join(dir, qualify.PartUpgrade)
		var h history.History
		h.Create(record, time.Now(), history.Begin{
			Variant: "kube-router 1.5.1 to 2.1.0", Versions: map[string]string{"kube-router.from": "1.5.1", "kube-router.to": "2.1.0"},
		})
		must.NoError(t, h.Close())
		u := must.Get(upgrade.Of("kube-router", "1.5.1", "2.1.0", upgrade.Settings{}))(t)
		m := must.Get(upgrade.Stored(record, u, "1.5.1", "2.1.0"))(t)
		q := qualify.Judge(qualify.Inputs{
			Component: "kube-router", From: "1.5.1", To: "2.1.0", Configuration: qualify.Configuration{NotAsked: "none was given"},
			Upgrade: qualify.Upgrade{Measures: &m},
		}, qualify.Thresholds{MaxGapMS: 1000}, "again")
		change(&q)
		must.NoError(t, q.Write(dir))
		return dir
	}
	same := store(func(*qualify.Qualification) {})
	changed := store(func(q *qualify.Qualification) { q.Verdict, q.Rows[len(q.Rows)-1].State = qualify.Go, qualify.Fine })
	none, other := store(func(*qualify.Qualification) {}), store(func(q *qualify.Qualification) { q.Inputs.To = "2.1.1" })
	must.NoError(t, os.Remove(filepath.Join(none, qualify.PartUpgrade, history.FileName)))
	for _, test := range []use{
		{"as stored", []string{same}, 0,
			"qualify kube-router 1.5.1 to 2.1.0: stored UNKNOWN, judged now UNKNOWN\nthe verdict and all rows are as stored"},
		{"another verdict", []string{changed}, exitUnexpected,
			"stored GO, judged now UNKNOWN\n  upgrade, rollout: stored ok, judged now UNKNOWN: the upgrade did not run"},
		{"no record", []string{none}, exitInconclusive, "reading the record of the upgrade"},
		{"the record of another upgrade", []string{other}, exitUsage, "is of kube-router 1.5.1 to 2.1.0, not of kube-router 1.5.1 to 2.1.1"},
	} {
		test.run(t, "judge")
	}
}
