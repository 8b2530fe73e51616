package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/images"
)

func versionsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "versions COMPONENT",
		Short: "List the versions of a component that there are, what builds each, and which are built",
		Long: `Versions lists the versions of a component by minor: those that its vendor has
released and those that the module proxy lists. What builds a range of them is
told first. A version in brackets is in no range.

That a version is listed does not say that the proxy serves it: that is asked
when it is built (relapse images build COMPONENT@VERSION).`,
		Example: "  relapse versions cilium",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("relapse versions takes one argument, the name of a component, such as cilium")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			catalogue, _, err := openCatalogue()
			if err != nil {
				return err
			}
			found, err := catalogue.Releases(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			printReleases(cmd.OutOrStdout(), found)
			return nil
		},
	}
}

// printReleases tells what builds a component, and of which versions.
func printReleases(out io.Writer, r images.Releases) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "BUILDS\tFORM\tFROM\tBELOW\tMODULES THAT GO'S CHECKSUM DATABASE LACKS")
	for _, w := range r.Ways {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", w.Image, w.Form, w.From, w.Below, orDash(strings.Join(w.Unlisted, ", ")))
	}
	table.Flush()
	fmt.Fprintln(out)
	table = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MINOR\tVERSIONS (* in the cache, + in part, [] nothing builds it)")
	var minors []string
	of := map[string][]string{}
	for _, v := range r.Versions {
		minor := strings.TrimPrefix(semver.MajorMinor("v"+v.Version), "v")
		if of[minor] == nil {
			minors = append(minors, minor)
		}
		of[minor] = append(of[minor], titleOfRelease(v))
	}
	for _, minor := range minors {
		// A line of a terminal holds about ten.
		for i, some := range slices.Collect(slices.Chunk(of[minor], 10)) {
			if i > 0 {
				minor = ""
			}
			fmt.Fprintf(table, "%s\t%s\n", minor, strings.Join(some, " "))
		}
	}
	table.Flush()
	for _, path := range slices.Sorted(maps.Keys(r.Refused)) {
		if err := r.Refused[path]; err != nil {
			_, why, _ := strings.Cut(err.Error(), "exit status 1: ")
			why, _, _ = strings.Cut(why, "\n")
			fmt.Fprintf(out, "\nthe proxy does not list the versions of %s: %s\n", path, strings.TrimPrefix(why, "go: "))
		}
	}
}

// titleOfRelease is a version with a mark for what can be built of it, and is.
func titleOfRelease(r images.Release) string {
	switch {
	case len(r.Images) == 0:
		return "[" + r.Version + "]"
	case len(r.Built) == len(r.Images):
		return r.Version + "*"
	case len(r.Built) > 0:
		return r.Version + "+"
	}
	return r.Version
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
