package qualify

import (
	"net/netip"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestFailoverRow(t *testing.T) {
	moved := func(delay, gap time.Duration) upgrade.Failover {
		return upgrade.Failover{
			Name: "lost", From: "worker1", To: "worker2", AnsweredMS: (delay - 100*time.Millisecond).Milliseconds(),
			MovedMS: delay.Milliseconds(), Announced: 4, Paths: []upgrade.Path{lossy(20, gap)},
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
			inputs := fine()
			for i, version := range []string{"1.0.0", "1.1.0"}[:len(test.tried)] {
				test.tried[i].Version = version
			}
			inputs.Upgrade.Measures.Failovers = test.tried
			q := Judge(inputs, bounds, again)
			r, _ := each.First(q.Rows, func(r Row) bool { return r.Name == "lost" })
			want := [...]any{test.state, test.from, test.to, test.verdict}
			must.Equal(t, q.Heading(), want, [...]any{r.State, r.From, r.To, q.Verdict})
			must.Contain(t, r.Says, test.says)
		})
	}
}

// The address from which pods' packets arrive outside may not change. The row also answers an incident that does not
// run.
func TestSources(t *testing.T) {
	const path = "source address"
	source := func(address, owner string, packets int) upgrade.Source {
		return upgrade.Source{Probe: "a->b", Address: netip.MustParseAddr(address), Of: owner, Packets: packets}
	}
	node, pod := source("10.0.0.1", upgrade.OfNode, 9000), source("10.1.0.1", upgrade.OfPod, 9000)
	few, many := source("10.1.0.1", upgrade.OfPod, 10), source("10.1.0.1", upgrade.OfPod, 11)
	type phases struct{ resting, during, after, back, backAfter []upgrade.Source }
	one := []upgrade.Source{node}
	for _, test := range []struct {
		name     string
		phases   phases
		verdict  Verdict
		why      string
		incident State
		says     string
	}{
		{"it stays", phases{one, one, one, one, one}, Go, "lost nothing", Fine,
			`flood (water in the rack) is not introduced, by the upgrade's path "source address" (it runs slices): packets arrive from nodes' addresses with 1.0.0, and with 1.1.0`},
		{"another one after the upgrade", phases{one, one, []upgrade.Source{pod}, one, one}, NoGo,
			"after the upgrade 9000 of 10000 packets arrived from another address than at rest: a->b from 10.1.0.1 (the pod's), and at rest from 10.0.0.1 (the node's)", Fails, "flood (water in the rack) is introduced"},
		{"another one of no pod and no node", phases{one, one, []upgrade.Source{source("192.0.2.1", "", 1)}, one, one}, NoGo,
			"a->b from 192.0.2.1, and at rest", Fails, ""},
		{"another one besides", phases{one, one, []upgrade.Source{node, pod}, one, one}, NoGo, "after the upgrade 9000 of", Fails, ""},
		{"another one after the rollback", phases{one, one, one, one, []upgrade.Source{pod}}, NoGo, "after the rollback 9000 of", Fails, ""},
		{"another one for a moment", phases{one, []upgrade.Source{node, few}, one, one, one}, Go, "warnings: 1", Fine, ""},
		{"another one for too long", phases{one, []upgrade.Source{node, many}, one, one, one}, NoGo, "during the upgrade 11 of 10000 packets arrived", Fails, ""},
		{"another one for too long on the rollback", phases{one, one, one, []upgrade.Source{many}, one}, NoGo, "during the rollback 11 of 10000 packets arrived", Fails, ""},
		{"not known at rest", phases{nil, one, one, one, one}, Unknown, "from which addresses packets arrive at rest is not known", NotJudged, ""},
		{"not known after it", phases{one, one, nil, one, one}, Unknown, "is not judged", NotJudged, ""},
		{"the path is not measured", phases{}, Go, "lost nothing", NotLookedAt, "is not checked: it runs slices"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inputs := fine()
			inputs.Incidents[0].NotAsked, inputs.Incidents[0].AnsweredBy = "it runs slices", path
			m := inputs.Upgrade.Measures
			for phase, seen := range map[*upgrade.Phase][]upgrade.Source{
				&m.Resting: test.phases.resting, &m.Upgrade.During: test.phases.during, &m.Upgrade.After: test.phases.after,
				&m.Back.During: test.phases.back, &m.Back.After: test.phases.backAfter,
			} {
				p := clean()
				p.Name, p.Sources = path, seen
				phase.Paths = append(phase.Paths, p)
			}
			q := Judge(inputs, bounds, again)
			must.Equal(t, q.Why, test.verdict, q.Verdict)
			must.Contain(t, q.Why, test.why)
			r, _ := each.First(q.Rows, func(r Row) bool { return r.Part == PartIncident })
			must.Equal(t, r.Says, test.incident, r.State)
			must.Contain(t, r.Says, test.says)
		})
	}
}
