package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/status"
)

// kernelFeatures tries the features that a lab needs in a new network namespace, which ends when
// the function returns. It needs root. /proc/modules was rejected as a source because it lists only
// loaded modules, /boot/config because many machines have none.
func kernelFeatures() []feature {
	var inside []feature
	err := inNewNamespace(func() error {
		inside = []feature{
			{"bridge", netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}})},
			{"veth", addVeth()},
			{"multipath routes", addMultipath()},
			{"nf_tables NAT", addMasquerade()},
			{"overlay", openOverlay()},
		}
		return nil
	})
	return append([]feature{{"network namespaces", err}}, inside...)
}

func addVeth() error {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "veth1"}
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	peer, err := netlink.LinkByName(veth.PeerName)
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(veth), netlink.LinkSetUp(peer))
}

// addMultipath adds a route with two next hops behind addVeth's link.
func addMultipath() error {
	link, err := netlink.LinkByName("veth0")
	if err != nil {
		return err
	}
	// Documentation prefixes of RFC 5737; no packet is sent.
	near := &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: near}); err != nil {
		return fmt.Errorf("adding an address: %w", err)
	}
	return netlink.RouteAdd(&netlink.Route{
		Dst: &net.IPNet{IP: net.IPv4(198, 51, 100, 0), Mask: net.CIDRMask(24, 32)},
		MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: link.Attrs().Index, Gw: net.IPv4(192, 0, 2, 2)},
			{LinkIndex: link.Attrs().Index, Gw: net.IPv4(192, 0, 2, 3)},
		},
	})
}

func addMasquerade() error {
	conn := &nftables.Conn{}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "nat"})
	chain := conn.AddChain(&nftables.Chain{
		Table: table, Name: "postrouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Masq{}}})
	return conn.Flush()
}

// openOverlay opens the file system without mounting it. The kernel loads its module if necessary.
func openOverlay() error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func inNewNamespace(try func() error) error {
	tried := make(chan error)
	go func() {
		// Not unlocked: thread and namespace end with the goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			tried <- fmt.Errorf("a new network namespace: %w", err)
			return
		}
		tried <- try()
	}()
	return <-tried
}

// Lacks reports whether the kernel cannot create a kind of network device: vxlan, geneve,
// wireguard, ipip or netkit; or, for xfrm, cannot do IPsec. It needs root. Failures that say nothing
// about the kernel are errors.
func Lacks(kind string) (bool, error) {
	attributes := netlink.LinkAttrs{Name: "relapse0"}
	try := map[string]func() error{
		"vxlan":     func() error { return netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attributes, VxlanId: 1}) },
		"geneve":    func() error { return netlink.LinkAdd(&netlink.Geneve{LinkAttrs: attributes, FlowBased: true}) },
		"wireguard": func() error { return netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attributes}) },
		"netkit": func() error {
			return netlink.LinkAdd(&netlink.Netkit{LinkAttrs: attributes, Mode: netlink.NETKIT_MODE_L3})
		},
		"ipip": func() error { return netlink.LinkAdd(&netlink.Iptun{LinkAttrs: attributes, FlowBased: true}) },
		"xfrm": addState,
	}[kind]
	if try == nil {
		return false, fmt.Errorf("trying the kernel: no test of %q is known", kind)
	}
	switch err := inNewNamespace(try); {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ENODEV),
		kind == "xfrm" && (errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOENT)): // the algorithm is not there
		return true, nil
	case err != nil:
		return false, fmt.Errorf("trying whether the kernel has %s: %w", kind, err)
	}
	return false, nil
}

// addState adds a state of IPsec with the algorithm that Cilium's keys usually have.
func addState() error {
	return netlink.XfrmStateAdd(&netlink.XfrmState{
		// Documentation addresses of RFC 5737; no packet is sent.
		Src: net.IPv4(192, 0, 2, 1), Dst: net.IPv4(192, 0, 2, 2), Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TUNNEL, Spi: 1,
		Aead: &netlink.XfrmStateAlgo{Name: "rfc4106(gcm(aes))", Key: make([]byte, 20), ICVLen: 128},
	})
}

// ProxiesByNFTables tries the kernel features that kube-proxy's mode nftables needs: a map from
// address, protocol and port to a verdict, and random numbers to balance by. The error is an
// *UnfitError. It needs root.
func ProxiesByNFTables() error {
	if err := inNewNamespace(addServiceMap); err != nil {
		return withoutServiceMap(err)
	}
	return nil
}

func withoutServiceMap(err error) error {
	return &UnfitError{Checks: []Check{{
		Name: "kernel: nftables for kube-proxy", State: Fatal, Found: err.Error(),
		Want: "kube-proxy in mode nftables needs maps of addresses and ports to verdicts, and numgen, in the kernel's nf_tables",
		Cure: "run it on a machine with Linux 5.13 or newer and nf_tables, or in mode iptables, " +
			"or in mode ipvs, which runs on guests with kernels of their own",
	}}}
}

// PassesIPv6 returns an error if the machine's own rules drop IPv6 packets between members of a lab. With the sysctl
// bridge-nf-call-ip6tables packets on bridges pass the rules, and Docker 27 and newer forwards only its own networks'.
func PassesIPv6() error {
	const name = "net.bridge.bridge-nf-call-ip6tables"
	filtered, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-ip6tables")
	if err != nil || strings.TrimSpace(string(filtered)) != "1" {
		return nil // br_netfilter is not loaded, or lets them pass
	}
	conn := &nftables.Conn{}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyIPv6)
	if errors.Is(err, unix.EPERM) {
		return nil // it takes root, as each run does
	}
	if err != nil {
		return fmt.Errorf("reading the machine's rules for IPv6: %w", err)
	}
	for _, c := range chains {
		if c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			return status.Machine("a lab of two families sends IPv6 over bridges (found: %s is 1, and the policy of chain %s of table ip6 "+
				"%s is to drop): sysctl -w %[1]s=0, or run it on another machine", name, c.Name, c.Table.Name)
		}
	}
	return nil
}

// addServiceMap adds a chain that balances over a map, as kube-proxy writes it.
func addServiceMap() error {
	conn := &nftables.Conn{}
	key, err := nftables.ConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	if err != nil {
		return err
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "kube-proxy"})
	services := &nftables.Set{
		Table: table, Name: "service-ips", IsMap: true, KeyType: key, DataType: nftables.TypeVerdict, Concatenation: true,
	}
	if err := conn.AddSet(services, nil); err != nil {
		return err
	}
	chain := conn.AddChain(&nftables.Chain{
		Table: table, Name: "services", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Numgen{Register: 1, Modulus: 2, Type: unix.NFT_NG_RANDOM},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
		&expr.Counter{},
	}})
	return conn.Flush()
}
