package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/moby/moby/client"
	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/status"
)

func upCommand(s *settings) *cobra.Command {
	var on subnets
	var chosen family
	var as like
	var set map[string]string
	cmd := &cobra.Command{
		Use:   "up NAME",
		Short: "Bring up a scenario's lab, without its components, and leave it running",
		Args:  portable.ExactArgs(1, "the name of a scenario"),
		RunE: func(cmd *cobra.Command, args []string) error {
			scenario, err := scenarioNamed(args[0])
			if err == nil && as != "" {
				scenario.Tested = nil // up installs nothing
				_, chosen, err = as.choose(scenario, nil, chosen, s.notes())
			}
			if err == nil {
				set, err = chosen.into(set, scenario)
			}
			if err != nil {
				return err
			}
			return up(cmd.Context(), s, args[0], on, set)
		},
	}
	on.register(cmd)
	chosen.register(cmd)
	as.register(cmd, "as --family, the address families")
	cmd.Flags().StringToStringVar(&set, "set", nil, "set parameters of the scenario, `NAME=VALUE` (describe lists them)")
	return cmd
}

func up(ctx context.Context, s *settings, name string, on subnets, set map[string]string) error {
	scenario, err := on.one(name, set)
	if err != nil {
		return err
	}
	scenario = scenario.ForMemory(host.MemoryGiB())
	if err := checkRunnable([]framework.Scenario{scenario}, engine.Options{}); err != nil {
		return err
	}
	if err := scenario.Topology.Validate(); err != nil {
		return err
	}
	l, err := s.openLabs(ctx, nil, scenario.Topology)
	if err != nil {
		return err
	}
	defer l.Close()
	there, err := kindlab.Exists(ctx, l.Docker, scenario.Topology.Name)
	if err != nil {
		return err
	}
	if there {
		return usagef("lab %q exists already: relapse down %s", name, name)
	}
	for _, line := range scenario.Subnets() {
		l.display.Note("lab", line)
	}
	runnable := scenario.Runnable()
	ctx = await.Watch(ctx, func(s await.Sight) { l.display.Waits("lab", s) })
	if _, err := suite.Build(ctx, l.Images, suite.ImagesOf(scenario, false, runnable...), l.display); err != nil {
		return err
	}
	lab, err := kindlab.Up(ctx, l.Docker, scenario.Topology, kindlab.Options{
		Images: l.Images, Serve: suite.ServedTo(runnable), Log: l.Log,
		Step: func(step string) func(error) { return l.display.Step("lab", step) },
		Note: func(text string) { l.display.Note("lab", text) },
	})
	if err != nil {
		if lab != nil { // never a half-built lab
			err = errors.Join(err, lab.Down(context.WithoutCancel(ctx)))
		}
		return err
	}
	lab.Release()
	l.display.Close()
	for _, c := range lab.Clusters {
		fmt.Printf("kubeconfig of cluster %s: %s\n", c.Name, c.Kubeconfig)
	}
	return nil
}

func downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down [NAME...]",
		Short: "Remove labs in any state; without a name, all of them",
		RunE: func(cmd *cobra.Command, names []string) error {
			if uid := os.Geteuid(); uid != 0 {
				return status.Machine("relapse must run as root (found: uid %d): run it with sudo", uid)
			}
			ctx := cmd.Context()
			docker, err := client.New(client.FromEnv)
			if err != nil {
				return fmt.Errorf("connecting to Docker: %w", err)
			}
			defer docker.Close()
			there, err := kindlab.Labs(ctx, docker)
			if err != nil {
				return fmt.Errorf("%w (see relapse doctor)", err)
			}
			labs := slices.Compact(slices.Sorted(slices.Values(append(scenarioNames(), there...))))
			for _, name := range names {
				if !slices.Contains(labs, name) {
					return usagef("no lab %q%s", name, topology.Nearest(name, labs))
				}
			}
			if len(names) == 0 {
				names = there
			}
			for _, name := range names {
				if second := framework.SecondLabOf(name); slices.Contains(there, second) && !slices.Contains(names, second) {
					names = append(names, second)
				}
			}
			var errs []error
			for _, name := range names {
				err := kindlab.Down(ctx, docker, name)
				errs = append(errs, err)
				if err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "lab %s is down\n", name)
				}
			}
			return errors.Join(errs...)
		},
	}
}
