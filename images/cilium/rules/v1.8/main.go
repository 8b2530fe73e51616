// Command cilium-agent is a slice of Cilium's agent at versions 1.8 and 1.10: its
// configuration and its iptables rules, by the vendor's packages. Package
// rules says which decisions are the vendor's and which are the slice's. BPF
// programs are attached at versions 1.8 alone.
package main

import (
	"context"
	_ "unsafe" // for go:linkname

	"github.com/cilium/cilium/pkg/datapath/iptables"
	"github.com/cilium/cilium/pkg/option"

	"github.com/relapse-dev/relapse/images/cilium/rules"
)

func main() {
	v := version
	v.KubeProxyReplacement = func() error {
		initKubeProxyReplacementOptions()
		return nil
	}
	v.NativeRoutingCIDR, v.Install = option.Config.IPv4NativeRoutingCIDR, install
	rules.Main(v)
}

// install makes the calls at the end of Reinitialize in these versions'
// pkg/datapath/loader/base.go, for the first initialization.
func install(_ context.Context, hostDevice string) error {
	manager := &iptables.IptablesManager{}
	if err := rules.WaitForLock(manager); err != nil {
		return err
	}
	if option.Config.InstallIptRules {
		// The agent goes on after this with a warning. Here it is an error:
		// in a lab nothing may be amiss unseen.
		if err := manager.TransientRulesStart(hostDevice); err != nil {
			return err
		}
	}
	manager.RemoveRules(true)
	if !option.Config.InstallIptRules {
		return nil
	}
	err := manager.InstallRules(hostDevice)
	manager.TransientRulesEnd(false)
	return err
}

//go:linkname initKubeProxyReplacementOptions github.com/cilium/cilium/daemon/cmd.initKubeProxyReplacementOptions
func initKubeProxyReplacementOptions() (strict bool)
