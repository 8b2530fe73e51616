package kindlab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// cable is a veth between a node and a bridge of the machine. The kernel removes it with the
// node's network namespace.
type cable struct {
	name string
	mac  net.HardwareAddr
	mtu  int
	// addresses are the addresses of the node's end.
	addresses []netlink.Addr
	// peer is the index of the other end, and port and bridge its name and master.
	peer         int
	port, bridge string
}

// findPort finds the other end, in the namespace of this thread.
func (c *cable) findPort() error {
	port, err := netlink.LinkByIndex(c.peer)
	if err != nil {
		return fmt.Errorf("finding the other end of %s: %w", c.name, err)
	}
	if port.Attrs().MasterIndex == 0 {
		return fmt.Errorf("the other end of %s, %s, is on no bridge of this machine", c.name, port.Attrs().Name)
	}
	bridge, err := netlink.LinkByIndex(port.Attrs().MasterIndex)
	if err != nil {
		return fmt.Errorf("finding the bridge of %s: %w", port.Attrs().Name, err)
	}
	c.port, c.bridge = port.Attrs().Name, bridge.Attrs().Name
	return nil
}

// CutLink takes the carrier from the node's link to a network, as if its cable were pulled. restore
// plugs the cable in again.
//
// Until then the bridge drops frames to stations that it does not know, as network cards drop frames to others.
// Otherwise it would flood frames to the node. A veth takes them, and BPF programs on all other nodes, such as
// Cilium's, would answer.
func (n *Node) CutLink(ctx context.Context, network string) (restore func(context.Context) error, err error) {
	address, _ := n.lab.Topology.AddressOn(n.name, network)
	var port int
	err = n.InNetns(ctx, func() error {
		addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
		for _, has := range addresses {
			if has.IP.String() == address.String() {
				var link netlink.Link
				if link, err = netlink.LinkByIndex(has.LinkIndex); err == nil {
					port = link.Attrs().ParentIndex
				}
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("looking for the link of %s to %s: %w", n.name, network, err)
	}
	end, err := netlink.LinkByIndex(port)
	if err != nil {
		return nil, fmt.Errorf("finding the other end of the link of %s to %s: %w", n.name, network, err)
	}
	restore = func(context.Context) error { return errors.Join(netlink.LinkSetUp(end), setFlood(end, true)) }
	return restore, errors.Join(setFlood(end, false), netlink.LinkSetDown(end))
}

// setFlood sets on all ports of a port's bridge whether it floods frames to unknown stations.
func setFlood(port netlink.Link, on bool) error {
	links, err := netlink.LinkList()
	for _, l := range links {
		if l.Attrs().MasterIndex == port.Attrs().MasterIndex {
			err = errors.Join(err, netlink.LinkSetFlood(l, on))
		}
	}
	return err
}

// lay makes the cable again, to the node with this process. The node's end still has no address.
func (c cable) lay(pid int) error {
	bridge, err := netlink.LinkByName(c.bridge)
	if err != nil {
		return err
	}
	port := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: c.port, MTU: c.mtu, MasterIndex: bridge.Attrs().Index, Flags: net.FlagUp},
		PeerName:  c.name, PeerHardwareAddr: c.mac, PeerNamespace: netlink.NsPid(pid), PeerMTU: uint32(c.mtu),
	}
	if err := netlink.LinkAdd(port); err != nil {
		return err
	}
	return netlink.LinkSetUp(port)
}

// configure gives the cables' ends in this thread's namespace their addresses.
func configure(cables []cable) error {
	for _, c := range cables {
		link, err := netlink.LinkByName(c.name)
		if err != nil {
			return fmt.Errorf("finding %s: %w", c.name, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("setting %s up: %w", c.name, err)
		}
		for _, a := range c.addresses {
			again := &netlink.Addr{IPNet: a.IPNet, Broadcast: a.Broadcast}
			if again.Broadcast == nil {
				again.Broadcast = net.IPv4zero // none: otherwise the library takes the subnet's last
			}
			if err := netlink.AddrReplace(link, again); err != nil {
				return fmt.Errorf("giving %s the address %s: %w", c.name, a.IPNet, err)
			}
		}
	}
	return nil
}

type kernelState struct {
	links  []string
	routes []route
	// sysctls are the network namespace's sysctls that can be read and set, by path.
	sysctls map[string]string
}

// route is an IPv4 route of the main table, with the names of its links: their indexes change
// when the node starts again.
type route struct {
	netlink.Route
	link  string
	links []string // of the next hops
}

// readKernel reads the state of this thread's namespace, and the cables of a member's links. Cards are
// the addresses of the links that Docker makes. They are not cables: they come back with the container.
func readKernel(declared []topology.Link, cards []string) (kernelState, []cable, error) {
	var k kernelState
	var cables []cable
	links, err := netlink.LinkList()
	if err != nil {
		return k, nil, fmt.Errorf("listing links: %w", err)
	}
	for _, l := range links {
		k.links = append(k.links, l.Attrs().Name)
		addresses, err := netlink.AddrList(l, netlink.FAMILY_V4)
		if err != nil {
			return k, nil, fmt.Errorf("listing the addresses of %s: %w", l.Attrs().Name, err)
		}
		if slices.ContainsFunc(addresses, func(a netlink.Addr) bool {
			return !slices.Contains(cards, a.IP.String()) &&
				slices.ContainsFunc(declared, func(d topology.Link) bool { return a.IP.String() == d.Address.String() })
		}) {
			cables = append(cables, cable{
				name: l.Attrs().Name, mac: l.Attrs().HardwareAddr, mtu: l.Attrs().MTU, addresses: addresses, peer: l.Attrs().ParentIndex,
			})
		}
	}
	if k.routes, err = listRoutes(); err != nil {
		return k, nil, err
	}
	k.sysctls, err = readSysctls()
	return k, cables, err
}

// readSysctls reads the sysctls of this thread's namespace that can be read and set.
func readSysctls() (map[string]string, error) {
	values := map[string]string{}
	err := filepath.WalkDir("/proc/sys/net", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return gone(err)
		}
		info, err := entry.Info()
		if err != nil || info.Mode()&0o600 != 0o600 {
			return gone(err)
		}
		value, err := os.ReadFile(path)
		if errors.Is(err, unix.EIO) { // stable_secret, while it is not set
			return nil
		}
		if err == nil {
			values[path] = string(value)
		}
		return gone(err)
	})
	if err != nil {
		return nil, fmt.Errorf("reading sysctls: %w", err)
	}
	return values, nil
}

// setSysctls sets the sysctls of this thread's namespace that have other values. A second pass corrects
// sysctls that another one, such as ip_forward, has changed.
func setSysctls(values map[string]string) error {
	var errs []error
	for range 2 {
		present, err := readSysctls()
		if err != nil {
			return err
		}
		errs = nil
		for path, value := range present {
			if was, ok := values[path]; ok && was != value {
				if err := gone(os.WriteFile(path, []byte(was), 0)); err != nil {
					errs = append(errs, fmt.Errorf("setting %s: %w", path, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// gone is err, or nil if err says that something is not there: an interface may go with its sysctls at
// any moment.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func listRoutes() ([]route, error) {
	list, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var routes []route
	for _, r := range list {
		if r.Protocol == unix.RTPROT_KERNEL {
			continue
		}
		links := each.Of(r.MultiPath, func(hop *netlink.NexthopInfo) string { return names[hop.LinkIndex] })
		routes = append(routes, route{Route: r, link: names[r.LinkIndex], links: links})
	}
	return routes, nil
}

// String identifies the route, whatever the indexes of its links.
func (r route) String() string {
	text := fmt.Sprintf("%v via %v dev %s metric %d", r.Dst, r.Gw, r.link, r.Priority)
	for i, hop := range r.MultiPath {
		text += fmt.Sprintf(" nexthop %v dev %s", hop.Gw, r.links[i])
	}
	return text
}

// restore brings this thread's namespace back: it removes new links and routes, and sets the old routes
// and sysctls. It goes on after an error.
func (k kernelState) restore() error {
	var errs []error
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("listing links: %w", err)
	}
	index := map[string]int{}
	for _, l := range links {
		name := l.Attrs().Name
		index[name] = l.Attrs().Index
		if slices.Contains(k.links, name) {
			continue
		}
		var gone netlink.LinkNotFoundError // it went with the pod at its other end
		if err := netlink.LinkDel(l); err != nil && !errors.As(err, &gone) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("deleting link %s: %w", name, err))
		}
	}
	errs = append(errs, setSysctls(k.sysctls))
	present, err := listRoutes()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, r := range present {
		if !slices.ContainsFunc(k.routes, func(was route) bool { return was.String() == r.String() }) {
			if err := netlink.RouteDel(&r.Route); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("deleting route %s: %w", r, err))
			}
		}
	}
	for _, r := range k.routes {
		if slices.ContainsFunc(present, func(other route) bool { return other.String() == r.String() }) {
			continue
		}
		again := r.Route
		if again.LinkIndex != 0 {
			again.LinkIndex = index[r.link]
		}
		again.MultiPath = nil
		for i, hop := range r.MultiPath {
			again.MultiPath = append(again.MultiPath, &netlink.NexthopInfo{Gw: hop.Gw, LinkIndex: index[r.links[i]], Hops: hop.Hops})
		}
		if err := netlink.RouteReplace(&again); err != nil {
			errs = append(errs, fmt.Errorf("setting route %s: %w", r, err))
		}
	}
	return errors.Join(errs...)
}
