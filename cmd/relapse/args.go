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

func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("%s takes one argument, %s", cmd.CommandPath(), what)
		}
		return nil
	}
}
