package qualify

import (
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// A failover that takes longer with the new version than with the old one is a NO-GO, and so is one
// that only the old one does.
func TestFailoverRow(t *testing.T) {
	moved := func(after, gap time.Duration) upgrade.Failover {
		return upgrade.Failover{
			Name: "lost", From: "worker1", To: "worker2", AnsweredMS: (after - 100*time.Millisecond).Milliseconds(),
			MovedMS: after.Milliseconds(), Announced: 4, Paths: []upgrade.Path{lossy(20, gap)},
		}
	}
	leased := func(gap time.Duration) upgrade.Failover {
		f := moved(2*time.Second, gap)
		f.ChanceMS = 6000
		return f
	}
	stays := upgrade.Failover{Name: "lost", From: "worker1", NotBack: true, Paths: []upgrade.Path{lossy(900, time.Minute)}}
	for _, test := range []struct {
		name     string
		tried    []upgrade.Failover
		state    State
		verdict  Verdict
		from, to string
		says     string
	}{
		{"as before", []upgrade.Failover{moved(2*time.Second, 3*time.Second), moved(3*time.Second, 4*time.Second)}, Fine, Go,
			"worker2 in 2s, gap 3s", "worker2 in 3s, gap 4s",
			"with 1.0.0 worker2 answers in place of worker1 after 1.9s, with 4 gratuitous ARP, and the router's entry is wrong for 100ms longer"},
		{"longer", []upgrade.Failover{moved(2*time.Second, 3*time.Second), moved(6*time.Second, 9*time.Second)}, Fails, NoGo,
			"worker2 in 2s, gap 3s", "worker2 in 6s, gap 9s", "allowed: 1s more than with the old version"},
		{"longer, by chance", []upgrade.Failover{leased(3 * time.Second), leased(9 * time.Second)}, Warning, Go,
			"worker2 in 2s, gap 3s", "worker2 in 2s, gap 9s", "6s more than with the old version may be chance"},
		{"longer than chance", []upgrade.Failover{leased(3 * time.Second), leased(11 * time.Second)}, Fails, NoGo,
			"worker2 in 2s, gap 3s", "worker2 in 2s, gap 11s", "allowed: 7s more than with the old version"},
		{"not any more", []upgrade.Failover{moved(2*time.Second, 3*time.Second), stays}, Fails, NoGo,
			"worker2 in 2s, gap 3s", "stays on worker1, gap 1m0s", "with 1.1.0 the router goes on sending to worker1"},
		{"with neither", []upgrade.Failover{stays, stays}, Warning, Go, "stays on worker1, gap 1m0s", "stays on worker1, gap 1m0s", "not every path is clean"},
		{"not done", []upgrade.Failover{moved(2*time.Second, 3*time.Second), {Name: "lost", NotDone: "broken", NotBack: true}}, NotJudged, Unknown,
			"worker2 in 2s, gap 3s", "not done", "with 1.1.0 it was not done: broken"},
		{"not tried with both", []upgrade.Failover{moved(2*time.Second, 3*time.Second)}, NotJudged, Unknown, "worker2 in 2s, gap 3s", "", "not tried"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := fine()
			for i, version := range []string{"1.0.0", "1.1.0"}[:len(test.tried)] {
				test.tried[i].Version = version
			}
			in.Upgrade.Measures.Failovers = test.tried
			q := Judge(in, bounds, again)
			r, _ := each.First(q.Rows, func(r Row) bool { return r.Name == "lost" })
			want := [...]any{test.state, test.from, test.to, test.verdict}
			must.Equal(t, q.Heading(), want, [...]any{r.State, r.From, r.To, q.Verdict})
			must.Contain(t, r.Says, test.says)
		})
	}
}
