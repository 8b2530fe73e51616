package qualify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/cilium/reference"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
)

// Charts compares what the charts of both versions render from the same values.
type Charts struct {
	// ConfigMap is the ConfigMap's namespace/name, or names other settings. From and To are how many keys it has.
	ConfigMap string `json:"config_map"`
	From      int    `json:"from"`
	To        int    `json:"to"`
	// Refused is why the new chart does not accept the values; empty if it does.
	Refused string `json:"refused,omitempty"`
	// Changes are the changed keys of the ConfigMap, and Noted the values that the vendor's upgrade notes name.
	Changes []Change `json:"changes"`
	Noted   []Change `json:"noted,omitempty"`
	// Defaults are changed defaults of flags that the new ConfigMap does not set, by the vendor's reference.
	Defaults []Effective `json:"defaults"`
	// NotRead are keys of the new ConfigMap that only the old version reads, Neither the keys that no version reads.
	NotRead []string `json:"not_read,omitempty"`
	Neither []string `json:"neither,omitempty"`
}

const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// Change is a key, or a value of the chart, that changes.
type Change struct {
	Key  string `json:"key"`
	Kind string `json:"kind,omitempty"`
	From string `json:"from"`
	To   string `json:"to"`
	// Note quotes the vendor's upgrade notes on the key; empty if they do not name it.
	Note string `json:"note,omitempty"`
}

// compare fills in Changes, without secrets of the user's values.
func (c *Charts) compare(before, after map[string]string, users map[string]any, notes []reference.Note) {
	secrets := chart.Secrets(users)
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		oldValue, had := before[key]
		newValue, has := after[key]
		from, to := chart.WithoutSecrets(oldValue, secrets), chart.WithoutSecrets(newValue, secrets)
		change := Change{Key: key, Kind: Changed, From: from, To: to, Note: reference.Quote(notes, key)}
		switch {
		case had && has && oldValue == newValue:
			continue
		case !has:
			change.Kind = Removed
		case !had:
			change.Kind = Added
		}
		c.Changes = append(c.Changes, change)
	}
}

// drifts fills in Defaults, NotRead and Neither, and returns the drifts with which the new version does not start.
func (c *Charts) drifts(all []configdrift.Drift) (refusals []configdrift.Drift) {
	for _, d := range all {
		switch d.Kind {
		case configdrift.DefaultChanged:
			c.Defaults = append(c.Defaults, Effective{Field: d.Key, From: d.Before, To: d.After})
		case configdrift.NotRead:
			c.NotRead = append(c.NotRead, d.Key)
		case configdrift.Unknown:
			c.Neither = append(c.Neither, d.Key)
		case configdrift.Missing, configdrift.Conflict, configdrift.BadValue:
			refusals = append(refusals, d)
		}
	}
	return refusals
}

func (c *Charts) noted(users map[string]any, notes []reference.Note) {
	var walk func(values map[string]any, path string)
	walk = func(values map[string]any, path string) {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			at := strings.TrimPrefix(path+"."+key, ".")
			if inner, ok := values[key].(map[string]any); ok {
				walk(inner, at)
			}
			// A name such as devices is also an ordinary word.
			if !strings.Contains(at, ".") && strings.ToLower(at) == at {
				continue
			}
			if says := reference.Quote(notes, at); says != "" {
				c.Noted = append(c.Noted, Change{Key: at, To: chart.Shown(at, values[key]), Note: says})
			}
		}
	}
	walk(users, "")
}

// listed has a row for each list that is not empty.
func listed(lists ...list) (rows []Row) {
	for _, l := range lists {
		if n := len(l.items); n > 0 {
			r := Row{Part: PartConfiguration, Name: l.name, State: l.state, Says: l.says + strings.Join(l.items, cmp.Or(l.between, ", ")) + l.end}
			if l.count != "" {
				r.To = fmt.Sprintf("%s: %d", l.count, n)
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// list is a row about some items. count is the label of their number in the cell; empty: no cell.
type list struct {
	name, count        string
	state              State
	items              []string
	says, between, end string
}

func defaultsOf(to string, all []Effective) (items []string) {
	for _, d := range all {
		items = append(items, fmt.Sprintf("%s: %s, %s with %s", d.Field, orNothing(d.From), orNothing(d.To), to))
	}
	return items
}

func (c Charts) rows(from, to, source string, v *Values) []Row {
	whole := Row{
		Part: PartConfiguration, Name: c.ConfigMap, State: Fine, Decides: true, From: fmt.Sprintf("%d keys", c.From),
		To: fmt.Sprintf("%d keys", c.To), Back: fmt.Sprintf("%d keys", c.From),
		Says: fmt.Sprintf("the charts of %s and %s render it with %d and %d keys from %s", from, to, c.From, c.To, source),
	}
	if c.Refused != "" {
		whole.To, whole.State = "refused", Fails
		whole.Says = fmt.Sprintf("the chart of %s refuses the values of %s: %s", to, source, c.Refused)
		whole.Remedy = "change the values as the chart says"
	}
	rows := []Row{whole}
	if v != nil {
		rows = append(rows, listed(
			list{name: "values that are gone", state: Warning, items: v.NotOfTo,
				says: fmt.Sprintf("the chart of %s does not read values that the one of %s reads: ", to, from)},
			list{name: "values that are new", state: Warning, items: v.NotOfFrom,
				says: fmt.Sprintf("the chart of %s does not read values that only the one of %s reads, also after a rollback: ", from, to)},
			list{name: "values without effect", state: Warning, items: v.Unread, between: "; "},
			list{name: "pinned images", state: Warning, items: v.pins(), end: fmt.Sprintf("; the lab upgrades to %s all the same", to),
				says: fmt.Sprintf("your values name images themselves, which the chart of %s does not change: ", to)},
		)...)
	}
	var added []string
	for _, change := range c.Changes {
		if change.Kind == Added && change.Note == "" {
			added = append(added, change.Key+": "+change.To)
		} else {
			rows = append(rows, change.row(from, to))
		}
	}
	rows = append(rows, listed(list{name: "added keys", count: "added", state: Fine, items: added, between: "; ",
		says: fmt.Sprintf("keys that only the chart of %s sets: ", to)})...)
	for _, noted := range c.Noted {
		rows = append(rows, Row{Part: PartConfiguration, Name: "values " + noted.Key, State: Warning,
			Says: fmt.Sprintf("you set %s to %s%s", noted.Key, noted.To, quoted(to, noted.Note))})
	}
	return append(rows, listed(
		list{name: "no longer read", count: "keys", state: Warning, items: c.NotRead,
			says: fmt.Sprintf("keys that agent or operator of %s read, and none of %s: ", from, to)},
		list{name: "defaults", count: "changed", state: Warning, items: defaultsOf(to, c.Defaults), between: "; ",
			says: "unset flags of agent and operator whose defaults change: "},
		list{name: "read by neither", count: "keys", state: NotLookedAt, items: c.Neither,
			says: "keys that the vendor states for no program of either version: "},
	)...)
}

func (c Change) row(from, to string) Row {
	r := Row{Part: PartConfiguration, Name: c.Key, From: orNothing(c.From), To: orNothing(c.To), State: Warning}
	switch c.Kind {
	case Added:
		r.From, r.State = "not set", Fine
		r.Says = fmt.Sprintf("%s: the chart of %s sets it to %s, and that of %s does not set it", c.Key, to, r.To, from)
	case Removed:
		r.To = "not set"
		r.Says = fmt.Sprintf("%s: the chart of %s sets it to %s, and that of %s does not set it", c.Key, from, r.From, to)
	default:
		r.Says = fmt.Sprintf("%s: %s, %s with the chart of %s", c.Key, r.From, r.To, to)
	}
	r.Says += quoted(to, c.Note)
	return r
}

func quoted(version, note string) string {
	if note == "" {
		return ""
	}
	return fmt.Sprintf("; upgrade notes of %s: %q", version, note)
}
