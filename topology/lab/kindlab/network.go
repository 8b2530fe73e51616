package kindlab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/host/subnet"
	"github.com/relapse-dev/relapse/topology/status"
)

// bridgeName is the name of a lab network's bridge. It is a hash, because names of
// the kernel are short. The rules that isolate the bridge exist before it.
func bridgeName(lab, network string) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%s", lab, network)
	return fmt.Sprintf("%s%08x", subnet.BridgePrefix, h.Sum32())
}

func containerName(lab, member string) string { return "relapse-" + lab + "-" + member }

func networkName(lab, network string) string { return "relapse-" + lab + "-" + network }

// createNetworks creates the Docker networks of a lab. Its rules isolate them before
// they exist, so that no packet leaves the lab.
func createNetworks(ctx context.Context, docker *client.Client, t topology.Topology) error {
	if err := checkSubnets(ctx, t); err != nil {
		return err
	}
	if err := isolate(t.Name, bridgesOf(t), tableFamily()); err != nil {
		return err
	}
	for _, n := range t.Networks {
		_, err := docker.NetworkCreate(ctx, networkName(t.Name, n.Name), client.NetworkCreateOptions{
			Driver: "bridge",
			Labels: map[string]string{labelLab: t.Name, labelDual: strconv.FormatBool(t.Dual)},
			Options: map[string]string{
				"com.docker.network.bridge.name":                 bridgeName(t.Name, n.Name),
				"com.docker.network.bridge.enable_ip_masquerade": "false",
			},
			IPAM: &network.IPAM{Config: []network.IPAMConfig{{
				Subnet:  n.Subnet,
				Gateway: machineOn(n),
				IPRange: automaticRange(t, n),
			}}},
		})
		if err != nil {
			return fmt.Errorf("creating Docker network %q (%s): %w", networkName(t.Name, n.Name), n.Subnet, err)
		}
	}
	return nil
}

// automaticRange is the range from which Docker assigns addresses on a network. It contains only
// the control plane's address, because kind cannot request one. All other members request theirs.
func automaticRange(t topology.Topology, n topology.Network) netip.Prefix {
	for _, c := range t.Clusters {
		if link := c.Nodes[0].Links[0]; link.Network == n.Name {
			return netip.PrefixFrom(link.Address, link.Address.BitLen())
		}
	}
	return netip.Prefix{}
}

// checkSubnets rejects a topology whose subnets overlap a route of the machine: the
// machine could not reach its real hosts there.
func checkSubnets(ctx context.Context, t topology.Topology) error {
	networks := map[netip.Prefix]topology.Network{}
	for _, n := range t.Networks {
		networks[n.Subnet] = n
	}
	overlaps, err := subnet.Overlaps(ctx, slices.Collect(maps.Keys(networks)))
	if err != nil {
		return err
	}
	return errors.Join(each.Of(overlaps, func(o subnet.Overlap) error { return overlapping(networks[o.Subnet], o) })...)
}

func overlapping(n topology.Network, o subnet.Overlap) error {
	cure := "remove that lab or network, or move the lab's own networks with --subnets"
	if n.Fixed != "" {
		cure = "remove that lab or network; --subnets does not move this one: " + n.Fixed
	}
	return status.Machine("network %q needs %s, but this machine routes %s to %s: %s", n.Name, o.Subnet, o.Route, o.By(), cure)
}

// CheckKept rejects a running lab of the topology's name whose networks are on other subnets, or whose
// routers are of other kinds. A missing network or router is no error.
func CheckKept(ctx context.Context, docker *client.Client, t topology.Topology) error {
	if err := keptSubnets(ctx, docker, t); err != nil {
		return err
	}
	for _, r := range t.Routers {
		made, err := docker.ContainerInspect(ctx, containerName(t.Name, r.Name), client.ContainerInspectOptions{})
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading router %q of lab %q: %w", r.Name, t.Name, err)
		}
		// Labs of before routers had kinds have GoBGP.
		has := cmp.Or(topology.RouterKind(made.Container.Config.Labels[labelRouter]), topology.GoBGP)
		if has != kindOf(r) {
			return fmt.Errorf("router %q of lab %q is %s, and not %s: use the parameters that it was brought up with, "+
				"or run without --reuse, which takes it down first", r.Name, t.Name, has, kindOf(r))
		}
	}
	return nil
}

// keptSubnets rejects a running lab whose networks are on other subnets than the topology's, or of other families.
// A network that does not exist is no error.
func keptSubnets(ctx context.Context, docker *client.Client, t topology.Topology) error {
	for _, n := range t.Networks {
		made, err := docker.NetworkInspect(ctx, networkName(t.Name, n.Name), client.NetworkInspectOptions{})
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading network %q of lab %q: %w", n.Name, t.Name, err)
		}
		has := each.Joined(made.Network.IPAM.Config, " and ", func(c network.IPAMConfig) string { return c.Subnet.String() })
		if has != n.Subnet.String() {
			return fmt.Errorf("network %q of lab %q has the subnet %s, and not %s: use the --subnets that it was brought up with, "+
				"or run without --reuse, which takes it down first", n.Name, t.Name, has, n.Subnet)
		}
		if has := made.Network.Labels[labelDual] == "true"; has != t.Dual {
			return fmt.Errorf("lab %q speaks IPv6: %t; asked for is %t: use the --family that it was brought up with, "+
				"or run without --reuse, which takes it down first", t.Name, has, t.Dual)
		}
	}
	return nil
}

func tableName(lab string) string { return "relapse-" + lab }

// tableFamily is the family of the labs' nftables tables: both IP versions, or IPv4 alone
// if the kernel has no IPv6. Such a kernel has no tables of the family inet.
func tableFamily() nftables.TableFamily {
	if _, err := os.Stat("/proc/net/if_inet6"); errors.Is(err, os.ErrNotExist) {
		return nftables.TableFamilyIPv4
	}
	return nftables.TableFamilyINet
}

// isolate installs or replaces the lab's nftables table. Rules in Docker's chains were rejected: a table is removed
// in one step and does not interfere with Docker. Its priority is before Docker's rules.
func isolate(lab string, bridges []bridge, family nftables.TableFamily) error {
	conn := &nftables.Conn{}
	table := conn.AddTable(&nftables.Table{Family: family, Name: tableName(lab)})
	conn.DelTable(table)
	conn.AddTable(table)
	for _, hook := range isolation(bridges) {
		chain := conn.AddChain(&nftables.Chain{
			Name: hook.name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook.number, Priority: hook.priority,
		})
		for _, rule := range hook.rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("isolating lab %q with nftables: %w", lab, err)
	}
	return nil
}

type hook struct {
	name     string
	number   *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    [][]expr.Any
}

type bridge struct {
	name    string
	machine netip.Addr // the machine's own address on it
}

// isolation are the rules by which the machine drops a lab's packets. All other packets pass.
//
//   - It tracks no connection between members (chain "prerouting"). With br_netfilter the
//     packets of a bridge pass the machine's connection tracking, which knows connections by
//     their addresses and ports. It takes connections of two labs with the same pod range for
//     one, and dropped one SYN in some hundreds.
//   - It forwards nothing between one of the bridges and any other interface. That
//     includes the lab's other bridges: only its routers connect them.
//   - It sends nothing of a process of another user than root to the lab. The registry
//     has no authentication and deletes what it is asked to, and the routers accept BGP
//     sessions. A packet without a socket, such as an answer of the kernel, has no user,
//     and goes through. It is dropped and not rejected, because rejecting takes a kernel
//     module that the lab does not need otherwise.
//   - It takes nothing from the lab but answers to its own requests, at its own address on the
//     bridge: relapse serves nothing on the machine's own addresses, and other programs do not
//     expect a lab. The machine has no IPv6 address there, and neither tracks nor takes IPv6.
func isolation(bridges []bridge) []hook {
	beforeDocker := nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10)
	prerouting := hook{name: "prerouting", number: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityRaw}
	forward := hook{name: "forward", number: nftables.ChainHookForward, priority: beforeDocker}
	output := hook{name: outputChain, number: nftables.ChainHookOutput, priority: beforeDocker}
	input := hook{name: "input", number: nftables.ChainHookInput, priority: beforeDocker}
	for _, b := range bridges {
		name := ifname(b.name)
		fromBridge := match(expr.MetaKeyIIFNAME, expr.CmpOpEq, name)
		notToMachine := slices.Concat(
			fromBridge, match(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{unix.NFPROTO_IPV4}),
			[]expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: 4},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: b.machine.AsSlice()},
			})
		ofIPv6 := slices.Concat(fromBridge, match(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{unix.NFPROTO_IPV6}))
		prerouting.rules = append(prerouting.rules,
			slices.Concat(notToMachine, []expr.Any{&expr.Notrack{}}), slices.Concat(ofIPv6, []expr.Any{&expr.Notrack{}}))
		forward.rules = append(forward.rules,
			slices.Concat(fromBridge, match(expr.MetaKeyOIFNAME, expr.CmpOpNeq, name), drop),
			slices.Concat(match(expr.MetaKeyOIFNAME, expr.CmpOpEq, name), match(expr.MetaKeyIIFNAME, expr.CmpOpNeq, name), drop))
		output.rules = append(output.rules,
			slices.Concat(match(expr.MetaKeyOIFNAME, expr.CmpOpEq, name), isNotRoot, drop))
		input.rules = append(input.rules, slices.Concat(fromBridge, []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
			&expr.Bitwise{
				SourceRegister: 1, DestRegister: 1, Len: 4,
				Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW), Xor: binaryutil.NativeEndian.PutUint32(0),
			},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
		}, drop), slices.Concat(notToMachine, drop), // IPv6 is not tracked, and so is not new
			slices.Concat(ofIPv6, drop[1:])) // without a counter: neighbour discovery comes all the time
	}
	return []hook{prerouting, forward, output, input}
}

// onlyRootConnects adds a rule to a lab's table: only root's processes connect to this port of the machine's
// own addresses. Otherwise Docker's proxy, which is root's, would connect to the lab for other users.
func onlyRootConnects(lab string, port uint16) error {
	conn := &nftables.Conn{}
	table := &nftables.Table{Family: tableFamily(), Name: tableName(lab)}
	conn.AddRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: outputChain, Table: table}, Exprs: slices.Concat(
		match(expr.MetaKeyOIFNAME, expr.CmpOpEq, ifname("lo")), match(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{unix.IPPROTO_TCP}),
		[]expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, // the destination port
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		}, isNotRoot, drop)})
	return conn.Flush()
}

const outputChain = "output"

var (
	drop      = []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}
	isNotRoot = match(expr.MetaKeySKUID, expr.CmpOpNeq, binaryutil.NativeEndian.PutUint32(0))
)

func match(key expr.MetaKey, op expr.CmpOp, data []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data}}
}

// destination is the offset of the destination in an IPv4 header, in bytes.
const destination = 16

func bridgesOf(t topology.Topology) []bridge {
	return each.Of(t.Networks, func(n topology.Network) bridge { return bridge{bridgeName(t.Name, n.Name), machineOn(n)} })
}

func machineOn(n topology.Network) netip.Addr { return n.Subnet.Addr().Next() }

// Isolated returns an error where rules that isolate the lab are gone: its packets could
// leave the machine. Another program may have removed them (nft flush ruleset).
func (l *Lab) Isolated() error {
	if l.foreign != nil {
		return nil
	}
	conn, name := &nftables.Conn{}, tableName(l.Topology.Name)
	return missing(name, isolation(bridgesOf(l.Topology)), func(chain string) (int, error) {
		table := &nftables.Table{Family: tableFamily(), Name: name}
		rules, err := conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
		return len(rules), err
	})
}

// missing returns an error for the first chain of a table that has fewer rules than it was given.
func missing(table string, hooks []hook, count func(chain string) (int, error)) error {
	for _, h := range hooks {
		n, err := count(h.name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("reading chain %s of nftables table %s: %w", h.name, table, err)
		}
		if err != nil || n < len(h.rules) {
			return fmt.Errorf("nftables table %s has %d of %d rules in chain %s: another program has removed them, and the lab's packets "+
				"can leave the machine; take the lab down (relapse down)", table, n, len(h.rules), h.name)
		}
	}
	return nil
}

// ifname is an interface name as nftables compares it: padded to IFNAMSIZ.
func ifname(name string) []byte {
	padded := make([]byte, 16)
	copy(padded, name)
	return padded
}

func removeTable(lab string) error {
	conn := &nftables.Conn{}
	conn.DelTable(&nftables.Table{Family: tableFamily(), Name: tableName(lab)})
	if err := conn.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing nftables table %q: %w", tableName(lab), err)
	}
	return nil
}

func removeNetworks(ctx context.Context, docker *client.Client, lab string) error {
	networks, err := docker.NetworkList(ctx, client.NetworkListOptions{Filters: client.Filters{}.Add("label", labelLab+"="+lab)})
	if err != nil {
		return fmt.Errorf("listing the Docker networks of lab %q: %w", lab, err)
	}
	var errs []error
	for _, n := range networks.Items {
		if _, err := docker.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{}); err != nil {
			errs = append(errs, fmt.Errorf("removing Docker network %q: %w%s", n.Name, err, miscounted(ctx, docker, n.ID, err)))
		}
	}
	return errors.Join(errs...)
}

// miscounted is the cure for a network without containers that Docker does not
// remove because of endpoints: see endpoints. It is empty for other errors.
func miscounted(ctx context.Context, docker *client.Client, id string, failed error) string {
	if !errdefs.IsPermissionDenied(failed) { // Docker's answer to "has active endpoints"
		return ""
	}
	n, err := docker.NetworkInspect(ctx, id, client.NetworkInspectOptions{})
	if err != nil || len(n.Network.Containers) > 0 {
		return ""
	}
	return "; it has no containers: Docker has miscounted its endpoints (moby/moby#42119, fixed in 28.1): " +
		"restart Docker, then take the lab down again"
}
