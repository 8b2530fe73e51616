package configdrift

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed cilium.keys
var ciliumKeys string

// Cilium returns the table of Cilium's ConfigMap. TestTable of package reference renders it
// from the vendor's modules.
var Cilium = sync.OnceValue(func() *Table {
	t, err := Parse(ciliumKeys)
	if err != nil {
		panic("configdrift: cilium.keys: " + err.Error()) // it is part of the program
	}
	return t
})

// Component is the component whose keys the table has.
const Component = "cilium"

// Reference is what one version states of its keys.
type Reference struct {
	Version string // without a leading v
	// Keys are the keys in the vendor's reference of commands, and the keys that the vendor's chart sets.
	Keys map[string]Option
	// Notes are the upgrade notes of the version's minor.
	Notes []Note
}

// Option is what one version makes of one key.
type Option struct {
	// Type is the type of the flag, in pflag's words; OfChart for a key that is no flag.
	Type, Default string
	// Operator: it is a flag of the operator, and not of the agent.
	Operator bool
	// Deprecated is what the vendor says of a key that is still read; empty if it is not
	// deprecated.
	Deprecated string
}

// OfChart is the type of a key that the chart sets and that is no flag of agent and operator:
// containers of the chart read it.
const OfChart = "-"

// Note is a sentence of the vendor's upgrade notes, and the keys that it is about.
type Note struct {
	Keys []string
	Says string
}

// Table is what versions of a component state of their keys.
type Table struct {
	references []Reference // in order of version
}

// With returns a copy of the table that has further versions, or has them in place of its own.
func (t *Table) With(references ...Reference) *Table {
	all := slices.DeleteFunc(slices.Clone(t.references), func(old Reference) bool {
		return slices.ContainsFunc(references, func(r Reference) bool { return r.Version == old.Version })
	})
	all = append(all, references...)
	slices.SortFunc(all, func(a, b Reference) int { return byNumber(a.Version, b.Version) })
	return &Table{all}
}

// String writes the table as Parse reads it: for each version a line with its number, then the keys
// that it has, and the version before lacks or has otherwise, as "KEY TYPE DEFAULT", with a plus
// sign before the type of an operator's key; the keys that it lacks as "-KEY"; and the notes of a
// minor, at its first version, as "*KEY,KEY SENTENCE".
func (t *Table) String() string {
	var b strings.Builder
	before := Reference{}
	for _, r := range t.references {
		fmt.Fprintf(&b, "%s\n", r.Version)
		for _, key := range slices.Sorted(maps.Keys(r.Keys)) {
			if o, had := before.Keys[key]; !had || o != r.Keys[key] {
				kind := r.Keys[key].Type
				if r.Keys[key].Operator {
					kind = "+" + kind
				}
				fmt.Fprintln(&b, strings.TrimSpace(fmt.Sprintf("%s %s %s", key, kind, r.Keys[key].Default)))
			}
		}
		for _, key := range slices.Sorted(maps.Keys(before.Keys)) {
			if _, has := r.Keys[key]; !has {
				fmt.Fprintf(&b, "-%s\n", key)
			}
		}
		if minor(r.Version) != minor(before.Version) {
			for _, n := range r.Notes {
				fmt.Fprintf(&b, "*%s %s\n", strings.Join(n.Keys, ","), n.Says)
			}
		}
		before = r
	}
	return b.String()
}

// aVersion is a line that begins a version.
var aVersion = regexp.MustCompile(`^\d+\.\d+\.\d+\S*$`)

// Parse reads a table as String writes it. Lines that begin with # are comments.
func Parse(text string) (*Table, error) {
	t := &Table{}
	number := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		number++
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if aVersion.MatchString(line) {
			r := Reference{Version: line, Keys: map[string]Option{}}
			if n := len(t.references); n > 0 {
				r.Keys = maps.Clone(t.references[n-1].Keys)
			}
			t.references = append(t.references, r)
			continue
		}
		if len(t.references) == 0 {
			return nil, fmt.Errorf("line %d: %q: expected a version before it", number, line)
		}
		r := &t.references[len(t.references)-1]
		words := strings.SplitN(line, " ", 3)
		name, removed := strings.CutPrefix(words[0], "-")
		keys, note := strings.CutPrefix(name, "*")
		switch {
		case removed:
			delete(r.Keys, name)
		case len(words) < 2:
			return nil, fmt.Errorf("line %d: %q: expected KEY TYPE DEFAULT", number, line)
		case note:
			_, says, _ := strings.Cut(line, " ")
			r.Notes = append(r.Notes, Note{strings.Split(keys, ","), says})
		default:
			kind, operator := strings.CutPrefix(words[1], "+")
			r.Keys[name] = Option{Type: kind, Default: strings.Join(words[2:], ""), Operator: operator}
		}
	}
	return t, nil
}

// UnknownVersionError says that the table has no version of a minor.
type UnknownVersionError struct {
	Version string
	Minors  []string // of the table, in order
}

func (e *UnknownVersionError) Error() string {
	return fmt.Sprintf("no table of the keys of %s %q: there are tables of %s", Component, e.Version, strings.Join(e.Minors, ", "))
}

// find returns the reference that holds for a version, which may begin with a v: the last one of
// its minor up to it, or else the first one of its minor. It also has the keys that come with the
// next one of its minor: whether the version has them is not known.
func (t *Table) find(version string) (Reference, error) {
	version = strings.TrimPrefix(version, "v")
	e := &UnknownVersionError{Version: version}
	var found, next *Reference
	for i, r := range t.references {
		e.Minors = append(e.Minors, minor(r.Version))
		switch {
		case minor(r.Version) != minor(version):
		case found == nil || byNumber(r.Version, version) <= 0:
			found = &t.references[i]
		case next == nil:
			next = &t.references[i]
		}
	}
	if found == nil || version == "" {
		e.Minors = slices.Compact(e.Minors)
		return Reference{}, e
	}
	r := Reference{Version: version, Keys: found.Keys, Notes: found.Notes}
	if found.Version != version && next != nil {
		r.Keys = maps.Clone(next.Keys)
		maps.Copy(r.Keys, found.Keys)
	}
	return r, nil
}

// option returns what a version makes of a key; false if it does not read it. The reference
// lacks flags that are deprecated: a key that an earlier reference has is still read if the
// list of retired keys, or else the upgrade notes, say so.
func (t *Table) option(r Reference, key string) (Option, bool) {
	if o, there := r.Keys[key]; there && o.Type != OfChart {
		return o, true
	}
	var last Option
	for _, earlier := range t.references {
		if byNumber(earlier.Version, r.Version) > 0 {
			break
		}
		if o, there := earlier.Keys[key]; there && o.Type != OfChart {
			last = o
		}
	}
	if at, listed := retiredKeys[key]; listed {
		if reached(r.Version, at.gone) || !reached(r.Version, at.deprecated) {
			return Option{}, false
		}
		last.Type, last.Deprecated = cmp.Or(last.Type, at.kind, "string"), at.says
		for _, d := range at.defaults {
			if reached(r.Version, d.version) {
				last.Default = d.value
			}
		}
		return last, true
	}
	if last.Type == "" {
		return Option{}, false
	}
	for _, n := range slices.Backward(t.notes("", r.Version, key)) {
		if removed := removes(n.Says, r.Version); removed || deprecates(n.Says) {
			last.Deprecated = n.Says
			return last, !removed
		}
	}
	return Option{}, false
}

type minorNote struct {
	minor string
	Note
}

// notes returns the notes about a key of the minors after one version, up to the minor of
// another one, in order. If the first version is empty, the notes begin with the table.
func (t *Table) notes(from, upTo, key string) []minorNote {
	var all []minorNote
	seen := ""
	for _, r := range t.references {
		at := minor(r.Version)
		if at == seen || from != "" && byNumber(at, minor(from)) <= 0 || byNumber(at, minor(upTo)) > 0 || len(r.Notes) == 0 {
			continue
		}
		seen = at
		for _, n := range r.Notes {
			if slices.Contains(n.Keys, key) {
				all = append(all, minorNote{at, n})
			}
		}
	}
	return all
}

var (
	planned = regexp.MustCompile(`(?:will|to) be (?:completely )?removed(?: in (?:version |Cilium )?v?(\d+\.\d+))?|scheduled for removal`)
	removal = regexp.MustCompile(`(?i)\bremoved\b|no longer (?:available|supported)`)
	warning = regexp.MustCompile(`\bdeprecated\b|deprecation`)
)

// removes reports whether a note says that what it is about is not there in a version.
func removes(says, version string) bool {
	for _, plan := range planned.FindAllStringSubmatch(says, -1) {
		if reached(version, plan[1]) {
			return true
		}
	}
	return !planned.MatchString(says) && removal.MatchString(says)
}

// deprecates reports whether a note says that what it is about is still there, but not for long.
func deprecates(says string) bool { return warning.MatchString(says) || planned.MatchString(says) }

func minor(version string) string {
	n := numbers(version)
	return fmt.Sprintf("%d.%d", n[0], n[1])
}

func reached(version, first string) bool { return first != "" && byNumber(first, version) <= 0 }

func byNumber(a, b string) int {
	x, y := numbers(a), numbers(b)
	return slices.Compare(x[:], y[:])
}

// numbers are a version's major, minor and patch number. What is no number counts as 0.
func numbers(version string) (n [3]int) {
	for i, part := range strings.SplitN(version, ".", len(n)) {
		digits, _, _ := strings.Cut(part, "-")
		n[i], _ = strconv.Atoi(digits)
	}
	return n
}
