package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/figures"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/containerlab"
	"github.com/relapse-dev/relapse/topology/each"
)

func listCommand() *cobra.Command {
	var label string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the scenarios and their variants",
		Long: `List prints for each scenario its labels, its owner, and how long it usually takes once
its images are built, and for each variant the expected verdict and its own labels.
--label of run, plan and list selects by labels.`,
		Args: portable.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			recorded, err := figures.Recorded()
			if err != nil {
				return err
			}
			from, variants, err := selection{all: true, label: label}.scenarios()
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, s := range from {
				common, usually := commonLabels(s), "not measured yet"
				if lasts, ok := recorded.Usually(s.Incident.Name); ok {
					usually = fmt.Sprintf("usually %s", lasts.Round(time.Second))
				}
				fmt.Fprintf(table, "%s\t%s\n", s.Incident.Name, s.Incident.Title)
				fmt.Fprintf(table, "\t%s; owner %s; %s\n", strings.Join(common, ", "), s.Owner, usually)
				for _, v := range s.Variants {
					if variants != nil && !slices.Contains(variants, v.Name) {
						continue
					}
					fmt.Fprintf(table, "  %s\t%s, %s: expected %s%s\n",
						v.Name, v.Role, v.Form, v.Expected(), further(s.LabelsOf(v), common))
				}
			}
			return table.Flush()
		},
	}
	cmd.Flags().StringVar(&label, "label", "", "list the variants with these labels, `EXPRESSION` as in 'cilium && !slow'")
	return cmd
}

func further(labels, common []string) string {
	own := slices.DeleteFunc(labels, func(l string) bool { return slices.Contains(common, l) })
	if len(own) == 0 {
		return ""
	}
	return "; " + strings.Join(own, ", ")
}

func describeCommand() *cobra.Command {
	var clab string
	var on subnets
	var set map[string]string
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "Describe an incident, and how it is reproduced",
		Args:  portable.ExactArgs(1, "the name of a scenario"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := on.one(args[0], set)
			if err != nil {
				return err
			}
			if clab != "" {
				return containerlab.Write(clab, s.Topology)
			}
			describe(cmd.OutOrStdout(), s)
			return nil
		},
	}
	on.register(cmd)
	cmd.Flags().StringToStringVar(&set, "set", nil, "describe it with parameters, `NAME=VALUE`")
	cmd.Flags().StringVar(&clab, "containerlab", "", "write the topology as a folder that containerlab deploys, `DIR`, instead")
	return cmd
}

func describe(out io.Writer, s framework.Scenario) {
	i := s.Incident
	fmt.Fprintf(out, "%s: %s\n", i.Name, i.Title)
	fmt.Fprintf(out, "labels: %s; owner: %s\n", strings.Join(commonLabels(s), ", "), s.Owner)
	section := func(title, text string) {
		fmt.Fprintf(out, "\n%s\n  %s\n", title, strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  "))
	}
	section("Source", i.Source)
	if i.Issue != "" {
		section("The vendor's issue, or its fix", i.Issue)
	}
	section("Symptom", i.Symptom)
	section("Cause", i.Cause)
	section("Affected", i.Affected)
	section("Fixed", i.Fixed)
	section("Remedies", "- "+strings.Join(i.Remedies, "\n- "))
	lab := i.Diagram
	if s.SecondLab.IsValid() && len(s.Moved) == 0 {
		lab = strings.TrimRight(lab, "\n") + fmt.Sprintf("\n\na part of the variants runs on a second lab, %s, with its networks in %s",
			framework.SecondLabOf(s.Topology.Name), s.SecondLab)
	}
	section("Lab", lab)
	section("Reproduction", i.Reproduction)
	section("Variants", each.Joined(s.Variants, "\n", func(v framework.Variant) string {
		return fmt.Sprintf("%s: %s, runs as %s, expected %s", v.Name, v.Role, v.Form, v.Expected())
	}))
	with, others := "relapse run "+i.Name, ""
	for _, t := range s.Tested {
		with += fmt.Sprintf(" --with %s=%s", t.Name, t.Default)
		if t.Varied {
			others = fmt.Sprintf("relapse bisect %s %s: find the version that broke it, or fixed it\n", i.Name, t.Component()) +
				fmt.Sprintf("relapse qualify %s FROM TO: judge that upgrade", t.Component())
		}
	}
	if len(s.Tested) > 0 {
		section("Before an upgrade", with+": these versions, or any other\n"+others)
	}
	if len(s.Parameters) > 0 {
		section("Parameters", each.Joined(s.Parameters, "\n", func(p framework.Parameter) string {
			return fmt.Sprintf("--set %s=%s: %s", p.Name, p.Default, p.About)
		}))
	}
	if len(i.Facts) > 0 {
		section("Facts (+ asserted by these steps, - not asserted)",
			each.Joined(i.Facts, "\n", func(f framework.Fact) string { return verdict.FactText(s, f) }))
	}
}
