// Package bump finds the upgrades of known components that a change of a git repository makes: by each place that
// states a version, before and after, with the values of the chart that go with it.
package bump

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/topology/each"
)

// Plan lists the upgrades of known components that a change of a repository makes.
type Plan struct {
	Raises []Raise
	// NotRead says why changed versions were not read: the plan lacks upgrades. Lines are changed lines of files in
	// unknown forms: the plan may lack upgrades. Notes are about added and removed components.
	NotRead, Lines, Notes []string
	about, base           string
}

// Raise is an upgrade, or a downgrade, that a change makes in one or more places with the same values.
type Raise struct {
	Component, From, To string
	// Places are files, each with the object in it.
	Places []string
	// Before and After are the values of both versions.
	Before, After Values
}

// change is a place before and after the change; before is nil if the place is new, after if it is gone.
type change struct{ before, after *place }

// Plan compares both trees. If there are names, it takes only the components with these names.
func (r *Repository) Plan(names ...string) Plan {
	p := Plan{about: cmp.Or(strings.Join(names, " or "), "a component that relapse knows"), base: r.base}
	wanted := func(component string) bool { return len(names) == 0 || slices.Contains(names, component) }
	before, after := r.before.places(), r.after.places()
	sources := map[string]bool{} // of either side
	for _, place := range slices.Concat(before, after) {
		if place.source != nil {
			sources[place.source.String()] = true
		}
	}
	isSource := func(place *place) bool { return place.source == nil && sources[place.String()] }
	// read are the changed places' versions, by folder: a Chart.lock is beside its Chart.yaml.
	read := map[string]bool{}
	changes := r.paired(slices.DeleteFunc(before, isSource), slices.DeleteFunc(after, isSource))
	for _, c := range changes {
		if c.before != nil && c.after != nil && c.before.written == c.after.written {
			continue
		}
		for _, place := range []*place{c.before, c.after} {
			for stated := place; stated != nil; stated = stated.source {
				for _, number := range number.FindAllString(stated.written, -1) {
					read[path.Dir(stated.file)+" "+number] = true
				}
			}
		}
	}
	lines := r.unread(read)
	for _, c := range changes {
		if wanted(cmp.Or(c.after, c.before).component) {
			p.compare(r, c, changes, lines)
		}
	}
	p.join()
	once := func(a, b line) bool { return a.file == b.file && slices.Equal(a.components, b.components) }
	for _, line := range slices.CompactFunc(lines, once) {
		if about := each.Where(line.components, wanted); len(about) > 0 {
			p.Lines = append(p.Lines, fmt.Sprintf("%s: a version may change beside the name of %s: %.120s",
				line.file, strings.Join(about, " and "), strings.TrimSpace(line.text[1:])))
		}
	}
	return p
}

func (p *Plan) compare(r *Repository, c change, all []change, lines []line) {
	one, how, other := c.after, "added", r.before
	if c.after == nil {
		one, how, other = c.before, "removed", r.after
	}
	if c.before == nil || c.after == nil {
		says := fmt.Sprintf("%s: %s %s is %s", one, one.component, one.written, how)
		replaces := func(o change) bool { // only the other tree has the place
			p := cmp.Or(o.before, o.after)
			return p == cmp.Or(o.after, o.before) && (o.after == nil) != (c.after == nil) && p.component == one.component && p.written != one.written
		}
		switch text, there := other.texts[one.file]; {
		case there && strings.TrimSpace(text) != "" && len(other.documents(one.file)) == 0:
			p.NotRead = append(p.NotRead, says+": the other version of the file is no YAML")
		case slices.ContainsFunc(all, replaces):
			p.NotRead = append(p.NotRead, says+", another version elsewhere: whether it is an upgrade is not known")
		default:
			p.Notes = append(p.Notes, says)
		}
		return
	}
	from, wrongFrom := c.before.version()
	to, wrongTo := c.after.version()
	changes := fmt.Sprintf("%s: %s changes from %s to %s", c.after, c.after.component, c.before.written, c.after.written)
	switch unknown := cmp.Or(wrongTo, wrongFrom); {
	case c.before.written == c.after.written:
		if set, ok := each.First(lines, func(l line) bool { return l.sets(c.after.written) }); ok {
			p.NotRead = append(p.NotRead, fmt.Sprintf("%s: %s: %v, which may change in %s", c.after, c.after.component, unknown, set.file))
		}
	case c.after.disabled:
		p.Notes = append(p.Notes, changes+", and is disabled")
	case unknown != nil:
		p.NotRead = append(p.NotRead, changes+": "+unknown.Error())
	case from != to:
		where := c.after.String()
		if c.after.source != nil {
			where += ", by " + c.after.source.String()
		}
		p.Raises = append(p.Raises, Raise{
			Component: c.after.component, From: from, To: to, Places: []string{where},
			Before: r.before.values(c.before), After: r.after.values(c.after),
		})
	}
}

// join merges raises that one qualification covers: raises with the same values, and one with unknown values into any.
func (p *Plan) join() {
	all := p.Raises
	slices.SortStableFunc(all, func(a, b Raise) int { return len(b.After.Files) - len(a.After.Files) })
	p.Raises = nil
	for _, r := range all {
		i := slices.IndexFunc(p.Raises, func(o Raise) bool {
			return o.key() == r.key() || !r.After.read && o.Component == r.Component && o.From == r.From && o.To == r.To
		})
		if i < 0 {
			p.Raises = append(p.Raises, r)
			continue
		}
		o := &p.Raises[i]
		o.Places = slices.Compact(append(o.Places, r.Places...))
		if !r.After.read && len(o.After.Files) > 0 {
			o.After.NotRead = append(o.After.NotRead, cmp.Or(strings.Join(r.After.NotRead, "; "), "none are known of "+r.Places[0]))
		}
	}
}

// key is equal for raises that one qualification covers.
func (r Raise) key() string {
	text, _ := json.Marshal([]any{r.Component, r.From, r.To, r.Before.all, r.After.all, r.After.NotRead, r.After.read})
	return string(text)
}

// paired pairs the places of both trees: by file, document and entry; then by version, document and entry in another
// file; then by component in a file. A renamed file is followed only to a folder above or below its own: any other
// folder belongs to another cluster.
func (r *Repository) paired(before, after []*place) (all []change) {
	renamed := map[string]string{}
	for _, p := range r.patches {
		oldFolder, folder := strings.TrimPrefix(path.Dir(p.oldName)+"/", "./"), strings.TrimPrefix(path.Dir(p.name)+"/", "./")
		if strings.HasPrefix(oldFolder, folder) || strings.HasPrefix(folder, oldFolder) {
			renamed[p.name] = p.oldName
		}
	}
	entry := func(p *place) string {
		return strings.Join(append([]string{"", p.document.String(), p.component, p.way}, p.entry...), "\n")
	}
	left, found := slices.Clone(before), map[*place]*place{}
	for _, key := range []func(p *place, file string) string{
		func(p *place, file string) string { return file + entry(p) },
		func(p *place, file string) string { return p.written + entry(p) },
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

// places are the places in all files, sorted by file.
func (t *tree) places() (all []*place) {
	documents := t.naming(mentions...)
	for _, d := range documents {
		all = append(all, placesOf(d)...)
	}
	all = resolved(all)
	for _, d := range documents {
		all = append(all, referring(d, all)...)
	}
	slices.SortStableFunc(all, func(a, b *place) int { return cmp.Compare(a.file, b.file) })
	return all
}

// resolved replaces names of variables by what the nearest variable of the name states.
func resolved(places []*place) (all []*place) {
	for _, p := range places {
		found := variable.FindStringSubmatch(p.written)
		var keys []*place
		if found != nil && strings.HasSuffix(p.written, "}") { // a variable alone
			keys = nearest(each.Where(places, func(o *place) bool { return o.key == found[1] && o.component == p.component && o != p }), p.document)
		}
		for _, key := range keys {
			with := *p
			with.written, with.source = key.written, key
			if len(keys) > 1 {
				with.way = key.String()
			}
			all = append(all, &with)
		}
		if len(keys) == 0 {
			all = append(all, p)
		}
	}
	return all
}

// referring are the places of a HelmRelease that takes its chart from another object, with that object's version.
func referring(d *document, all []*place) (releases []*place) {
	kind, name := d.at("spec.chartRef.kind"), d.at("spec.chartRef.name")
	if d.at("kind") != "HelmRelease" || name == "" {
		return nil
	}
	charts := each.Where(all, func(o *place) bool { return o.chart })
	found := nearest(like(charts, kind, cmp.Or(d.at("spec.chartRef.namespace"), d.at("metadata.namespace")), name), d)
	if len(found) == 0 || slices.ContainsFunc(found, func(o *place) bool { return o.document != found[0].document }) {
		component := cmp.Or(chartOf(name), chartOf(d.at("metadata.name")))
		found = []*place{{component: component, written: kind + " " + name, missing: true}}
	}
	for _, source := range found {
		p := *source
		p.document, p.chart, p.node = d, true, d.root
		if !p.missing {
			p.source = source
		}
		if p.component != "" {
			releases = append(releases, &p)
		}
	}
	return releases
}

// line is a changed line with a version that no place has, and the components that are named near it. So a change in
// an unknown form does not pass for no change.
type line struct {
	file, text string
	components []string
}

func (l line) sets(written string) bool {
	found := variable.FindStringSubmatch(written)
	return found != nil && regexp.MustCompile(`(?i)\b`+found[1]+`["']?\s*[:=]`).MatchString(l.text)
}

// unread are the changed lines with versions that no place has. read has the places' versions, by folder.
func (r *Repository) unread(read map[string]bool) (all []line) {
	for _, p := range r.patches {
		for _, hunk := range p.hunks {
			_, hunk, _ = strings.Cut(hunk, "\n") // the header quotes a line that does not change
			unread := func(text string) []string {
				return each.Where(versions(path.Base(p.name), text), func(number string) bool {
					return !read[path.Dir(p.oldName)+" "+number] && !read[path.Dir(p.name)+" "+number]
				})
			}
			sides := map[byte][]string{}
			for text := range strings.Lines(hunk) {
				sides[text[0]] = append(sides[text[0]], unread(text)...)
			}
			removed := func(number string) bool { return !slices.Contains(sides['+'], number) }
			added := func(number string) bool { return !slices.Contains(sides['-'], number) }
			for text := range strings.Lines(hunk) {
				if text[0] == '+' && slices.ContainsFunc(unread(text), added) && slices.ContainsFunc(sides['-'], removed) {
					all = append(all, line{p.name, text, named(p.oldName + p.name + hunk)})
				}
			}
		}
	}
	return all
}

// noVersion matches lines whose numbers are no versions of components: comments, actions, a chart's own version.
var noVersion = regexp.MustCompile(`\n.\s*(#|//)|uses:|^Chart\.yaml\n.version:`)

// versions are the numbers in a line of a file's patch that may be versions: addresses are none.
func versions(file, line string) []string {
	if noVersion.MatchString(file + "\n" + line) {
		return nil
	}
	least := map[bool]int{true: 1, false: 2}[strings.Contains(strings.ToLower(line), "version")]
	return each.Where(number.FindAllString(line, -1), func(number string) bool {
		dots := strings.Count(number, ".")
		return dots >= least && dots <= 2
	})
}

func named(text string) []string {
	all := each.Of(mention.FindAllString(text, -1), func(name string) string {
		return variableOf(strings.TrimSuffix(strings.ToLower(name), "version") + "version")
	})
	return each.Once(all)
}

// Write prints the plan, with changed lines and with names of values. It prints no value.
func (p Plan) Write(out io.Writer) {
	line := func(name, text string) { fmt.Fprintln(out, plain.Line(fmt.Sprintf("  %-7s %s", name, text))) }
	for _, r := range p.Raises {
		fmt.Fprintf(out, "%s %s to %s%s\n", r.Component, r.From, r.To, map[bool]string{true: ", a downgrade"}[bisect.Compare(r.From, r.To) > 0])
		for _, place := range r.Places {
			line("in", place)
		}
		for _, from := range r.After.From {
			line("values", from)
		}
		if len(r.After.Files)+len(r.After.NotRead) == 0 && installed(r.Component) {
			line("values", "chart defaults: no values were found")
		}
		if !reflect.DeepEqual(r.Before.all, r.After.all) {
			line("", "the values change as well; both versions run with those after the change")
		}
		for _, says := range r.After.NotRead {
			line("", says)
		}
	}
	for _, says := range slices.Concat(p.NotRead, p.Lines) {
		fmt.Fprintln(out, plain.Line("not read: "+says))
	}
	for _, says := range p.Notes {
		fmt.Fprintln(out, plain.Line(says))
	}
	if len(p.Raises)+len(p.NotRead)+len(p.Lines) == 0 {
		fmt.Fprintf(out, "no version of %s has changed since %s\n", p.about, p.base)
	}
}
