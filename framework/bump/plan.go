// Package bump finds the upgrades of known components that a change of a git repository makes: by each place that
// states a version, before and after, with the values of the chart that go with it.
package bump

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/topology/each"
)

// Plan is what a change of a repository does to the components that relapse knows.
type Plan struct {
	Raises []Raise
	// NotRead says of versions that have changed why they were not read: the plan may lack upgrades. Notes are about
	// places that are new or gone, and about versions that are never read.
	NotRead, Notes []string
	about, base    string
}

// Raise is an upgrade, or a downgrade, that a change makes in one or more places with the same values.
type Raise struct {
	Component, From, To string
	// Places are files, each with the object in it.
	Places []string
	// Before and After are the values of both versions.
	Before, After Values
}

// change is a place before and after; one of them is nil if it is new or gone.
type change struct{ before, after *place }

// Plan compares both trees. Of names, if there are any, it takes those components alone.
func (r *Repository) Plan(names ...string) Plan {
	p := Plan{about: cmp.Or(strings.Join(names, " or "), "a component that relapse knows"), base: r.base}
	wanted := func(component string) bool { return len(names) == 0 || slices.Contains(names, component) }
	before, after := r.before.places(), r.after.places()
	read, referred := map[string]bool{}, map[string]bool{} // components of files, and what HelmReleases take charts from
	for _, place := range slices.Concat(before, after) {
		read[place.file+" "+place.component] = true
		if place.target != nil {
			referred[place.target.file+place.target.String()] = true
		}
	}
	isReferred := func(place *place) bool { return place.target == nil && referred[place.file+place.document.String()] }
	for _, c := range r.paired(slices.DeleteFunc(before, isReferred), slices.DeleteFunc(after, isReferred)) {
		if wanted(cmp.Or(c.after, c.before).component) {
			p.compare(r, c)
		}
	}
	p.join()
	for _, patch := range r.patches {
		for _, hunk := range strings.Split(patch.text, "\n@@ ")[1:] {
			for _, component := range named(patch, hunk) {
				if wanted(component) && !read[patch.was+" "+component] && !read[patch.is+" "+component] {
					lines, _, _ := strings.Cut(hunk, " @@")
					p.NotRead = append(p.NotRead, fmt.Sprintf("%s, lines %s: a version changes beside the name of %s, in a form that is not known",
						patch.is, lines, component))
				}
			}
		}
	}
	return p
}

// compare adds what a change does to a place.
func (p *Plan) compare(r *Repository, c change) {
	if c.before == nil || c.after == nil {
		one, how := c.after, "new"
		if one == nil {
			one, how = c.before, "gone"
		}
		p.Notes = append(p.Notes, fmt.Sprintf("%s: %s %s is %s", one, one.component, one.written, how))
		return
	}
	from, wrongFrom := c.before.version()
	to, wrongTo := c.after.version()
	switch unknown := cmp.Or(wrongTo, wrongFrom); {
	case unknown != nil && c.before.written != c.after.written:
		p.NotRead = append(p.NotRead, fmt.Sprintf("%s: %s changes from %s to %s: %v", c.after, c.after.component, c.before.written,
			c.after.written, unknown))
	case unknown != nil && template(c.after.written):
		p.Notes = append(p.Notes, fmt.Sprintf("%s: %s: %v: whether it has changed is not known", c.after, c.after.component, unknown))
	case unknown == nil && from != to:
		p.Raises = append(p.Raises, Raise{
			Component: c.after.component, From: from, To: to, Places: []string{c.after.String()},
			Before: r.before.values(c.before), After: r.after.values(c.after),
		})
	}
}

// join makes one of raises of which one qualification is enough: with the same values, or with none that are known.
func (p *Plan) join() {
	all := p.Raises
	slices.SortStableFunc(all, func(a, b Raise) int { return len(b.After.Files) - len(a.After.Files) })
	p.Raises = nil
	for _, r := range all {
		i := slices.IndexFunc(p.Raises, func(o Raise) bool {
			return o.key() == r.key() || len(r.After.Files) == 0 && o.Component == r.Component && o.From == r.From && o.To == r.To
		})
		if i < 0 {
			p.Raises = append(p.Raises, r)
			continue
		}
		o := &p.Raises[i]
		o.Places = slices.Compact(append(o.Places, r.Places...))
		if len(r.After.Files) == 0 && len(o.After.Files) > 0 {
			o.After.NotRead = append(o.After.NotRead, cmp.Or(strings.Join(r.After.NotRead, "; "), "none are known of "+r.Places[0]))
		}
	}
}

// key is equal for raises of which one qualification is enough.
func (r Raise) key() string {
	text, _ := json.Marshal([]any{r.Component, r.From, r.To, r.Before.all, r.After.all, r.After.NotRead})
	return string(text)
}

// paired pairs the places of both trees: by file, document and entry; then by document and entry in another file; then
// by the component in a file.
func (r *Repository) paired(before, after []*place) (all []change) {
	renamed := map[string]string{}
	for _, patch := range r.patches {
		renamed[patch.is] = patch.was
	}
	entry := func(p *place) string {
		return strings.Join(append([]string{"", p.document.String(), p.component}, p.entry...), "\n")
	}
	left, found := slices.Clone(before), map[*place]*place{}
	for _, key := range []func(p *place, file string) string{
		func(p *place, file string) string { return file + entry(p) },
		func(p *place, file string) string { return map[bool]string{true: file}[p.at("kind") == ""] + entry(p) },
		func(p *place, file string) string { return file + "\n" + p.component },
	} {
		same := map[string][]*place{}
		for _, p := range left {
			same[key(p, p.file)] = append(same[key(p, p.file)], p)
		}
		for _, p := range after {
			k := key(p, cmp.Or(renamed[p.file], p.file))
			if was := same[k]; found[p] == nil && len(was) > 0 {
				found[p], same[k] = was[0], was[1:]
				left = slices.DeleteFunc(left, func(p *place) bool { return p == was[0] })
			}
		}
	}
	for _, p := range after {
		all = append(all, change{found[p], p})
	}
	for _, p := range left {
		all = append(all, change{p, nil})
	}
	return all
}

// places are those in all files that may name a component.
func (t *tree) places() (all []*place) {
	for _, d := range t.naming(mention) {
		all = append(all, placesOf(d)...)
	}
	all = append(all, t.releases(all)...)
	slices.SortStableFunc(all, func(a, b *place) int { return cmp.Compare(a.file, b.file) })
	return all
}

var chartRef = regexp.MustCompile(`chartRef`)

// releases are the HelmReleases that take their charts from other objects, with what those state.
func (t *tree) releases(all []*place) (releases []*place) {
	for _, d := range t.naming(chartRef) {
		kind, name := d.at("spec.chartRef.kind"), d.at("spec.chartRef.name")
		if d.at("kind") != "HelmRelease" || name == "" {
			continue
		}
		p := &place{document: d, chart: true, node: d.root}
		p.target = t.object(kind, cmp.Or(d.at("spec.chartRef.namespace"), d.at("metadata.namespace")), name, d)
		if of, there := each.First(all, func(o *place) bool { return o.document == p.target && o.chart }); there {
			p.component, p.written = of.component, of.written
		} else {
			p.component, p.written, p.missing = cmp.Or(chartOf(name), chartOf(d.at("metadata.name"))), kind+" "+name, true
		}
		if p.component != "" {
			releases = append(releases, p)
		}
	}
	return releases
}

// versionLine is what sets a version in a file that is named after a component.
var versionLine = regexp.MustCompile(`(?im)^\+.*(version|revision|value)["']?\s*[:=]`)

// named are the components that a hunk of a patch, or the name of its file, names, if a version changes in it. They keep
// a form that is not known from passing for no change.
func named(p patch, hunk string) []string {
	versions := map[byte][]string{}
	for line := range strings.Lines(hunk) {
		versions[line[0]] = append(versions[line[0]], number.FindAllString(line, -1)...)
	}
	if len(versions['-']) == 0 || len(versions['+']) == 0 || slices.Equal(versions['-'], versions['+']) {
		return nil
	}
	text := hunk
	if versionLine.MatchString(hunk) {
		text += p.was + p.is
	}
	all := map[string]bool{}
	for _, name := range mention.FindAllString(text, -1) {
		all[variableOf(strings.TrimSuffix(strings.ToLower(name), "version")+"version")] = true
	}
	delete(all, "")
	return slices.Sorted(maps.Keys(all))
}

// Write prints the plan. It prints no values: they may be secrets.
func (p Plan) Write(out io.Writer) {
	line := func(name, text string) { fmt.Fprintf(out, "  %-7s %s\n", name, text) }
	for _, r := range p.Raises {
		fmt.Fprintf(out, "%s %s to %s%s\n", r.Component, r.From, r.To, map[bool]string{true: ", a downgrade"}[bisect.Compare(r.From, r.To) > 0])
		for _, place := range r.Places {
			line("in", place)
		}
		for _, f := range r.After.Files {
			line("values", f.Name)
		}
		if len(r.After.Files)+len(r.After.NotRead) == 0 && installed(r.Component) {
			line("values", "none are known")
		}
		if !reflect.DeepEqual(r.Before.all, r.After.all) {
			line("", "they change with the version: both versions have those after the change")
		}
		for _, says := range r.After.NotRead {
			line("", says)
		}
	}
	for _, says := range p.NotRead {
		fmt.Fprintf(out, "not read: %s\n", says)
	}
	for _, says := range p.Notes {
		fmt.Fprintln(out, says)
	}
	if len(p.Raises)+len(p.NotRead) == 0 {
		fmt.Fprintf(out, "no version of %s has changed since %s\n", p.about, p.base)
	}
}
