//go:build cilium_1_11_12

package main

import (
	"context"

	"github.com/cilium/cilium/pkg/datapath/iptables"
	"github.com/cilium/cilium/pkg/option"
)

func install(ctx context.Context, hostDevice string) error {
	return (&iptables.IptablesManager{}).InstallRules(ctx, hostDevice, true, option.Config.InstallIptRules)
}
