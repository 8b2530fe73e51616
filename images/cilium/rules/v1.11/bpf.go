//go:build !cilium_1_12

package main

import (
	"context"
	"net"
	"net/netip"
	_ "unsafe" // for go:linkname

	vendor "github.com/cilium/cilium/pkg/datapath"
	"github.com/cilium/cilium/pkg/maps/ctmap"
	"github.com/cilium/cilium/pkg/mtu"
	"github.com/cilium/cilium/pkg/node"
	"github.com/cilium/cilium/pkg/option"

	"github.com/relapse-dev/relapse/images/cilium/rules"
	"github.com/relapse-dev/relapse/images/cilium/rules/datapath"
)

var bpf = &rules.Datapath{
	Refuse:                     datapath.Refuse,
	FinishKubeProxyReplacement: func() error { return finishKubeProxyReplacementInit(true) },
	// As NewDaemon in these versions.
	Masquerade: func() error {
		if option.Config.EnableIPv4Masquerade && option.Config.EnableBPFMasquerade {
			return node.InitBPFMasqueradeAddrs(option.Config.Devices)
		}
		option.Config.EnableBPFMasquerade = false
		return nil
	},
	Start: func(ctx context.Context, pods netip.Prefix, mtu int, ended chan<- error) error {
		return datapath.Start(ctx, programs, pods, mtu, ended)
	},
}

// programs is what attaches the BPF programs of these versions.
var programs = datapath.Version{
	MTU: func(bytes int) mtu.Configuration { return mtu.NewConfiguration(0, false, false, false, bytes, nil) },
	Patch: func(ep vendor.Endpoint, object, into, device string) error {
		return patchHostNetdevDatapath(ep, object, into, device, node.GetMasqIPv4AddrsWithDevices())
	},
	InitClockSource: initClockSourceOption,
	InitMaps: func() {
		c := option.Config
		ctmap.InitMapInfo(c.CTMapEntriesGlobalTCP, c.CTMapEntriesGlobalAny, c.EnableIPv4, c.EnableIPv6, c.EnableNodePort)
	},
}

//go:linkname finishKubeProxyReplacementInit github.com/cilium/cilium/daemon/cmd.finishKubeProxyReplacementInit
func finishKubeProxyReplacementInit(strict bool) error

//go:linkname initClockSourceOption github.com/cilium/cilium/daemon/cmd.initClockSourceOption
func initClockSourceOption()

//go:linkname patchHostNetdevDatapath github.com/cilium/cilium/pkg/datapath/loader.patchHostNetdevDatapath
func patchHostNetdevDatapath(ep vendor.Endpoint, object, into, device string, masquerade map[string]net.IP) error
