package configdrift

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:generate go run ./generate

//go:embed cilium.json
var ciliumJSON []byte

// Cilium returns the table of Cilium's ConfigMap: see command generate.
var Cilium = sync.OnceValue(func() *Table {
	t := &Table{}
	if err := json.Unmarshal(ciliumJSON, t); err != nil {
		panic("configdrift: cilium.json: " + err.Error()) // it is part of the program
	}
	return t
})

// Table is what is known of a component's configuration.
type Table struct {
	Component string `json:"component"`
	// Versions are in order, oldest first.
	Versions []Version `json:"versions"`
	// Keys are by name and version. A version that does not read a key has
	// no Option for it.
	Keys map[string]map[string]Option `json:"-"`
	// Notes are the sentences of the vendor's upgrade notes that name a key, by key and minor.
	Notes map[string]map[string]Note `json:"notes,omitempty"`

	// synonyms are, for each key, the keys of the same setting in
	// one version or another, itself included, in order of name.
	synonyms map[string][]string
}

// NewTable makes a table of some versions, oldest first, and of options by key and
// version.
func NewTable(component string, versions []Version, keys map[string]map[string]Option) *Table {
	t := &Table{Component: component, Versions: versions, Keys: keys}
	t.findSynonyms()
	return t
}

// Asked reports whether the table has a version whose agent was asked.
func (t *Table) Asked(version string) bool {
	v, err := t.find(version)
	return err == nil && !v.Stated
}

// OfAgents returns the part of the table that agents were asked for: their versions, and the keys that
// they read.
func (t *Table) OfAgents() *Table {
	versions := slices.DeleteFunc(slices.Clone(t.Versions), func(v Version) bool { return v.Stated })
	keys := map[string]map[string]Option{}
	for key, options := range t.Keys {
		for _, v := range versions {
			if o, ok := options[v.Version]; ok && o.Reader == "" && !o.Computed {
				if keys[key] == nil {
					keys[key] = map[string]Option{}
				}
				keys[key][v.Version] = o
			}
		}
	}
	return NewTable(t.Component, versions, keys)
}

const (
	// Refused means a value with which the agent does not start.
	Refused = "refused"
	// NotKnown means a value that is not known without asking the agent.
	NotKnown = "not known"
)

// Any means every value but the empty one.
const Any = "*"

// Version is what holds for all keys of a version.
type Version struct {
	Version string `json:"version"`
	// Stated is set where no agent was asked: the keys are those that the vendor's sources state. What
	// a key sets, and with which others the agent does not start, is not known then.
	Stated bool `json:"stated,omitempty"`
	// Empty and Wrong are what an empty value, and a value of another type,
	// come out as: by type, Refused where the agent does not start. Of a type that is not there it
	// is not known.
	Empty map[string]string `json:"empty"`
	Wrong map[string]string `json:"wrong"`
	// Needs is what native routing asks for, nil if nothing.
	Needs *Need `json:"needs,omitempty"`
}

// Need is a configuration with which the agent does not start.
type Need struct {
	With map[string]string `json:"with"`
	// Unless are the keys, with their values or Any, each of which makes it
	// start.
	Unless map[string]string `json:"unless"`
	// Says is the agent's own message.
	Says string `json:"says"`
}

// Option is what one version makes of one key.
type Option struct {
	// Type is that of the flag, in pflag's words.
	Type    string `json:"type,omitempty"`
	Default string `json:"default,omitempty"`
	// Deprecated is the vendor's own note.
	Deprecated string `json:"deprecated,omitempty"`
	Hidden     bool   `json:"hidden,omitempty"`
	// Reader is what reads the key besides the agent, which does not; empty: the agent does.
	Reader Reader `json:"reader,omitempty"`
	// Computed: the code computes the default of a key that the vendor's reference lacks. It is
	// not known.
	Computed bool `json:"computed,omitempty"`
	// Unregistered: there is no such flag, but the key in a ConfigMap has an
	// effect.
	Unregistered bool `json:"unregistered,omitempty"`
	// Sets are the fields of the agent's configuration that were seen to
	// change when the key was set. It was not tried for keys that are the
	// same in all versions.
	Sets []string `json:"sets,omitempty"`
	// Excludes is a key with which this one cannot be set together, Says what
	// the agent says then.
	Excludes string `json:"excludes,omitempty"`
	Says     string `json:"says,omitempty"`
}

// Note is what the upgrade notes of a minor say of a key.
type Note struct {
	// Says are the sentences that name it.
	Says string `json:"says"`
	// About is set where one of them names it before all others: it is about the key.
	About bool `json:"about,omitempty"`
}

// Reader is a program that reads the ConfigMap.
type Reader string

// Readers besides the agent.
const (
	Operator Reader = "the operator"
	// Pods are containers that the chart gives the key in their environment.
	Pods Reader = "containers of the chart"
)

// Versioned is an Option that several versions have in common.
type Versioned struct {
	// In are versions, and ranges of them in the table: FIRST..LAST.
	In []string `json:"in"`
	Option
}

// Fold turns options by version into a list, in order of version.
func Fold(versions []Version, options map[string]Option) []Versioned {
	var all []Versioned
	in := map[int][]string{} // by place in the list
	for _, v := range versions {
		o, ok := options[v.Version]
		if !ok {
			continue
		}
		i := slices.IndexFunc(all, func(a Versioned) bool { return reflect.DeepEqual(a.Option, o) })
		if i < 0 {
			all = append(all, Versioned{Option: o})
			i = len(all) - 1
		}
		in[i] = append(in[i], v.Version)
	}
	for i := range all {
		all[i].In = ranges(versions, in[i], "..")
	}
	return all
}

// ranges writes versions that follow one another in the table as FIRST, a word and LAST.
func ranges(versions []Version, in []string, to string) []string {
	var all []string
	for i := 0; i < len(in); {
		first := slices.IndexFunc(versions, func(v Version) bool { return v.Version == in[i] })
		n := 1
		for i+n < len(in) && first+n < len(versions) && versions[first+n].Version == in[i+n] {
			n++
		}
		if n > 2 {
			all = append(all, in[i]+to+in[i+n-1])
		} else {
			all = append(all, in[i:i+n]...)
		}
		i += n
	}
	return all
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Table) UnmarshalJSON(data []byte) error {
	type plain Table
	read := struct {
		*plain
		Keys map[string][]Versioned `json:"keys"`
	}{plain: (*plain)(t)}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	at := map[string]int{}
	for i, v := range t.Versions {
		at[v.Version] = i
	}
	t.Keys = make(map[string]map[string]Option, len(read.Keys))
	for key, all := range read.Keys {
		t.Keys[key] = map[string]Option{}
		for _, v := range all {
			for _, in := range v.In {
				first, last, is := strings.Cut(in, "..")
				if !is {
					last = first
				}
				from, ok := at[first]
				to, also := at[last]
				if !ok || !also || from > to {
					return fmt.Errorf("key %s: %q: expected a version of the table, or FIRST..LAST", key, in)
				}
				for _, version := range t.Versions[from : to+1] {
					t.Keys[key][version.Version] = v.Option
				}
			}
		}
	}
	t.findSynonyms()
	return nil
}

// findSynonyms unites the keys that set the same one field in a version. A key
// that sets several is another matter: turning IPv4 off also turns its
// masquerading off.
func (t *Table) findSynonyms() {
	t.synonyms = map[string][]string{}
	names := slices.Sorted(maps.Keys(t.Keys))
	for _, key := range names {
		t.synonyms[key] = []string{key}
	}
	unite := func(one, other string) {
		united := slices.Concat(t.synonyms[one], t.synonyms[other])
		slices.Sort(united)
		for _, k := range united {
			t.synonyms[k] = united
		}
	}
	for _, v := range t.Versions {
		byField := map[string]string{}
		for _, key := range names {
			o, ok := t.Keys[key][v.Version]
			if !ok || len(o.Sets) != 1 {
				continue
			}
			other, ok := byField[o.Sets[0]]
			byField[o.Sets[0]] = key
			if !ok || slices.Contains(t.synonyms[other], key) || t.Keys[other][v.Version].Type != o.Type {
				continue
			}
			unite(other, key)
		}
	}
	for old, now := range renamed {
		if t.Keys[old] != nil && t.Keys[now] != nil && !slices.Contains(t.synonyms[old], now) {
			unite(old, now)
		}
	}
}

// UnknownVersionError says that the table does not know a version.
type UnknownVersionError struct {
	Component, Version string
	// Nearest is the version in the table that is least far away, Known are
	// all.
	Nearest string
	Known   []string
}

// Error names the known versions of the same minor, or else the minors.
func (e *UnknownVersionError) Error() string {
	var near, minors []string
	for _, v := range e.Known {
		minors = append(minors, minor(v))
		if minor(v) == minor(e.Version) {
			near = append(near, v)
		}
	}
	known := "there are " + strings.Join(near, ", ")
	if near == nil {
		known = "there are versions of " + strings.Join(slices.Compact(minors), ", ")
	}
	return fmt.Sprintf("no table of %s %q; the nearest known version is %s (%s)", e.Component, e.Version, e.Nearest, known)
}

// minor is the beginning of a version, such as 1.12.
func minor(version string) string {
	n := numbers(version)
	return fmt.Sprintf("%d.%d", n[0], n[1])
}

// find returns a version, which may begin with a v.
func (t *Table) find(version string) (Version, error) {
	version = strings.TrimPrefix(version, "v")
	e := &UnknownVersionError{Component: t.Component, Version: version}
	wanted := numbers(version)
	var least [3]int
	for _, v := range t.Versions {
		if v.Version == version {
			return v, nil
		}
		e.Known = append(e.Known, v.Version)
		has := numbers(v.Version)
		var distance [3]int
		for i := range distance {
			distance[i] = max(has[i]-wanted[i], wanted[i]-has[i])
		}
		if slices.Compare(has[:], wanted[:]) < 0 && has[0] != wanted[0] {
			distance = [3]int{distance[0]} // the last one of an older major version
		}
		if e.Nearest == "" || slices.Compare(distance[:], least[:]) <= 0 {
			e.Nearest, least = v.Version, distance
		}
	}
	return Version{}, e
}

// numbers are a version's major, minor and patch number. What is no number
// counts as 0.
func numbers(version string) (n [3]int) {
	for i, part := range strings.SplitN(version, ".", len(n)) {
		digits, _, _ := strings.Cut(part, "-")
		n[i], _ = strconv.Atoi(digits)
	}
	return n
}
