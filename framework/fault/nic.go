package fault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/rtnl"
)

// NIC is a network card that is plugged into a running node, on a network of its own.
type NIC struct {
	Node string
	// Name is the interface's name, such as eth1.
	Name string
	// Address is the interface's address with the length of its subnet.
	Address netip.Prefix
}

type machine interface {
	Name() string
	Exec(ctx context.Context, command ...string) (string, error)
	InNetns(ctx context.Context, do func() error) error
	Path(ctx context.Context, path string) (string, error)
}

// PlugNIC plugs a network card into a node while it runs: what a hypervisor
// does when a card is added to a virtual machine. Undo removes it.
//
// The card is one end of a veth pair. The other end is alone in a network namespace, which is
// named after the card and pinned in the node's own file system. So nothing else is on that
// network, and all of it disappears with the node's container.
func PlugNIC(n NIC) framework.Fault {
	return plugNIC(n, func(r *framework.Run, node string) machine { return labaccess.Lab(r).Node(node) },
		func(r *framework.Run) []string { return labaccess.Cluster(r).Nodes() })
}

// plugNIC is PlugNIC with machines that are found by the names of a run's nodes.
func plugNIC(n NIC, machineOf func(r *framework.Run, node string) machine, nodes func(*framework.Run) []string) framework.Fault {
	return framework.Fault{
		Name:   fmt.Sprintf("plug %s with %s into %s", n.Name, n.Address, n.Node),
		Inject: func(ctx context.Context, r *framework.Run) error { return n.plug(ctx, machineOf(r, n.Node)) },
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			if plugged, saw, err := n.pluggedIn(ctx, machineOf(r, n.Node)); !plugged || err != nil {
				return false, saw, err
			}
			var others []machine
			for _, name := range nodes(r) {
				if name != n.Node {
					others = append(others, machineOf(r, name))
				}
			}
			return n.unreached(ctx, others)
		},
		Undo: func(ctx context.Context, r *framework.Run) error { return n.unplug(ctx, machineOf(r, n.Node)) },
	}
}

// farNamespace is the network namespace at the other end of the wire, by its name on the node.
func (n NIC) farNamespace() string { return "relapse-" + n.Name }

// farEnd is the interface at the other end of the wire. It is given a name that
// says so; the kernel's would be vethN.
const farEnd = "wire"

// netnsDir is where `ip netns` keeps the namespaces that it names.
const netnsDir = "/run/netns/"

func (n NIC) plug(ctx context.Context, m machine) error {
	wrap := func(err error) error { return fmt.Errorf("plugging %s into %s: %w", n.Name, n.Node, err) }
	// Asked before anything is changed: an interface of that name that exists
	// already is not ours, and Undo must not remove it.
	if _, there, err := n.link(ctx, m); err != nil {
		return wrap(err)
	} else if there {
		return wrap(fmt.Errorf("the node has an interface %s", n.Name))
	}
	if _, err := m.Exec(ctx, "ip", "netns", "add", n.farNamespace()); err != nil {
		return wrap(err)
	}
	far, err := n.openFar(ctx, m)
	if err != nil {
		return wrap(err)
	}
	defer far.Close()
	err = m.InNetns(ctx, func() error {
		present, err := rtnl.Dump(ctx, netlink.LinkList)
		if err != nil {
			return fmt.Errorf("listing the interfaces: %w", err)
		}
		var indexes []int
		for _, l := range present {
			indexes = append(indexes, l.Attrs().Index)
		}
		card := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: n.Name, Index: newestIndex(indexes)},
			PeerName:  farEnd, PeerNamespace: netlink.NsFd(int(far)),
		}
		if err := netlink.LinkAdd(card); err != nil {
			return fmt.Errorf("making the interface: %w", err)
		}
		address := &netlink.Addr{IPNet: &net.IPNet{
			IP: n.Address.Addr().AsSlice(), Mask: net.CIDRMask(n.Address.Bits(), n.Address.Addr().BitLen()),
		}}
		if err := netlink.AddrAdd(card, address); err != nil {
			return fmt.Errorf("giving it %s: %w", n.Address, err)
		}
		if err := netlink.LinkSetUp(card); err != nil {
			return fmt.Errorf("setting it up: %w", err)
		}
		return nil
	})
	if err != nil {
		return wrap(err)
	}
	// Up on both ends, or the card has no carrier.
	h, err := netlink.NewHandleAt(far, unix.NETLINK_ROUTE)
	if err != nil {
		return wrap(fmt.Errorf("opening netlink at its other end: %w", err))
	}
	defer h.Close()
	wire, err := h.LinkByName(farEnd)
	if err == nil {
		err = h.LinkSetUp(wire)
	}
	if err != nil {
		return wrap(fmt.Errorf("setting its other end up: %w", err))
	}
	// The kernel notices the carrier in the background.
	err = await.Until(ctx, n.Name+" of "+n.Node+" to be up", 5*time.Millisecond, carrierWithin,
		func(ctx context.Context) (bool, string, error) { return n.pluggedIn(ctx, m) })
	if err != nil {
		return wrap(err)
	}
	return nil
}

// carrierWithin bounds how long the kernel may take to notice that a link has
// its carrier. It polls once a second at most.
const carrierWithin = 10 * time.Second

// buckets is NETDEV_HASHENTRIES of the kernel's net/core/dev.h.
const buckets = 256

// newestIndex is an index for a new interface with which the kernel lists it last, as it does with
// the newest card of a real machine: autodetection takes the last of the list. In a container the
// index must be chosen. The container's eth0 was created on the machine and has a high index;
// interfaces that are created inside are numbered from 2.
//
// Kernels before 6.9 list interfaces by their index modulo 256, the newer
// first under the same remainder; later ones by the index itself.
func newestIndex(present []int) int {
	highest, remainder := 0, 0
	for _, i := range present {
		highest, remainder = max(highest, i), max(remainder, i%buckets)
	}
	index := highest + 1
	if remainder == buckets-1 {
		return index // no remainder is higher: with this one only kernels from 6.9 on list it last
	}
	for index%buckets <= remainder {
		index++
	}
	return index
}

func (n NIC) openFar(ctx context.Context, m machine) (netns.NsHandle, error) {
	path, err := m.Path(ctx, netnsDir+n.farNamespace())
	if err != nil {
		return netns.None(), err
	}
	far, err := netns.GetFromPath(path)
	if err != nil {
		return netns.None(), fmt.Errorf("opening network namespace %s: %w", path, err)
	}
	return far, nil
}

func (n NIC) link(ctx context.Context, m machine) (l netlink.Link, there bool, err error) {
	err = m.InNetns(ctx, func() (err error) {
		l, err = netlink.LinkByName(n.Name)
		return err
	})
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("looking for %s on %s: %w", n.Name, n.Node, err)
	}
	return l, true, nil
}

func (n NIC) pluggedIn(ctx context.Context, m machine) (bool, string, error) {
	l, there, err := n.link(ctx, m)
	if err != nil {
		return false, "", err
	}
	if !there {
		return false, fmt.Sprintf("%s has no interface %s", n.Node, n.Name), nil
	}
	if state := l.Attrs().OperState; state != netlink.OperUp {
		return false, fmt.Sprintf("%s of %s is %s", n.Name, n.Node, state), nil
	}
	var addresses []netlink.Addr
	err = m.InNetns(ctx, func() (err error) {
		addresses, err = rtnl.Dump(ctx, func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_V4) })
		return err
	})
	if err != nil {
		return false, "", fmt.Errorf("listing the addresses of %s on %s: %w", n.Name, n.Node, err)
	}
	if !slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.IPNet.String() == n.Address.String() }) {
		return false, fmt.Sprintf("%s of %s has %v and not %s", n.Name, n.Node, addresses, n.Address), nil
	}
	return true, "", nil
}

const (
	// kubeletPort answers on every address of a node.
	kubeletPort = 10250
	// reachWithin is how long an answer from a neighbour may take: hundreds of
	// times what it takes on a busy machine.
	reachWithin = 300 * time.Millisecond
)

// unreached reports whether no other node gets an answer from the card's
// address. A refused connection is an answer, too.
func (n NIC) unreached(ctx context.Context, others []machine) (bool, string, error) {
	to := netip.AddrPortFrom(n.Address.Addr(), kubeletPort).String()
	errs := make([]error, len(others))
	answered := make([]bool, len(others))
	var all sync.WaitGroup
	for i, m := range others {
		all.Go(func() {
			errs[i] = m.InNetns(ctx, func() error {
				dialer := net.Dialer{Timeout: reachWithin}
				conn, err := dialer.DialContext(ctx, "tcp4", to)
				if err == nil {
					conn.Close()
				}
				answered[i] = err == nil || errors.Is(err, syscall.ECONNREFUSED)
				return nil
			})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return false, "", fmt.Errorf("trying to reach %s: %w", to, err)
	}
	for i, m := range others {
		if answered[i] {
			return false, fmt.Sprintf("%s reaches %s of %s, so the incident would not occur", m.Name(), n.Address.Addr(), n.Node), nil
		}
	}
	return true, "", nil
}

// unplugWithin bounds how long the kernel may take to remove a namespace, which
// it does in the background.
const unplugWithin = 10 * time.Second

func (n NIC) unplug(ctx context.Context, m machine) error {
	wrap := func(err error) error { return fmt.Errorf("pulling %s out of %s: %w", n.Name, n.Node, err) }
	// The other end shows whether the card is the fault's.
	names, err := m.Exec(ctx, "ip", "netns", "list")
	if err != nil {
		return wrap(err)
	}
	if !slices.Contains(strings.Fields(names), n.farNamespace()) {
		return nil // it was not plugged in
	}
	if _, err := m.Exec(ctx, "ip", "netns", "delete", n.farNamespace()); err != nil {
		return wrap(err)
	}
	return await.Until(ctx, n.Name+" to leave "+n.Node, 10*time.Millisecond, unplugWithin,
		func(ctx context.Context) (bool, string, error) {
			_, there, err := n.link(ctx, m)
			return err == nil && !there, n.Name + " is there", err
		})
}
