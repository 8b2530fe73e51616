package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/relapse-dev/relapse/cmd/relapse/display"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

func imagesCommand(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "images",
		Short: "Build, list, verify and prune the images that labs are made of",
		Args:  noCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		buildCommand(s),
		&cobra.Command{
			Use:   "list",
			Short: "List the images, which of them are in the cache, and what building them took",
			Args:  noArgs,
			RunE: onCatalogue(func(cmd *cobra.Command, catalogue *images.Catalogue, _ []string) error {
				entries, err := catalogue.List(cmd.Context())
				if err != nil {
					return err
				}
				table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(table, "IMAGE\tHOLDS\tFORM\tSIZE\tBUILT IN\tDIGEST")
				for _, e := range entries {
					size, cost, digest := "-", "-", "to be built"
					if e.Digest.Hex != "" {
						size, digest = fmt.Sprintf("%d MB", e.Size/1e6), e.Digest.String()[:19]
					}
					if e.Cost != (images.Cost{}) {
						cost = e.Cost.String()
					}
					fmt.Fprintf(table, "%s\t%s %s\t%s\t%s\t%s\t%s\n", e.Ref, e.Component, e.Version, e.Form, size, cost, digest)
				}
				return table.Flush()
			}),
		},
		&cobra.Command{
			Use:   "verify",
			Short: "Compare the cache with its digests; damaged images are built again when they are needed",
			Args:  noArgs,
			RunE: onCatalogue(func(cmd *cobra.Command, catalogue *images.Catalogue, _ []string) error {
				damages, err := catalogue.Verify(cmd.Context())
				if err != nil {
					return err
				}
				for _, d := range damages {
					fmt.Fprintf(cmd.OutOrStdout(), "damaged: %s (%s): %v\n", d.Ref, d.Digest, d.Err)
				}
				if len(damages) > 0 {
					return fmt.Errorf("%d images are damaged: relapse images build builds them again", len(damages))
				}
				return nil
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

At the end it prints for each image the time of its build, without the time in which it
waited for the compilation of other images, and the CPU time.`,
		Example: "  relapse images build kube-proxy@1.13.5\n" +
			"  relapse images build quay.io/cilium/cilium@1.11.4\n" +
			"  relapse images build --label '!slow'",
		RunE: onCatalogue(func(cmd *cobra.Command, catalogue *images.Catalogue, args []string) error {
			var refs []string
			for _, arg := range args {
				want, ok := images.ParseWant(arg)
				if !ok {
					refs = append(refs, arg)
					continue
				}
				found, err := catalogue.Find(want)
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
			log, err := s.logger()
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
	chosen, variants, err := selection{all: label == "", label: label}.scenarios(nil)
	if err != nil {
		return nil, err
	}
	var refs []string
	for _, scenario := range chosen {
		runnable := scenario.Runnable(false)
		if label != "" {
			runnable = slices.DeleteFunc(runnable, func(v framework.Variant) bool { return !slices.Contains(variants, v.Name) })
		}
		refs = append(refs, suite.ImagesOf(scenario, false, runnable...)...)
	}
	return refs, nil
}

func saveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "save REF",
		Short:   "Write an image of the cache to standard output, in the format of docker save",
		Example: "  relapse images save relapse.dev/relapse:dev | docker load",
		Args:    exactArgs(1, "an image of relapse images list"),
		RunE: onCatalogue(func(cmd *cobra.Command, catalogue *images.Catalogue, args []string) error {
			if out, ok := cmd.OutOrStdout().(*os.File); ok && term.IsTerminal(int(out.Fd())) {
				return usagef("standard output is a terminal, and an image is binary: redirect it to a file, or to docker load")
			}
			return catalogue.Save(cmd.Context(), args[0], cmd.OutOrStdout())
		}),
	}
}

func pruneCommand() *cobra.Command {
	var size string
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove images from the cache, least recently used first, until it is small enough",
		Long: `Prune removes images from the cache, least recently used first, until the others take no
more than --keep, and the files of interrupted builds. Images of the catalogue's current
recipes are kept; those of earlier recipes are removed. Prune refuses to run while images
are built, and while a lab is up, because its nodes pull from the cache.`,
		Args: noArgs,
		RunE: onCatalogue(func(cmd *cobra.Command, catalogue *images.Catalogue, _ []string) error {
			keep, err := units.FromHumanSize(size)
			if err != nil {
				return usagef("--keep: %q is not a size: expected one such as 10GB or 500MB", size)
			}
			up, err := kindlab.WithState()
			if err != nil {
				return err
			}
			if len(up) > 0 {
				return fmt.Errorf("lab %s is up, and its nodes pull from the cache: take it down first (relapse down)", strings.Join(up, ", "))
			}
			pruned, err := catalogue.Prune(cmd.Context(), keep)
			if err == nil {
				printPruned(cmd.OutOrStdout(), pruned, keep)
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&size, "keep", "10GB", "the largest size of the cache, `SIZE`")
	return cmd
}

func printPruned(out io.Writer, p images.Pruned, keep int64) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, i := range p.Images {
		used := "damaged"
		if !i.Used.IsZero() {
			used = "last used " + i.Used.Format(time.DateTime)
		}
		fmt.Fprintf(table, "removed %s\t%s\t%s\t%s\n", i.Ref, i.Digest.String()[:19], used, units.HumanSize(float64(i.Bytes)))
	}
	table.Flush()
	if p.Builds > 0 {
		fmt.Fprintf(out, "removed the folders of %d interrupted builds\n", p.Builds)
	}
	why := ""
	if p.Kept > keep {
		why = ", all of which the catalogue needs"
	}
	fmt.Fprintf(out, "%d images removed, %s left%s\n", len(p.Images), units.HumanSize(float64(p.Kept)), why)
}
