package qualify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/each"
)

// Judge decides by the inputs. Command repeats the qualification. The caller sets Began, TookMS and Relapse. An upgrade
// under two settings with different verdicts is UNKNOWN: only the user knows which setting holds.
func Judge(inputs Inputs, t Thresholds, command string) Qualification {
	q := judge(inputs, t, command)
	if inputs.Otherwise == nil {
		return q
	}
	inputs.Under, inputs.Upgrade = inputs.Otherwise.Under, inputs.Otherwise.Upgrade
	other := judge(inputs, t, command)
	for _, r := range other.Rows {
		if r.Part == PartUpgrade {
			r.Name = inputs.Under + ": " + r.Name
			q.Rows = append(q.Rows, r)
		}
	}
	q.NotTested = q.Inputs.notTested(q.Rows)
	if q.Verdict == other.Verdict {
		q.Why = fmt.Sprintf("%s, and %s alike: %s", q.Inputs.Under, inputs.Under, q.Why)
		return q
	}
	q.Why = fmt.Sprintf("%s %s: %s. But %s %s: %s", other.Verdict, inputs.Under, other.Why, q.Verdict, q.Inputs.Under, q.Why)
	q.Verdict = Unknown
	return q
}

func judge(inputs Inputs, t Thresholds, command string) Qualification {
	inputs.Incidents = slices.Clone(inputs.Incidents)
	var still, rows []Row
	for i := range inputs.Incidents {
		incident := &inputs.Incidents[i]
		incident.Outcome = advise.OutcomeOf(incident.From.Outcome, incident.To.Outcome, incident.OfUpgrade)
		row := incident.row(inputs.From, inputs.To)
		if answer, there := incident.answered(inputs, t); there {
			row = answer
		}
		if incident.Outcome == advise.StillThere {
			still = append(still, row)
			continue
		}
		rows = append(rows, row)
	}
	q := Qualification{Schema: Schema, Command: command, Thresholds: t, Inputs: inputs}
	upgraded := inputs.Upgrade.rows(t)
	if m := inputs.Upgrade.Measures; m != nil && m.Upgrade == nil && strings.Contains(m.Stopped, upgrade.Unclean) {
		upgraded[0].Says += inputs.Values.concerned(m.Stopped)
	} else if m != nil {
		for i, r := range upgraded {
			if p, _ := find(&m.Resting, r.Name); p.Unserved() && r.State == NotJudged {
				upgraded[i].Says += inputs.Values.concerned(strings.Join(p.Probes, " "))
			}
		}
	}
	q.Rows = slices.Concat(still, inputs.Path.rows(inputs.From, inputs.To), inputs.configuration(), rows, upgraded)
	for i, row := range q.Rows {
		if row.State == Fails {
			q.Rows[i].Command = cmp.Or(row.Command, command)
		}
	}
	q.NotTested = inputs.notTested(q.Rows)
	q.Verdict, q.Why = conclude(q.Rows)
	if q.Verdict == Go {
		q.Why = q.whyGo()
	}
	return q
}

// conclude returns the verdict of the rows, and the reason unless it is GO.
func conclude(rows []Row) (Verdict, string) {
	if why := sayings(rows, func(r Row) bool { return r.State == Fails }); why != "" {
		return NoGo, why
	}
	if why := sayings(rows, func(r Row) bool { return r.State == NotJudged && r.Decides }); why != "" {
		return Unknown, "parts that decide could not be judged: " + why
	}
	return Go, ""
}

// mostSayings is how many reasons the first line has. The table has all reasons.
const mostSayings = 3

func sayings(rows []Row, which func(Row) bool) string {
	all := each.Of(each.Where(rows, which), func(r Row) string { return r.Says })
	if n := len(all) - mostSayings; n > 0 {
		all = append(all[:mostSayings], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(all, "; ")
}

func (q Qualification) whyGo() string {
	by := map[advise.Outcome]int{}
	leftOut, earlier := len(q.Inputs.LeftOut), 0
	for _, i := range q.Inputs.Incidents {
		if i.NotAsked != "" {
			leftOut++
			continue
		}
		by[i.Outcome]++
		if i.isKnown() {
			earlier++
		}
	}
	var parts []string
	for _, o := range []advise.Outcome{advise.Fixed, advise.StillThere, advise.NeverThere, advise.NotJudgeable} {
		if by[o] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", by[o], o))
		}
	}
	why := "no incident is introduced"
	switch {
	case len(parts) > 0:
		why += " (" + strings.Join(parts, ", ") + ")"
	case leftOut > 0:
		why = "no incident of the catalogue ran"
	}
	if earlier > 0 {
		why += fmt.Sprintf("; %d by earlier runs", earlier)
	}
	if len(parts) > 0 && leftOut > 0 {
		why += fmt.Sprintf("; %d did not run", leftOut)
	}
	if c := q.Inputs.Configuration; c.Charts != nil {
		why += fmt.Sprintf(", the chart of %s takes the values", q.Inputs.To)
	} else if c.Source != "" && c.NotAsked == "" {
		why += fmt.Sprintf(", no key is known with which %s does not start", q.Inputs.To)
	}
	if m := q.Inputs.Upgrade.Measures; m != nil {
		why += ", traffic on the lab " + worst(m)
	}
	count := map[State]int{}
	for _, r := range q.Rows {
		count[r.State]++
	}
	if n := count[Warning]; n > 0 {
		why += fmt.Sprintf("; warnings: %d", n)
	}
	if n := count[NotJudged]; n > 0 {
		why += fmt.Sprintf("; not judged, without effect on the verdict: %d", n)
	}
	return why
}

func (inputs Inputs) configuration() []Row {
	c, from, to := inputs.Configuration, inputs.From, inputs.To
	if c.Charts != nil {
		return append(c.Charts.rows(from, to, c.Source, inputs.Values), driftRows(c.Drifts, to)...)
	}
	whole := Row{Part: PartConfiguration, Name: "start", State: Fine, Decides: c.Decides || c.NotAsked == ""}
	switch {
	case c.NotAsked != "" && c.Decides:
		whole.State, whole.Says = NotJudged, c.NotAsked
		return []Row{whole}
	case c.NotAsked != "":
		whole.State, whole.Says = NotLookedAt, c.NotAsked
		return []Row{whole}
	}
	whole.Name = c.ConfigMap
	whole.From, whole.To, whole.Back = "not refused", "not refused", "not refused"
	whole.Says = fmt.Sprintf("%s has %d keys, and none is known with which %s or %s does not start", c.ConfigMap, c.Keys, from, to)
	if c.RefusedFrom != "" {
		whole.From, whole.Back, whole.State = configdrift.Refused, configdrift.Refused, Warning
		whole.Says = fmt.Sprintf("%s does not start with %s, and %s does: %s", from, c.ConfigMap, to, c.RefusedFrom)
	}
	if c.RefusedTo != "" {
		whole.To, whole.State = configdrift.Refused, Fails
		whole.Says = fmt.Sprintf("%s does not start with %s: %s", to, c.ConfigMap, c.RefusedTo)
		whole.Remedy = c.remedy(to)
	}
	return append([]Row{whole}, driftRows(c.Drifts, to)...)
}

func driftRows(drifts []configdrift.Drift, to string) []Row {
	var rows []Row
	var defaults []Effective
	var neither []string
	for _, d := range drifts {
		switch d.Kind {
		case configdrift.DefaultChanged:
			defaults = append(defaults, Effective{Field: d.Key, From: d.Before, To: d.After})
			continue
		case configdrift.Unknown:
			neither = append(neither, d.Key)
			continue
		}
		r := Row{
			Part: PartConfiguration, Name: d.Key, From: orNothing(d.Before), To: orNothing(d.After), State: Warning,
			Says: strings.TrimSuffix(d.Says, "."),
		}
		if !d.Changed() && (d.Kind == configdrift.NewlyRead || d.Kind == configdrift.Deprecated) {
			r.State = Fine // a hint: the value in force does not change
		}
		if d.Kind == configdrift.BadValue && d.After == configdrift.NotKnown {
			r.State, r.Decides = NotJudged, true // only the agent knows whether it refuses the value
		}
		rows = append(rows, r)
	}
	return append(rows, listed(
		list{name: "defaults", count: "changed", state: Warning, items: defaultsOf(to, defaults), between: "; ",
			says: "unset keys whose defaults change: "},
		list{name: "read by neither", count: "keys", state: NotLookedAt, items: neither,
			says: "keys that the vendor states for agent and operator of neither version: "},
	)...)
}

// remedy says which changes of the drifts' keys make the new version start.
func (c Configuration) remedy(to string) string {
	var all []string
	for _, d := range c.Drifts {
		if d.After != configdrift.Refused {
			continue
		}
		switch d.Kind {
		case configdrift.Missing:
			all = append(all, "set "+d.Key)
		case configdrift.Conflict:
			all = append(all, "remove "+d.Key+", or the key that it excludes")
		default:
			all = append(all, "give "+d.Key+" a value that "+to+" accepts")
		}
	}
	return strings.Join(all, "; ")
}

func orNothing(value string) string { return cmp.Or(value, "nothing") }

func joined(remedies []string) string { return strings.Join(remedies, "; ") }

func (inputs Inputs) notTested(rows []Row) []string {
	all := []string{}
	for _, r := range rows {
		switch r.State {
		case NotLookedAt:
			all = append(all, r.Title()+": "+r.Says)
		case NotJudged:
			says := r.Title() + ": it could not be judged"
			if !r.Decides {
				says += ", without effect on the verdict"
			}
			all = append(all, says)
		}
	}
	if c := inputs.Configuration; c.Drifts != nil && c.Charts == nil {
		all = append(all, PartConfiguration+": "+configdrift.Unjudged())
	}
	if v := inputs.Values; v != nil {
		all = append(all, v.Told...)
		left := each.Where(v.Parts, func(p labvalues.Part) bool { return !p.Runs })
		all = append(append(all, each.Of(left, labvalues.Part.String)...), each.Of(v.Replaced, chart.Replacement.String)...)
		if len(inputs.Incidents) > 0 {
			all = append(all, "incidents with your values: each has its own configuration")
		}
	}
	all = append(all, each.Of(inputs.LeftOut, func(why string) string { return PartIncident + ": " + why })...)
	all = append(all, inputs.Replaced...)
	if slices.ContainsFunc(inputs.Incidents, func(i Incident) bool { return i.OfUpgrade }) {
		all = append(all, fmt.Sprintf("incidents that the rollback from %s to %s itself causes", inputs.To, inputs.From))
	}
	for _, i := range inputs.Incidents {
		for n, seen := range []Seen{i.From, i.To} {
			if seen.Known {
				version := []string{inputs.From, inputs.To}[n]
				all = append(all, fmt.Sprintf("%s, %s with %s, now: an earlier run has shown it (--fresh runs it): %s",
					PartIncident, i.Name, version, seen.Why))
			}
		}
	}
	sliced := each.Where(inputs.Incidents, func(i Incident) bool {
		return i.Form == "slice" && i.NotAsked == "" && !(i.To.Known && (i.OfUpgrade || i.From.Known))
	})
	if len(sliced) > 0 {
		all = append(all, fmt.Sprintf("only a slice of %s ran in %s: scenarios/README.md says what each leaves out",
			inputs.Component, each.Joined(sliced, ", ", func(i Incident) string { return i.Name })))
	}
	for _, version := range slices.Sorted(maps.Keys(inputs.Built)) {
		all = append(all, fmt.Sprintf("%s %s as the vendor builds it: here it is %s", inputs.Component, version, inputs.Built[version]))
	}
	all = append(all, each.Of(inputs.Path.Skipped, func(minor string) string { return "the path through " + minor })...)
	return append(all, fmt.Sprintf("parts of %s that no incident of the catalogue and no path of the lab uses, "+
		"and your cluster's size, kernels and load", inputs.Component))
}
