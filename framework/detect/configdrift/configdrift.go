// Package configdrift finds what an upgrade changes in the effect of an unchanged configuration:
// keys that the new version does not read, deprecates or defaults differently, and the values in
// force before and after. It is a pure function of two versions and a ConfigMap.
//
// A table has the keys of each version, as the vendor's reference of commands and the chart
// state them, and the vendor's upgrade notes. The reference lacks deprecated and hidden flags:
// a key that has left it is still read if the list of retired keys (retired.go) or the upgrade
// notes say so, and is not read otherwise. Unjudged says what is not compared at all.
package configdrift

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Kind is what is wrong with a key.
type Kind string

// Kinds of a Drift, the worst first.
const (
	// Missing: without another key the new version does not start.
	Missing Kind = "missing"
	// Conflict: two keys cannot be set together; the new version does not start.
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
	// Noted: both versions read the key, and the vendor's upgrade notes are about it. What is in
	// force after is NotKnown unless the value is a word that both are known to read alike.
	Noted Kind = "noted"
	// Unknown: neither version reads the key.
	Unknown Kind = "unknown"
)

const (
	// Refused means a value with which the agent does not start.
	Refused = "refused"
	// NotKnown means a value that is not known without asking the agent.
	NotKnown = "not known"
)

var kinds = []Kind{Missing, Conflict, BadValue, NotRead, NewlyRead, DefaultChanged, Deprecated, Noted, Unknown}

// Drift is what an upgrade does to one key.
type Drift struct {
	Key  string `json:"key"`
	Kind Kind   `json:"kind"`
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
// version whose minor the table lacks.
func (t *Table) Compare(from, to Setup) ([]Drift, error) {
	var c comparison
	var err error
	if c.from, err = t.configured(from); err != nil {
		return nil, err
	}
	if c.to, err = t.configured(to); err != nil {
		return nil, err
	}
	read := each.Once(slices.AppendSeq(slices.Collect(maps.Keys(retiredKeys)), maps.Keys(c.to.Keys)))
	drifts := slices.Concat(each.Of(slices.Sorted(maps.Keys(to.Config)), c.set), each.Of(read, c.unset))
	drifts = slices.DeleteFunc(append(drifts, c.missing()), func(d Drift) bool { return d.Kind == "" })
	for i, d := range drifts {
		drifts[i].Says += c.noted(d.Key)
	}
	slices.SortStableFunc(drifts, func(a, b Drift) int {
		return slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind)
	})
	return drifts, nil
}

// Refusals are the reasons for which a version is known not to start with a configuration.
func (t *Table) Refusals(s Setup) ([]Drift, error) {
	drifts, err := t.Compare(s, s)
	return slices.DeleteFunc(drifts, func(d Drift) bool { return d.After != Refused }), err
}

// Unjudged is what Compare does not find, whatever the versions are.
func Unjudged() string {
	return "keys that the agent refuses together, but for old and new names of a setting; texts that it refuses or reads " +
		"in another way, but for those of " +
		strings.Join(Worded(), ", ") + "; and what CiliumNodeConfigs, arguments and environment of the agents set besides"
}

type comparison struct{ from, to configured }

// inForce returns the values of a key's setting before and after, in the same words.
func (c comparison) inForce(key string) (before, after force) {
	before, after = c.from.inForce(key), c.to.inForce(key)
	if before.key != after.key && before.key != "" && after.key != "" {
		before.value, after.value = inNewWords(before.key, before.value), inNewWords(after.key, after.value)
	}
	return before, after
}

// set judges a key of the ConfigMap. A Drift without a Kind is none.
func (c comparison) set(key string) Drift {
	before, after := c.inForce(key)
	d := Drift{Key: key, Before: before.value, After: after.value}
	o, wasRead := c.from.option(key)
	n, isRead := c.to.option(key)
	setTo := fmt.Sprintf("%s is set to %q", key, c.to.config[key])
	switch {
	case !isRead && (c.to.Keys[key].Type == OfChart || !wasRead && c.from.Keys[key].Type == OfChart):
		return Drift{}
	case !wasRead && !isRead:
		d.Kind, d.Before, d.After = Unknown, "", ""
		// It may be anything, a secret as well.
		d.Says = fmt.Sprintf("%s is set, which neither %s nor %s reads%s.",
			key, c.from.Version, c.to.Version, c.elsewhere(key))
	case !isRead:
		d.Kind = NotRead
		d.Says = fmt.Sprintf("%s, which %s does not read%s%s.",
			setTo, c.to.Version, c.instead(after), c.change(before, after))
	case after.conflict != "":
		d.Kind = Conflict
		d.Says = fmt.Sprintf("%s, and %s to %q: %s does not start with both (%q).",
			setTo, after.with(key), c.to.config[after.with(key)], c.to.Version, after.conflict)
	case after.key == key && after.bad:
		d.Kind = BadValue
		flaw := "not of type " + n.Type
		if kindOf(n.Type) == "" {
			flaw = "none of " + strings.ReplaceAll(strings.Join(words(key, c.to.Version), ", "), "?", "")
		}
		d.Says = fmt.Sprintf("%s, which is %s%s.", setTo, flaw, c.change(before, after))
	case !wasRead && c.from.Keys[key].Type == OfChart:
		return Drift{} // a container of the chart read it
	case !wasRead:
		d.Kind = NewlyRead
		d.Says = fmt.Sprintf("%s, which %s does not read and %s does%s.", setTo, c.from.Version, c.to.Version, c.change(before, after))
	case n.idles():
		// The default is in force, whatever the key says.
		d.Kind, d.After = Deprecated, normal(n.Type, n.Default)
		if o.idles() || before.value == d.After {
			return Drift{}
		}
		d.Says = fmt.Sprintf("%s, which %s reads, but reports as without effect (%q): %s with %s.",
			setTo, c.to.Version, n.Deprecated, say(before.value), c.from.Version)
	case n.Deprecated != "":
		d.Kind = Deprecated
		d.Says = fmt.Sprintf("%s, which %s reads, but reports as deprecated (%q)%s%s.",
			setTo, c.to.Version, n.Deprecated, c.change(before, after), c.newName(key))
	case o.Type != n.Type && before.value != after.value:
		d.Kind = BadValue
		d.Says = fmt.Sprintf("%s, a %s for %s and a %s for %s%s.", setTo, o.Type, c.from.Version, n.Type, c.to.Version, c.change(before, after))
	case c.noted(key) == "":
		return Drift{}
	case c.sameWord(key):
		if !strings.Contains(c.noted(key), c.to.config[key]+"`") {
			return Drift{}
		}
		d.Kind = Noted
		d.Says = setTo + ", which both versions read; upgrade notes name it."
	default:
		d.Kind, d.After = Noted, NotKnown
		d.Says = setTo + ", which both versions read; what it means may change."
	}
	return d
}

// unset judges a setting for which the new version finds no key in the ConfigMap. A setting with
// several names is reported once, under the name that the new version goes by.
func (c comparison) unset(key string) Drift {
	set := slices.ContainsFunc(names(key), func(name string) bool { _, set := c.to.config[name]; return set })
	before, after := c.inForce(key)
	if set || before.key == "" || after.key != key || before.value == after.value {
		return Drift{}
	}
	formerly := say(before.value)
	if before.set {
		formerly += fmt.Sprintf(" (%s was set to it)", before.key)
	}
	return Drift{
		Key: key, Kind: DefaultChanged, Before: before.value, After: after.value,
		Says: fmt.Sprintf("%s is not set, which means %s with %s: with %s it is %s.", key, say(after.value), c.to.Version, c.from.Version,
			formerly),
	}
}

// noted is what the vendor's upgrade notes say of a key, from the minor after the older version to the minor of the
// newer one.
func (c comparison) noted(key string) string {
	from, to := c.from.Version, c.to.Version
	if byNumber(from, to) > 0 { // a rollback takes back what they say
		from, to = to, from
	}
	says := ""
	for _, n := range c.to.table.notes(from, to, key) {
		says += fmt.Sprintf(" Upgrade notes of %s: %q", n.minor, n.Says)
	}
	return says
}

func (c comparison) missing() Drift {
	key, lacks := c.to.lacksCIDR()
	if _, lacked := c.from.lacksCIDR(); !lacks || lacked && c.from.Version != c.to.Version {
		return Drift{}
	}
	return Drift{
		Key: key, Kind: Missing, Before: c.from.inForce(key).value, After: Refused,
		Says: fmt.Sprintf("%s is not set, with native routing and masquerading: %s does not start "+
			"(\"native routing cidr must be configured with option --%s\").", key, c.to.Version, key),
	}
}

// configured is one of the two setups, with the reference of its version.
type configured struct {
	Reference
	table  *Table
	config map[string]string
}

func (t *Table) configured(s Setup) (configured, error) {
	r, err := t.find(s.Version)
	return configured{r, t, s.Config}, err
}

func (s configured) option(key string) (Option, bool) { return s.table.option(s.Reference, key) }

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

// inForce returns the effective value of the setting that a key names: the value of the name that is set, or else the
// default. It is NotKnown if the version reads none of the setting's names.
func (s configured) inForce(key string) force {
	f := force{value: NotKnown}
	for _, name := range names(key) { // the newest first
		o, ok := s.option(name)
		if !ok {
			continue
		}
		raw, set := s.config[name]
		now := retiredKeys[name].now
		_, also := s.config[now]
		if _, read := s.option(now); set && also && read {
			if says := conflicts(s.Version, name, s.config); says != "" {
				return force{value: Refused, key: name, set: true, conflict: says, pair: [2]string{name, now}}
			}
		}
		switch {
		case !set && f.key == "":
			f = force{value: normal(o.Type, o.Default), key: name}
		case set && (!f.set || f.value == "" || strings.HasPrefix(name, oldCounts) && raw != ""):
			f = force{key: name, set: true}
			f.value, f.bad = read(name, o, s.Version, raw)
		}
	}
	return f
}

// read returns how a version reads a value of a ConfigMap, and whether the value is bad.
func read(key string, o Option, version, raw string) (value string, wrong bool) {
	kind := kindOf(o.Type)
	if kind == "" {
		if yes, _ := takes(key, version, o, raw); !yes {
			return Refused, true
		}
		return normal(o.Type, raw), false
	}
	if value, ok := parse(kind, raw); ok && raw != "" {
		return value, false
	}
	if o.Operator {
		return NotKnown, true // the agents alone were asked
	}
	return bad(version, kind, raw), true
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
	kind := kindOf(flagType)
	if v, ok := parse(kind, value); ok && kind != "" {
		return v
	}
	if value == "[]" || value == "map[]" {
		return ""
	}
	return value
}

func say(value string) string { return cmp.Or(value, "nothing") }

// instead is the part of a sentence that follows "which 1.11.1 does not read":
// the key that this version goes by.
func (c comparison) instead(after force) string {
	switch {
	case after.key == "":
		return ""
	case after.set:
		return fmt.Sprintf("; there %s has effect, and is set to %q", after.key, c.to.config[after.key])
	}
	return fmt.Sprintf("; there %s has effect, and is not set", after.key)
}

// newName says how the setting of a deprecated key is called now; empty if it has no other name.
func (c comparison) newName(key string) string {
	r := retiredKeys[key]
	value := inNewWords(key, c.to.config[key])
	if _, read := c.to.option(r.now); r.now == "" || !read || value == NotKnown {
		return ""
	}
	return fmt.Sprintf("; %s %q says the same", r.now, value)
}

func (c comparison) change(before, after force) string {
	switch {
	case before.value == NotKnown && after.value == NotKnown:
		return "; what comes of it is not known"
	case after.value == NotKnown:
		return fmt.Sprintf(": %s with %s, and what comes of it with %s is not known", say(before.value), c.from.Version, c.to.Version)
	case before.value == NotKnown && after.value == Refused:
		return fmt.Sprintf(": %s does not start", c.to.Version)
	case before.value == NotKnown:
		return fmt.Sprintf(": %s with %s, and what was in force with %s is not known", say(after.value), c.to.Version, c.from.Version)
	case before.value == after.value:
		return fmt.Sprintf(": %s, as before", say(after.value))
	case after.value == Refused:
		return fmt.Sprintf(": %s with %s, and %s does not start", say(before.value), c.from.Version, c.to.Version)
	case before.value == Refused:
		return fmt.Sprintf(": %s does not start, and with %s it is %s", c.from.Version, c.to.Version, say(after.value))
	}
	return fmt.Sprintf(": %s with %s, %s with %s", say(before.value), c.from.Version, say(after.value), c.to.Version)
}

// elsewhere says what an unknown key may be: a key of another version, or a misspelt one.
func (c comparison) elsewhere(key string) string {
	first, last := "", ""
	for _, r := range c.to.table.references {
		if o, there := r.Keys[key]; there && o.Type != OfChart {
			first, last = cmp.Or(first, r.Version), r.Version
		}
	}
	if first != "" {
		return fmt.Sprintf(", but the reference of %s to %s has it", first, last)
	}
	// A key may be misspelt in up to a third of its letters.
	nearest, least := "", len(key)/3+1
	for other, o := range c.to.Keys {
		if o.Type == OfChart || max(len(key)-len(other), len(other)-len(key)) > least {
			continue
		}
		if d := topology.Distance(key, other); d < least || d == least && nearest != "" && other < nearest {
			nearest, least = other, d
		}
	}
	if nearest == "" {
		return ""
	}
	return fmt.Sprintf("; the nearest key that %s reads is %s", c.to.Version, nearest)
}

// sameWord reports whether both versions are known to read the value of a key in the same way.
func (c comparison) sameWord(key string) bool {
	o, _ := c.from.option(key)
	n, _ := c.to.option(key)
	_, before := takes(key, c.from.Version, o, c.to.config[key])
	_, after := takes(key, c.to.Version, n, c.to.config[key])
	return slices.Contains(Worded(), key) && before && after
}
