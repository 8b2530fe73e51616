package fault

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
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
}

// PlugNIC plugs a network card into a running node, as a hypervisor does that adds a card to a virtual
// machine. Undo removes it.
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

func (n NIC) plug(ctx context.Context, m machine) error {
	wrap := func(err error) error { return fmt.Errorf("plugging %s into %s: %w", n.Name, n.Node, err) }
	links, err := m.Exec(ctx, "ip", "-o", "link")
	if err != nil {
		return wrap(err)
	}
	var indexes []int
	for line := range strings.Lines(links) { // 2347: eth0@if2348: <BROADCAST,...
		words := strings.SplitN(line, ": ", 3)
		index, err := strconv.Atoi(words[0])
		if err != nil || len(words) < 3 {
			return wrap(fmt.Errorf("reading the interfaces: %q", line))
		}
		indexes = append(indexes, index)
		// An existing interface of that name is not ours, and Undo must not remove it.
		if name, _, _ := strings.Cut(words[1], "@"); name == n.Name {
			return wrap(fmt.Errorf("the node has an interface %s", n.Name))
		}
	}
	index := strconv.Itoa(newestIndex(indexes))
	for _, step := range [][]string{
		{"netns", "add", n.farNamespace()},
		{"link", "add", n.Name, "index", index, "type", "veth", "peer", "name", farEnd, "netns", n.farNamespace()},
		{"address", "add", n.Address.String(), "dev", n.Name},
		{"link", "set", n.Name, "up"},
		{"-n", n.farNamespace(), "link", "set", farEnd, "up"}, // or the card has no carrier
	} {
		if _, err := m.Exec(ctx, append([]string{"ip"}, step...)...); err != nil {
			return wrap(err)
		}
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
		return index // no remainder is higher: only kernels from 6.9 on list this one last
	}
	for index%buckets <= remainder {
		index++
	}
	return index
}

// has is the state of the card and its addresses, as ip(8) has them; nil if the node has no such interface.
func (n NIC) has(ctx context.Context, m machine) ([]string, error) {
	said, err := m.Exec(ctx, "ip", "-br", "address") // eth0@if2348 UP 10.50.0.21/24
	if err != nil {
		return nil, fmt.Errorf("looking for %s on %s: %w", n.Name, n.Node, err)
	}
	for line := range strings.Lines(said) {
		words := strings.Fields(line)
		if name, _, _ := strings.Cut(words[0], "@"); name == n.Name {
			return words[1:], nil
		}
	}
	return nil, nil
}

func (n NIC) pluggedIn(ctx context.Context, m machine) (bool, string, error) {
	switch has, err := n.has(ctx, m); {
	case err != nil:
		return false, "", err
	case has == nil:
		return false, fmt.Sprintf("%s has no interface %s", n.Node, n.Name), nil
	case has[0] != "UP":
		return false, fmt.Sprintf("%s of %s is %s", n.Name, n.Node, has[0]), nil
	case !slices.Contains(has[1:], n.Address.String()):
		return false, fmt.Sprintf("%s of %s has %v and not %s", n.Name, n.Node, has[1:], n.Address), nil
	}
	return true, "", nil
}

// reaching opens a connection to the kubelet's port of $1, which answers on every address of a node. An answer
// from a neighbour takes a hundredth of a second on a busy machine.
const reaching = `timeout 1 bash -c ": </dev/tcp/$1/10250" 2>&1; echo "status $?"`

// unreached reports whether no other node gets an answer from the card's
// address. A refused connection is an answer, too.
func (n NIC) unreached(ctx context.Context, others []machine) (bool, string, error) {
	to := n.Address.Addr().String()
	errs, said := make([]error, len(others)), make([]string, len(others))
	var all sync.WaitGroup
	for i, m := range others {
		all.Go(func() { said[i], errs[i] = m.Exec(ctx, "sh", "-c", reaching, "reaching", to) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return false, "", fmt.Errorf("trying to reach %s: %w", to, err)
	}
	has := func(i int, words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(said[i], w) })
	}
	for i, m := range others {
		switch {
		case has(i, "status 0", "Connection refused"):
			return false, fmt.Sprintf("%s reaches %s of %s, so the incident would not occur", m.Name(), to, n.Node), nil
		case !has(i, "status 124", "No route to host", "unreachable", "timed out"):
			return false, "", fmt.Errorf("trying to reach %s from %s: %q", to, m.Name(), said[i])
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
			has, err := n.has(ctx, m)
			return err == nil && has == nil, n.Name + " is there", err
		})
}
