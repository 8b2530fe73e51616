// Command cilium-agent is a slice of Cilium's agent at versions 1.11: its
// configuration and its iptables rules, by the vendor's packages. Package
// rules says which decisions are the vendor's and which are the slice's.
package main

import (
	"context"
	"net"
	"net/netip"
	_ "unsafe" // for go:linkname

	vendor "github.com/cilium/cilium/pkg/datapath"
	"github.com/cilium/cilium/pkg/k8s"
	"github.com/cilium/cilium/pkg/maps/ctmap"
	"github.com/cilium/cilium/pkg/mtu"
	"github.com/cilium/cilium/pkg/node"
	"github.com/cilium/cilium/pkg/option"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/images/cilium/rules"
	"github.com/relapse-dev/relapse/images/cilium/rules/datapath"
)

func main() {
	rules.Main(rules.Version{
		Node:      func(ctx context.Context) error { return k8s.WaitForNodeInformation(ctx, nodes{}) },
		SetRouter: node.SetInternalIPv4Router,
		KubeProxyReplacement: func() error {
			_, err := initKubeProxyReplacementOptions()
			return err
		},
		Masquerade:        func() bool { return option.Config.EnableIPv4Masquerade },
		NativeRoutingCIDR: option.Config.GetIPv4NativeRoutingCIDR,
		// As in Reinitialize (pkg/datapath/loader/base.go), for the first
		// initialization.
		Install: func(ctx context.Context, hostDevice string) error {
			waitForLock()
			return install(ctx, hostDevice)
		},
		Datapath: &rules.Datapath{
			Refuse:                     datapath.Refuse,
			FinishKubeProxyReplacement: func() error { return finishKubeProxyReplacementInit(true) },
			Masquerade:                 masquerade,
			Start: func(ctx context.Context, pods netip.Prefix, mtu int, ended chan<- error) error {
				return datapath.Start(ctx, programs, pods, mtu, ended)
			},
		},
	})
}

// masquerade does what NewDaemon does in these versions with BPF masquerading.
func masquerade() error {
	if option.Config.EnableIPv4Masquerade && option.Config.EnableBPFMasquerade {
		return node.InitBPFMasqueradeAddrs(option.Config.Devices)
	}
	option.Config.EnableBPFMasquerade = false
	return nil
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

// nodes stands for the agent's watcher, which has the same from the same API
// server.
type nodes struct{}

func (nodes) GetK8sNode(ctx context.Context, name string) (*corev1.Node, error) {
	return k8s.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

//go:linkname initKubeProxyReplacementOptions github.com/cilium/cilium/daemon/cmd.initKubeProxyReplacementOptions
func initKubeProxyReplacementOptions() (bool, error)

//go:linkname finishKubeProxyReplacementInit github.com/cilium/cilium/daemon/cmd.finishKubeProxyReplacementInit
func finishKubeProxyReplacementInit(strict bool) error

//go:linkname initClockSourceOption github.com/cilium/cilium/daemon/cmd.initClockSourceOption
func initClockSourceOption()

//go:linkname patchHostNetdevDatapath github.com/cilium/cilium/pkg/datapath/loader.patchHostNetdevDatapath
func patchHostNetdevDatapath(ep vendor.Endpoint, object, into, device string, masquerade map[string]net.IP) error
