// Package tabulate makes the table of package configdrift: which keys of Cilium's ConfigMap
// each version reads, and what it makes of them. Nothing of it is typed by hand.
//
// Where there are slices of the agent (Cilium), the agent slices of images/cilium/rules are asked:
// for their flags, and, in one run for each key that is not the same in all versions of
// the table, for what becomes of the configuration when that key alone is set. Of other
// versions it is what the vendor's sources state (Stated). See package configdrift for what is
// recorded.
package tabulate

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"
	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/agents"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/source"
	"github.com/relapse-dev/relapse/images"
)

// base is the configuration in which keys are tried: native routing, for which
// versions ask for more than for a tunnel, without IPv6, for which they would
// ask the same again.
var (
	native = map[string]string{"tunnel": "disabled"}
	base   = map[string]string{"tunnel": "disabled", "enable-ipv6": "false"}
)

// Cilium asks these agents. It takes some ten seconds for each on two CPUs. Progress is
// called with each version.
//
// What is known of other versions is taken over: that two keys are names of one setting
// shows where a version reads both, and that may be none of those that are asked. Known
// may be nil.
func Cilium(ctx context.Context, catalogue *images.Catalogue, built []agents.Agent, known *configdrift.Table, progress func(version string)) (*configdrift.Table, error) {
	g := generator{keys: map[string]map[string]configdrift.Option{}}
	if known != nil {
		g.takeOver(*known, built)
	}
	for _, a := range built {
		if err := g.readFlags(ctx, a); err != nil {
			return nil, err
		}
	}
	if err := g.readReplaced(ctx, catalogue, built); err != nil {
		return nil, err
	}
	for _, a := range built {
		v, err := manners(ctx, a)
		if err != nil {
			return nil, err
		}
		g.versions = append(g.versions, v)
	}
	slices.SortFunc(g.versions, func(a, b configdrift.Version) int { return semver.Compare("v"+a.Version, "v"+b.Version) })
	for _, a := range built {
		progress(a.Version)
		i := slices.IndexFunc(g.versions, func(v configdrift.Version) bool { return v.Version == a.Version })
		if err := g.ask(ctx, a, &g.versions[i]); err != nil {
			return nil, err
		}
	}
	return configdrift.NewTable("cilium", g.versions, g.keys), nil
}

// takeOver takes what a table says of versions that are not asked.
func (g *generator) takeOver(known configdrift.Table, built []agents.Agent) {
	asked := func(version string) bool {
		return slices.ContainsFunc(built, func(a agents.Agent) bool { return a.Version == version })
	}
	for _, v := range known.Versions {
		if !asked(v.Version) {
			g.versions = append(g.versions, v)
		}
	}
	for key, options := range known.Keys {
		g.keys[key] = maps.Clone(options)
		maps.DeleteFunc(g.keys[key], func(version string, _ configdrift.Option) bool { return asked(version) })
	}
}

// generator is a table that is being made.
type generator struct {
	versions []configdrift.Version
	keys     map[string]map[string]configdrift.Option
}

func (g *generator) readFlags(ctx context.Context, a agents.Agent) error {
	flags, err := a.Flags(ctx)
	if err != nil {
		return err
	}
	for _, f := range flags {
		if g.keys[f.Name] == nil {
			g.keys[f.Name] = map[string]configdrift.Option{}
		}
		g.keys[f.Name][a.Version] = configdrift.Option{Type: f.Type, Default: f.Default, Deprecated: f.Deprecated, Hidden: f.Hidden}
	}
	return nil
}

// readReplaced adds the keys that are no flags of any version, and that the
// agent puts in the place of others when it reads a ConfigMap: those that the
// vendor's function ReplaceDeprecatedFields names.
func (g *generator) readReplaced(ctx context.Context, catalogue *images.Catalogue, built []agents.Agent) error {
	for _, a := range built {
		dir, err := catalogue.Source(ctx, agents.Image(a.Version))
		if err != nil {
			return fmt.Errorf("looking for the source of %s: %w", a.Version, err)
		}
		replaced, err := source.Replaced(dir)
		if err != nil {
			return err
		}
		for name := range replaced {
			if g.keys[name] == nil {
				g.keys[name] = map[string]configdrift.Option{}
			}
		}
	}
	return nil
}

// manners finds out what the agent does with an empty value, and with one that
// is not of the key's type.
func manners(ctx context.Context, a agents.Agent) (configdrift.Version, error) {
	v := configdrift.Version{Version: a.Version, Empty: map[string]string{}, Wrong: map[string]string{}}
	for kind, key := range map[string]string{"bool": "enable-ipv4", "int": "mtu", "duration": "k8s-heartbeat-timeout"} {
		for value, outcome := range map[string]map[string]string{"": v.Empty, "wrong": v.Wrong} {
			got, err := a.Effective(ctx, map[string]string{key: value})
			if err != nil {
				return v, err
			}
			field := map[string]string{"bool": "EnableIPv4", "int": "MTU", "duration": "K8sHeartbeatTimeout"}[kind]
			switch {
			case got.Fatal != "":
				outcome[kind] = configdrift.Refused
			case got.Fields[field] == "":
				return v, fmt.Errorf("%s has no field %s", a.Version, field)
			default:
				outcome[kind] = got.Fields[field]
			}
		}
	}
	return v, nil
}

// candidates are values to try for a key, until the agent takes one.
func candidates(o configdrift.Option) []string {
	switch {
	case o.Type == "bool":
		return []string{strconv.FormatBool(o.Default != "true")}
	case strings.Contains(o.Type, "int"):
		n, _ := strconv.Atoi(o.Default)
		return []string{strconv.Itoa(n + 1), strconv.Itoa(n + 1024)}
	case strings.HasPrefix(o.Type, "float"):
		return []string{"0.5"}
	case o.Type == "duration":
		return []string{"17s"}
	}
	return []string{"10.99.0.0/16", "fd99::/64", "10.99.0.1", "kubernetes", "medium", "true", "1", "65536", "a=b", `{"a":"b"}`}
}

// ask sets each key alone that is not the same in all versions, and those that
// are keys in other versions only, and records what that does.
func (g *generator) ask(ctx context.Context, a agents.Agent, v *configdrift.Version) error {
	keys := g.keys
	plain, err := a.Effective(ctx, base)
	if err != nil {
		return err
	}
	if plain.Fatal != "" {
		return fmt.Errorf("%s does not start with %v: %s", a.Version, base, plain.Fatal)
	}
	if plain.Invalid != "" {
		v.Needs = &configdrift.Need{With: native, Says: plain.Invalid, Unless: map[string]string{}}
	}
	names := slices.Sorted(maps.Keys(keys))
	results := make([]result, len(names))
	var all errgroup.Group
	// An agent that refuses to start sleeps for two seconds first.
	all.SetLimit(8 * runtime.NumCPU())
	for i, key := range names {
		if _, ok := base[key]; ok || g.settled(keys[key]) && !mayExcuse(keys[key][a.Version], key, plain.Invalid) {
			continue
		}
		all.Go(func() error {
			option, ok := keys[key][a.Version]
			if !ok {
				for _, other := range keys[key] {
					option = other
				}
			}
			var err error
			results[i], err = try(ctx, a, plain, key, candidates(option))
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	byField := map[string][]string{}
	for i, key := range names {
		r := results[i]
		option, registered := keys[key][a.Version]
		if !g.settled(keys[key]) && (registered || len(r.sets) > 0) {
			option.Sets, option.Unregistered = r.sets, !registered
			keys[key][a.Version] = option
			for _, f := range r.sets {
				byField[f] = append(byField[f], key)
			}
		}
		if r.excuse != "" {
			kind := option.Type
			if kind != "bool" {
				r.excuse = configdrift.Any
			}
			v.Needs.Unless[key] = r.excuse
		}
	}
	return g.askPairs(ctx, a, byField)
}

// result is what changes when a key alone is set.
type result struct {
	sets   []string // fields
	excuse string   // the value that makes the configuration valid
}

// try sets a key to the first of some values with which the agent starts. Plain is its
// answer without the key.
func try(ctx context.Context, a agents.Agent, plain agents.Answer, key string, values []string) (result, error) {
	for _, value := range values {
		config := maps.Clone(base)
		config[key] = value
		got, err := a.Effective(ctx, config)
		if err != nil {
			return result{}, err
		}
		if got.Fatal != "" {
			continue
		}
		r := result{sets: differing(plain.Fields, got.Fields)}
		if plain.Invalid != "" && got.Invalid == "" {
			r.excuse = value
		}
		return r, nil
	}
	return result{}, nil
}

// mayExcuse reports whether a key that is the same in all versions is worth a
// try when a configuration is invalid.
func mayExcuse(o configdrift.Option, key, invalid string) bool {
	return invalid != "" && (o.Type == "bool" || strings.Contains(invalid, "--"+key))
}

// askPairs sets two keys for the same thing together.
func (g *generator) askPairs(ctx context.Context, a agents.Agent, byField map[string][]string) error {
	keys := g.keys
	for _, field := range slices.Sorted(maps.Keys(byField)) {
		for i, one := range byField[field] {
			for _, other := range byField[field][i+1:] {
				x, y := keys[one][a.Version], keys[other][a.Version]
				if x.Type != y.Type || len(x.Sets) != 1 || len(y.Sets) != 1 {
					continue
				}
				config := maps.Clone(base)
				value := candidates(x)[0]
				config[one], config[other] = value, value
				got, err := a.Effective(ctx, config)
				if err != nil {
					return err
				}
				if got.Fatal == "" {
					continue
				}
				x.Excludes, y.Excludes = other, one
				x.Says, y.Says = got.Fatal, got.Fatal
				keys[one][a.Version], keys[other][a.Version] = x, y
			}
		}
	}
	return nil
}

// settled reports whether a key is the same in all versions.
func (g *generator) settled(versions map[string]configdrift.Option) bool {
	if len(versions) != len(g.versions) {
		return false
	}
	first := versions[g.versions[0].Version]
	for _, o := range versions {
		if o.Type != first.Type || o.Default != first.Default || o.Deprecated != first.Deprecated || o.Unregistered {
			return false
		}
	}
	return true
}

func differing(a, b map[string]string) []string {
	var names []string
	for name, value := range b {
		if a[name] != value {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
