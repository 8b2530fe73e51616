package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/relapse-dev/relapse/cmd/relapse/display"
	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

func imagesCommand(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "images",
		Short: "Build, list and prune the images that labs are made of",
		Args:  portable.NoCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		buildCommand(s),
		&cobra.Command{
			Use:   "list",
			Short: "List the images, and which of them are in the cache",
			Args:  portable.NoArgs,
			RunE: onCatalogue(func(cmd *cobra.Command, catalogue *images.Catalogue, _ []string) error {
				entries, err := catalogue.List(cmd.Context())
				if err != nil {
					return err
				}
				table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(table, "IMAGE\tHOLDS\tFORM\tSIZE\tDIGEST")
				for _, e := range entries {
					size, digest := "-", "to be built"
					if e.Digest.Hex != "" {
						size, digest = fmt.Sprintf("%d MB", e.Size/1e6), e.Digest.String()[:19]
					}
					fmt.Fprintf(table, "%s\t%s %s\t%s\t%s\t%s\n", e.Ref, e.Component, e.Version, e.Form, size, digest)
				}
				return table.Flush()
			}),
		},
		saveCommand(),
		pruneCommand(),
	)
	return cmd
}

func buildCommand(s *settings) *cobra.Command {
	var label string
	cmd := &cobra.Command{
		Use:   "build [REF|NAME@VERSION...]",
		Short: "Build images that are not in the cache; without arguments, those that the scenarios use",
		Long: `Build images that are not in the cache; without arguments, those that the scenarios use.

NAME@VERSION stands for all images of a component, or for one image if NAME is its
reference without the tag. The version need not be in the list: its requirements are
derived from the vendor's own go.mod.

At the end it prints the time of each image's build, and the CPU time of all.`,
		Example: "  relapse images build kube-proxy@1.13.5\n" +
			"  relapse images build quay.io/cilium/cilium@1.11.4\n" +
			"  relapse images build --label '!slow'",
		RunE: onCatalogue(func(cmd *cobra.Command, catalogue *images.Catalogue, args []string) error {
			var refs []string
			for _, arg := range args {
				component, version, ok := strings.Cut(arg, "@")
				if !ok {
					refs = append(refs, arg)
					continue
				}
				found, err := catalogue.Find(images.Want{Component: component, Version: version})
				if err != nil {
					return err
				}
				refs = append(refs, found...)
			}
			if label != "" || len(args) == 0 {
				used, err := imagesUsed(label)
				if err != nil {
					return err
				}
				refs = append(refs, used...)
			}
			log, err := s.Logger(s)
			if err != nil {
				return err
			}
			shown := s.display(display.Look{Log: log})
			defer shown.Close()
			summary, err := suite.Build(cmd.Context(), catalogue, refs, shown)
			if err != nil {
				return err
			}
			shown.Close()
			fmt.Fprint(cmd.OutOrStdout(), summary)
			return nil
		}),
	}
	cmd.Flags().StringVar(&label, "label", "",
		"images that the variants with these labels use, `EXPRESSION` as in 'cilium && !slow' (relapse list shows the labels)")
	return cmd
}

func imagesUsed(label string) ([]string, error) {
	chosen, variants, err := selection{all: label == "", label: label}.scenarios()
	if err != nil {
		return nil, err
	}
	var refs []string
	for _, scenario := range chosen {
		used := scenario.Variants
		if label != "" {
			used = slices.DeleteFunc(slices.Clone(used), func(v framework.Variant) bool { return !slices.Contains(variants, v.Name) })
		}
		refs = append(refs, suite.ImagesOf(scenario, false, used...)...)
	}
	return refs, nil
}

func saveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "save REF",
		Short:   "Write an image of the cache to standard output, in the format of docker save",
		Example: "  relapse images save relapse.dev/relapse:dev | docker load",
		Args:    portable.ExactArgs(1, "an image of relapse images list"),
		RunE: onCatalogue(func(cmd *cobra.Command, catalogue *images.Catalogue, args []string) error {
			if out, ok := cmd.OutOrStdout().(*os.File); ok && term.IsTerminal(int(out.Fd())) {
				return usagef("standard output is a terminal, and an image is binary: redirect it to a file, or to docker load")
			}
			return catalogue.Save(cmd.Context(), args[0], cmd.OutOrStdout())
		}),
	}
}

func pruneCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "prune",
		Short: "Remove images that the catalogue does not describe from the cache",
		Long: `Prune removes images from the cache that today's recipes do not describe, those of earlier
recipes and of versions that the catalogue does not have, and the files of interrupted builds.
It refuses to run while images are built, and while a lab is up, because its nodes pull from
the cache.`,
		Args: portable.NoArgs,
		RunE: onCatalogue(func(cmd *cobra.Command, catalogue *images.Catalogue, _ []string) error {
			up, err := kindlab.WithState()
			if err != nil {
				return err
			}
			if len(up) > 0 {
				return fmt.Errorf("lab %s is up, and its nodes pull from the cache: take it down first (relapse down)", strings.Join(up, ", "))
			}
			pruned, err := catalogue.Prune(cmd.Context())
			if err == nil {
				printPruned(cmd.OutOrStdout(), pruned)
			}
			return err
		}),
	}
}

func printPruned(out io.Writer, p images.Pruned) {
	for _, ref := range p.Images {
		fmt.Fprintf(out, "removed %s\n", cmp.Or(ref, "a damaged image"))
	}
	if p.Builds > 0 {
		fmt.Fprintf(out, "removed the folders of %d interrupted builds\n", p.Builds)
	}
	freed, left := units.HumanSize(float64(p.Freed)), units.HumanSize(float64(p.Kept))
	fmt.Fprintf(out, "%d images removed, %s freed, %s left\n", len(p.Images), freed, left)
}

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
		if failed, ok := errors.AsType[*images.CommandError](err); ok {
			reason = failed.Reason()
		}
		fmt.Fprintf(out, "\nthe proxy does not list the versions of %s: %s\n", path, reason)
	}
}

// mark returns a version with a mark that says whether it can be built, and whether it is built.
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
