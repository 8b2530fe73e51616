package main

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/mod/module"

	"github.com/relapse-dev/relapse/images"
)

func TestPrintPruned(t *testing.T) {
	for name, pruned := range map[string]images.Pruned{
		"prune-nothing": {Kept: 2e9},
		"prune-all":     {Images: []string{"", "quay.io/cilium/cilium:v1.11.6"}, Builds: 2, Freed: 123_456_789, Kept: 3_400_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			printPruned(&out, pruned)
			golden(t, name, out.String())
		})
	}
}

func TestPrintReleases(t *testing.T) {
	var out strings.Builder
	printReleases(&out, images.Releases{
		Ways: []images.Way{
			{Image: "x.dev/a", Form: images.Slice, From: "1.0.0", Below: "2.0.0", Unlisted: []string{"x.dev/fork"}},
			{Image: "x.dev/b", Form: images.Whole, From: "1.1.0", Below: "2.0.0"},
		},
		Versions: []images.Release{
			{Version: "1.0.0", Images: []string{"a"}, Built: []string{"a"}},
			{Version: "1.1.0-rc1", Images: []string{"a", "b"}, Built: []string{"b"}},
			{Version: "1.1.0", Images: []string{"a", "b"}, Substitutes: []images.Substitute{
				{Version: module.Version{Path: "x.dev/d", Version: "v1.1.0"}, For: module.Version{Path: "x.dev/d", Version: "v1.0.0"}},
			}},
			{Version: "2.0.0"},
		},
		Refused: map[string]error{"x.dev/a": &images.CommandError{Args: []string{"go", "list"}, Stderr: "go: 403 Forbidden\n\tserver response: no\n", Err: errors.New("exit status 1")}, "x.dev/b": nil},
	})
	golden(t, "versions", out.String())
}
