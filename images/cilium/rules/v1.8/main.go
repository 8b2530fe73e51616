// Command cilium-agent is a slice of Cilium's agent at versions 1.8: its
// configuration and its iptables rules, by the vendor's packages. Package
// rules says which decisions are the vendor's and which are the slice's.
package main

import (
	"context"
	"net"
	"net/netip"
	_ "unsafe" // for go:linkname

	vendor "github.com/cilium/cilium/pkg/datapath"
	"github.com/cilium/cilium/pkg/datapath/iptables"
	"github.com/cilium/cilium/pkg/k8s"
	"github.com/cilium/cilium/pkg/maps/ctmap"
	"github.com/cilium/cilium/pkg/mtu"
	"github.com/cilium/cilium/pkg/node"
	"github.com/cilium/cilium/pkg/option"

	"github.com/relapse-dev/relapse/images/cilium/rules"
	"github.com/relapse-dev/relapse/images/cilium/rules/datapath"
)

func main() {
	rules.Main(rules.Version{
		Node:      func(context.Context) error { return k8s.GetNodeSpec() },
		SetRouter: node.SetInternalIPv4,
		KubeProxyReplacement: func() error {
			initKubeProxyReplacementOptions()
			return nil
		},
		Masquerade:        func() bool { return option.Config.Masquerade },
		NativeRoutingCIDR: option.Config.IPv4NativeRoutingCIDR,
		Install:           install,
		Datapath: &rules.Datapath{
			Refuse: datapath.Refuse,
			FinishKubeProxyReplacement: func() error {
				finishKubeProxyReplacementInit(true)
				return nil
			},
			Masquerade: func() error { return nil },
			Start: func(ctx context.Context, pods netip.Prefix, mtu int, ended chan<- error) error {
				return datapath.Start(ctx, programs, pods, mtu, ended)
			},
		},
	})
}

// programs is what attaches the BPF programs of these versions.
var programs = datapath.Version{
	MTU: func(bytes int) mtu.Configuration { return mtu.NewConfiguration(0, false, false, bytes, nil) },
	Patch: func(ep vendor.Endpoint, object, into, device string) error {
		return patchHostNetdevDatapath(ep, object, into, device,
			node.GetNodePortIPv4AddrsWithDevices(), node.GetNodePortIPv6AddrsWithDevices())
	},
	InitClockSource: initClockSourceOption,
	InitMaps: func() {
		c := option.Config
		ctmap.InitMapInfo(c.CTMapEntriesGlobalTCP, c.CTMapEntriesGlobalAny, c.EnableIPv4, c.EnableIPv6)
	},
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

//go:linkname finishKubeProxyReplacementInit github.com/cilium/cilium/daemon/cmd.finishKubeProxyReplacementInit
func finishKubeProxyReplacementInit(strict bool)

//go:linkname initClockSourceOption github.com/cilium/cilium/daemon/cmd.initClockSourceOption
func initClockSourceOption()

//go:linkname patchHostNetdevDatapath github.com/cilium/cilium/pkg/datapath/loader.patchHostNetdevDatapath
func patchHostNetdevDatapath(ep vendor.Endpoint, object, into, device string, nodePortIPv4, nodePortIPv6 map[string]net.IP) error
