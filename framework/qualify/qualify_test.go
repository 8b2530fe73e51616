package qualify

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/onsi/ginkgo/v2/reporters"

	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/report/schema"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// bounds are the command's default thresholds.
var bounds = Thresholds{MaxGapMS: 1000, MaxLost: 0.001}

const again = "relapse qualify c 1.0.0 1.1.0"

var begun = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// clean is a path on which nothing was lost.
func clean() upgrade.Path {
	return upgrade.Path{Name: "pod to pod", Probes: []string{"a->b", "b->a"}, Due: 10000, Sent: 10000, Answered: 10000}
}

// lossy is the same path with some packets lost, and a gap.
func lossy(lost int, gap time.Duration) upgrade.Path {
	p := clean()
	p.Answered, p.Lost, p.LongestGapMS, p.GapProbe = p.Answered-lost, lost, gap.Milliseconds(), "a->b"
	p.LongestSilenceMS, p.SilenceProbe = p.LongestGapMS, p.GapProbe
	return p
}

// restarting is the same path in the restart in the middle, with some packets lost.
func restarting(lost int) upgrade.Path {
	p := lossy(lost, 0)
	p.Due, p.Sent, p.Answered = 1000, 1000, 1000-lost
	p.Each = []upgrade.ProbeCount{{Probe: p.Name, Due: p.Due, Answered: p.Answered, Lost: lost}}
	return p
}

func phase(paths ...upgrade.Path) upgrade.Phase {
	return upgrade.Phase{
		Began: begun, Ended: begun.Add(50 * time.Second), Paths: paths,
		Routers: []upgrade.Router{{Name: "tor", Polls: 100, Due: 100}},
	}
}

func harmless() *upgrade.Measures {
	rollout := func(from, to string) *upgrade.Rollout {
		restarted := upgrade.Path{Name: "pod to pod", Probes: []string{"a->b", "b->a"}, Each: []upgrade.ProbeCount{
			{Probe: "a->b", Due: 500, Answered: 500}, {Probe: "b->a", Due: 500, Answered: 500},
		}}
		return &upgrade.Rollout{
			From: from, To: to, Nodes: []upgrade.NodeStep{{Node: "node1"}, {Node: "node2"}}, During: phase(clean()), After: phase(clean()),
			Restart: &upgrade.Restart{Node: "node2", Began: begun, Ready: begun.Add(9 * time.Second), Phase: phase(restarted)},
		}
	}
	return &upgrade.Measures{
		Component: "c", Form: "whole", Topology: "t", Resting: phase(clean()),
		Upgrade: rollout("1.0.0", "1.1.0"), Back: rollout("1.1.0", "1.0.0"), Left: []upgrade.Difference{},
	}
}

// incident is an incident with its verdicts at both versions. A version with an empty verdict was not judged.
func incident(from, to string) Incident {
	seen := func(verdict string) Seen {
		switch verdict {
		case "":
			return Seen{Outcome: bisect.Skipped, Why: "not published"}
		case "unknown":
			return Seen{Outcome: bisect.Skipped, Verdict: verdict, Why: "the run broke"}
		case "reproduced", "missed":
			return Seen{Outcome: bisect.Affected, Verdict: verdict, Why: "a->b was hurt"}
		}
		return Seen{Outcome: bisect.Unaffected, Verdict: verdict, Why: "no packet was lost"}
	}
	return Incident{
		Name: "flood", Title: "water in the rack", Form: "whole", From: seen(from), To: seen(to),
		Remedies: []string{"close the valve", "a towel does not help"}, Issue: "https://example.com/1", Command: "relapse run flood --with c=1.1.0",
	}
}

func fine() Inputs {
	return Inputs{
		Component: "c", From: "1.0.0", To: "1.1.0", Incidents: []Incident{incident("prevented", "prevented")},
		Configuration: Configuration{NotAsked: "none was given"}, Upgrade: Upgrade{Measures: harmless()},
	}
}

// An upgrade under two settings has a verdict only if it is the same under both.
func TestOtherwise(t *testing.T) {
	lost := harmless()
	lost.Upgrade.During.Paths[0].Lost, lost.Upgrade.During.Paths[0].LongestGapMS = lost.Upgrade.During.Paths[0].Due/2, 5000
	for _, tt := range []struct {
		first, second *upgrade.Measures
		verdict       Verdict
		begins        string
	}{
		{harmless(), harmless(), Go, "GO: without it, and with it alike: "},
		{lost, harmless(), Unknown, "UNKNOWN: GO with it: "},
		{harmless(), lost, Unknown, "UNKNOWN: NO-GO with it: "},
		{lost, lost, NoGo, "NO-GO: without it, and with it alike: "},
	} {
		q := Judge(Inputs{
			Component: "c", From: "1.0.0", To: "1.1.0", Under: "without it", Upgrade: Upgrade{Measures: tt.first},
			Otherwise: &Otherwise{"with it", Upgrade{Measures: tt.second}},
		}, bounds, again)
		must.Equal(t, q.Heading(), tt.verdict, q.Verdict)
		must.Contain(t, "begins "+q.Heading(), "begins "+tt.begins)
		second := each.Where(q.Rows, func(r Row) bool { return strings.HasPrefix(r.Name, "with it: ") })
		must.Equal(t, "three rows are of the second upgrade", true, len(second) >= 3)
	}
}

func TestJudge(t *testing.T) {
	type measures = *upgrade.Measures
	incidents := func(from, to string) func(*Inputs) {
		return func(inputs *Inputs) { inputs.Incidents = []Incident{incident(from, to)} }
	}
	ofUpgrade := func(to string) func(*Inputs) {
		return func(inputs *Inputs) {
			i := incident("", to)
			i.OfUpgrade, i.From = true, Seen{}
			inputs.Incidents = []Incident{i}
		}
	}
	configured := func(c Configuration) func(*Inputs) {
		return func(inputs *Inputs) {
			c.Source, c.ConfigMap, c.Keys = "-", "kube-system/c", 2
			inputs.Configuration = c
		}
	}
	drifted := func(kind configdrift.Kind, before, after, refused string) func(*Inputs) {
		d := configdrift.Drift{Key: "k", Kind: kind, Before: before, After: after, Says: "x."}
		return configured(Configuration{RefusedTo: refused, Drifts: []configdrift.Drift{d}})
	}
	traffic := func(change func(measures)) func(*Inputs) {
		return func(inputs *Inputs) { change(inputs.Upgrade.Measures) }
	}
	eachPhase := func(change func(*upgrade.Phase)) func(*Inputs) {
		return traffic(func(m measures) {
			for _, p := range []*upgrade.Phase{&m.Resting, &m.Upgrade.During, &m.Upgrade.After, &m.Back.During, &m.Back.After} {
				change(p)
			}
		})
	}
	notBack := func(r *upgrade.Restart) { r.Ready, r.NotBack = time.Time{}, "no session" }
	on := func(p upgrade.Path) []upgrade.Path { return []upgrade.Path{p} }
	during := func(p upgrade.Path) func(*Inputs) {
		return traffic(func(m measures) { m.Upgrade.During.Paths = on(p) })
	}
	afterwards := func(p upgrade.Path) func(*Inputs) { return traffic(func(m measures) { m.Upgrade.After.Paths = on(p) }) }
	atRest := func(p upgrade.Path, then func(*Inputs)) func(*Inputs) {
		return func(inputs *Inputs) { inputs.Upgrade.Measures.Resting.Paths = on(p); then(inputs) }
	}
	const atOnce = "upgrade, rollback at once"
	undone := func(p upgrade.Path, notDone string) func(*Inputs) {
		return traffic(func(m measures) { m.Undone = &upgrade.Undone{Node: "node2", NotDone: notDone, Phase: phase(p)} })
	}
	// restarted sets the path in the restart in the middle, with counts of its probes, and in the whole upgrade.
	restarted := func(p, during upgrade.Path, each ...upgrade.ProbeCount) func(*Inputs) {
		return traffic(func(m measures) {
			if each != nil {
				p.Each = each
			}
			m.Upgrade.Restart.Phase.Paths, m.Upgrade.During.Paths = on(p), on(during)
		})
	}
	// silent is a path without known outcomes for some time, and few a path with few packets.
	silent := func(ms int64) upgrade.Path {
		p := clean()
		p.Sent, p.Answered, p.LongestSilenceMS, p.SilenceProbe = 9400, 9400, ms, "a->b"
		return p
	}
	few := func(due, lost int, gap time.Duration) upgrade.Path {
		p := lossy(lost, gap)
		p.Due, p.Sent, p.Answered = due, due, due-lost
		return p
	}
	// unserved is an upgrade from a version that answers nothing.
	unserved := func(upgradePath, back upgrade.Path) func(*Inputs) {
		return atRest(lossy(10000, 50*time.Second), traffic(func(m measures) {
			m.Upgrade.During.Paths, m.Upgrade.After.Paths = on(lossy(9000, 40*time.Second)), on(upgradePath)
			m.Upgrade.Restart.Phase.Paths = on(restarting(1000))
			m.Back.During.Paths, m.Back.After.Paths = on(lossy(5000, 20*time.Second)), on(back)
		}))
	}
	// withCounts sets how many packets were sent, answered and not judged.
	withCounts := func(p upgrade.Path, sent, answered, notJudged int) upgrade.Path {
		p.Sent, p.Answered, p.NotJudged = sent, answered, notJudged
		return p
	}
	const row, restart, untried = "upgrade, pod to pod", "upgrade, restart in the middle", "not judged, without effect on the verdict: 1"
	other := upgrade.ProbeCount{Probe: "b->a", Due: 500, Answered: 500}
	for _, test := range []struct {
		name    string
		change  func(*Inputs)
		verdict Verdict
		why     string // part of the reason
		row     string // the row that says it, and
		state   State  // its state
	}{
		{"nothing is introduced", func(*Inputs) {}, Go, "no incident is introduced (1 never there), traffic on the lab lost nothing in the upgrade and the rollback", "incident, flood", Fine},
		{"an incident is fixed", incidents("reproduced", "prevented"), Go, "1 fixed", "incident, flood", Fine},
		{"an incident is still there", incidents("reproduced", "missed"), Go, "1 still there), traffic on the lab lost nothing in the upgrade and the rollback; warnings: 1", "incident, flood", Warning},
		{"an incident is introduced", incidents("prevented", "reproduced"), NoGo, "flood (water in the rack) is introduced: not affected with 1.0.0, reproduced with 1.1.0", "incident, flood", Fails},
		{"the upgrade is the incident", ofUpgrade("reproduced"), NoGo, "introduced by the upgrade itself", "incident, flood", Fails},
		{"the upgrade is not the incident", ofUpgrade("prevented"), Go, "1 never there", "incident, flood", Fine},
		{"the upgrade was not judged", ofUpgrade(""), Unknown, "flood (water in the rack) is not judged with 1.1.0: not published", "incident, flood", NotJudged},
		{"neither version is judged", incidents("unknown", "unknown"), Unknown, "not judged with 1.1.0: the run broke", "incident, flood", NotJudged},
		{"the old one is not, the new one is affected", incidents("", "reproduced"), Unknown, "it is introduced or still there", "incident, flood", NotJudged},
		{"the old one is not, the new one is not affected", incidents("", "prevented"), Go, "not judged, without effect on the verdict: 1", "incident, flood", NotJudged},
		{"the new one is not, the old one is affected", incidents("reproduced", ""), Go, "not judged, without effect on the verdict: 1", "incident, flood", NotJudged},
		{"the new one is not, the old one is not affected", incidents("prevented", ""), Unknown, "not judged with 1.1.0: not published", "incident, flood", NotJudged},
		{"the new one refuses the incident's configuration", incidents("reproduced", "refused"), Go, "1 fixed", "incident, flood", Warning},

		{"an incident whose script runs with neither", func(inputs *Inputs) { inputs.Incidents[0].NotAsked = "it is built whole" },
			Go, "no incident of the catalogue ran", "incident, flood", NotLookedAt},

		{"it starts with the configuration", configured(Configuration{}), Go, "no key is known with which 1.1.0 does not start", "configuration, kube-system/c", Fine},
		{"it refuses the configuration", drifted(configdrift.Missing, "", configdrift.Refused, "no such key"),
			NoGo, "1.1.0 does not start with kube-system/c: no such key", "configuration, kube-system/c", Fails},
		{"the old one refuses the configuration", configured(Configuration{RefusedFrom: "no such key"}), Go, "", "configuration, kube-system/c", Warning},
		{"a key is not read", drifted(configdrift.NotRead, "true", "false", ""), Go, "warnings: 1", "configuration, k", Warning},
		{"a hint", drifted(configdrift.Deprecated, "true", "true", ""), Go, "", "configuration, k", Fine},
		{"a default changes", drifted(configdrift.DefaultChanged, "1", "2", ""), Go, "warnings: 1", "configuration, defaults", Warning},
		{"a key of another program", drifted(configdrift.Unknown, "", "", ""), Go, "", "configuration, read by neither", NotLookedAt},
		{"the configuration could not be asked about", configured(Configuration{NotAsked: "not built", Decides: true}), Unknown, "parts that decide could not be judged: not built", "configuration, start", NotJudged},

		{"a minor is skipped", func(inputs *Inputs) { inputs.Path.Skipped = []string{"1.0"} }, Go, "", "path, minors", Warning},
		{"there is a newer release", func(inputs *Inputs) { inputs.Path.Newer = []Release{{Version: "1.1.1"}} }, Go, "", "path, releases", Warning},

		{"no upgrade could be tried", func(inputs *Inputs) { inputs.Upgrade = Upgrade{Why: "no lab"} }, Unknown, "the upgrade under traffic: no lab", "upgrade, rollback", NotJudged},
		{"a gap within bounds", during(lossy(10, time.Second)), Go, "a longest gap of 1s (pod to pod)", row, Fine},
		{"a gap that is too long", during(lossy(5, 1001*time.Millisecond)),
			NoGo, "during the upgrade nothing was answered for 1.001s (a->b; allowed: 1s)", row, Fails},
		{"too much is lost", during(lossy(11, 20*time.Millisecond)),
			NoGo, "11 of 10000 packets (0.11%; allowed: 0.1%) were lost", row, Fails},
		{"one packet is lost after it, which may be chance", afterwards(lossy(1, 10*time.Millisecond)),
			Unknown, "after the upgrade 1 of 10000 packets were lost (allowed: 0), which the loss at rest (0 of 10000 packets) may explain", row, NotJudged},
		{"more is lost after it than by chance", afterwards(lossy(10, 10*time.Millisecond)),
			NoGo, "after the upgrade 10 of 10000 packets were lost (allowed: 0)", row, Fails},
		{"a packet is lost at rest, and there is an outage after it", atRest(lossy(1, 0), afterwards(lossy(5000, 500*time.Millisecond))),
			NoGo, "after the upgrade 5000 of 10000 packets were lost", row, Fails},
		{"the lab loses too much at rest, and there is an outage during it",
			atRest(lossy(20, 0), during(lossy(5000, 500*time.Millisecond))), NoGo, "during the upgrade 5000 of 10000 packets", row, Fails},
		{"few packets of a long gap are lost after it", afterwards(few(20, 2, 2*time.Second)),
			NoGo, "after the upgrade 2 of 20 packets were lost", row, Fails},
		{"a packet of few is lost during it, which may be chance", atRest(few(100, 0, 0), during(few(300, 1, 200*time.Millisecond))),
			Unknown, "during the upgrade 1 of 300 packets (0.333%; allowed: 0.1%) were lost, which the loss at rest (0 of 100 packets) may explain", row, NotJudged},
		{"the rest is too short to compare it", atRest(few(100, 0, 0), afterwards(lossy(20, 0))),
			Unknown, "which the loss at rest (0 of 100 packets) may explain", row, NotJudged},
		{"the watch after it ended early", traffic(func(m measures) { m.Back.After.Ended = m.Back.After.Began.Add(time.Second) }),
			Unknown, "after the rollback it was watched for 1s, and at rest for 50s", row, NotJudged},
		{"nothing is known for longer than the gap", during(silent(6000)),
			Unknown, "during the upgrade no answer is known for 6s (a->b; allowed: 1s)", row, NotJudged},
		{"nothing is known for longer than the gap after it", afterwards(silent(1001)),
			Unknown, "after the upgrade no answer is known for 1.001s", row, NotJudged},
		{"connections break after it", traffic(func(m measures) { m.Upgrade.After.Paths[0].Broken = 2 }), NoGo, "long-lived connections that broke after the upgrade: 2", row, Fails},
		{"connections break after it, and at rest", traffic(func(m measures) { m.Resting.Paths[0].Broken, m.Back.After.Paths[0].Broken = 2, 1 }),
			Unknown, "long-lived connections that broke after the rollback: 1, and at rest: 2", row, NotJudged},
		{"a gap on the rollback", traffic(func(m measures) { m.Back.During.Paths = on(lossy(5, 2*time.Second)) }),
			NoGo, "during the rollback nothing was answered for 2s", row, Fails},
		{"packets after the rollback", traffic(func(m measures) { m.Back.After.Paths = on(lossy(10, 0)) }), NoGo, "after the rollback 10 of 10000", row, Fails},
		{"the lab loses packets by itself", traffic(func(m measures) { m.Resting.Paths = on(lossy(2, 30*time.Millisecond)) }),
			Go, "warnings: 1", row, Warning},
		{"the lab loses packets by itself, and after the upgrade", atRest(lossy(2, 0), afterwards(lossy(1, 0))),
			Unknown, "after the upgrade 1 of 10000 packets were lost (allowed: 0), which the loss at rest (2 of 10000 packets) may explain", row, NotJudged},
		{"a rollback at once loses nothing", undone(clean(), ""), Go, "lost nothing", atOnce, Fine},
		{"a rollback at once loses packets", undone(lossy(5000, 5*time.Second), ""), NoGo, "pod to pod: 5000 of 10000 packets were lost", atOnce, Fails},
		{"what a rollback at once loses is not known", undone(withCounts(clean(), 8999, 8999, 0), ""), Unknown, "too few packets were measured (8999 of 10000 packets were sent and judged)", atOnce, NotJudged},
		{"one packet of a rollback at once is not known", undone(withCounts(clean(), 10000, 9999, 1), ""), Unknown, "1 packets have no known outcome, which could exceed the threshold", atOnce, NotJudged},
		{"a rollback at once that was not done", undone(clean(), "no such image"), Unknown, "as soon as that was ready: no such image", atOnce, NotJudged},
		{"the old version does not serve a path, and the new one does", unserved(clean(), lossy(10000, 50*time.Second)), Go, "in the upgrade and the rollback; warnings: 1", row, Warning},
		{"neither version serves a path", unserved(lossy(10000, 50*time.Second), lossy(10000, 50*time.Second)), Unknown, "which the loss at rest (10000 of 10000 packets) may explain", row, NotJudged},
		{"the old version serves a path only after the rollback", unserved(clean(), clean()), Unknown, "answered 10000 packets after the rollback and none before", row, NotJudged},
		{"the new version loses packets of such a path", unserved(lossy(10, 0), lossy(10000, 50*time.Second)), Unknown, "after the upgrade 10 of 10000", row, NotJudged},
		{"a gap although the lab loses packets by itself",
			atRest(lossy(2, 0), during(lossy(5, 2*time.Second))), NoGo, "at rest 2 of 10000 packets were lost", row, Fails},
		{"connections break", traffic(func(m measures) { m.Upgrade.During.Paths[0].Broken = 2 }), Go, "warnings: 1", row, Warning},
		{"packets were not sent", during(withCounts(clean(), 8999, 8999, 0)),
			Unknown, "too few packets were measured (8999 of 10000 packets were sent and judged)", row, NotJudged},
		{"a few packets were not sent", during(withCounts(clean(), 9000, 9000, 0)), Go, "", row, Fine},
		{"packets were not sent, and enough was lost", during(withCounts(lossy(20, 0), 10000, 5000, 0)), NoGo, "20 of 5020 packets", row, Fails},
		{"packets without a known outcome", during(withCounts(clean(), 10000, 9980, 20)),
			Unknown, "20 packets have no known outcome, which could exceed the threshold", row, NotJudged},
		{"a few packets without a known outcome", during(withCounts(clean(), 10000, 9992, 8)), Go, "", row, Fine},
		{"one after it without a known outcome",
			afterwards(withCounts(clean(), 10000, 9999, 1)), Unknown, "after the upgrade 1 packets have no known outcome", row, NotJudged},
		{"a path that was not measured after it", traffic(func(m measures) { m.Upgrade.After.Paths = nil }), Unknown, "after the upgrade too few packets were measured (0 of 0", row, NotJudged},
		{"a path that was not measured at rest", traffic(func(m measures) { m.Resting.Paths = nil }), Unknown, "its loss at rest is not known", row, NotJudged},
		{"no path at all", eachPhase(func(p *upgrade.Phase) { p.Paths = nil }), Unknown, "no path had traffic", "upgrade, traffic", NotJudged},
		{"no rollback", traffic(func(m measures) { m.Back, m.Stopped = nil, "node2 is not ready" }), Unknown, "the rollback did not run: node2 is not ready", "upgrade, rollout", NotJudged},
		{"the new version ends by itself", traffic(func(m measures) {
			m.Stopped, m.Upgrade.Ends = "node2 is not ready", "thing on node2 ended 3 times, with status 1: no such flag"
		}), NoGo, "1.1.0 does not start: thing on node2 ended 3 times, with status 1: no such flag", "upgrade, rollout", Fails},
		{"no upgrade", traffic(func(m measures) { m.Upgrade, m.Back, m.Stopped = nil, nil, "no lab" }), Unknown, "the upgrade did not run: no lab", "upgrade, rollout", NotJudged},
		{"an upgrade that broke on the way", func(inputs *Inputs) { inputs.Upgrade.Why = "the lab does not go down" }, Unknown, "the lab does not go down", "upgrade, rollout", NotJudged},
		{"a route is withdrawn", traffic(func(m measures) { m.Upgrade.During.Routers[0].Withdrawals = []string{"10.0.0.0/24"} }), Go, "warnings: 1", "upgrade, router tor", Warning},
		{"a router was not polled", traffic(func(m measures) { m.Back.During.Routers[0].Polls = 50 }),
			Go, untried, "upgrade, router tor", NotJudged},
		{"a router is missing", traffic(func(m measures) { m.Back.During.Routers = nil }), Go, untried, "upgrade, router tor", NotJudged},
		{"a lab without routers", eachPhase(func(p *upgrade.Phase) { p.Routers = nil }), Go, "", "upgrade, routers", NotLookedAt},
		{"something is left", traffic(func(m measures) {
			m.Left = []upgrade.Difference{{Node: "node1", Kind: "rule", What: "-j X", Added: true}}
		}), Go, "warnings: 1", "upgrade, left behind", Warning},
		{"what is left was not polled", traffic(func(m measures) { m.Left = nil }), Go, untried, "upgrade, left behind", NotJudged},

		{"an agent that restarts works again", func(*Inputs) {}, Go, "lost nothing", "upgrade, restart in the middle", Fine},
		{"an agent that restarts does not work again", traffic(func(m measures) { notBack(m.Upgrade.Restart) }),
			NoGo, "1.0.0 restarted on node2 while 1.1.0 was rolled out does not work again: no session", restart, Fails},
		{"one of the new version does not, on the rollback", traffic(func(m measures) { notBack(m.Back.Restart) }),
			NoGo, "1.1.0 restarted on node2 while 1.0.0 was rolled out does not work again: no session", restart, Fails},
		{"the restart interrupts traffic for too long", restarted(lossy(5, 1001*time.Millisecond), clean()),
			NoGo, "pod to pod: nothing was answered for 1.001s (a->b; allowed: 1s)", restart, Fails},
		{"the restart interrupts traffic for a short time", restarted(restarting(15), lossy(15, 500*time.Millisecond)),
			Go, "had a longest gap of 500ms", restart, Fine},
		{"the restart loses a share of the packets", restarted(restarting(500), lossy(500, 500*time.Millisecond)),
			NoGo, "pod to pod: 500 of 1000 packets were lost (pod to pod; allowed: 21, one gap of 1s on each probe)", restart, Fails},
		{"the restart loses a share of the packets of one probe",
			restarted(restarting(15), lossy(15, 500*time.Millisecond), upgrade.ProbeCount{Probe: "a->b", Due: 500, Answered: 485, Lost: 15}, other),
			NoGo, "pod to pod: 15 of 500 packets were lost (a->b; allowed: 11, one gap of 1s on each probe)", restart, Fails},
		{"of half of the packets it is not known whether the restart loses them",
			restarted(restarting(0), clean(), upgrade.ProbeCount{Probe: "pod to pod", Due: 1000, Answered: 500, NotJudged: 500}),
			Unknown, "too few packets were measured (500 of 1000 packets were sent and judged; pod to pod)", restart, NotJudged},
		{"of packets of one probe it is not known",
			restarted(restarting(0), clean(), upgrade.ProbeCount{Probe: "a->b", Due: 500, Answered: 480, NotJudged: 20}, other),
			Unknown, "20 packets have no known outcome, which could exceed the threshold (a->b)", restart, NotJudged},
		{"the new version starts and does not work", traffic(func(m measures) { m.Upgrade.NotWorking, m.Stopped = "no route", "no route" }),
			NoGo, "1.1.0 starts and does not work: no route", "upgrade, rollout", Fails},
		{"the old version does not work after the rollback", traffic(func(m measures) { m.Back.NotWorking, m.Stopped = "x", "x" }),
			NoGo, "1.0.0 does not work after the rollback: x", "upgrade, rollout", Fails},
		{"the share of the rollout is that of its own steps", restarted(restarting(20), lossy(30, 500*time.Millisecond)),
			NoGo, "during the upgrade 10 of 9000 packets (0.111%; allowed: 0.1%) were lost", row, Fails},
		{"an agent that restarts works for a moment", traffic(func(m measures) { m.Upgrade.Restart.NotBack = "it ended" }),
			NoGo, "1.0.0 restarted on node2 while 1.1.0 was rolled out works again after 9s, and then no longer: it ended", restart, Fails},
		{"it is not known what the restart interrupts", restarted(silent(1001), clean()),
			Unknown, "no answer is known for 1.001s", restart, NotJudged},
		{"no agent could be restarted", traffic(func(m measures) { m.Back.Restart.NotDone = "no such pod" }),
			Unknown, "1.1.0 could not be restarted on node2: no such pod", restart, NotJudged},
		{"an agent was restarted in one direction only", traffic(func(m measures) { m.Back.Restart = nil }),
			Unknown, "no agent of 1.1.0 was restarted while 1.0.0 was rolled out", restart, NotJudged},
		{"the record ends after the restart", traffic(func(m measures) { m.Upgrade.Restart.Phase.Ended = time.Time{} }),
			Unknown, "the record ends before it is known what was lost", restart, NotJudged},
		{"the step that lost packets is named", traffic(func(m measures) {
			m.Upgrade.During.Paths = on(lossy(5, 1500*time.Millisecond))
			m.Upgrade.During.Paths[0].LostIn = []upgrade.LostIn{{Step: "1.0.0 restarted on node2", Lost: 5, LongestGapMS: 1500}}
		}), NoGo, "during the upgrade packets were lost in these steps: 1.0.0 restarted on node2 (5, gap 1.5s)", row, Fails},

		{"a failure outweighs an unknown", func(inputs *Inputs) {
			inputs.Incidents, inputs.Upgrade = append(inputs.Incidents, incident("prevented", "reproduced")), Upgrade{Why: "no lab"}
		}, NoGo, "is introduced", "upgrade, rollout", NotJudged},
	} {
		t.Run(test.name, func(t *testing.T) {
			inputs := fine()
			test.change(&inputs)
			q := Judge(inputs, bounds, again)
			must.Equal(t, q.Why, [...]any{test.verdict, 0}, [...]any{q.Verdict, strings.Count(q.Why, "\n")})
			must.Contain(t, q.Why, test.why)
			found := slices.ContainsFunc(q.Rows, func(r Row) bool { return r.Title() == test.row && r.State == test.state })
			for _, r := range q.Rows { // failed rows have a command that reproduces them
				must.Equal(t, r, [...]bool{false, false}, [...]bool{r.Says == "", r.State == Fails && r.Command == ""})
			}
			must.Equal(t, q.Rows, [...]bool{true, true}, [...]bool{found, len(q.NotTested) > 0})
		})
	}
}

func TestBuiltOtherwise(t *testing.T) {
	inputs := fine()
	inputs.Built = map[string]string{"1.1.0": "whole, with x.dev/d v1.1.0 for v1.0.0"}
	want := "c 1.1.0 as the vendor builds it: here it is whole, with x.dev/d v1.1.0 for v1.0.0"
	must.Equal(t, want, true, slices.Contains(Judge(inputs, bounds, again).NotTested, want))
}

func TestStillThereComesFirst(t *testing.T) {
	inputs := fine()
	inputs.Incidents = []Incident{incident("prevented", "reproduced"), incident("reproduced", "reproduced")}
	q := Judge(inputs, bounds, again)
	got := [...]any{q.Rows[0].State, q.Inputs.Incidents[1].Outcome, q.Verdict}
	must.Equal(t, q.Rows[0], [...]any{Warning, advise.StillThere, NoGo}, got)
	must.Equal(t, "the inputs", "", inputs.Incidents[0].Outcome)
	for _, r := range q.Rows {
		if r.State == Fails { // failed rows have a remedy
			must.Equal(t, r, [...]bool{true, true}, [...]bool{r.Remedy != "", r.Issue != ""})
			must.Equal(t, "", "relapse run flood --with c=1.1.0", r.Command)
		}
	}
}

func TestPathOf(t *testing.T) {
	releases := images.Releases{Refused: map[string]error{"x.dev/a": errors.New("403"), "x.dev/b": nil}}
	for _, v := range strings.Fields("1.8.1 1.9.0 1.9.1 1.10.0-rc1 1.11.0-rc0 1.12.0 1.12.1-rc1 1.12.1 1.12.2") {
		r := images.Release{Version: v}
		if v == "1.12.1" {
			r.Images = []string{"a"}
		}
		releases.Versions = append(releases.Versions, r)
	}
	got := PathOf(releases, "1.8.2", "1.12.0")
	want := Path{
		Skipped: []string{"1.9"}, Newer: []Release{{"1.12.1", true}, {"1.12.2", false}},
		Unlisted: []string{"1.8.2"}, NotListed: []string{"x.dev/a"},
	}
	must.Equal(t, "", want, got)
	p := PathOf(releases, "1.12.0", "1.12.2")
	must.Equal(t, p, 0, len(p.Skipped)+len(p.Newer)+len(p.Unlisted))
	p = PathOf(releases, "1.9.0", "0.9.0")
	must.Equal(t, "skipped", []string{"1.8"}, p.Skipped)
	must.Contain(t, p.rows("1.9.0", "0.9.0")[0].Says, "a downgrade")
	must.Equal(t, "skipped", []string{"1.8"}, PathOf(releases, "0.9.0", "1.9.0").Skipped)
}

func whole() Qualification {
	inputs := fine()
	still, upgradeIncident := incident("reproduced", "reproduced"), incident("", "reproduced")
	still.Name, upgradeIncident.Name = "drought", "spill"
	upgradeIncident.OfUpgrade, upgradeIncident.From = true, Seen{}
	inputs.Incidents = append(inputs.Incidents, still, upgradeIncident, incident("", ""))
	inputs.Path = Path{Skipped: []string{"1.0"}, Newer: []Release{{"1.1.1", true}}, Unlisted: []string{}, NotListed: []string{}}
	inputs.Configuration = Configuration{
		Source: "c.yaml", ConfigMap: "kube-system/c", Keys: 3, RefusedTo: "key is not set | and <must> be",
		Drifts: []configdrift.Drift{
			{Key: "key", Kind: configdrift.Missing, After: configdrift.Refused, Says: "key is not set: 1.1.0 does not start."},
			{Key: "old_key", Kind: configdrift.NotRead, Before: "a", Says: "old_key is set to \"a\", which 1.1.0 does not read."},
			{Key: "other", Kind: configdrift.DefaultChanged, Before: "1", After: "2", Says: "other is not set."},
			{Key: "theirs", Kind: configdrift.Unknown, Says: "theirs is set."},
		},
	}
	m := inputs.Upgrade.Measures
	m.Upgrade.During.Paths = []upgrade.Path{lossy(30, 1500*time.Millisecond)}
	m.Upgrade.During.Routers[0].NextHops = []string{"10.0.0.0/24"}
	m.Back.During.Paths[0].Broken = 1
	m.Left = []upgrade.Difference{{Node: "node1", Kind: "rule", What: "-A X -j Y", Added: true}}
	q := Judge(inputs, bounds, again)
	q.Began, q.TookMS, q.Relapse = begun, 4000, "(devel) sha256:0"
	return q
}

func TestWritten(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, whole().Write(dir))
	for _, name := range []string{FileJSON, FileMarkdown, FileText, FileJUnit} {
		got := must.Read(t, filepath.Join(dir, name))
		goldentest.Compare(t, name, string(got))
		switch name {
		case FileJSON:
			must.NoError(t, schema.Validate("qualification", got))
			var read Qualification
			must.NoError(t, json.Unmarshal(got, &read))
			must.Equal(t, "read", whole(), read, cmpopts.EquateComparable(netip.Prefix{}))
		case FileJUnit:
			var read reporters.JUnitTestSuites
			must.NoError(t, xml.Unmarshal(got, &read))
			must.Equal(t, read, [...]int{3, 1, len(whole().Rows)}, [...]int{read.Failures, read.Errors, read.Tests})
		}
	}
	must.Equal(t, "left", nil, must.Get(filepath.Glob(filepath.Join(dir, "*.tmp")))(t))
}

func TestUnfinishedMeetsTheSchema(t *testing.T) {
	q := Judge(Inputs{Component: "c", From: "1.0.0", To: "1.1.0", Incidents: []Incident{{Name: "i", Form: "slice"}}}, bounds, "")
	must.NoError(t, schema.Validate("qualification", must.Get(json.Marshal(q))(t)))
}

func TestReadConfigMap(t *testing.T) {
	const one = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cilium-config, namespace: kube-system}\ndata: {masquerade: \"false\"}\n"
	for _, test := range []struct {
		name, stream string
		want, says   string // the name and the value, or the error
	}{
		{"a ConfigMap", one, "kube-system/cilium-config false", ""},
		{"JSON", `{"kind":"ConfigMap","metadata":{"name":"x"},"data":{"masquerade":"no"}}`, "x no", ""},
		{"what helm prints", "---\n# Source: cilium/templates/sa.yaml\nkind: ServiceAccount\nmetadata: {name: cilium}\n---\n# nothing\n---\nkind: Secret\ndata: {ca.crt: YQ==}\n---\n" + one,
			"kube-system/cilium-config false", ""},
		{"another one beside it", "kind: ConfigMap\nmetadata: {name: hubble-relay-config}\ndata: {config.yaml: x}\n---\n" + one,
			"kube-system/cilium-config false", ""},
		{"a list", "kind: List\nitems:\n- kind: ConfigMap\n  metadata: {name: cilium-config}\n  data: {masquerade: \"true\"}\n", "cilium-config true", ""},
		{"an object that is none, with data of its own", "kind: Thing\ndata: [1, 2]\n---\n" + one, "kube-system/cilium-config false", ""},
		{"no YAML", "kind: ConfigMap\n\tdata: {", "", "document 1 is not YAML: line 2: found a tab character"},
		{"words", "masquerade false\n", "", "document 1 is not a Kubernetes object: it has no kind"},
		{"nothing", "", "", "it contains no ConfigMap"},
		{"no ConfigMap", "kind: Secret\ndata: {a: b}\n", "", "it contains no ConfigMap"},
		{"no data", "kind: ConfigMap\nmetadata: {name: c, namespace: ns}\n", "", "the ConfigMap ns/c has no data"},
		{"neither name nor data", "kind: ConfigMap\n", "", "the ConfigMap without a name has no data"},
		{"data that is none", "kind: ConfigMap\nmetadata: {name: c}\ndata: [a]\n", "", "document 1 is not a ConfigMap: "},
		{"a value without quotes", "kind: ConfigMap\nmetadata: {name: c}\ndata: {mtu: 1500}\n", "", "the ConfigMap c: data.mtu is 1500: expected a string, in quotes"},
		{"two of them", "kind: ConfigMap\nmetadata: {name: a}\ndata: {a: b}\n---\nkind: ConfigMap\nmetadata: {name: b}\ndata: {a: b}\n", "",
			"there are 2 ConfigMaps (a, b): expected one, or one that is named cilium-config"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := ReadConfigMap(strings.NewReader(test.stream), "cilium-config")
			if test.says != "" {
				must.Fail(t, err, test.says)
				must.Equal(t, "lines", 0, strings.Count(fmt.Sprint(err), "\n"))
				return
			}
			must.NoError(t, err)
			must.Equal(t, "", test.want, c.String()+" "+c.Data["masquerade"])
		})
	}
}

func TestDocument(t *testing.T) {
	const corefile = ".:53 {\n    kind of a comment\n}\n"
	for name, test := range map[string]struct{ text, want, err string }{
		"the document itself":   {corefile, corefile, ""},
		"another kind":          {"kind: KubeProxyConfiguration\n", "kind: KubeProxyConfiguration\n", ""},
		"in a ConfigMap":        {"kind: ConfigMap\nmetadata: {name: coredns}\ndata:\n  Corefile: |\n    .:53 {}\n", ".:53 {}\n", ""},
		"in JSON":               {"{\n \"kind\": \"ConfigMap\", \"data\": {\"Corefile\": \".:53 {}\"}}", ".:53 {}", ""},
		"as EKS has it":         {"kind: ConfigMap\ndata:\n  config: |\n    kind: KubeProxyConfiguration\n", "kind: KubeProxyConfiguration\n", ""},
		"without the key":       {"kind: ConfigMap\nmetadata: {name: x}\ndata: {a: b}\n", "", "the ConfigMap x has no key Corefile"},
		"a ConfigMap in pieces": {"kind: ConfigMap\ndata: [a]\n", "", "document 1 is not a ConfigMap"},
	} {
		got, err := Document([]byte(test.text), "Corefile")
		must.Equal(t, name, [...]any{test.want, test.err == ""}, [...]any{got, err == nil})
		must.Contain(t, fmt.Sprint(err), test.err)
	}
}

func FuzzReadConfigMap(f *testing.F) {
	f.Add("kind: ConfigMap\nmetadata: {name: c}\ndata: {a: b}\n---\n")
	f.Add("kind: List\nitems: [{kind: ConfigMap}]")
	f.Fuzz(func(t *testing.T, stream string) {
		c, err := ReadConfigMap(strings.NewReader(stream), "c")
		must.Equal(t, err, err == nil, len(c.Data) > 0)
	})
}

// A value that the new version may refuse makes the verdict UNKNOWN.
func TestBadValueIsNotJudged(t *testing.T) {
	inputs := Inputs{From: "1.0.0", To: "1.1.0", Configuration: Configuration{Keys: 1, Drifts: []configdrift.Drift{
		{Key: "k", Kind: configdrift.BadValue, Before: "1", After: configdrift.NotKnown, Says: "k is set to x."},
	}}}
	r, _ := each.First(Judge(inputs, bounds, again).Rows, func(r Row) bool { return r.Name == "k" })
	must.Equal(t, r, [...]any{NotJudged, true}, [...]any{r.State, r.Decides})
	v, _ := conclude(inputs.configuration())
	must.Equal(t, "", Unknown, v)
}
