package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/framework/figures"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// render returns the Markdown of a block, with a line feed at its end. The names of blocks are:
//
//	incidents       the table of incidents
//	drawing NAME    the drawing of an incident's lab
//	records         a section for each incident
//	components      the versions that images hold, and in which form
//	figures         the measured times and memory
//	parts           what values of Cilium switch on, and what a lab does with it
//	golden PATH     a golden file, by its path from root
func render(root, name string) (string, error) {
	kind, argument, _ := strings.Cut(name, " ")
	switch kind {
	case "incidents":
		return incidents(scenarios.All), nil
	case "records":
		return records(scenarios.All), nil
	case "drawing":
		for _, s := range scenarios.All {
			if s.Incident.Name == argument {
				return fenced(s.Incident.Diagram), nil
			}
		}
	case "parts":
		return parts(), nil
	case "components":
		catalogue, err := images.Open(root)
		if err != nil {
			return "", err
		}
		return components(catalogue, scenarios.All)
	case "figures":
		measured, err := figures.Read(filepath.Join(root, figures.Path))
		return figureTable(measured), err
	case "golden":
		text, err := os.ReadFile(filepath.Join(root, argument))
		return fenced(string(text)), err
	}
	return "", errors.New("there is no such block")
}

func parts() string {
	var b strings.Builder
	b.WriteString("| values | run in a lab | paths of the upgrade's lab that use it, or why none does |\n|---|---|---|\n")
	for _, p := range labvalues.Parts {
		row(&b, p.Name, map[bool]string{true: "yes", false: "no"}[p.Runs], p.Says)
	}
	return b.String()
}

func fenced(text string) string {
	return "```text\n" + strings.Trim(text, "\n") + "\n```\n"
}

func incidents(all []framework.Scenario) string {
	var b strings.Builder
	b.WriteString("| incident | what happened | affected | fixed | versions that run |\n|---|---|---|---|---|\n")
	for _, s := range all {
		name := fmt.Sprintf("[%s](scenarios/README.md#%[1]s)", s.Incident.Name)
		row(&b, name, s.Incident.Title, s.Incident.Affected, s.Incident.Fixed, versions(s))
	}
	return b.String()
}

func variants(s framework.Scenario) string {
	var b strings.Builder
	b.WriteString("| variant | role | expected verdict | components | runs as |\n|---|---|---|---|---|\n")
	for _, v := range s.Variants {
		names := slices.Sorted(maps.Keys(v.Components))
		components := each.Joined(names, ", ", func(name string) string { return name + " " + v.Components[name] })
		row(&b, "`"+v.Name+"`", string(v.Role), "`"+string(v.Expected())+"`", components, string(v.Form))
	}
	kernels := each.Of(s.Topology.Guests(), func(n topology.Node) string { return n.Kernel })
	if kernels = each.Once(kernels); len(kernels) > 0 {
		fmt.Fprintf(&b, "\nNodes under test have a kernel of their own: Linux %s.\n", strings.Join(kernels, ", "))
	}
	if s.Foreign {
		b.WriteString("\nIt runs on a lab of your own, too (`--on`).\n")
	} else if s.OnlyOwnLab != "" {
		fmt.Fprintf(&b, "\nIt runs on relapse's own labs alone, not with `--on`: %s.\n", escaped(s.OnlyOwnLab))
	}
	return b.String()
}

func versions(s framework.Scenario) string {
	byComponent := map[string][]string{}
	for _, v := range s.Runnable() {
		for component, version := range v.Components {
			if !slices.Contains(byComponent[component], version) {
				byComponent[component] = append(byComponent[component], version)
			}
		}
	}
	return each.Joined(slices.Sorted(maps.Keys(byComponent)), "; ", func(component string) string {
		return component + ": " + strings.Join(byComponent[component], ", ")
	})
}

// components has a row for each form of a vendor's component, with the versions inside, which tags need not name.
func components(catalogue *images.Catalogue, all []framework.Scenario) (string, error) {
	type packaging struct{ component, form string }
	versions, usedBy := map[packaging][]string{}, map[packaging][]string{}
	add := func(to map[packaging][]string, p packaging, text string) {
		if !slices.Contains(to[p], text) {
			to[p] = append(to[p], text)
		}
	}
	for _, ref := range catalogue.Refs() {
		r, err := catalogue.Recipe(ref)
		if err != nil {
			return "", err
		}
		if r.Component == "" {
			continue
		}
		form, err := r.Packaging()
		if err != nil {
			return "", err
		}
		if r.Module == "" {
			form += ", Debian's"
		}
		p := packaging{r.Component, form}
		add(versions, p, r.Version)
		for _, s := range all {
			if slices.Contains(suite.ImagesOf(s, false, s.Runnable()...), ref) {
				add(usedBy, p, s.Incident.Name)
			}
		}
	}
	lowestFirst := func(a, b string) int { return semver.Compare("v"+a, "v"+b) }
	for _, each := range versions {
		slices.SortFunc(each, lowestFirst)
	}
	var b strings.Builder
	b.WriteString("| component | versions | form | for |\n|---|---|---|---|\n")
	for _, p := range slices.SortedFunc(maps.Keys(versions), func(a, b packaging) int {
		return cmp.Or(cmp.Compare(a.component, b.component), lowestFirst(versions[a][0], versions[b][0]), cmp.Compare(a.form, b.form))
	}) {
		scenarios := strings.Join(usedBy[p], ", ")
		if len(usedBy[p]) == len(all) {
			scenarios = "every lab"
		}
		row(&b, p.component, strings.Join(versions[p], ", "), p.form, scenarios)
	}
	return b.String(), nil
}

func figureTable(file figures.File) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s.\n\n", file.Machine)
	b.WriteString("| incident | figure | median | budget | on |\n|---|---|---|---|---|\n")
	for _, f := range file.Figures {
		measured, budget := fmt.Sprintf("%.4g %s", f.Measured.Median, f.Unit), ""
		if f.Measured.N > 1 {
			measured += fmt.Sprintf(" (%.4g to %.4g, %d samples)", f.Measured.Min, f.Measured.Max, f.Measured.N)
		}
		if f.Note != "" {
			measured += "; " + f.Note
		}
		if f.Budget != nil {
			budget = fmt.Sprintf("%.4g %s", *f.Budget, f.Unit)
		}
		if f.OverBudget() {
			budget += ", **over**"
		}
		row(&b, f.Scenario, f.Name, measured, budget, f.Date)
	}
	return b.String()
}

func row(b *strings.Builder, cells ...string) {
	for i, cell := range cells {
		cells[i] = strings.ReplaceAll(cell, "|", `\|`)
	}
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

// records has a section for each incident: its record, without the facts, and its variants.
func records(all []framework.Scenario) string {
	return each.Joined(all, "\n", func(s framework.Scenario) string { return record(s.Incident) + "\n" + variants(s) })
}

func record(i framework.Incident) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n**%s**\n\n%s", i.Name, escaped(i.Title), fenced(i.Diagram))
	for _, part := range []struct{ title, text string }{
		{"Symptom", i.Symptom}, {"Cause", i.Cause}, {"Reproduction", i.Reproduction},
	} {
		fmt.Fprintf(&b, "\n**%s.** %s", part.title, prose(part.text))
	}
	fmt.Fprintf(&b, "\n**Remedies.**\n\n")
	for _, remedy := range i.Remedies {
		fmt.Fprintf(&b, "- %s\n", escaped(remedy))
	}
	fmt.Fprintf(&b, "\n**Affected**: %s. **Fixed**: %s. **Source**: %s.", escaped(i.Affected), escaped(i.Fixed), escaped(i.Source))
	if i.Issue != "" {
		fmt.Fprintf(&b, " **The vendor's issue or fix**: <%s>.", i.Issue)
	}
	return b.String() + "\n"
}

// prose is a record's text as Markdown. A paragraph with indented lines is a table or a list: it becomes a code block.
func prose(text string) string {
	var paragraphs []string
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if strings.HasPrefix(paragraph, "  ") {
			paragraphs = append(paragraphs, fenced(paragraph))
			continue
		}
		paragraphs = append(paragraphs, escaped(paragraph)+"\n")
	}
	return strings.Join(paragraphs, "\n")
}

func escaped(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "[", `\[`).Replace(text)
}
