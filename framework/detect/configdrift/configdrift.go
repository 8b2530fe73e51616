// Package configdrift finds what an upgrade changes in the effect of an unchanged
// configuration: keys that the new version does not read, deprecates or defaults
// differently, and the values in force before and after. It is a pure function of two
// versions and a ConfigMap.
//
// What a version reads is in a table (command generate): flags of agent and operator with types,
// defaults and deprecations. For some versions it was made by running the vendor's own code, and then
// it also has the effect of each key when it alone is set, which shows that two keys are names of one
// setting; and what is refused. For the others it is what the vendor's sources state, with the
// sentences of the vendor's upgrade notes; what is not known of these is told as not known, and
// Unjudged says what is not compared at all.
package configdrift

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is what is wrong with a key.
type Kind string

// Kinds of a Drift, the worst first.
const (
	// Missing: without another key the new version does not start.
	Missing Kind = "missing"
	// Conflict: two keys cannot be set together; the new version does not
	// start.
	Conflict Kind = "conflict"
	// BadValue: the value is empty or of another type; the new version does
	// not start, or reads something else.
	BadValue Kind = "bad-value"
	// NotRead: the old version reads the key, the new one does not.
	NotRead Kind = "not-read"
	// NewlyRead: the old version does not read the key, the new one does.
	NewlyRead Kind = "newly-read"
	// DefaultChanged: the key is not set, and its default changes.
	DefaultChanged Kind = "default-changed"
	// The new version reads the key and reports it as deprecated.
	Deprecated Kind = "deprecated"
	// Noted: both versions read the key, and the vendor's upgrade notes name it, or another program
	// reads it than before. What is in force after is NotKnown if the notes are about the key.
	Noted Kind = "noted"
	// Unknown: neither version reads the key.
	Unknown Kind = "unknown"
)

var kinds = []Kind{Missing, Conflict, BadValue, NotRead, NewlyRead, DefaultChanged, Deprecated, Noted, Unknown}

// Drift is what an upgrade does to one key.
type Drift struct {
	Key  string `json:"key"`
	Kind Kind   `json:"kind"`
	// Decides is the key that the new version reads for the same setting; empty if
	// there is none.
	Decides string `json:"decides,omitempty"`
	// Before and After are the values in force, in the vendor's words for
	// them; Refused where the agent does not start, NotKnown where that takes the agent. Empty: none.
	Before string `json:"before"`
	After  string `json:"after"`
	// Says is one sentence for the operator who upgrades.
	Says string `json:"says"`
}

// Changed reports whether the upgrade changes what is in force, or may: it is not known. A version that
// does not start with the ConfigMap counts as well, whatever the one before did.
func (d Drift) Changed() bool {
	return d.Before != d.After || d.After == NotKnown || d.After == Refused
}

// Setup is a version, and the configuration that it has read or will read.
type Setup struct {
	// Version may begin with a v.
	Version string
	// Config is the ConfigMap's data.
	Config map[string]string
}

// Compare returns the effects of replacing one setup by another, the worst first. If only the
// version changes, Config is the same in both. The error is an *UnknownVersionError for a
// version that the table lacks.
func (t *Table) Compare(from, to Setup) ([]Drift, error) {
	c := comparison{table: t, from: configured{table: t, config: from.Config}, to: configured{table: t, config: to.Config}}
	var err error
	if c.from.Version, err = t.find(from.Version); err != nil {
		return nil, err
	}
	if c.to.Version, err = t.find(to.Version); err != nil {
		return nil, err
	}
	var drifts []Drift
	for _, key := range slices.Sorted(maps.Keys(to.Config)) {
		if d, ok := c.set(key); ok {
			drifts = append(drifts, d)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(t.Keys)) {
		if d, ok := c.unset(key); ok {
			drifts = append(drifts, d)
		}
	}
	if d, ok := c.missing(); ok {
		drifts = append(drifts, d)
	}
	for i, d := range drifts {
		says, _ := c.noted(d.Key)
		drifts[i].Says += says
	}
	slices.SortStableFunc(drifts, func(a, b Drift) int {
		return slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind)
	})
	return drifts, nil
}

type comparison struct {
	table    *Table
	from, to configured
}

// set judges a key that the new version finds in the ConfigMap.
func (c comparison) set(key string) (Drift, bool) {
	before, after := c.from.inForce(key), c.to.inForce(key)
	d := Drift{Key: key, Decides: after.key, Before: before.value, After: after.value}
	o, wasRead := c.from.option(key)
	n, isRead := c.to.option(key)
	if !isRead && after.key == "" && o.Reader != "" {
		after.value, d.After = NotKnown, NotKnown // names of a setting are known of the agent's keys alone
	}
	if !wasRead && before.key == "" && n.Reader != "" {
		before.value, d.Before = NotKnown, NotKnown
	}
	setTo := fmt.Sprintf("%s is set to %q", key, c.to.config[key])
	switch {
	case !wasRead && !isRead:
		d.Kind, d.Decides, d.Before, d.After = Unknown, "", "", ""
		d.Says = fmt.Sprintf("%s, which neither %s nor %s reads%s.", setTo, c.from.name(), c.to.name(), c.elsewhere(key))
	case !isRead:
		d.Kind = NotRead
		d.Says = fmt.Sprintf("%s, which %s does not read%s%s.", setTo, c.to.name(), c.instead(after), c.change(before, after))
	case after.conflict != "":
		d.Kind = Conflict
		d.Says = fmt.Sprintf("%s, and %s to %q: %s does not start with both (%q).", setTo, after.with(key), c.to.config[after.with(key)], c.to.name(), after.conflict)
	case after.key == key && after.bad:
		d.Kind = BadValue
		is := "not of type " + n.Type
		if kindOf(n.Type) == "" {
			is = "none of " + strings.ReplaceAll(strings.Join(words(key, c.to.name()), ", "), "?", "")
		}
		d.Says = fmt.Sprintf("%s, which is %s%s.", setTo, is, c.change(before, after))
	case !wasRead:
		d.Kind = NewlyRead
		d.Says = fmt.Sprintf("%s, which %s does not read and %s does%s.", setTo, c.from.name(), c.to.name(), c.change(before, after))
	case n.idles():
		// The default is in force, whatever the key says.
		d.Kind, d.After = Deprecated, normal(n.Type, n.Default)
		if o.idles() || before.value == d.After {
			return Drift{}, false
		}
		d.Says = fmt.Sprintf("%s, which %s reads, but reports as without effect (%q): %s with %s.", setTo, c.to.name(), n.Deprecated, say(before.value), c.from.name())
	case n.Deprecated != "":
		d.Kind = Deprecated
		d.Says = fmt.Sprintf("%s, which %s reads, but reports as deprecated (%q)%s.", setTo, c.to.name(), n.Deprecated, c.change(before, after))
	case o.Type != n.Type && before.value != after.value:
		d.Kind = BadValue
		d.Says = fmt.Sprintf("%s, a %s for %s and a %s for %s%s.", setTo, o.Type, c.from.name(), n.Type, c.to.name(), c.change(before, after))
	case o.Reader == "" && n.Reader != "":
		d.Kind, d.After = Noted, NotKnown
		d.Says = fmt.Sprintf("%s, which the agent of %s reads, and with %s only %s.", setTo, c.from.name(), c.to.name(), n.Reader)
	default:
		says, about := c.noted(key)
		if says == "" {
			return Drift{}, false
		}
		about = about && !c.sameWord(key)
		d.Kind = Noted
		d.Says = setTo + ", which both versions read; upgrade notes name it."
		if about {
			d.After = NotKnown
			d.Says = setTo + ", which both versions read; what it means may change."
		}
	}
	return d, true
}

// unset judges a setting for which the new version finds no key in the
// ConfigMap. A setting with several names is reported once, under the name
// that the new version goes by.
func (c comparison) unset(key string) (Drift, bool) {
	for _, name := range c.table.names(key) {
		if _, ok := c.to.config[name]; ok {
			return Drift{}, false
		}
	}
	before, after := c.from.inForce(key), c.to.inForce(key)
	if before.key == "" || after.key != key || before.value == after.value || c.computed(key) {
		return Drift{}, false
	}
	formerly := say(before.value)
	if before.set {
		formerly += fmt.Sprintf(" (%s was set to it)", before.key)
	}
	return Drift{
		Key: key, Kind: DefaultChanged, Decides: key, Before: before.value, After: after.value,
		Says: fmt.Sprintf("%s is not set, which means %s with %s: with %s it is %s.", key, say(after.value), c.to.name(), c.from.name(), formerly),
	}, true
}

// computed reports whether the default of a key is not known in one of the versions.
func (c comparison) computed(key string) bool {
	o, _ := c.from.option(key)
	n, _ := c.to.option(key)
	return o.Computed || n.Computed || o.Reader == Pods || n.Reader == Pods
}

// Unjudged says what Compare does not find between two versions; empty if there is nothing of that.
func (t *Table) Unjudged(from, to Setup) (string, error) {
	c := comparison{table: t, from: configured{table: t, config: from.Config}, to: configured{table: t, config: to.Config}}
	var err error
	if c.from.Version, err = t.find(from.Version); err != nil {
		return "", err
	}
	if c.to.Version, err = t.find(to.Version); err != nil {
		return "", err
	}
	if !c.from.Stated && !c.to.Stated {
		return "", nil
	}
	says := "keys that the agent refuses together, texts that it refuses or reads in another way but for those of " + strings.Join(Worded(), ", ") + ", and what CiliumNodeConfigs, arguments and environment of the agents set besides"
	var computed []string
	for _, key := range slices.Sorted(maps.Keys(t.Keys)) {
		_, set := to.Config[key]
		_, read := c.from.option(key)
		if _, also := c.to.option(key); read && also && !set && c.computed(key) {
			computed = append(computed, key)
		}
	}
	if computed != nil {
		says += ", changed defaults of " + strings.Join(computed, ", ")
	}
	return says, nil
}

// noted is what the vendor's upgrade notes of the minors after the older version say of a key, up to
// those of the newer one, and whether one of them is about it. Where both agents were asked, nothing is
// left for them to say.
func (c comparison) noted(key string) (says string, about bool) {
	if !c.from.Stated && !c.to.Stated {
		return "", false
	}
	from, to := numbers(minor(c.from.name())), numbers(minor(c.to.name()))
	if slices.Compare(from[:], to[:]) > 0 { // a rollback takes back what they say
		from, to = to, from
	}
	notes := c.table.Notes[key]
	for _, m := range slices.SortedFunc(maps.Keys(notes), byNumber) {
		at := numbers(m)
		if slices.Compare(from[:], at[:]) < 0 && slices.Compare(at[:], to[:]) <= 0 {
			says += fmt.Sprintf(" Upgrade notes of %s: %q", m, notes[m].Says)
			about = about || notes[m].About
		}
	}
	return says, about
}

func byNumber(a, b string) int {
	x, y := numbers(a), numbers(b)
	return slices.Compare(x[:], y[:])
}

// missing judges what the new version asks for.
func (c comparison) missing() (Drift, bool) {
	if !c.to.lacks() || c.from.lacks() {
		return Drift{}, false
	}
	n := c.to.Needs
	d := Drift{Kind: Missing, After: Refused}
	// The key that is asked for is one whose value is free.
	for _, key := range slices.Sorted(maps.Keys(n.Unless)) {
		if n.Unless[key] == Any && strings.Contains(n.Says, "--"+key) {
			d.Key, d.Decides, d.Before = key, key, c.from.inForce(key).value
			break
		}
	}
	var with []string
	for _, key := range slices.Sorted(maps.Keys(n.With)) {
		with = append(with, fmt.Sprintf("%s is %q", key, n.With[key]))
	}
	d.Says = fmt.Sprintf("%s is not set, while %s: %s does not start (%q).", d.Key, strings.Join(with, " and "), c.to.name(), n.Says)
	return d, true
}

// configured is one of the two setups, with what the table says of its
// version.
type configured struct {
	Version
	table  *Table
	config map[string]string
}

func (s configured) name() string { return s.Version.Version }

// lacks reports whether the agent does not start because a key is missing.
func (s configured) lacks() bool {
	if s.Needs == nil {
		return false
	}
	for key, value := range s.Needs.With {
		if s.inForce(key).value != value {
			return false
		}
	}
	for key, value := range s.Needs.Unless {
		got, set := s.config[key]
		if set && (value == Any && got != "" || s.inForce(key).value == value) {
			return false
		}
	}
	return true
}

// force is a value in force, and the key that it is from.
type force struct {
	value, key string
	set        bool   // in the ConfigMap
	bad        bool   // the ConfigMap's value is empty, of another type or none of the key's words
	conflict   string // what the agent says of two keys that are both set
	pair       [2]string
}

// with is the other one of two keys that are both set.
func (f force) with(key string) string {
	if f.pair[0] == key {
		return f.pair[1]
	}
	return f.pair[0]
}

// inForce returns the effective value of the setting that a key belongs
// to: that of its names that is set, or else the default.
func (s configured) inForce(key string) force {
	var f force
	for _, name := range s.table.names(key) {
		o, ok := s.option(name)
		if !ok {
			continue
		}
		raw, set := s.config[name]
		if !set {
			if !f.set && (f.key == "" || o.Deprecated == "" && !o.Hidden) {
				f = force{value: normal(o.Type, o.Default), key: name}
			}
			continue
		}
		if other, ok := s.config[o.Excludes]; ok && raw != "" && other != "" {
			return force{value: Refused, key: name, set: true, conflict: o.Says, pair: [2]string{name, o.Excludes}}
		}
		if says := s.both(name); says != "" {
			return force{value: Refused, key: name, set: true, conflict: says, pair: [2]string{name, renamed[name]}}
		}
		// If two are set, a non-empty one outweighs an empty one, and a new name an old one.
		if !f.set || f.value == "" || (o.Deprecated == "" && raw != "") {
			f = force{key: name, set: true}
			f.value, f.bad = read(name, o, s.Version, raw)
		}
	}
	if f.key == "" && s.Stated {
		f.value = NotKnown // another key may stand for the setting
	}
	return f
}

func (s configured) option(key string) (Option, bool) {
	o, ok := s.table.Keys[key][s.Version.Version]
	return o, ok
}

// names are all names of a key's setting.
func (t *Table) names(key string) []string {
	if all := t.synonyms[key]; all != nil {
		return all
	}
	return []string{key}
}

// read returns how a version reads a value of a ConfigMap, and whether the value is bad.
func read(key string, o Option, v Version, raw string) (value string, bad bool) {
	kind := kindOf(o.Type)
	if yes, _ := takes(key, v.Version, o, raw); kind == "" && !yes {
		return Refused, true
	}
	if kind == "" {
		return normal(o.Type, raw), false
	}
	outcomes := v.Empty
	if raw != "" {
		if value, ok := parse(kind, raw); ok {
			return value, false
		}
		outcomes = v.Wrong
	}
	if value, ok := outcomes[kind]; ok && o.Reader == "" {
		return value, true
	}
	return NotKnown, true
}

// kindOf is the type of a value; empty for types that accept any text.
func kindOf(flagType string) string {
	switch {
	case flagType == "bool", flagType == "duration":
		return flagType
	case strings.HasSuffix(flagType, "Slice"):
		return ""
	case strings.HasPrefix(flagType, "int"), strings.HasPrefix(flagType, "uint"):
		return "int"
	}
	return ""
}

func parse(kind, raw string) (string, bool) {
	switch kind {
	case "bool":
		b, err := strconv.ParseBool(raw)
		return strconv.FormatBool(b), err == nil
	case "duration":
		d, err := time.ParseDuration(raw)
		return d.String(), err == nil
	}
	n, err := strconv.ParseInt(raw, 0, 64)
	return strconv.FormatInt(n, 10), err == nil
}

// normal writes equal values in the same way.
func normal(flagType, value string) string {
	if kind := kindOf(flagType); kind != "" {
		if v, ok := parse(kind, value); ok {
			return v
		}
	}
	if value == "[]" || value == "map[]" {
		return ""
	}
	return value
}

func say(value string) string {
	if value == "" {
		return "nothing"
	}
	return value
}

// instead is the part of a sentence that follows "which 1.11.1 does not read":
// the key that this version goes by.
func (c comparison) instead(after force) string {
	switch {
	case after.key == "" && after.value == NotKnown:
		return ""
	case after.key == "":
		return ", nor any other key for it"
	case after.set:
		return fmt.Sprintf("; there %s has effect, and is set to %q", after.key, c.to.config[after.key])
	}
	return fmt.Sprintf("; there %s has effect, and is not set", after.key)
}

// change says what is in force before and after.
func (c comparison) change(before, after force) string {
	switch {
	case before.value == NotKnown && after.value == NotKnown:
		return "; what comes of it is not known"
	case after.value == NotKnown:
		return fmt.Sprintf(": %s with %s, and what comes of it with %s is not known", say(before.value), c.from.name(), c.to.name())
	case before.value == NotKnown && after.value == Refused:
		return fmt.Sprintf(": %s does not start", c.to.name())
	case before.value == NotKnown:
		return fmt.Sprintf(": %s with %s, and what was in force with %s is not known", say(after.value), c.to.name(), c.from.name())
	case before.value == after.value:
		return fmt.Sprintf(": %s, as before", say(after.value))
	case after.value == Refused:
		return fmt.Sprintf(": %s with %s, and %s does not start", say(before.value), c.from.name(), c.to.name())
	case before.value == Refused:
		return fmt.Sprintf(": %s does not start, and with %s it is %s", c.from.name(), c.to.name(), say(after.value))
	}
	return fmt.Sprintf(": %s with %s, %s with %s", say(before.value), c.from.name(), say(after.value), c.to.name())
}

// elsewhere says what an unknown key may be: a key of another version, or a
// misspelt one.
func (c comparison) elsewhere(key string) string {
	if versions := c.table.Keys[key]; versions != nil {
		var in []string
		for _, v := range c.table.Versions {
			if _, ok := versions[v.Version]; ok {
				in = append(in, v.Version)
			}
		}
		return fmt.Sprintf(", but %s %s", strings.Join(ranges(c.table.Versions, in, " to "), ", "), plural(len(in), "does", "do"))
	}
	// A key may be misspelt in up to a third of its letters.
	nearest, least := "", len(key)/3+1
	for other := range c.table.Keys {
		if _, ok := c.to.option(other); !ok || max(len(key)-len(other), len(other)-len(key)) > least {
			continue
		}
		if d := edits(key, other); d < least || d == least && nearest != "" && other < nearest {
			nearest, least = other, d
		}
	}
	if nearest == "" {
		return ""
	}
	return fmt.Sprintf("; the nearest key that %s reads is %s", c.to.name(), nearest)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// edits is the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = min(diagonal, row[j], row[j+1]) + 1
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
