// Package other is imported, and its flags are the operator's.
package other

import "github.com/spf13/pflag"

type Config struct{}

func (Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("gc", 0, "")
	flags.Bool("hidden-gc", false, "")
	flags.MarkHidden("hidden-gc")
}
