package qualify

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/each"
)

// enough is the share of a path's packets whose outcome must be known, and of a router's polls that must have
// happened. A prober on a busy machine sends some packets too late to count; a starved one proves nothing.
const enough = 0.9

type stage struct {
	name string
	back bool // of the rollback
	// afterChange is set if nothing changes in the phase: no loss is allowed; a loss is compared with the loss at rest.
	afterChange bool
}

var stages = []stage{
	{"during the upgrade", false, false}, {"after the upgrade", false, true},
	{"during the rollback", true, false}, {"after the rollback", true, true},
}

// phaseOf is the phase of the stage; nil if the stage did not run.
func (s stage) phaseOf(m upgrade.Measures) *upgrade.Phase {
	switch rollout := s.rollout(m); {
	case rollout == nil:
		return nil
	case s.afterChange:
		return &rollout.After
	default:
		return &rollout.During
	}
}

func (s stage) rollout(m upgrade.Measures) *upgrade.Rollout {
	if s.back {
		return m.Back
	}
	return m.Upgrade
}

// own is a path in a phase without the packets of the restart in its middle: the restart is judged by its own row. Its
// gaps are the whole phase's gaps.
func (s stage) own(m upgrade.Measures, p upgrade.Path) upgrade.Path {
	rollout := s.rollout(m)
	if s.afterChange || rollout == nil || rollout.Restart == nil {
		return p
	}
	restart, _ := find(&rollout.Restart.Phase, p.Name)
	p.Due -= restart.Due
	p.Sent -= restart.Sent
	p.Answered -= restart.Answered
	p.Lost -= restart.Lost
	p.NotJudged -= restart.NotJudged
	return p
}

func (u Upgrade) rows(t Thresholds) []Row {
	if u.Measures == nil {
		return []Row{
			{Part: PartUpgrade, Name: "rollout", State: NotJudged, Decides: true, Says: "the upgrade under traffic: " + u.Why},
			{Part: PartUpgrade, Name: "rollback", State: NotJudged, Decides: true, Says: "the rollback under traffic: " + u.Why},
		}
	}
	m := *u.Measures
	rows := []Row{u.rollouts()}
	if m.Upgrade == nil {
		return rows
	}
	if r, there := restartRow(m, t); there {
		rows = append(rows, r)
	}
	if m.Undone != nil {
		rows = append(rows, undoneRow(m, t))
	}
	pathName := func(p upgrade.Path) string { return p.Name }
	names, others, routers := each.Of(m.Resting.Paths, pathName), []string(nil), []string(nil)
	for _, p := range phases(m) {
		others = append(others, each.Of(p.Paths, pathName)...)
		routers = append(routers, each.Of(p.Routers, func(r upgrade.Router) string { return r.Name })...)
	}
	names = append(names, each.Where(each.Once(others), func(name string) bool { return !slices.Contains(names, name) })...)
	if len(names) == 0 {
		rows = append(rows, Row{Part: PartUpgrade, Name: "traffic", State: NotJudged, Decides: true, Says: "no path had traffic"})
	}
	for _, name := range names {
		rows = append(rows, pathRow(m, name, t))
	}
	for i, f := range m.Failovers {
		if f.Version == m.Upgrade.From && (i == 0 || m.Failovers[i-1].Name != f.Name) {
			rows = append(rows, failoverRow(m, f.Name, t))
		}
	}
	if len(routers) == 0 {
		rows = append(rows, Row{Part: PartUpgrade, Name: "routers", State: NotLookedAt, Says: "no router of the lab was polled"})
	}
	for _, name := range each.Once(routers) {
		rows = append(rows, routerRow(m, name))
	}
	return append(rows, left(m))
}

func phases(m upgrade.Measures) []upgrade.Phase {
	all := []upgrade.Phase{m.Resting}
	for _, s := range stages {
		if p := s.phaseOf(m); p != nil {
			all = append(all, *p)
		}
	}
	return all
}

func (u Upgrade) rollouts() Row {
	m := *u.Measures
	stopped := cmp.Or(u.Why, m.Stopped)
	r := Row{Part: PartUpgrade, Name: "rollout", State: Fine, Decides: true, During: changed(m.Upgrade), Back: changed(m.Back)}
	r.Says = fmt.Sprintf("the %s of %s was replaced on %s, node by node", m.Form, m.Component, m.Topology)
	switch {
	case m.Upgrade != nil && m.Upgrade.Ends != "":
		r.State, r.Says = Fails, fmt.Sprintf("%s does not start: %s", m.Upgrade.To, m.Upgrade.Ends)
	case m.Upgrade != nil && m.Upgrade.NotWorking != "":
		r.State, r.Says = Fails, fmt.Sprintf("%s starts and does not work: %s", m.Upgrade.To, m.Upgrade.NotWorking)
	case m.Back != nil && cmp.Or(m.Back.Ends, m.Back.NotWorking) != "":
		r.State, r.Says = Fails, fmt.Sprintf("%s does not work after the rollback: %s", m.Back.To, cmp.Or(m.Back.Ends, m.Back.NotWorking))
	case m.Upgrade == nil:
		r.State, r.Says = NotJudged, "the upgrade did not run: "+cmp.Or(stopped, "no reason is recorded")
	case m.Back == nil:
		r.State, r.Says = NotJudged, "the rollback did not run: "+cmp.Or(stopped, "no reason is recorded")
	case stopped != "":
		r.State, r.Says = NotJudged, "the rollout did not finish: "+stopped
	}
	return r
}

// restartRow judges the restarts of agents in the middle of the rollout and of the rollback; false: none.
func restartRow(m upgrade.Measures, t Thresholds) (Row, bool) {
	r := Row{Part: PartUpgrade, Name: "restart in the middle", State: Fine}
	var fails, unknown, fine []string
	var without []string // directions without a restart: unknown if the other direction has one
	for _, side := range []struct {
		rollout *upgrade.Rollout
		cell    *string
	}{{m.Upgrade, &r.During}, {m.Back, &r.Back}} {
		if side.rollout == nil {
			continue
		}
		if side.rollout.Restart == nil {
			without = append(without, fmt.Sprintf("no agent of %s was restarted while %s was rolled out", side.rollout.From, side.rollout.To))
			continue
		}
		r.Decides = true
		restart := side.rollout.Restart
		who := fmt.Sprintf("%s restarted on %s while %s was rolled out", side.rollout.From, restart.Node, side.rollout.To)
		lost, notKnown, stated := restartLosses(m.Resting, restart.Phase, t)
		for _, text := range notKnown {
			unknown = append(unknown, who+": "+text)
		}
		took := restart.Ready.Sub(restart.Began).Round(100 * time.Millisecond)
		switch {
		case restart.NotDone != "":
			*side.cell = "not done"
			unknown = append(unknown, fmt.Sprintf("%s could not be restarted on %s: %s", side.rollout.From, restart.Node, restart.NotDone))
			continue
		case restart.Ready.IsZero():
			*side.cell = side.rollout.From + " on " + restart.Node + ": not back"
			fails = append(fails, who+" does not work again: "+restart.NotBack)
		case restart.NotBack != "":
			*side.cell = side.rollout.From + " on " + restart.Node + ": not back for long"
			fails = append(fails, fmt.Sprintf("%s works again after %s, and then no longer: %s", who, took, restart.NotBack))
		default:
			*side.cell = fmt.Sprintf("%s on %s: back in %s", side.rollout.From, restart.Node, took)
			fine = append(fine, fmt.Sprintf("%s works again after %s", who, took))
			if restart.Phase.Ended.IsZero() {
				unknown = append(unknown, who+": the record ends before it is known what was lost")
			}
		}
		if len(lost) > 0 {
			fails = append(fails, who+": "+strings.Join(lost, ", "))
		}
		if len(stated) > 0 {
			fine = append(fine, who+": lost are "+strings.Join(stated, ", "))
		}
	}
	if r.Decides {
		unknown = append(unknown, without...)
	}
	switch {
	case len(fails) > 0:
		r.State, r.Remedy = Fails, "replace the agents of all nodes without a pause, "+
			"or keep what the old version reads until the last of them is replaced"
	case len(unknown) > 0:
		r.State = NotJudged
	}
	r.Says = strings.Join(slices.Concat(fails, unknown, fine), "; ")
	return r, r.Decides
}

// restartLosses says for each path which losses in the phase of a restart exceed the thresholds, what is not known, and
// how much was lost. A path is as good as its worst probe.
func restartLosses(rest, phase upgrade.Phase, t Thresholds) (lost, unknown, stated []string) {
	for _, p := range phase.Paths {
		resting, _ := find(&rest, p.Name)
		if resting.Unserved() {
			continue // the row of the path says so
		}
		var over, open string // about the first such probe
		for _, c := range p.Each {
			most := permitted(c.Due, phase, t)
			one := upgrade.Path{Due: c.Due, Answered: c.Answered, Lost: c.Lost, NotJudged: c.NotJudged}
			switch {
			case c.Lost > most && !explained(resting, one, false, t):
				over = cmp.Or(over, fmt.Sprintf("%s were lost (%s; allowed: %d, one gap of %s on each probe)",
					packets(one), c.Probe, most, duration(t.MaxGapMS)))
			case !measured(one, true):
				open = cmp.Or(open, fmt.Sprintf("too few packets were measured (%s; %s)", samples(one), c.Probe))
			case c.Lost+c.NotJudged > most:
				open = cmp.Or(open, fmt.Sprintf("%d packets have no known outcome, which could exceed the threshold (%s)", c.NotJudged, c.Probe))
			}
		}
		switch {
		case p.LongestGapMS > t.MaxGapMS && !explained(resting, p, false, t):
			lost = append(lost, p.Name+": "+unanswered(p, t))
		case over != "":
			lost = append(lost, p.Name+": "+over)
		case p.LongestSilenceMS > t.MaxGapMS:
			unknown = append(unknown, p.Name+": "+silence(p, t))
		case open != "" && !phase.Ended.IsZero(): // else the row says that it did not end
			unknown = append(unknown, p.Name+": "+open)
		}
		if p.Lost > 0 {
			stated = append(stated, fmt.Sprintf("%s: %s, gap %s", p.Name, packets(p), gapOf(p)))
		}
	}
	return lost, unknown, stated
}

func undoneRow(m upgrade.Measures, t Thresholds) Row {
	u, from := m.Undone, m.Upgrade.From
	what := fmt.Sprintf("%s got %s, and %s again as soon as that was ready", u.Node, m.Upgrade.To, from)
	r := Row{Part: PartUpgrade, Name: "rollback at once", State: Fine, Decides: true, Back: "no loss"}
	if u.NotDone != "" {
		r.State, r.Back, r.Says = NotJudged, "not done", what+": "+u.NotDone
		return r
	}
	var lost, unknown []string
	for _, p := range u.Phase.Paths {
		resting, rested := find(&m.Resting, p.Name)
		if resting.Unserved() {
			continue // the row of the path says so
		}
		fails, open := lossIn(p.Name+":", resting, p, rested, true, t)
		lost, unknown = append(lost, fails...), append(unknown, open...)
	}
	r.Says = what + ", and no path lost a packet"
	switch {
	case len(lost) > 0:
		r.State, r.Back = Fails, "loss"
		r.Says = what + ", and then " + strings.Join(lost, ", ")
		r.Remedy = "wait some minutes before a rollback, and change each Service or restart the agents of " + from + " again after it"
	case len(u.Phase.Paths) == 0 || len(unknown) > 0:
		r.State, r.Back = NotJudged, "not known"
		r.Says = what + ": what was lost then is not known: " + strings.Join(unknown, ", ")
	}
	return r
}

func packets(p upgrade.Path) string {
	return fmt.Sprintf("%d of %d packets", p.Lost, p.Lost+p.Answered)
}

func unanswered(p upgrade.Path, t Thresholds) string {
	return fmt.Sprintf("nothing was answered for %s (%s; allowed: %s)", gapOf(p), p.GapProbe, duration(t.MaxGapMS))
}

func silence(p upgrade.Path, t Thresholds) string {
	return fmt.Sprintf("no answer is known for %s (%s; allowed: %s)", duration(p.LongestSilenceMS), p.SilenceProbe, duration(t.MaxGapMS))
}

// permitted is how many due packets a probe may lose in a restart's phase: one gap of MaxGapMS, and the share MaxLost.
func permitted(due int, phase upgrade.Phase, t Thresholds) int {
	gap := 0.0
	if length := lasted(phase); length > 0 {
		gap = min(1, float64(t.MaxGapMS)/float64(length.Milliseconds()))
	}
	return int(math.Ceil(float64(due) * (gap + t.MaxLost)))
}

func changed(r *upgrade.Rollout) string {
	if r == nil {
		return ""
	}
	if len(r.Nodes) == 1 { // may be a Deployment
		return fmt.Sprintf("%s in %s", r.Nodes[0].Node, r.During.Ended.Sub(r.During.Began).Round(time.Second))
	}
	return fmt.Sprintf("%d nodes in %s", len(r.Nodes), r.During.Ended.Sub(r.During.Began).Round(time.Second))
}

// pathRow judges a kind of path. It is long because all stages add to the same lists, in the order of the row's text.
func pathRow(m upgrade.Measures, name string, t Thresholds) Row {
	r := Row{Part: PartUpgrade, Name: name, State: Fine, Decides: true}
	resting, rested := find(&m.Resting, name)
	r.From = cellOf(resting, rested)
	var fails, unknown, warns []string
	switch {
	case !measured(resting, rested):
		unknown = append(unknown, fmt.Sprintf("its loss at rest is not known (%s)", samples(resting)))
	case resting.Unserved():
		warns = append(warns, fmt.Sprintf("%s answers no packet of it, so that only what follows the upgrade is judged", m.Upgrade.From))
	case resting.Lost > 0:
		warns = append(warns, fmt.Sprintf("at rest %s were lost, with a longest gap of %s", packets(resting), gapOf(resting)))
	}
	cells := make([]string, len(stages))
	for i, s := range stages {
		phase := s.phaseOf(m)
		if phase == nil {
			continue // the row of the rollout says why
		}
		p, there := find(phase, name)
		cells[i] = cellOf(p, there)
		if resting.Unserved() && (s.back || !s.afterChange) {
			if s.back && p.Answered > 0 && s.afterChange {
				unknown = append(unknown, fmt.Sprintf("%s answered %d packets after the rollback and none before the upgrade",
					m.Upgrade.From, p.Answered))
			}
			continue
		}
		failed, notKnown := s.loss(m, resting, p, there, t)
		fails, unknown = append(fails, failed...), append(unknown, notKnown...)
		broken := fmt.Sprintf("long-lived connections that broke %s: %d", s.name, p.Broken)
		switch {
		case p.Broken == 0:
		case !s.afterChange:
			warns = append(warns, broken)
		case p.Broken > resting.Broken:
			fails = append(fails, broken)
		default:
			unknown = append(unknown, fmt.Sprintf("%s, and at rest: %d", broken, resting.Broken))
		}
	}
	from, about := sourcesOf(m, name, t)
	fails, unknown, warns = append(fails, from.fails...), append(unknown, from.unknown...), append(warns, from.warns...)
	r.During, r.To, r.Back = cells[0], cells[1], cells[2]
	if cells[3] != "" {
		r.Back += "; then " + cells[3]
	}
	switch {
	case len(fails) > 0:
		r.State = Fails
	case len(unknown) > 0:
		r.State = NotJudged
	case len(warns) > 0:
		r.State = Warning
	}
	says := slices.Concat(fails, unknown, warns)
	if len(says) == 0 {
		says = []string{"within the thresholds: " + worstOf(m, name)}
	}
	if about && len(from.fails) == 0 && from.resting != "" {
		says = append(says, "packets arrive from "+from.resting)
	}
	for _, s := range stages {
		if p, there := find(s.phaseOf(m), name); there && len(p.LostIn) > 0 {
			says = append(says, s.name+" packets were lost in these steps: "+each.Joined(p.LostIn, ", ", func(l upgrade.LostIn) string {
				return fmt.Sprintf("%s (%d, gap %s)", l.Step, l.Lost, duration(l.LongestGapMS))
			}))
		}
	}
	r.Says = name + ": " + strings.Join(says, "; ")
	return r
}

func (s stage) loss(m upgrade.Measures, resting, p upgrade.Path, there bool, t Thresholds) (fails, unknown []string) {
	fails, unknown = lossIn(s.name, resting, s.own(m, p), there, s.afterChange, t)
	watched, rested := lasted(*s.phaseOf(m)), lasted(m.Resting)
	if s.afterChange && len(fails)+len(unknown) == 0 && float64(watched) < enough*float64(rested) {
		unknown = append(unknown, fmt.Sprintf("%s it was watched for %s, and at rest for %s", s.name, watched, rested))
	}
	return fails, unknown
}

// lossIn judges what a path lost in a phase. strict allows no loss.
func lossIn(name string, resting, p upgrade.Path, there, strict bool, t Thresholds) (fails, unknown []string) {
	exceeds, worst := exceeded(p, strict, t), p
	worst.Lost += p.NotJudged
	switch {
	case exceeds != "" && !explained(resting, p, strict, t):
		return []string{name + " " + exceeds}, nil
	case exceeds != "":
		unknown = append(unknown, fmt.Sprintf("%s %s, which the loss at rest (%s) may explain", name, exceeds, packets(resting)))
	case !measured(p, there):
		unknown = append(unknown, fmt.Sprintf("%s too few packets were measured (%s)", name, samples(p)))
	case exceeded(worst, strict, t) != "":
		unknown = append(unknown, fmt.Sprintf("%s %d packets have no known outcome, which could exceed the threshold", name, p.NotJudged))
	case p.LongestSilenceMS > t.MaxGapMS:
		unknown = append(unknown, name+" "+silence(p, t))
	}
	return nil, unknown
}

func find(p *upgrade.Phase, name string) (upgrade.Path, bool) {
	if p == nil {
		return upgrade.Path{}, false
	}
	return each.First(p.Paths, func(path upgrade.Path) bool { return path.Name == name })
}

func measured(p upgrade.Path, there bool) bool {
	return there && p.Due > 0 && float64(p.Answered+p.Lost) >= enough*float64(p.Due)
}

func samples(p upgrade.Path) string {
	return fmt.Sprintf("%d of %d packets were sent and judged", p.Answered+p.Lost, p.Due)
}

func lasted(p upgrade.Phase) time.Duration { return p.Ended.Sub(p.Began) }

// explained reports whether the lab by itself may explain a loss that exceeds the thresholds. It does not if the rate
// is higher than at rest by more than chance (the 95% intervals do not overlap), or if there is a gap that is too long
// and no such gap at rest. Without a rate at rest, it may explain only losses after the rollout.
func explained(resting, p upgrade.Path, strict bool, t Thresholds) bool {
	if p.LongestGapMS > t.MaxGapMS && resting.LongestGapMS <= t.MaxGapMS {
		return false
	}
	outcomes := resting.Lost + resting.Answered
	if outcomes == 0 {
		return strict
	}
	return report.NewRate(p.Lost, p.Lost+p.Answered).Low <= report.NewRate(resting.Lost, outcomes).High
}

// exceeded says how a path exceeds the thresholds. Missing packets count as answered: silence has its own bound.
func exceeded(p upgrade.Path, strict bool, t Thresholds) string {
	outcomes := p.Answered + p.Lost
	switch {
	case strict && p.Lost == 0:
		return ""
	case strict:
		return fmt.Sprintf("%d of %d packets were lost (allowed: 0)", p.Lost, outcomes)
	}
	var over []string
	if p.LongestGapMS > t.MaxGapMS {
		over = append(over, unanswered(p, t))
	}
	if whole := max(p.Due, outcomes); float64(p.Lost) > t.MaxLost*float64(whole) {
		over = append(over, fmt.Sprintf("%d of %d packets (%s; allowed: %s) were lost",
			p.Lost, outcomes, share(p.Lost, outcomes), percent(t.MaxLost)))
	}
	return strings.Join(over, ", and ")
}

func cellOf(p upgrade.Path, there bool) string {
	if !there || p.Due == 0 {
		return "not measured"
	}
	outcomes := p.Answered + p.Lost
	text := fmt.Sprintf("0 of %d lost", outcomes)
	if p.Lost > 0 {
		text = fmt.Sprintf("%d of %d lost, gap %s", p.Lost, outcomes, gapOf(p))
	}
	if missing := p.Due - outcomes; missing > 0 {
		text += fmt.Sprintf(", %d missing", missing)
	}
	if p.Broken > 0 {
		text += fmt.Sprintf(", %d broken", p.Broken)
	}
	return text
}

func gapOf(p upgrade.Path) string { return duration(p.LongestGapMS) }

func duration(ms int64) string { return (time.Duration(ms) * time.Millisecond).String() }

func share(n, total int) string { return percent(float64(n) / float64(max(total, 1))) }

func percent(share float64) string { return fmt.Sprintf("%.3g%%", 100*share) }

func worstOf(m upgrade.Measures, name string) string {
	var gap int64
	lost, outcomes := 0, 0
	for _, s := range stages {
		if p, there := find(s.phaseOf(m), name); there {
			gap, lost, outcomes = max(gap, p.LongestGapMS), lost+p.Lost, outcomes+p.Lost+p.Answered
		}
	}
	if lost == 0 {
		return fmt.Sprintf("0 of %d packets were lost", outcomes)
	}
	return fmt.Sprintf("%d of %d packets were lost, with a longest gap of %s", lost, outcomes, duration(gap))
}

func worst(m *upgrade.Measures) string {
	var gap int64
	var at string
	lost := 0
	for _, s := range stages {
		p := s.phaseOf(*m)
		if p == nil {
			continue
		}
		for _, path := range p.Paths {
			if resting, _ := find(&m.Resting, path.Name); resting.Unserved() {
				continue // the row of the path warns of it
			}
			lost += path.Lost
			if path.LongestGapMS > gap {
				gap, at = path.LongestGapMS, path.Name
			}
		}
	}
	if lost == 0 {
		return "lost nothing in the upgrade and the rollback"
	}
	return fmt.Sprintf("had a longest gap of %s (%s)", duration(gap), at)
}

// routerRow says what a router saw. It does not decide: other rows judge traffic.
func routerRow(m upgrade.Measures, name string) Row {
	r := Row{Part: PartUpgrade, Name: "router " + name, State: Fine, Says: name + " saw no change of its neighbours"}
	var saw, unknown []string
	changes := func(stage string, p *upgrade.Phase) string {
		if p == nil {
			return ""
		}
		router, there := each.First(p.Routers, func(r upgrade.Router) bool { return r.Name == name })
		if !there || router.Due == 0 || float64(router.Polls) < enough*float64(router.Due) {
			unknown = append(unknown, fmt.Sprintf("%s it was polled %d of %d times", stage, router.Polls, router.Due))
		}
		cell, all := eventsOf(router)
		for _, event := range all {
			saw = append(saw, stage+" "+event)
		}
		return cell
	}
	r.From = changes("at rest", &m.Resting)
	cells := make([]string, len(stages))
	for i, s := range stages {
		cells[i] = changes(s.name, s.phaseOf(m))
	}
	r.During, r.To, r.Back = cells[0], cells[1], cells[2]
	if cells[3] != cells[2] {
		r.Back += "; then " + cells[3]
	}
	if len(saw) > 0 {
		r.State, r.Says = Warning, name+": "+strings.Join(saw, "; ")
	}
	if len(unknown) > 0 {
		r.State, r.Says = NotJudged, name+": "+strings.Join(append(unknown, saw...), "; ")
	}
	return r
}

// eventsOf counts what a router saw in a phase, and names the prefixes.
func eventsOf(r upgrade.Router) (cell string, all []string) {
	var short []string
	for _, kind := range []struct {
		name string
		what []string
	}{
		{"withdrawn", r.Withdrawals}, {"with other next hops", r.NextHops}, {"sessions reset", r.Resets}, {"with two origins", r.TwoOrigins},
		{"answered for by another node", r.Answerers}, {"answered for by several stations at once", r.TwoAnswerers},
	} {
		if len(kind.what) > 0 {
			short = append(short, fmt.Sprintf("%d %s", len(kind.what), kind.name))
			all = append(all, fmt.Sprintf("%s: %s", kind.name, strings.Join(kind.what, ", ")))
		}
	}
	if len(short) == 0 {
		return "no change", nil
	}
	return strings.Join(short, ", "), all
}

// left is the row of the changes that the upgrade and the rollback left on the nodes. It does not decide.
func left(m upgrade.Measures) Row {
	r := Row{Part: PartUpgrade, Name: "left behind", State: Fine, Back: "nothing", Says: "the nodes are as before the upgrade"}
	switch {
	case m.Left == nil:
		r.State, r.Back, r.Says = NotJudged, "", "what the upgrade leaves behind was not checked"
	case len(m.Left) > 0:
		r.State, r.Back = Warning, fmt.Sprintf("differences: %d", len(m.Left))
		var all []string
		for _, d := range m.Left {
			change := "gone"
			if d.Added {
				change = "new"
			}
			all = append(all, fmt.Sprintf("%s: %s %s: %s", d.Node, change, d.Kind, d.What))
		}
		r.Says = "after the rollback nodes are not as before the upgrade: " + strings.Join(all, "; ")
	}
	return r
}
