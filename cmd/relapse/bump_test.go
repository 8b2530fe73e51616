package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/bump"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestBump(t *testing.T) {
	for _, test := range []struct {
		name, from, to string
		args           []string
		status         int
		says           string
	}{
		{"nothing", "1.18.6", "1.18.6", nil, exitExpected, "no version of a component that relapse knows has changed since main"},
		{"another component", "1.18.6", "1.19.3", []string{"--components", "metallb"}, exitExpected,
			"no version of metallb has changed since main"},
		{"too old", "1.6.0", "1.7.0", nil, exitMachine,
			"cilium 1.6.0 to 1.7.0: not qualified: an upgrade of cilium from 1.6.0 to 1.7.0 has no lab: expected two versions from 1.15.0 on"},
		{"a range", "1.18.x", "1.19.x", []string{"--run"}, exitMachine,
			"not read: release.yaml: HelmRelease cilium: cilium changes from 1.18.x to 1.19.x"},
		{"an unknown base", "1.18.6", "1.19.3", []string{"--base", "nope"}, exitUsage, `--base: "nope" and HEAD have no commit in common`},
		{"an option for a base", "1.18.6", "1.19.3", []string{"--base=--all"}, exitUsage, "have no commit in common"},
		{"an unknown component", "1.18.6", "1.19.3", []string{"--components", "cilum"}, exitUsage, `no component "cilum"; nearest is "cilium"`},
		{"no repository", "", "", []string{"--repository", t.TempDir()}, exitUsage, "is no work tree of a git repository"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			release := "kind: HelmRelease\nmetadata: {name: cilium}\nspec: {chart: {spec: {chart: cilium, version: %s}}}\n"
			file := must.Write(t, filepath.Join(dir, "release.yaml"), fmt.Sprintf(release, test.from))
			committed(t, dir)
			must.Write(t, file, fmt.Sprintf(release, test.to))
			comment := filepath.Join(dir, "new", "comment.md")
			got := relapse(t, append([]string{"bump", "--repository", dir, "--base", "main", "--comment", comment}, test.args...)...)
			must.Equal(t, got, test.status, got.status)
			must.Contain(t, got.stdout+got.stderr, test.says)
			if test.status != exitUsage {
				verdict := map[int]string{exitExpected: "**no version has changed**", exitMachine: "**not qualified**"}[test.status]
				must.Contain(t, string(must.Read(t, comment)), verdict)
			}
		})
	}
}

// The verdict of several raises is the worst one, and the comment is within GitHub's limit.
func TestBumpOutcome(t *testing.T) {
	result := func(component string, verdict qualify.Verdict, says string) bumped {
		return bumped{Raise: bump.Raise{Component: component, From: "1.0.0", To: "1.1.0"}, verdict: string(verdict), says: says}
	}
	o := bumpOptions{comment: filepath.Join(t.TempDir(), "comment.md")}
	for _, test := range []struct {
		all    []bumped
		first  string
		status int
	}{
		{[]bumped{result("a", qualify.Go, ""), result("b", qualify.NoGo, strings.Repeat("x", 70000)),
			result("c", qualify.Unknown, "")},
			"**NO-GO** b 1.0.0 to 1.1.0: NO-GO; c 1.0.0 to 1.1.0: UNKNOWN; a 1.0.0 to 1.1.0: GO\n", exitUnexpected},
		{[]bumped{result("a", qualify.Go, ""), result("b", notQualified, "")},
			"**UNKNOWN** b 1.0.0 to 1.1.0: not qualified; a", exitInconclusive},
		{[]bumped{result("a", notQualified, ""), result("b", planned, "")}, "**planned** b", exitExpected},
		{[]bumped{result("a", notQualified, "")}, "**not qualified** ", exitMachine},
		{[]bumped{result("a", qualify.Go, ""), result("b", qualify.Unknown, "")}, "**UNKNOWN** ", exitInconclusive},
		{[]bumped{result("a", qualify.Go, "")}, "**GO** ", exitExpected},
	} {
		err := o.conclude(bump.Plan{}, test.all)
		text := string(must.Read(t, o.comment))
		must.Equal(t, test.first, [...]any{test.status, true}, [...]any{statusOf(err), len(text) <= longestComment+1024})
		must.Contain(t, "begins "+text, "begins "+test.first)
	}
	read := []bumped{result("a", qualify.Go, "")}
	must.Equal(t, "status beside a place that is not read", exitInconclusive, statusOf(o.conclude(bump.Plan{NotRead: []string{"a place"}}, read)))
	must.Equal(t, "status beside a line", exitExpected, statusOf(o.conclude(bump.Plan{Lines: []string{"a line"}}, read)))
}
