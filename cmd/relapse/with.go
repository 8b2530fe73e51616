package main

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

func testedOf(s framework.Scenario, with map[string]string) map[string]string {
	tested := maps.Clone(with)
	maps.DeleteFunc(tested, func(name, _ string) bool {
		_, there := s.Find(name)
		return !there
	})
	return tested
}

// chooseVersions replaces each scenario by its script on the versions of --with.
func chooseVersions(chosen []framework.Scenario, with map[string]string, from registry.Upstreams) error {
	var known []string
	for i, s := range chosen {
		versions := testedOf(s, with)
		for _, t := range s.Tested {
			known = append(known, t.Name, t.Component())
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
	slices.Sort(known)
	for _, name := range slices.Sorted(maps.Keys(with)) {
		if !slices.Contains(known, name) {
			return usagef("--with: no component %q%s", name, topology.Nearest(name, slices.Compact(known)))
		}
	}
	_, err := catalogueOf(chosen, from)
	return err
}

// checkUpgrade refuses two versions of a component that are no upgrade because one of
// them is the default, one version twice, and a version that the script does not know. A downgrade must be chosen
// explicitly.
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
			was, is := cmp.Or(versions[from.Name], from.Default), cmp.Or(versions[to.Name], to.Default)
			switch c := bisect.Compare(was, is); {
			case c >= 0 && versions[from.Name] == "":
				return usagef("--with: %s to %s is not an upgrade: choose %s as well, which is %s by default", was, is, from.Name, was)
			case c >= 0 && versions[to.Name] == "":
				return usagef("--with: %s to %s is not an upgrade: choose %s as well, which is %s by default", was, is, to.Name, is)
			case c == 0:
				return usagef("--with: %s and %s are both %s: there is no upgrade", from.Name, to.Name, is)
			}
		}
	}
	return nil
}

// catalogueOf is the catalogue, extended by the images of the chosen versions. The error
// is an *images.UnknownVersionError if no recipe builds one, and a *suite.FormError if one is
// built in another form than the scenario runs.
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
