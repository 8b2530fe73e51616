package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/cilium/pkg/defaults"
	"github.com/vishvananda/netlink"
)

// hostDevice makes cilium_host, with router as its address, in the place of
// the vendor's pkg/datapath/loader/netlink.go (setupVethPair) and bpf/init.sh
// (the address), which go on to BPF. The vendor's node handler routes the
// local pod CIDR to it, so that the node's own range is never left to a less
// specific route, or to a stale route from the time when it was another
// node's.
//
// The agent's BPF programs drop what goes to addresses that no pod has. Here
// the other end, cilium_net, stays down and drops it: with both ends up the
// node would forward such packets to itself until their TTL ends.
func hostDevice(router netip.Addr) error {
	address := &netlink.Addr{
		IPNet: &net.IPNet{IP: router.AsSlice(), Mask: net.CIDRMask(router.BitLen(), router.BitLen())},
		Scope: int(netlink.SCOPE_LINK),
	}
	link, err := netlink.LinkByName(defaults.HostDevice)
	var missing netlink.LinkNotFoundError
	switch {
	case err == nil:
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			return fmt.Errorf("listing the addresses of %s: %w", defaults.HostDevice, err)
		}
		if len(addresses) == 1 && addresses[0].IPNet.String() == address.IPNet.String() {
			return nil
		}
		// As the agent does when its range has changed (daemon/cmd/ipam.go and
		// datapath.go, deleteHostDevice): the old range's route goes with it.
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("removing %s of another pod CIDR: %w", defaults.HostDevice, err)
		}
	case !errors.As(err, &missing):
		return fmt.Errorf("looking for %s: %w", defaults.HostDevice, err)
	}

	attrs := netlink.NewLinkAttrs()
	attrs.Name = defaults.HostDevice
	link = &netlink.Veth{LinkAttrs: attrs, PeerName: defaults.SecondHostDevice}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("creating %s: %w", defaults.HostDevice, err)
	}
	if err := netlink.LinkSetARPOff(link); err != nil {
		return fmt.Errorf("turning ARP off on %s: %w", defaults.HostDevice, err)
	}
	if err := netlink.AddrAdd(link, address); err != nil {
		return fmt.Errorf("giving %s the address %s: %w", defaults.HostDevice, router, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting %s up: %w", defaults.HostDevice, err)
	}
	return nil
}
