package tabulate

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/source"
)

// Stated adds to a table of agents what the vendor's sources state: the keys of other versions, the
// operator's and the chart's keys of all, and the upgrade notes. Dirs are the folders of the vendor's
// modules by version, those of the agents' among them. It is an error if the sources of an agent do not
// state what the agent says.
func Stated(of *configdrift.Table, dirs map[string]string) (*configdrift.Table, error) {
	versions := slices.Clone(of.Versions)
	keys := map[string]map[string]configdrift.Option{}
	for key, options := range of.Keys {
		keys[key] = maps.Clone(options)
	}
	for _, version := range slices.Sorted(maps.Keys(dirs)) {
		s, err := read(dirs[version])
		if err != nil {
			return nil, fmt.Errorf("reading the sources of %s: %w", version, err)
		}
		if of.Asked(version) {
			if err := s.agrees(of, version); err != nil {
				return nil, err
			}
		} else {
			versions = append(versions, configdrift.Version{Version: version, Stated: true, Empty: s.empty, Wrong: s.wrong})
		}
		for key, option := range s.keys {
			if of.Asked(version) && option.Reader == "" && !option.Unregistered {
				continue
			}
			if keys[key] == nil {
				keys[key] = map[string]configdrift.Option{}
			}
			if _, asked := keys[key][version]; !asked {
				keys[key][version] = option
			}
		}
	}
	slices.SortFunc(versions, func(a, b configdrift.Version) int { return semver.Compare("v"+a.Version, "v"+b.Version) })
	table := configdrift.NewTable(of.Component, versions, keys)
	var err error
	table.Notes, err = notes(table, dirs)
	return table, err
}

// stated is what the sources of a version state.
type stated struct {
	keys         map[string]configdrift.Option
	empty, wrong map[string]string
}

func read(dir string) (stated, error) {
	s := stated{keys: map[string]configdrift.Option{}, empty: map[string]string{}, wrong: map[string]string{}}
	add := func(key string, o configdrift.Option) {
		if _, there := s.keys[key]; !there {
			s.keys[key] = o
		}
	}
	for _, p := range []struct {
		source.Program
		reader configdrift.Reader
	}{{source.Agent, ""}, {source.Operator, configdrift.Operator}} {
		flags, err := source.Flags(dir, p.Program)
		if err != nil {
			return s, err
		}
		for name, f := range flags {
			o := configdrift.Option{Type: f.Type, Default: f.Default, Deprecated: f.Deprecated, Hidden: f.Hidden, Computed: f.Computed, Unregistered: f.Unregistered, Reader: p.reader}
			add(name, o)
		}
		if p.reader != "" {
			continue
		}
		replaced, err := source.Replaced(dir)
		if err != nil {
			return s, err
		}
		for old := range replaced {
			add(old, configdrift.Option{Unregistered: true})
		}
	}
	pods, err := source.PodKeys(dir)
	if err != nil {
		return s, err
	}
	for _, key := range pods {
		add(key, configdrift.Option{Reader: configdrift.Pods})
	}
	validated, err := source.Validated(dir)
	if err != nil {
		return s, err
	}
	// A number of no digits is 0 for some versions of the library that parses it.
	for kind := range validated {
		s.wrong[kind] = configdrift.Refused
		if kind != "int" {
			s.empty[kind] = configdrift.Refused
		}
	}
	return s, nil
}

// agrees compares what is stated of an agent with what it says itself.
func (s stated) agrees(of *configdrift.Table, version string) error {
	for key, options := range of.Keys {
		asked, ok := options[version]
		if !ok || slices.Contains(source.NotKeys, key) {
			continue
		}
		o, ok := s.keys[key]
		if !ok || o.Reader != "" {
			return fmt.Errorf("the agent of %s reads %s, and its sources do not state it", version, key)
		}
		same := o.Type == asked.Type && o.Deprecated == asked.Deprecated && o.Hidden == asked.Hidden && (o.Computed || o.Default == asked.Default)
		if !same && !asked.Unregistered {
			return fmt.Errorf("%s of %s: stated is %+v, and the agent says %+v", key, version, o, asked)
		}
	}
	for key, o := range s.keys {
		if _, ok := of.Keys[key][version]; !ok && o.Reader == "" && !o.Unregistered && !slices.Contains(source.NotKeys, key) {
			return fmt.Errorf("the sources of %s state %s (%+v), and the agent does not read it", version, key, o)
		}
	}
	return nil
}

// notes are the upgrade notes of each minor but the first, as its last version in the table has them.
func notes(t *configdrift.Table, dirs map[string]string) (map[string]map[string]configdrift.Note, error) {
	last := map[string]string{} // by minor
	for _, v := range t.Versions {
		last[minor(v.Version)] = v.Version
	}
	all := map[string]map[string]configdrift.Note{}
	for m, version := range last {
		if m == minor(t.Versions[0].Version) {
			continue // there is no upgrade to it
		}
		found, err := source.Notes(filepath.Join(dirs[version], "Documentation/operations"))
		if err != nil {
			return nil, fmt.Errorf("upgrade notes of %s: %w", m, err)
		}
		for key := range t.Keys {
			if says := source.Quote(found, key); says != "" {
				if all[key] == nil {
					all[key] = map[string]configdrift.Note{}
				}
				all[key][m] = configdrift.Note{Says: says, About: source.About(found, key)}
			}
		}
	}
	return all, nil
}

func minor(version string) string { return strings.TrimPrefix(semver.MajorMinor("v"+version), "v") }
