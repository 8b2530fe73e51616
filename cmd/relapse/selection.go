package main

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

type selection struct {
	names []string
	all   bool
	label string            // an expression; empty: any labels
	with  map[string]string // versions of components (--with), which no variant has
}

// scenarios returns the chosen scenarios, in the order of the arguments or else of the catalogue, and the names of the
// variants that --label chose; nil without --label. A scenario that --label or --with does not select is left out, or,
// if it is an argument, refused.
func (s selection) scenarios() (chosen []framework.Scenario, variants []string, err error) {
	named := len(s.names) > 0
	switch {
	case named && s.all:
		return nil, nil, usagef("--all and the name of a scenario exclude each other")
	case !named && !s.all && s.label == "":
		return nil, nil, usagef("run needs the name of a scenario, --all or --label: %s", strings.Join(scenarioNames(), ", "))
	case !named:
		chosen = slices.Clone(scenarios.All)
	}
	for _, name := range s.names {
		scenario, err := scenarioNamed(name)
		if err != nil {
			return nil, nil, err
		}
		if slices.ContainsFunc(chosen, func(c framework.Scenario) bool { return c.Incident.Name == name }) {
			return nil, nil, usagef("scenario %q is named twice", name)
		}
		chosen = append(chosen, scenario)
	}
	if s.label != "" {
		if chosen, variants, err = labelled(chosen, s.label, named); err != nil {
			return nil, nil, err
		}
	}
	if !named && len(s.with) > 0 {
		if chosen, err = testingAny(chosen, s.with); err != nil {
			return nil, nil, err
		}
	}
	return chosen, variants, nil
}

// testingAny returns the scenarios that test one of the components of --with. A scenario that checkUpgrade refuses is
// left out if another scenario remains.
func testingAny(from []framework.Scenario, with map[string]string) ([]framework.Scenario, error) {
	var chosen []framework.Scenario
	var components []string
	var refused error
	for _, s := range from {
		if versions := testedOf(s, with); len(versions) > 0 {
			if err := checkUpgrade(s, versions); err != nil {
				refused = cmp.Or(refused, err)
			} else {
				chosen = append(chosen, s)
			}
		}
		for _, t := range s.Tested {
			components = append(components, t.Component())
		}
	}
	if len(chosen) == 0 && refused != nil {
		return nil, refused
	}
	if len(chosen) == 0 {
		name := slices.Min(slices.Collect(maps.Keys(with)))
		return nil, usagef("--with: no component %q%s", name, topology.Nearest(name, each.Once(components)))
	}
	return chosen, nil
}

// labelled returns the scenarios with variants that a label expression selects, and the names of these variants.
func labelled(from []framework.Scenario, expression string, named bool) ([]framework.Scenario, []string, error) {
	selection, err := framework.ParseSelection(expression)
	if err != nil {
		return nil, nil, usagef("--label: %w", err)
	}
	labels := allLabels()
	for _, word := range selection.Words() {
		if !slices.Contains(labels, word) {
			return nil, nil, usagef("--label: no scenario has the label %q%s", word, topology.Nearest(word, labels))
		}
	}
	var chosen []framework.Scenario
	var variants []string
	for _, s := range from {
		selected := selection.Variants(s)
		if len(selected) == 0 && named {
			return nil, nil, usagef("--label: no variant of scenario %q matches %q", s.Incident.Name, expression)
		}
		if len(selected) == 0 {
			continue
		}
		chosen = append(chosen, s)
		variants = append(variants, each.Of(selected, func(v framework.Variant) string { return v.Name })...)
	}
	if len(chosen) == 0 {
		return nil, nil, usagef("--label: no variant matches %q", expression)
	}
	return chosen, variants, nil
}

func allLabels() []string {
	var all []string
	for _, s := range scenarios.All {
		for _, v := range s.Variants {
			all = append(all, s.LabelsOf(v)...)
		}
	}
	return each.Once(all)
}

func commonLabels(s framework.Scenario) []string {
	return slices.DeleteFunc(s.LabelsOf(s.Variants[0]), func(label string) bool {
		return slices.ContainsFunc(s.Variants, func(v framework.Variant) bool { return !slices.Contains(s.LabelsOf(v), label) })
	})
}

func testedOf(s framework.Scenario, with map[string]string) map[string]string {
	tested := maps.Clone(with)
	maps.DeleteFunc(tested, func(name, _ string) bool {
		_, there := s.Find(name)
		return !there
	})
	return tested
}

// chooseVersions replaces each scenario by the same scenario with the versions of --with.
func chooseVersions(chosen []framework.Scenario, with map[string]string, from registry.Upstreams) error {
	var components []string
	for i, s := range chosen {
		versions := testedOf(s, with)
		for _, t := range s.Tested {
			components = append(components, t.Name, t.Component())
		}
		if len(versions) == 0 && len(chosen) > 1 {
			return usagef("--with: scenario %q tests none of these components", s.Incident.Name)
		}
		if len(versions) == 0 {
			continue // the name is misspelt
		}
		var err error
		if chosen[i], err = s.Unclassified(versions); err != nil {
			return usagef("--with: %w", err)
		}
		if err := checkUpgrade(s, versions); err != nil {
			return err
		}
	}
	slices.Sort(components)
	for _, name := range slices.Sorted(maps.Keys(with)) {
		if !slices.Contains(components, name) {
			return usagef("--with: no component %q%s", name, topology.Nearest(name, slices.Compact(components)))
		}
	}
	_, err := catalogueOf(chosen, from)
	return err
}

// checkUpgrade refuses an unsupported version, the same version twice, and a downgrade unless both versions are chosen.
func checkUpgrade(s framework.Scenario, chosen map[string]string) error {
	versions := map[string]string{}
	for name, version := range chosen {
		t, _ := s.Find(name)
		versions[t.Name] = version
	}
	for _, to := range s.Tested {
		if v := versions[to.Name]; v != "" && to.Since != "" && bisect.Compare(v, to.Since) < 0 {
			return usagef("--with: %s runs %s %s and newer, and %s is older", s.Incident.Name, to.Component(), to.Since, v)
		}
		for _, from := range s.Tested {
			if !to.Varied || from.Varied || from.Component() != to.Component() {
				continue
			}
			fromVersion, toVersion := cmp.Or(versions[from.Name], from.Default), cmp.Or(versions[to.Name], to.Default)
			switch c := bisect.Compare(fromVersion, toVersion); {
			case c >= 0 && versions[from.Name] == "":
				return usagef("--with: %s to %s is not an upgrade: choose %s as well, which is %s by default",
					fromVersion, toVersion, from.Name, fromVersion)
			case c >= 0 && versions[to.Name] == "":
				return usagef("--with: %s to %s is not an upgrade: choose %s as well, which is %s by default",
					fromVersion, toVersion, to.Name, toVersion)
			case c == 0:
				return usagef("--with: %s and %s are both %s: there is no upgrade", from.Name, to.Name, toVersion)
			}
		}
	}
	return nil
}

// catalogueOf returns the catalogue with the images of the chosen versions. The error is an *images.UnknownVersionError
// if no recipe builds a version, and a *suite.FormError if its image is built in another form than the scenario runs.
func catalogueOf(chosen []framework.Scenario, from registry.Upstreams) (*images.Catalogue, error) {
	catalogue, _, err := openCatalogue()
	if err != nil {
		return nil, err
	}
	for _, s := range chosen {
		for _, v := range s.Variants {
			if v.Role == framework.Unclassified {
				err = errors.Join(err, suite.Know(catalogue, s, len(from) > 0, v))
			}
		}
	}
	return catalogue, err
}
