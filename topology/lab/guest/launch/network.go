package launch

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/relapse-dev/relapse/topology/lab/guest/boot"
)

// takeOver replaces the container's interfaces by the guest's. For each ethN a bridge connects it
// to a tap device, and the guest gets its IP and MAC addresses. The container keeps no address.
func takeOver() (links []boot.Link, taps []string, err error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, nil, fmt.Errorf("listing interfaces: %w", err)
	}
	slices.SortFunc(all, func(a, b netlink.Link) int { return strings.Compare(a.Attrs().Name, b.Attrs().Name) })
	for _, port := range all {
		name := port.Attrs().Name
		number, ok := strings.CutPrefix(name, "eth")
		if !ok {
			continue
		}
		link, err := replace(port, "br"+number, "tap"+number)
		if err != nil {
			return nil, nil, fmt.Errorf("moving %s to the guest: %w", name, err)
		}
		links = append(links, link)
		taps = append(taps, "tap"+number)
	}
	return links, taps, nil
}

func replace(port netlink.Link, bridgeName, tapName string) (boot.Link, error) {
	attrs := port.Attrs()
	addresses, err := netlink.AddrList(port, netlink.FAMILY_V4)
	if err != nil {
		return boot.Link{}, err
	}
	if len(addresses) != 1 {
		return boot.Link{}, fmt.Errorf("it has %d IPv4 addresses: expected one", len(addresses))
	}
	address, ok := prefix(addresses[0].IPNet)
	if !ok {
		return boot.Link{}, fmt.Errorf("its address %s is not an IPv4 address", addresses[0])
	}
	link := boot.Link{Name: attrs.Name, MAC: slices.Clone(attrs.HardwareAddr), Address: address}

	no := false
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, MTU: attrs.MTU}, MulticastSnooping: &no}
	tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: tapName, MTU: attrs.MTU}, Mode: netlink.TUNTAP_MODE_TAP}
	steps := []func() error{
		func() error { return netlink.AddrDel(port, &addresses[0]) },
		// A bridge does not forward frames for its ports' own addresses.
		func() error { return netlink.LinkSetHardwareAddr(port, otherMAC(link.MAC)) },
		func() error { return netlink.LinkAdd(bridge) },
		func() error { return netlink.LinkAdd(tap) },
		func() error { return netlink.LinkSetMaster(port, bridge) },
		func() error { return netlink.LinkSetMaster(tap, bridge) },
		func() error { return netlink.LinkSetUp(tap) },
		func() error { return netlink.LinkSetUp(bridge) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return boot.Link{}, err
		}
	}
	return link, closeTap(tap)
}

// closeTap closes the descriptors of a persistent tap device. The guest's program opens it by name.
func closeTap(tap *netlink.Tuntap) error {
	var errs []error
	for _, f := range tap.Fds {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// otherMAC is a new MAC address for the container's interface, because the guest has
// the old one. The two differ in one bit. Both are locally administered.
func otherMAC(mac net.HardwareAddr) net.HardwareAddr {
	other := slices.Clone(mac)
	other[0] ^= 0x04
	return other
}

func prefix(n *net.IPNet) (netip.Prefix, bool) {
	address, ok := netip.AddrFromSlice(n.IP.To4())
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(address, bits), ok
}
