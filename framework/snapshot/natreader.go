package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ContainerNAT is the NATReader of a node that is a container on this
// machine. The container's PID is asked for every time: it changes when the
// container is started again.
type ContainerNAT struct {
	PID func(context.Context) (int, error)
}

// Rules lists the rules that the node's own iptables-save prints: the programs
// of the machine may be of another kind (legacy or nft) and would not see them.
func (c ContainerNAT) Rules(ctx context.Context) ([]NATRule, error) {
	pid, err := c.PID(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding the node's process: %w", err)
	}
	saved, err := save(ctx, pid, "iptables-save", "--table", "nat")
	if err != nil {
		return nil, err
	}
	return ParseNAT(saved)
}

// save is what one of a node's own programs prints of the tables.
func save(ctx context.Context, pid int, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(pid), "--mount", "--net", "--", program}, args...)...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	saved, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("running %s in the namespaces of process %d: %w: %s", program, pid, err, strings.TrimSpace(complaint.String()))
	}
	return string(saved), nil
}

// ContainerFirewall returns a FirewallReader for a node that is a container on
// this machine. It reads the rules of both kinds, legacy and nft: a program in
// a pod may be of the other kind than the node's own.
func ContainerFirewall(pid func(context.Context) (int, error)) FirewallReader {
	return func(ctx context.Context) ([]Rule, error) {
		process, err := pid(ctx)
		if err != nil {
			return nil, fmt.Errorf("finding the node's process: %w", err)
		}
		var all []Rule
		for _, program := range []string{"iptables-nft-save", "iptables-legacy-save"} {
			// Without naming a table: that would make it, where it is not there.
			saved, err := save(ctx, process, program)
			if err != nil {
				return nil, err
			}
			rules, err := ParseFilter(saved)
			if err != nil {
				return nil, err
			}
			all = append(all, rules...)
		}
		return all, nil
	}
}

// Flows lists what the node's kernel tracks of IPv4, without what comes from
// the loopback network.
func (c ContainerNAT) Flows(ctx context.Context) ([]Flow, error) {
	pid, err := c.PID(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding the node's process: %w", err)
	}
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	var flows []Flow
	err = inNetns(path, unix.NETLINK_NETFILTER, func(h *netlink.Handle) error {
		entries, err := dump(ctx, func() ([]*netlink.ConntrackFlow, error) {
			return h.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		})
		if err != nil {
			return fmt.Errorf("listing connections: %w", err)
		}
		flows = make([]Flow, 0, len(entries))
		for _, e := range entries {
			if f := flowOf(e); !f.Source.Addr().IsLoopback() {
				flows = append(flows, f)
			}
		}
		return nil
	})
	return flows, err
}

// Programs lists the BPF programs on the ways out of the node's devices.
func (c ContainerNAT) Programs(ctx context.Context) ([]Program, error) {
	pid, err := c.PID(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding the node's process: %w", err)
	}
	programs := []Program{}
	err = inNetns(fmt.Sprintf("/proc/%d/ns/net", pid), unix.NETLINK_ROUTE, func(h *netlink.Handle) error {
		qdiscs, err := dump(ctx, func() ([]netlink.Qdisc, error) { return h.QdiscList(nil) })
		if err != nil {
			return fmt.Errorf("listing qdiscs: %w", err)
		}
		for _, q := range qdiscs {
			if q.Type() != "clsact" {
				continue
			}
			link, err := h.LinkByIndex(q.Attrs().LinkIndex)
			var gone netlink.LinkNotFoundError
			if errors.As(err, &gone) {
				continue
			}
			if err != nil {
				return fmt.Errorf("looking for device %d: %w", q.Attrs().LinkIndex, err)
			}
			filters, err := dump(ctx, func() ([]netlink.Filter, error) { return h.FilterList(link, netlink.HANDLE_MIN_EGRESS) })
			if err != nil {
				return fmt.Errorf("listing filters of %s: %w", link.Attrs().Name, err)
			}
			for _, f := range filters {
				if b, ok := f.(*netlink.BpfFilter); ok {
					programs = append(programs, Program{Device: link.Attrs().Name, Name: b.Name})
				}
			}
		}
		return nil
	})
	return programs, err
}

var protocols = map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp"}

// tcpEstablished is TCP_CONNTRACK_ESTABLISHED of linux/netfilter/nf_conntrack_tcp.h.
const tcpEstablished = 3

func flowOf(e *netlink.ConntrackFlow) Flow {
	protocol, ok := protocols[e.Forward.Protocol]
	if !ok {
		protocol = strconv.Itoa(int(e.Forward.Protocol))
	}
	tcp, ok := e.ProtoInfo.(*netlink.ProtoInfoTCP)
	return Flow{
		Protocol:    protocol,
		Source:      netip.AddrPortFrom(address(e.Forward.SrcIP), e.Forward.SrcPort),
		Destination: netip.AddrPortFrom(address(e.Forward.DstIP), e.Forward.DstPort),
		// What comes back goes to whom the destination has seen.
		SeenAs:      netip.AddrPortFrom(address(e.Reverse.DstIP), e.Reverse.DstPort),
		Established: ok && tcp.State == tcpEstablished,
		Expires:     time.Duration(e.TimeOut) * time.Second,
	}
}

// NetnsSockets returns a SocketReader for the network namespace at a path. As
// with NetnsRoutes the path is asked for every time.
func NetnsSockets(path func(context.Context) (string, error)) SocketReader {
	return func(ctx context.Context) ([]Socket, error) {
		p, err := path(ctx)
		if err != nil {
			return nil, fmt.Errorf("finding the network namespace: %w", err)
		}
		var sockets []Socket
		err = inNetns(p, unix.NETLINK_INET_DIAG, func(h *netlink.Handle) error {
			list, err := dump(ctx, func() ([]*netlink.Socket, error) { return h.SocketDiagTCP(unix.AF_INET) })
			if err != nil {
				return fmt.Errorf("listing sockets: %w", err)
			}
			for _, s := range list {
				remote := address(s.ID.Destination)
				if remote.IsUnspecified() || remote.IsLoopback() {
					continue // it listens, or talks to itself
				}
				sockets = append(sockets, Socket{
					Local:  netip.AddrPortFrom(address(s.ID.Source), s.ID.SourcePort),
					Remote: netip.AddrPortFrom(remote, s.ID.DestinationPort),
				})
			}
			return nil
		})
		return sockets, err
	}
}

// inNetns does something with a netlink socket of one family in the network
// namespace at a path.
func inNetns(path string, family int, do func(*netlink.Handle) error) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("opening network namespace %s: %w", path, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, family)
	if err != nil {
		return fmt.Errorf("opening netlink in network namespace %s: %w", path, err)
	}
	defer h.Close()
	if err := do(h); err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	return nil
}
