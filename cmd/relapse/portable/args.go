package portable

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/topology/status"
)

// NoArgs refuses arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return status.Input("%s takes no argument, not %q", cmd.CommandPath(), strings.Join(args, " "))
	}
	return nil
}

// ExactArgs demands n arguments, of 1 to 3; what says what they are.
func ExactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return status.Input("%s takes %s, %s", cmd.CommandPath(), []string{"one argument", "two arguments", "three arguments"}[n-1], what)
		}
		return nil
	}
}

// SomeArgs demands one argument or more; what says what they are.
func SomeArgs(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return status.Input("%s needs %s", cmd.CommandPath(), what)
		}
		return nil
	}
}
