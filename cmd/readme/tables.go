package main

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/cmd/bench/figures"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology"
)

// tables renders all tables from the catalogue and from the files under root.
func tables(root string) ([]table, error) {
	measured, err := figures.Read(filepath.Join(root, figures.Path))
	if err != nil {
		return nil, err
	}
	catalogue, err := images.Open(root)
	if err != nil {
		return nil, err
	}
	inside, err := components(catalogue, scenarios.All)
	if err != nil {
		return nil, err
	}
	return []table{
		{name: "incidents", text: incidents(scenarios.All)},
		{name: "components", text: inside},
		{name: "figures", text: figureTable(measured)},
	}, nil
}

// incidents has a row for each scenario of the catalogue.
func incidents(all []framework.Scenario) string {
	var b strings.Builder
	b.WriteString("| name | what happened | affected | fixed | variants | versions that run |\n|---|---|---|---|---|---|\n")
	for _, s := range all {
		row(&b, s.Incident.Name, s.Incident.Title, s.Incident.Affected, s.Incident.Fixed, variants(s), versions(s))
	}
	return b.String()
}

// variants lists a scenario's variants by their roles, and says what is special
// about running them.
func variants(s framework.Scenario) string {
	var parts []string
	for _, role := range []framework.Role{framework.Affected, framework.Fixed, framework.Workaround} {
		var names []string
		for _, v := range s.Variants {
			if v.Role != role {
				continue
			}
			name := "`" + v.Name + "`"
			if v.OnlyUpstream != "" {
				name += " (only with `--images=upstream`)"
			}
			if v.Refused {
				name += " (refuses to start)"
			}
			names = append(names, name)
		}
		if len(names) > 0 {
			parts = append(parts, string(role)+": "+strings.Join(names, ", "))
		}
	}
	if kernels := guestKernels(s.Topology); len(kernels) > 0 {
		parts = append(parts, "on a node with a kernel of its own, "+strings.Join(kernels, " and "))
	}
	return strings.Join(parts, "; ")
}

// versions lists, for each component under test, the versions in which variants
// run it that need nothing from upstream.
func versions(s framework.Scenario) string {
	byComponent := map[string][]string{}
	for _, v := range s.Runnable(nil) {
		for component, version := range v.Components {
			if !slices.Contains(byComponent[component], version) {
				byComponent[component] = append(byComponent[component], version)
			}
		}
	}
	var parts []string
	for _, component := range slices.Sorted(maps.Keys(byComponent)) {
		parts = append(parts, component+": "+strings.Join(byComponent[component], ", "))
	}
	return strings.Join(parts, "; ")
}

// guestKernels are the kernels, each once, of the nodes that have their own.
func guestKernels(t topology.Topology) []string {
	var kernels []string
	for _, c := range t.Clusters {
		for _, n := range c.Nodes {
			if n.Kernel != "" && !slices.Contains(kernels, n.Kernel) {
				kernels = append(kernels, n.Kernel)
			}
		}
	}
	return kernels
}

// components has a row for each way in which images hold a vendor's component,
// with the versions that are inside, whatever the images' tags say.
func components(catalogue *images.Catalogue, all []framework.Scenario) (string, error) {
	type way struct {
		component, image, form, others string
	}
	versions, usedBy := map[way][]string{}, map[way][]string{}
	for _, ref := range catalogue.Refs() {
		r, err := catalogue.Recipe(ref)
		if err != nil {
			return "", err
		}
		if r.Component == "" {
			continue
		}
		proved, err := r.Proved()
		if err != nil {
			return "", err
		}
		w := way{component: r.Component, image: imageName(r), form: string(r.Form), others: others(r, proved)}
		if r.Module == "" {
			w.form += ", Debian's"
		}
		versions[w] = append(versions[w], r.Version)
		for _, s := range all {
			if slices.Contains(s.ImagesOf(nil, s.Runnable(nil)...), ref) && !slices.Contains(usedBy[w], s.Incident.Name) {
				usedBy[w] = append(usedBy[w], s.Incident.Name)
			}
		}
	}
	lowestFirst := func(a, b string) int { return semver.Compare("v"+a, "v"+b) }
	for _, each := range versions {
		slices.SortFunc(each, lowestFirst)
	}
	var b strings.Builder
	b.WriteString("| component | versions | form | image | with it | for |\n|---|---|---|---|---|---|\n")
	for _, w := range slices.SortedFunc(maps.Keys(versions), func(a, b way) int {
		return cmp.Or(cmp.Compare(a.component, b.component), cmp.Compare(a.image, b.image), lowestFirst(versions[a][0], versions[b][0]))
	}) {
		scenarios := strings.Join(usedBy[w], ", ")
		if len(usedBy[w]) == len(all) {
			scenarios = "every lab"
		}
		row(&b, w.component, strings.Join(versions[w], ", "), w.form, "`"+w.image+"`", w.others, scenarios)
	}
	return b.String(), nil
}

// imageName is an image's name, with the tag where that is not the version
// inside.
func imageName(r images.Recipe) string {
	if name, tag, _ := strings.Cut(r.Ref, ":"); strings.TrimPrefix(tag, "v") == r.Version {
		return name
	}
	return r.Ref
}

// others are the modules and packages of an image beside its component, with
// their versions.
func others(r images.Recipe, proved map[string]string) string {
	var parts []string
	for _, path := range slices.Sorted(maps.Keys(proved)) {
		version := proved[path]
		switch {
		case path == r.Module, r.Module == "" && version == r.Version:
			continue // the component
		case r.Debian != nil && r.Debian.Versions[path] != "":
			parts = append(parts, path+" "+version+" (Debian's)")
		default:
			name, _, _ := module.SplitPathVersion(path)
			parts = append(parts, strings.TrimPrefix(name, "github.com/")+" "+strings.TrimPrefix(version, "v"))
		}
	}
	return strings.Join(parts, ", ")
}

// figureTable has a row for each figure, and says first where they come from.
func figureTable(file figures.File) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s.\n\n", file.Machine)
	b.WriteString("| incident | figure | measured | budget | on |\n|---|---|---|---|---|\n")
	above := ""
	for _, f := range file.Figures {
		name := cmp.Or(f.Scenario, "(none)")
		if name == above {
			name = "" // it stands in the row above
		} else {
			above = name
		}
		row(&b, name, f.Name, measured(f), budget(f), f.Date)
	}
	return b.String()
}

// measured is what a figure's samples came to, in words.
func measured(f figures.Figure) string {
	low, high := quantity(f.Measured.Min, f.Unit), quantity(f.Measured.Max, f.Unit)
	text := high
	if low != high {
		number, unit, _ := strings.Cut(low, " ")
		if strings.HasSuffix(high, " "+unit) {
			low = number // the unit once is enough
		}
		text = low + " to " + high
		if f.Measured.Median != nil {
			text += ", median " + quantity(*f.Measured.Median, f.Unit)
		}
	}
	if f.Measured.N > 1 {
		text += fmt.Sprintf(" (%d samples)", f.Measured.N)
	}
	if f.Note != "" {
		text += "; " + f.Note
	}
	return text
}

// budget is the most that a figure may be, in words, and whether it is more.
func budget(f figures.Figure) string {
	switch {
	case f.Budget == nil:
		return ""
	case f.OverBudget():
		return quantity(*f.Budget, f.Unit) + ", **over**"
	}
	return quantity(*f.Budget, f.Unit)
}

// quantity writes a value with its unit, to three digits or to the whole
// number. Times under 50 ms are in milliseconds, those over ten minutes in minutes.
func quantity(value float64, unit string) string {
	if unit == "s" {
		switch {
		case value > 0 && value < 0.05:
			return digits(value*1000) + " ms"
		case value > 600:
			return digits(value/60) + " min"
		}
	}
	return digits(value) + " " + unit
}

func digits(value float64) string {
	if value >= 100 {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strconv.FormatFloat(value, 'g', 3, 64)
}

// row writes one row of a Markdown table.
func row(b *strings.Builder, cells ...string) {
	for i, cell := range cells {
		cells[i] = strings.ReplaceAll(cell, "|", `\|`)
	}
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
