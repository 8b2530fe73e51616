// Package agent is the part of the agent slices that does not differ between
// versions of Cilium. The whole agent cannot run in a lab: it needs a BPF
// datapath that is compiled on the node and loaded by programs that the lab
// has not got, and it stops where /proc/modules is missing. The slice is a
// main package around the vendor's own packages instead.
//
// Vendor's code, unmodified, at the version that the build's go.mod
// asks for:
//
//   - flags, their defaults, the reading of --config-dir and the handling of
//     signals: daemon/cmd (RootCmd and Execute; only RootCmd.Run is replaced),
//     pkg/option.
//   - the BGP speaker, what it announces, to whom, and when it stops:
//     pkg/bgp/speaker, pkg/bgp/config, and MetalLB in the vendor's fork.
//   - the watches on Nodes and CiliumNodes, and what their events lead to:
//     pkg/k8s/watchers (node.go, cilium_node.go, subscriber).
//   - the node's own CiliumNode, created if it is missing, else updated:
//     pkg/nodediscovery (UpdateCiliumNodeResource, StartDiscovery).
//   - which pod CIDR is the node's: pkg/k8s/init.go (WaitForNodeInformation):
//     spec.ipam.podCIDRs of the CiliumNode with ipam=cluster-pool,
//     spec.podCIDRs of the Node with ipam=kubernetes.
//   - the route of the node's own pod CIDR to cilium_host and those of other
//     nodes' pod CIDRs to the nodes (auto-direct-node-routes): pkg/node/manager
//     and pkg/datapath/linux/node.go.
//
// The slice's own:
//
//   - the order of the calls in run below and in package slice: that of runDaemon in
//     daemon/cmd/daemon_main.go, NewDaemon in daemon/cmd/daemon.go and
//     Reinitialize in pkg/datapath/loader/base.go, without what loads BPF,
//     writes iptables rules, or serves policies, services, endpoints, health
//     checks and the agent's API. Services, pods and policies are not watched.
//   - the wiring of pods: a CNI configuration for the standard plugins ptp and
//     host-local over the pod CIDR, in the place of cilium-cni, Cilium's IPAM
//     and its datapath (package conflist).
//   - cilium_host, which drops what no pod has the address for; its address,
//     the node's CiliumInternalIP, is always the first of the pod CIDR, which
//     host-local keeps for the gateway (hostDevice).
//   - enable-l2-neigh-discovery (neighbour entries for BPF programs) is off,
//     and Nodes are not annotated (annotate-k8s-node).
//   - configurations that need the parts left out are refused (refuse). Such an end of
//     the program, and each other one that is not the vendor's, bears a mark (package
//     end).
package agent

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cilium/cilium/pkg/datapath"
	linuxdatapath "github.com/cilium/cilium/pkg/datapath/linux"
	"github.com/cilium/cilium/pkg/defaults"
	ipamOption "github.com/cilium/cilium/pkg/ipam/option"
	"github.com/cilium/cilium/pkg/k8s"
	"github.com/cilium/cilium/pkg/k8s/watchers"
	"github.com/cilium/cilium/pkg/mtu"
	"github.com/cilium/cilium/pkg/node"
	"github.com/cilium/cilium/pkg/nodediscovery"
	"github.com/cilium/cilium/pkg/option"

	"github.com/relapse-dev/relapse/images/cilium/slice"
)

// The groups that the slice watches, by the names that pkg/k8s/watchers has
// for them.
var watched = []string{"core/v1::Node", "cilium/v2::CiliumNode"}

// Parts are the vendor's objects as a version's daemon/cmd/daemon.go connects
// them with each other.
type Parts struct {
	Watcher   *watchers.K8sWatcher
	Discovery *nodediscovery.NodeDiscovery
	// EnableWatchers starts the watches on the groups and returns when they
	// run.
	EnableWatchers func(ctx context.Context, groups []string) error
	// StartDiscovery makes the local node known to the node manager and
	// brings its CiliumNode up to date.
	StartDiscovery func()
}

// Wire creates and connects the parts. It is where versions differ.
type Wire func(context.Context, datapath.Datapath, mtu.Configuration) (Parts, error)

// Main is the slice's main function: it runs until a signal ends it, and
// leaves behind what the agent leaves: routes, CNI configuration and
// CiliumNode. BGP sessions end with the process, without a notification.
func Main(wire Wire) {
	slice.Main(func(ctx context.Context) error { return run(ctx, wire) })
}

// run does what initEnv, runDaemon and NewDaemon do in this order, and returns
// when the agent is up.
func run(ctx context.Context, wire Wire) error {
	if err := slice.Configure(refuse); err != nil {
		return err
	}
	// No BPF program is there that needs to know the next hops' neighbour
	// entries beforehand.
	option.Config.EnableL2NeighDiscovery = false
	if err := slice.Connect(); err != nil {
		return err
	}

	mtuConfig := mtu.NewConfiguration(0, false, false, false, option.Config.MTU, node.GetIPv4())
	dp := linuxdatapath.NewDatapath(linuxdatapath.DatapathConfiguration{HostDevice: defaults.HostDevice}, nil, nil)
	parts, err := wire(ctx, dp, mtuConfig)
	if err != nil {
		return err
	}

	if err := parts.Watcher.WaitForCRDsToRegister(ctx); err != nil {
		return err
	}
	parts.Watcher.NodesInit(k8s.Client())
	if option.Config.IPAM == ipamOption.IPAMClusterPool {
		parts.Discovery.UpdateCiliumNodeResource()
	}
	if err := k8s.WaitForNodeInformation(ctx, parts.Watcher); err != nil {
		return fmt.Errorf("getting the node's specification from the API server: %w", err)
	}
	podCIDR, err := netip.ParsePrefix(node.GetIPv4AllocRange().String())
	if err != nil {
		return fmt.Errorf("reading the node's pod CIDR: %w", err)
	}
	if err := parts.EnableWatchers(ctx, watched); err != nil {
		return fmt.Errorf("watching %v: %w", watched, err)
	}
	router := podCIDR.Addr().Next()
	if err := hostDevice(router); err != nil {
		return err
	}
	node.SetInternalIPv4Router(router.AsSlice())
	parts.StartDiscovery()
	if err := dp.Node().NodeConfigurationChanged(parts.Discovery.LocalConfig); err != nil {
		return fmt.Errorf("configuring the node handler: %w", err)
	}
	return slice.WirePods(podCIDR, mtuConfig.GetDeviceMTU())
}

// refuse returns an error if c asks for what the slice leaves out.
func refuse(c *option.DaemonConfig) error {
	var needs slice.Needs
	needs.Want(c.EnableIPv4, option.EnableIPv4Name, "true")
	needs.Want(!c.EnableIPv6, option.EnableIPv6Name, "false")
	needs.Want(c.IPAM == ipamOption.IPAMClusterPool || c.IPAM == ipamOption.IPAMKubernetes, option.IPAM,
		ipamOption.IPAMClusterPool+`" or "`+ipamOption.IPAMKubernetes)
	needs.Want(c.Tunnel == option.TunnelDisabled, option.TunnelName, option.TunnelDisabled)
	needs.Want(!c.EnableIPv4Masquerade, option.EnableIPv4Masquerade, "false")
	needs.Want(!c.BGPAnnounceLBIP, option.BGPAnnounceLBIP, "false")
	needs.Want(!c.EnableIPSec, option.EnableIPSecName, "false")
	needs.Want(!c.EnableWireguard, option.EnableWireguard, "false")
	needs.Want(c.KVStore == "", option.KVStore, "")
	return needs.Err()
}
