package qualify

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/each"
)

// failoverRow compares a failover of an address by ARP with both versions: the new one must not take longer than the
// old one by more than a path may go unanswered.
func failoverRow(m upgrade.Measures, name string, t Thresholds) Row {
	r := Row{Part: PartUpgrade, Name: name, State: NotJudged, Decides: true, Says: name + ": it was not tried with both versions"}
	tried := each.Where(m.Failovers, func(f upgrade.Failover) bool { return f.Name == name })
	if len(tried) != 2 {
		r.From = failoverCell(tried[0])
		return r
	}
	old, now := tried[0], tried[1]
	r.From, r.To = failoverCell(old), failoverCell(now)
	says := each.Of(tried, failoverSays)
	switch {
	case cmp.Or(old.NotDone, now.NotDone) != "":
	case now.NotBack && !old.NotBack:
		r.State = Fails
		says = append(says, "allowed: what the old version does")
	case now.NotBack:
		r.State = Warning
	case gap(now) > gap(old)+t.MaxGapMS+now.ChanceMS && !old.NotBack:
		r.State = Fails
		says = append(says, fmt.Sprintf("allowed: %s more than with the old version", duration(t.MaxGapMS+now.ChanceMS)))
	case gap(now) > gap(old)+t.MaxGapMS && !old.NotBack:
		r.State = Warning
		says = append(says, duration(now.ChanceMS)+" more than with the old version may be chance: "+
			"when the lease was renewed last, and when it is asked for")
	default:
		r.State = Fine
	}
	r.Says = name + ": " + strings.Join(says, "; ")
	return r
}

func gap(f upgrade.Failover) (longest int64) {
	for _, p := range f.Paths {
		longest = max(longest, p.LongestGapMS)
	}
	return longest
}

func failoverCell(f upgrade.Failover) string {
	switch {
	case f.NotDone != "":
		return "not done"
	case f.To == "":
		return "stays on " + f.From + ", gap " + duration(gap(f))
	case f.NotBack:
		return "not back, on " + f.To
	}
	return fmt.Sprintf("%s in %s, gap %s", f.To, duration(f.MovedMS), duration(gap(f)))
}

func failoverSays(f upgrade.Failover) string {
	if f.NotDone != "" {
		return fmt.Sprintf("with %s it was not done: %s", f.Version, f.NotDone)
	}
	var does []string
	for _, p := range f.Paths {
		if p.Lost > 0 {
			does = append(does, fmt.Sprintf("%s: %s lost, gap %s", p.Name, packets(p), gapOf(p)))
		}
	}
	moves := fmt.Sprintf("with %s %s answers in place of %s after %s, with %d gratuitous ARP, and the router's entry is wrong for %s longer",
		f.Version, f.To, f.From, duration(f.AnsweredMS), f.Announced, duration(max(0, f.MovedMS-f.AnsweredMS)))
	if f.To == "" {
		moves = fmt.Sprintf("with %s the router goes on sending to %s", f.Version, cmp.Or(f.From, "nobody"))
	}
	if f.NotBack {
		does = append(does, "and not every path is clean in the end")
	}
	return strings.Join(append([]string{moves}, does...), ", ")
}
