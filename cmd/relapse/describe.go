package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/containerlab"
)

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the scenarios and their variants",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, s := range scenarios.All {
				fmt.Fprintf(table, "%s\t%s\n", s.Incident.Name, s.Incident.Title)
				for _, v := range s.Variants {
					fmt.Fprintf(table, "  %s\t%s, %s: expected %s%s\n", v.Name, v.Role, v.Form, v.Expected(), notRunnable(v))
				}
			}
			return table.Flush()
		},
	}
}

func describeCommand() *cobra.Command {
	var clab bool
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "Tell what happened in an incident, and how it is reproduced",
		Args:  oneArg("the name of a scenario"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := scenarioNamed(args[0])
			if err != nil {
				return err
			}
			if clab {
				return containerlab.Export(cmd.OutOrStdout(), s.Topology)
			}
			describe(cmd.OutOrStdout(), s)
			return nil
		},
	}
	cmd.Flags().BoolVar(&clab, "containerlab", false, "print the topology as a containerlab file instead")
	return cmd
}

// describe renders an incident's record.
func describe(out io.Writer, s framework.Scenario) {
	i := s.Incident
	fmt.Fprintf(out, "%s: %s\n", i.Name, i.Title)
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
	section("Lab", i.Diagram)
	section("Reproduction", i.Reproduction)
	var variants []string
	for _, v := range s.Variants {
		variants = append(variants, fmt.Sprintf("%s: %s, runs as %s, expected %s%s", v.Name, v.Role, v.Form, v.Expected(), notRunnable(v)))
	}
	section("Variants", strings.Join(variants, "\n"))
	var tested []string
	for _, t := range s.Tested {
		tested = append(tested, fmt.Sprintf("--with %s=%s", t.Name, t.Default))
	}
	if len(tested) > 0 {
		section("Any version", strings.Join(tested, "\n"))
	}
	var parameters []string
	for _, p := range s.Parameters {
		parameters = append(parameters, fmt.Sprintf("--set %s=%s: %s", p.Name, p.Default, p.About))
	}
	if len(parameters) > 0 {
		section("Parameters", strings.Join(parameters, "\n"))
	}
	var facts []string
	for _, f := range i.Facts {
		facts = append(facts, f.String())
	}
	if len(facts) > 0 {
		section("Facts, and the steps that assert them", strings.Join(facts, "\n"))
	}
}

// notRunnable says why a variant does not run unless it is asked for images
// that this machine cannot build.
func notRunnable(v framework.Variant) string {
	if runnable, why := v.Runnable(nil); !runnable {
		return "; not runnable here, " + why
	}
	return ""
}
