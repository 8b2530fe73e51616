package kindlab

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/rtnl"
)

// bridgeName is the name of a lab network's bridge: stable, so that the rules
// that close it exist before it does, and short enough for the kernel.
func bridgeName(lab, network string) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%s", lab, network)
	return fmt.Sprintf("rl-%08x", h.Sum32())
}

func networkName(lab, network string) string { return "relapse-" + lab + "-" + network }

// createNetworks makes the Docker networks of a lab. Their way out is closed
// before they exist: no packet of the lab ever finds it open.
func createNetworks(ctx context.Context, docker *client.Client, t topology.Topology) error {
	if err := checkSubnets(ctx, t); err != nil {
		return err
	}
	var bridges []string
	for _, n := range t.Networks {
		bridges = append(bridges, bridgeName(t.Name, n.Name))
	}
	if err := closeWayOut(t.Name, bridges); err != nil {
		return err
	}
	for _, n := range t.Networks {
		_, err := docker.NetworkCreate(ctx, networkName(t.Name, n.Name), network.CreateOptions{
			Driver: "bridge",
			Labels: map[string]string{labelLab: t.Name},
			Options: map[string]string{
				"com.docker.network.bridge.name":                 bridgeName(t.Name, n.Name),
				"com.docker.network.bridge.enable_ip_masquerade": "false",
			},
			IPAM: &network.IPAM{Config: []network.IPAMConfig{{
				Subnet:  n.Subnet.String(),
				Gateway: n.Subnet.Addr().Next().String(),
				IPRange: automaticRange(t, n),
			}}},
		})
		if err != nil {
			return fmt.Errorf("creating Docker network %q (%s): %w", networkName(t.Name, n.Name), n.Subnet, err)
		}
	}
	return nil
}

// automaticRange is the range that Docker gives out by itself on a network.
// All members are given their addresses but one: kind does not say which
// address a control plane is to have, so the range holds that one alone.
func automaticRange(t topology.Topology, n topology.Network) string {
	for _, c := range t.Clusters {
		if link := c.Nodes[0].Links[0]; link.Network == n.Name {
			return netip.PrefixFrom(link.Address, link.Address.BitLen()).String()
		}
	}
	return ""
}

// OverlapError says that a lab's subnet is in use on this machine.
type OverlapError struct {
	Network string
	Subnet  netip.Prefix
	Used    netip.Prefix
	By      string // the interface that Used is routed to
}

func (e *OverlapError) Error() string {
	return fmt.Sprintf("network %q wants %s, but this machine already routes %s to %s: "+
		"take that lab or network down first, or change the topology's subnet", e.Network, e.Subnet, e.Used, e.By)
}

// checkSubnets refuses a topology whose subnets overlap a route of the
// machine: the lab would hide real hosts from it.
func checkSubnets(ctx context.Context, t topology.Topology) error {
	routes, err := rtnl.Dump(ctx, func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("reading the machine's routes: %w", err)
	}
	var errs []error
	for _, n := range t.Networks {
		for _, r := range routes {
			used, ok := prefixOf(r.Dst)
			if !ok || used.Bits() == 0 || !used.Overlaps(n.Subnet) {
				continue
			}
			by := "nowhere"
			if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
				by = link.Attrs().Name
			}
			errs = append(errs, &OverlapError{Network: n.Name, Subnet: n.Subnet, Used: used, By: by})
		}
	}
	return errors.Join(errs...)
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits), ok
}

func tableName(lab string) string { return "relapse-" + lab }

// closeWayOut installs the lab's nftables table: whatever comes from one of
// the bridges may go nowhere but to the same bridge, and the other way round.
// A table of its own rather than rules in Docker's chains: it goes in one
// step, whatever Docker does meanwhile, and nothing of Docker's is touched.
// Dropping before Docker's rules (priority filter - 10) also holds between
// two bridges of one lab: the routers are the only way from one to the other.
func closeWayOut(lab string, bridges []string) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("opening nftables: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName(lab)})
	chain := conn.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookForward,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10),
	})
	for _, bridge := range bridges {
		for _, keys := range [][2]expr.MetaKey{
			{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME},
			{expr.MetaKeyOIFNAME, expr.MetaKeyIIFNAME},
		} {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				&expr.Meta{Key: keys[0], Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: ifname(bridge)},
				&expr.Meta{Key: keys[1], Register: 1},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: ifname(bridge)},
				&expr.Counter{},
				&expr.Verdict{Kind: expr.VerdictDrop},
			}})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("closing the way out of lab %q with nftables: %w", lab, err)
	}
	return nil
}

// ifname is an interface name as nftables compares it: padded to IFNAMSIZ.
func ifname(name string) []byte {
	padded := make([]byte, 16)
	copy(padded, name)
	return padded
}

// removeTable takes the lab's nftables table away, if it is there.
func removeTable(lab string) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("opening nftables: %w", err)
	}
	conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName(lab)})
	if err := conn.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing nftables table %q: %w", tableName(lab), err)
	}
	return nil
}

// removeNetworks removes the Docker networks of a lab.
func removeNetworks(ctx context.Context, docker *client.Client, lab string) error {
	networks, err := docker.NetworkList(ctx, network.ListOptions{
		Filters: filters.NewArgs(filters.Arg("label", labelLab+"="+lab)),
	})
	if err != nil {
		return fmt.Errorf("listing the Docker networks of lab %q: %w", lab, err)
	}
	var errs []error
	for _, n := range networks {
		if err := docker.NetworkRemove(ctx, n.ID); err != nil {
			errs = append(errs, fmt.Errorf("removing Docker network %q: %w%s", n.Name, err, miscounted(ctx, docker, n.ID, err)))
		}
	}
	return errors.Join(errs...)
}

// miscounted says what to do about a network that Docker does not remove because of
// endpoints, although no container is on it: see endpoints. It is empty otherwise.
func miscounted(ctx context.Context, docker *client.Client, id string, failed error) string {
	if !errdefs.IsPermissionDenied(failed) { // Docker's answer to "has active endpoints"
		return ""
	}
	n, err := docker.NetworkInspect(ctx, id, network.InspectOptions{})
	if err != nil || len(n.Containers) > 0 {
		return ""
	}
	return "; no container is on it: Docker has miscounted its endpoints (moby/moby#42119, mended in 28.1): " +
		"restart Docker, then take the lab down again"
}
