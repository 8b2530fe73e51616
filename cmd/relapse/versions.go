package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/images"
)

func versionsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "versions COMPONENT",
		Short: "List the versions of a component, what builds each, and which are built",
		Long: `Versions lists first what builds which range of a component's versions, and then the
versions by minor: those that the vendor has released and those that the module proxy
lists. A version in brackets is in no range.

The proxy may not serve every version that is listed: this is known when the version is
built (relapse images build COMPONENT@VERSION).

Below the table are also the modules that versions of the catalogue are built with in place
of those that the vendor has chosen, because those are not available or do not build.`,
		Example: "  relapse versions cilium",
		Args:    portable.ExactArgs(1, "the name of a component, such as cilium"),
		RunE: onCatalogue(func(cmd *cobra.Command, catalogue *images.Catalogue, args []string) error {
			found, err := catalogue.Releases(cmd.Context(), args[0])
			if err == nil {
				printReleases(cmd.OutOrStdout(), found)
			}
			return err
		}),
	}
}

func printReleases(out io.Writer, r images.Releases) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "BUILDS\tFORM\tFROM\tBELOW\tMODULES NOT IN GO'S CHECKSUM DATABASE")
	for _, w := range r.Ways {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", w.Image, w.Form, w.From, w.Below, cmp.Or(strings.Join(w.Unlisted, ", "), "-"))
	}
	table.Flush()
	fmt.Fprintln(out)
	table = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MINOR\tVERSIONS (* in the cache, + partly in the cache, [] nothing builds it)")
	var versions []string
	marked := map[string]string{}
	for _, v := range r.Versions {
		versions = append(versions, v.Version)
		marked[v.Version] = mark(v)
	}
	bisect.WriteByMinor(table, "", versions, func(version string) string { return marked[version] })
	table.Flush()
	for _, v := range r.Versions {
		for i, s := range v.Substitutes {
			if i == 0 {
				fmt.Fprintf(out, "\n%s is built with other modules than the vendor's own build:\n", v.Version)
			}
			fmt.Fprintf(out, "  %s\n", s)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(r.Refused)) {
		err := r.Refused[path]
		if err == nil {
			continue
		}
		reason := err.Error()
		if failed, is := errors.AsType[*images.CommandError](err); is {
			reason = failed.Reason()
		}
		fmt.Fprintf(out, "\nthe proxy does not list the versions of %s: %s\n", path, reason)
	}
}

// mark is a version with a mark that says whether it can be built, and whether it is.
func mark(r images.Release) string {
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
