package main

import (
	"strings"

	"github.com/spf13/cobra"
)

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no argument, not %q", cmd.CommandPath(), strings.Join(args, " "))
	}
	return nil
}

// exactArgs demands n arguments, of 1 to 3; what says what they are.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s takes %s, %s", cmd.CommandPath(), []string{"one argument", "two arguments", "three arguments"}[n-1], what)
		}
		return nil
	}
}

func someArgs(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("%s needs %s", cmd.CommandPath(), what)
		}
		return nil
	}
}
