// Package datapath is the part of the agent slices that attaches BPF programs
// to a node's network card: from-netdev and to-netdev of bpf/bpf_host.c, which
// masquerade pods' packets where the agent is told to leave that to BPF.
//
// Vendor's code, unmodified, at the version that the build's go.mod
// asks for:
//
//   - the C code: the module's bpf folder.
//   - node_config.h and ep_config.h, and with them every define that decides
//     what is compiled in (ENABLE_NODEPORT, ENABLE_DSR, ENABLE_MASQUERADE,
//     IPV4_SNAT_EXCLUSION_DST_CIDR): pkg/datapath/linux/config, from the
//     ConfigMap as pkg/option and daemon/cmd have read and checked it.
//   - bpf_features.h: pkg/datapath/linux/probes, from what bpftool finds in the
//     kernel.
//   - the compiler's flags and calls: pkg/datapath/loader (Compile). Clang is
//     Debian's, of another version than the vendor's.
//   - the values for the card, the address to hide pods behind among them:
//     pkg/datapath/loader (patchHostNetdevDatapath), pkg/elf, pkg/node.
//
// The slice's own:
//
//   - the order of the calls: that of NewDaemon and of the loader's
//     reloadHostDatapath, without cilium_host, cilium_net and the pods' own
//     programs.
//   - the lines that bpf/init.sh adds to node_config.h (writeDevices), and the
//     options that initEnv sets whatever the ConfigMap says.
//   - the host's endpoint is the one of the vendor's tests (pkg/testutils), with
//     the options of the agent.
//   - attach, in the place of tc and the vendor's fork of iproute2, loads and
//     attaches the objects, and tells the programs which addresses are pods':
//     images/tcbpf. Maps are not pinned, but for the one of tail calls, which the
//     kernel empties otherwise when the agent ends: a new agent starts without
//     translations. Services, policies and other nodes are not in them.
package datapath

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cilium/cilium/pkg/addressing"
	"github.com/cilium/cilium/pkg/datapath"
	"github.com/cilium/cilium/pkg/datapath/linux/config"
	"github.com/cilium/cilium/pkg/datapath/linux/probes"
	"github.com/cilium/cilium/pkg/datapath/loader"
	"github.com/cilium/cilium/pkg/defaults"
	"github.com/cilium/cilium/pkg/elf"
	"github.com/cilium/cilium/pkg/mtu"
	"github.com/cilium/cilium/pkg/node"
	"github.com/cilium/cilium/pkg/option"
	"github.com/cilium/cilium/pkg/sysctl"
	"github.com/cilium/cilium/pkg/testutils"

	"github.com/relapse-dev/relapse/images/cilium/slice"
)

// Version is what differs between versions of Cilium.
type Version struct {
	// MTU is the vendor's configuration for devices of an MTU.
	MTU func(bytes int) mtu.Configuration
	// Patch is the vendor's patchHostNetdevDatapath: it writes a copy of an
	// object with the values for a device.
	Patch func(ep datapath.Endpoint, object, into, device string) error
	// InitClockSource is the vendor's initClockSourceOption, and InitMaps its
	// InitMapInfo of pkg/maps/ctmap, with the agent's arguments.
	InitClockSource, InitMaps func()
}

// Refuse returns an error if a configuration with kube-proxy replacement asks
// for more than programs on the node's own cards, which must be named, or does
// not meet conditions of BPF masquerading that one of the versions has.
func Refuse(c *option.DaemonConfig) error {
	var needs slice.Needs
	needs.Want(c.KubeProxyReplacement == option.KubeProxyReplacementPartial, option.KubeProxyReplacement, option.KubeProxyReplacementPartial)
	needs.Want(c.EnableNodePort, option.EnableNodePort, "true")
	needs.Want(!c.EnableHostReachableServices, option.EnableHostReachableServices, "false")
	needs.Want(c.NodePortAcceleration == option.NodePortAccelerationDisabled, option.NodePortAcceleration, option.NodePortAccelerationDisabled)
	needs.Want(len(c.Devices) > 0, option.Devices, "DEVICE")
	needs.Want(c.DirectRoutingDevice != "", option.DirectRoutingDevice, "DEVICE")
	needs.Want(c.EgressMasqueradeInterfaces == "", option.EgressMasqueradeInterfaces, "")
	needs.Want(c.EnableRemoteNodeIdentity, option.EnableRemoteNodeIdentity, "true")
	return needs.Err()
}

// hostEndpoint is the vendor's, but for the address of a pod.
type hostEndpoint struct{ testutils.TestEndpoint }

func (*hostEndpoint) IPv4Address() addressing.CiliumIPv4 { return nil }

// attach is the program that loads and attaches (images/tcbpf).
const attach = "tcbpf"

// Start compiles bpf_host.c and attaches it to the configured devices, for a
// node with this pod CIDR. It returns when the programs are attached; the
// process that keeps their maps up to date ends with this one. ended receives
// an error if that process ends earlier.
func Start(ctx context.Context, v Version, podCIDR netip.Prefix, mtuBytes int, ended chan<- error) error {
	v.InitClockSource()
	v.InitMaps()
	option.Config.BpfDir = filepath.Join(option.Config.LibDir, defaults.BpfDir)
	option.Config.StateDir = filepath.Join(option.Config.RunDir, defaults.StateDir)
	node.SetIPv4Loopback(net.ParseIP(option.Config.LoopbackIPv4))
	_, nat46, err := net.ParseCIDR(option.Config.NAT46Range)
	if err != nil {
		return fmt.Errorf("reading %s: %w", option.NAT46Range, err)
	}
	option.Config.NAT46Prefix = nat46
	for _, name := range []string{option.DropNotify, option.TraceNotify, option.PolicyVerdictNotify} {
		option.Config.Opts.SetBool(name, true)
	}
	for _, name := range []string{option.Conntrack, option.ConntrackAccounting} {
		option.Config.Opts.SetBool(name, !option.Config.DisableConntrack)
	}

	globals := option.Config.GetGlobalsDir()
	if err := os.MkdirAll(globals, defaults.StateDirRights); err != nil {
		return fmt.Errorf("making the folder for headers: %w", err)
	}
	if err := probes.NewProbeManager().CreateHeadersFile(); err != nil {
		return fmt.Errorf("writing bpf_features.h: %w", err)
	}
	writer := &config.HeaderfileWriter{}
	nodeConfig := &datapath.LocalNodeConfiguration{MtuConfig: v.MTU(mtuBytes), EnableIPv4: true}
	host := hostEndpoint{testutils.NewTestHostEndpoint()}
	host.Opts = option.Config.Opts
	for _, header := range []struct {
		path  string
		write func(*os.File) error
	}{
		{filepath.Join(globals, "node_config.h"), func(f *os.File) error {
			if err := writer.WriteNodeConfig(f, nodeConfig); err != nil {
				return err
			}
			return writeDevices(f, option.Config.Devices)
		}},
		{filepath.Join(option.Config.StateDir, "ep_config.h"), func(f *os.File) error { return writer.WriteEndpointConfig(f, &host) }},
	} {
		if err := writeHeader(header.path, header.write); err != nil {
			return fmt.Errorf("writing %s: %w", header.path, err)
		}
	}

	const source, object = "bpf_host.c", "bpf_host.o"
	if err := loader.Compile(ctx, source, object); err != nil {
		return fmt.Errorf("compiling %s: %w", source, err)
	}
	elf.IgnoreSymbolPrefixes([]string{""}) // do not warn of symbols that keep their values
	for _, device := range option.Config.Devices {
		patched := filepath.Join(option.Config.StateDir, "bpf_netdev_"+device+".o")
		if err := v.Patch(&host, filepath.Join(option.Config.StateDir, object), patched, device); err != nil {
			return fmt.Errorf("setting the values for %s in %s: %w", device, object, err)
		}
		if err := start(ended, patched, device, podCIDR.String()); err != nil {
			return fmt.Errorf("attaching %s to %s: %w", patched, device, err)
		}
	}
	return nil
}

// writeDevices writes the lines that the vendor's bpf/init.sh adds to
// node_config.h. Those about cilium_host and cilium_net, which are not there,
// are for programs that are not attached.
func writeDevices(w io.Writer, devices []string) error {
	portRange, err := sysctl.Read("net.ipv4.ip_local_port_range")
	if err != nil {
		return err
	}
	ports := strings.Fields(portRange)
	if len(ports) != 2 {
		return fmt.Errorf("net.ipv4.ip_local_port_range is %q", portRange)
	}
	const none = "{ .addr = {0x0,0x0,0x0,0x0,0x0,0x0}}"
	fmt.Fprintf(w, `
#define CILIUM_NET_MAC %[1]s
#define HOST_IFINDEX 0
#define HOST_IFINDEX_MAC %[1]s
#define CILIUM_IFINDEX 0
#define EPHEMERAL_MIN %[2]s
`, none, ports[0])
	// WriteNodeConfig does this itself in later versions.
	fmt.Fprintf(w, "#ifndef NATIVE_DEV_MAC_BY_IFINDEX\n#define NATIVE_DEV_MAC_BY_IFINDEX(IFINDEX) ({ union macaddr __mac = %s; switch (IFINDEX) {", none)
	for _, name := range devices {
		d, err := net.InterfaceByName(name)
		if err != nil {
			return fmt.Errorf("looking for device %s: %w", name, err)
		}
		fmt.Fprintf(w, " case %d: {union macaddr __tmp = {.addr = {0x%s}}; __mac=__tmp;} break;",
			d.Index, strings.ReplaceAll(d.HardwareAddr.String(), ":", ",0x"))
	}
	_, err = fmt.Fprint(w, " } __mac; })\n#endif\n")
	return err
}

func writeHeader(path string, write func(*os.File) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// start starts the program that attaches, and waits until it says that it has.
func start(ended chan<- error, args ...string) error {
	cmd := exec.Command(attach, args...)
	cmd.Stderr = os.Stderr
	// It ends with its standard input, and so with this process.
	if _, err := cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	said := bufio.NewScanner(out)
	if !said.Scan() {
		return fmt.Errorf("%s ended before it said that it has attached: %v", attach, cmd.Wait())
	}
	slice.Log.Info(said.Text())
	go func() {
		for said.Scan() {
		}
		ended <- fmt.Errorf("%s %v ended: %v", attach, args, cmd.Wait())
	}()
	return nil
}
