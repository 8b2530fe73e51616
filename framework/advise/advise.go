package advise

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/chart/releasefile"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Outcome is the effect of an upgrade on an incident.
type Outcome string

const (
	Fixed        Outcome = "fixed"
	Introduced   Outcome = "introduced"
	StillThere   Outcome = "still there"
	NeverThere   Outcome = "never there"
	NotJudgeable Outcome = "not judged"
)

// OutcomeOf compares an incident with both versions. If the upgrade itself causes it, to is its outcome in the upgrade.
func OutcomeOf(from, to bisect.Outcome, ofUpgrade bool) Outcome {
	if ofUpgrade {
		from = bisect.Unaffected
	}
	return cmp.Or(map[[2]bisect.Outcome]Outcome{
		{bisect.Affected, bisect.Affected}:     StillThere,
		{bisect.Affected, bisect.Unaffected}:   Fixed,
		{bisect.Unaffected, bisect.Affected}:   Introduced,
		{bisect.Unaffected, bisect.Unaffected}: NeverThere,
	}[[2]bisect.Outcome{from, to}], NotJudgeable)
}

// CheckValues returns an error if a component's versions are not installed by values.
func CheckValues(component, from, to string) error {
	switch component {
	case "metallb":
		return nil
	case "cilium":
	default:
		return fmt.Errorf("%s is not installed by values here: expected cilium or metallb", component)
	}
	for _, v := range []string{from, to} {
		if bisect.Compare(v, labvalues.First) < 0 {
			return fmt.Errorf("cilium %s runs here as a slice, without its chart: expected versions from %s on", v, labvalues.First)
		}
	}
	return nil
}

// Advice is what is known of an upgrade without a run. It is no verdict.
type Advice struct {
	Component, From, To string
	// Qualified are verdicts of the upgrade, under any settings. Told says which values were not read.
	Qualified []Known
	Told      []string
	Incidents []Advised
}

// Advised is what is known of an incident of the component.
type Advised struct {
	Subject
	// Impossible is why it cannot happen with the user's values; empty if it may.
	Impossible string
	// Here are the results of the versions that were asked about, Others the results of other versions.
	Here, Others []Known
	// Outcome follows from Here. NotJudgeable: a version never ran.
	Outcome Outcome
}

// Subject has the data of a scenario that Advise needs.
type Subject struct {
	Name       string             `json:"name"`
	Title      string             `json:"title"`
	Affected   string             `json:"affected"`
	Fixed      string             `json:"fixed"`
	Remedies   []string           `json:"remedies"`
	NeedsValue string             `json:"needs_value,omitempty"`
	Tested     []framework.Tested `json:"tested"`
	// Recorded are the results that the scenario's own variants stand for.
	Recorded []Known `json:"recorded"`
}

// Of returns the Subject of a scenario.
func Of(s framework.Scenario) Subject {
	i := s.Incident
	return Subject{
		Name: i.Name, Title: i.Title, Affected: i.Affected, Fixed: i.Fixed, Remedies: i.Remedies, NeedsValue: s.NeedsValue,
		Tested: s.Tested, Recorded: recorded(s),
	}
}

// Advise looks an upgrade up in results, and in the records of all scenarios. The user's values rule out incidents.
func Advise(all []Subject, results []Known, component, from, to string, values *releasefile.Given) (Advice, error) {
	a := Advice{Component: component, From: from, To: to}
	if values != nil {
		a.Told = values.Told
	}
	var components []string
	for _, k := range results {
		components = append(components, k.Component)
		if k.Component == component && k.Incident == "" && k.From == from && k.To == to {
			a.Qualified = append(a.Qualified, k)
		}
	}
	for _, s := range all {
		varied, old := framework.VersionsOf(component, s.Tested)
		components = append(components, each.Of(s.Tested, framework.Tested.Component)...)
		if varied != "" {
			a.Incidents = append(a.Incidents, s.advised(a, old != "", results, values))
		}
	}
	if !slices.Contains(components, component) {
		return a, fmt.Errorf("relapse knows nothing of a component %q%s", component, topology.Nearest(component, each.Once(components)))
	}
	return a, nil
}

func (s Subject) advised(a Advice, ofUpgrade bool, results []Known, values *releasefile.Given) Advised {
	i := Advised{Subject: s}
	if values != nil && len(values.Told) == 0 {
		i.Impossible = Impossible(s.NeedsValue, values.Values)
	}
	outcomeFrom, outcomeTo := bisect.Outcome(""), bisect.Outcome("")
	for _, k := range Merge(s.Recorded, results...) {
		if k.Component != a.Component || k.Incident != s.Name {
			continue
		}
		outcome := bisect.OutcomeOf(framework.Verdict(k.Verdict))
		switch from, to := k.From == a.From, k.To == a.To; {
		case k.Under != "":
			i.Others = append(i.Others, k)
			continue
		case ofUpgrade && from && to, !ofUpgrade && to:
			outcomeTo = outcome
		case !ofUpgrade && from:
			outcomeFrom = outcome
		default:
			i.Others = append(i.Others, k)
			continue
		}
		i.Here = append(i.Here, k)
	}
	i.Outcome = OutcomeOf(outcomeFrom, outcomeTo, ofUpgrade)
	return i
}

// Impossible says why an incident that needs a value cannot happen with values of a chart; empty: it may.
func Impossible(needs string, values map[string]any) string {
	on, _ := chart.Get(values, needs)
	further, _ := chart.Get(values, "extraConfig") // of the agent, past the values
	if needs == "" || on != nil && on != false || further != nil {
		return ""
	}
	return "it needs " + needs
}

// recorded are the results of a scenario's variants, without versions that are affected only in some configurations.
func recorded(s framework.Scenario) (all []Known) {
	for _, component := range each.Once(each.Of(s.Tested, framework.Tested.Component)) {
		varied, old := framework.VersionsOf(component, s.Tested)
		roles := map[[2]string]framework.Role{}
		for _, v := range s.Variants {
			from, to := cmp.Or(v.Components[old], v.Components[varied]), v.Components[varied]
			pair := [2]string{from, to}
			if !semver.IsValid("v"+from) || !semver.IsValid("v"+to) {
				continue
			}
			if was, there := roles[pair]; there && was != v.Role || v.Role == framework.Workaround {
				all = slices.DeleteFunc(all, func(k Known) bool { return k.Component == component && k.From == from && k.To == to })
				roles[pair] = framework.Workaround
				continue
			}
			roles[pair] = v.Role
			all = append(all, Known{Component: component, From: from, To: to, Verdict: string(v.Expected()), Incident: s.Incident.Name})
		}
	}
	return all
}

// NeverQualified is the verdict of an upgrade that no qualification is known of.
const NeverQualified = "never qualified"

// Lines are the results that the advice rests on.
func (a Advice) Lines() []Known {
	all := slices.Clone(a.Qualified)
	if len(all) == 0 {
		all = append(all, Known{Component: a.Component, From: a.From, To: a.To, Verdict: NeverQualified})
	}
	for _, i := range a.Incidents {
		if i.Impossible == "" {
			all = append(all, i.Here...)
		}
	}
	return all
}

func (a Advice) Write(out io.Writer) {
	fmt.Fprintf(out, "%s %s to %s: what is known without a run. It is no verdict on your settings: "+
		"relapse qualify %[1]s %[2]s %[3]s gives one, if there is a lab for it.\n", a.Component, a.From, a.To)
	if len(a.Qualified) == 0 {
		fmt.Fprintln(out, "\nThis upgrade was never qualified, as far as is known.")
	}
	for _, sentence := range a.Told {
		fmt.Fprintf(out, "\nvalues: %s\n", sentence)
	}
	for _, k := range a.Qualified {
		fmt.Fprintf(out, "\nqualified: %s\n", k)
		if k.Remedy != "" {
			fmt.Fprintf(out, "  remedy    %s\n", k.Remedy)
		}
	}
	for _, i := range a.Incidents {
		fmt.Fprintf(out, "\n%s: %s\n", i.Name, i.Title)
		line := func(name, text string) { fmt.Fprintf(out, "  %-9s %s\n", name, text) }
		if i.Impossible != "" {
			line("values", "it cannot happen with your values: "+i.Impossible)
			continue
		}
		line("outcome", map[bool]string{true: "not known", false: string(i.Outcome)}[i.Outcome == NotJudgeable])
		for _, k := range i.Here {
			line("ran", k.versions()+": "+k.String())
		}
		if i.Outcome == NotJudgeable {
			for _, k := range i.Others {
				line("elsewhere", k.versions()+": "+k.String())
			}
		}
		line("affected", i.Affected)
		line("fixed", i.Fixed)
		if i.Outcome == Fixed || i.Outcome == NeverThere {
			continue
		}
		for _, remedy := range i.Remedies {
			line("remedy", remedy)
		}
	}
}

func (k Known) versions() string {
	if k.From == k.To {
		return k.To
	}
	return k.From + " to " + k.To
}
