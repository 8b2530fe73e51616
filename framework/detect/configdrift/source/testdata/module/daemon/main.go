package main

import (
	"log/slog"

	"github.com/cilium/cilium/pkg/cell"
	"github.com/cilium/cilium/pkg/option"
	"github.com/cilium/cilium/pkg/other"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

func register(flags *pflag.FlagSet) {
	flags.BoolP("debug", "D", false, "")
	flags.String(option.Tunnel, "", "")
	flags.StringSlice("lists", nil, "")
	flags.Float64("rate", 0.5, "")
	flags.Bool(option.Old, true, "")
	flags.MarkDeprecated(option.Old, "use --"+option.Tunnel)
	flags.Var(option.New(), "a-map", "")
	flags.MarkHidden("a-map")
	flags.Bool("not-marked", false, "")
	slog.Bool("an-attribute", true)
	_ = cell.Config{}
	_ = other.Config{}
}

func read(vp *viper.Viper) bool { return vp.GetBool(option.NoFlag) }
