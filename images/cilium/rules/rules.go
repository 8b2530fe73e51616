// Package rules is the part that does not differ between versions of Cilium of
// the agent slices that read Cilium's configuration and write its iptables
// rules. The whole agent cannot run in a lab: its BPF datapath is loaded by a
// fork of iproute2 that the lab has not got, and it stops where /proc/modules is
// missing.
//
// Vendor's code, unmodified, at the version that the build's go.mod
// asks for:
//
//   - flags, their defaults and deprecations, the reading of --config-dir, and
//     what is wrong with a ConfigMap: daemon/cmd (RootCmd and Execute; only
//     RootCmd.Run is replaced), pkg/option (InitConfig, Populate, Validate).
//     An error of theirs ends the program as it ends the agent.
//   - whether BPF NodePort is on, which BPF masquerading needs: daemon/cmd
//     (initKubeProxyReplacementOptions).
//   - the node's pod CIDR and addresses, from its Node object: pkg/k8s
//     (GetNodeSpec in 1.8, WaitForNodeInformation later), pkg/node.
//   - every iptables rule, whether there is one to masquerade, for which
//     destinations it is not, and the removal of the rules of the agent that
//     ran before: pkg/datapath/iptables (InstallRules; RemoveRules and
//     TransientRules in 1.8 and 1.10).
//
// The slice's own:
//
//   - the order of the calls in run below and in package slice: that of initEnv and runDaemon in
//     daemon/cmd/daemon_main.go, NewDaemon in daemon/cmd/daemon.go and
//     Reinitialize in pkg/datapath/loader/base.go, without all that serves
//     policies, services, endpoints and the API.
//   - BPF programs are attached by two versions, to the nodes' cards alone:
//     package datapath says what of that is whose. The others load none.
//   - the fallback from BPF to iptables masquerading without BPF NodePort: five
//     lines in the middle of NewDaemon (fallBack).
//   - IptablesManager is used without its Init, which loads kernel modules and
//     stops where /proc/modules is missing. So ip6tables is not called. What Init
//     does about iptables' lock, which iptables then waits for, the slice does
//     (WaitForLock, and lock.go of the versions).
//   - the wiring of pods: a CNI configuration for the standard plugins ptp and
//     host-local over the pod CIDR (package conflist). The first address of the
//     range is the gateway's, and the node's CiliumInternalIP.
//   - configurations that need the parts left out are refused (refuse). Such an end of
//     the program, and each other one that is not the vendor's, bears a mark (package
//     end).
package rules

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/cilium/pkg/cidr"
	"github.com/cilium/cilium/pkg/defaults"
	ipamOption "github.com/cilium/cilium/pkg/ipam/option"
	"github.com/cilium/cilium/pkg/logging/logfields"
	"github.com/cilium/cilium/pkg/node"
	"github.com/cilium/cilium/pkg/option"

	"github.com/relapse-dev/relapse/images/cilium/end"
	"github.com/relapse-dev/relapse/images/cilium/slice"
)

// mtu is that of the pods' interfaces, in bytes: that of the nodes' networks,
// as there is no tunnel.
const mtu = 1500

// Version is what differs between versions of Cilium.
type Version struct {
	// Node takes the node's pod CIDR and addresses from the API server into
	// pkg/node.
	Node func(context.Context) error
	// SetRouter sets the node's CiliumInternalIP in pkg/node.
	SetRouter func(net.IP)
	// KubeProxyReplacement is the vendor's initKubeProxyReplacementOptions.
	KubeProxyReplacement func() error
	// Masquerade is what the configuration says, after Populate, about
	// masquerading IPv4.
	Masquerade func() bool
	// NativeRoutingCIDR is where nothing is masqueraded, nil if none is set.
	NativeRoutingCIDR func() *cidr.CIDR
	// Install removes the rules of the agent that ran before and installs
	// new ones.
	Install func(ctx context.Context, hostDevice string) error
	// Datapath attaches BPF programs. Where it is nil the slice refuses
	// configurations that need them.
	Datapath *Datapath
}

// Datapath is how BPF programs get to the node's network cards: see package
// datapath.
type Datapath struct {
	// Refuse returns an error if a configuration with kube-proxy replacement
	// asks for what is not attached.
	Refuse func(*option.DaemonConfig) error
	// FinishKubeProxyReplacement is the vendor's
	// finishKubeProxyReplacementInit, in strict mode.
	FinishKubeProxyReplacement func() error
	// Masquerade is what NewDaemon does after the fallback to iptables about
	// masquerading by BPF.
	Masquerade func() error
	// Start compiles the programs and attaches them, for pods of a range
	// whose interfaces have an MTU. ended receives an error when nobody keeps
	// the programs' maps up to date any more.
	Start func(ctx context.Context, pods netip.Prefix, mtu int, ended chan<- error) error
}

// Main is the slice's main function: it runs until a signal ends it, and
// leaves behind what the agent leaves: rules and CNI configuration.
func Main(v Version) {
	slice.Main(func(ctx context.Context) error {
		ended := make(chan error, 1)
		err := run(ctx, v, ended)
		if err == nil {
			go func() { end.With("Unable to go on", <-ended) }()
		}
		return err
	})
}

// run does what initEnv, runDaemon and NewDaemon do in this order, and returns
// when the agent is up.
func run(ctx context.Context, v Version, ended chan<- error) error {
	if err := slice.Configure(func(c *option.DaemonConfig) error { return refuse(c, v.Datapath) }); err != nil {
		return err
	}
	if err := v.KubeProxyReplacement(); err != nil {
		return end.Refused(fmt.Errorf("unable to initialize Kube proxy replacement options: %w", err))
	}

	if err := slice.Connect(); err != nil {
		return err
	}
	if err := v.Node(ctx); err != nil {
		return fmt.Errorf("getting the node's specification from the API server: %w", err)
	}
	podCIDR, err := netip.ParsePrefix(node.GetIPv4AllocRange().String())
	if err != nil {
		return fmt.Errorf("reading the node's pod CIDR: %w", err)
	}
	v.SetRouter(podCIDR.Addr().Next().AsSlice())

	bpf := option.Config.EnableNodePort
	if bpf {
		if err := v.Datapath.FinishKubeProxyReplacement(); err != nil {
			return fmt.Errorf("finishing kube-proxy replacement: %w", err)
		}
	}
	fallBack(v)
	if bpf {
		if err := v.Datapath.Masquerade(); err != nil {
			return fmt.Errorf("initializing BPF masquerading: %w", err)
		}
		if err := v.Datapath.Start(ctx, podCIDR, mtu, ended); err != nil {
			return fmt.Errorf("attaching BPF programs: %w", err)
		}
		slice.Log.WithField("masquerade", v.Masquerade() && option.Config.EnableBPFMasquerade).
			WithField("mode", option.Config.NodePortMode).
			Info("The BPF programs are attached")
	}

	if err := v.Install(ctx, defaults.HostDevice); err != nil {
		return fmt.Errorf("installing iptables rules: %w", err)
	}
	slice.Log.WithField("masquerade", v.Masquerade()).WithField("nativeRoutingCIDR", v.NativeRoutingCIDR()).
		WithField(logfields.V4Prefix, podCIDR).Info("The iptables rules are installed")
	return slice.WirePods(podCIDR, mtu)
}

// refuse returns an error if c asks for what the slice leaves out. datapath is nil where
// the slice cannot attach BPF programs.
func refuse(c *option.DaemonConfig, datapath *Datapath) error {
	var needs slice.Needs
	needs.Want(c.EnableIPv4, option.EnableIPv4Name, "true")
	needs.Want(!c.EnableIPv6, option.EnableIPv6Name, "false")
	needs.Want(c.IPAM == ipamOption.IPAMKubernetes, option.IPAM, ipamOption.IPAMKubernetes)
	needs.Want(c.Tunnel == option.TunnelDisabled, option.TunnelName, option.TunnelDisabled)
	needs.Want(!c.EnableIPSec, option.EnableIPSecName, "false")
	needs.Want(!c.EnableIPMasqAgent, option.EnableIPMasqAgent, "false")
	if c.KubeProxyReplacement == option.KubeProxyReplacementDisabled {
		return needs.Err()
	}
	if datapath == nil {
		// BPF programs may be the ones that masquerade.
		needs.Want(false, option.KubeProxyReplacement, option.KubeProxyReplacementDisabled)
		return needs.Err()
	}
	return errors.Join(needs.Err(), datapath.Refuse(c))
}

// fallBack lets iptables masquerade where BPF cannot. Of the conditions that
// NewDaemon looks at, BPF NodePort is the first in all versions, and refuse
// sees to the others.
func fallBack(v Version) {
	if v.Masquerade() && option.Config.EnableBPFMasquerade && !option.Config.EnableNodePort {
		option.Config.EnableBPFMasquerade = false
		slice.Log.Warnf("BPF masquerade requires NodePort (--%s=\"true\"). Falling back to iptables-based masquerading.", option.EnableNodePort)
	}
}
