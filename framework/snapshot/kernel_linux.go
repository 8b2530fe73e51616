package snapshot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/bgp"
	"github.com/relapse-dev/relapse/topology/rtnl"
)

// inNetns does something with a netlink socket of one family in a machine's network namespace. It also passes the
// namespace's ID, which changes when the machine is started again.
func inNetns(ctx context.Context, m Machine, family int, do func(namespace string, h *netlink.Handle) error) error {
	return inNamespace(ctx, m, func(ns, into netns.NsHandle) error {
		// The handle's socket stays in ns; this thread is back in its own
		// namespace when NewHandleAt returns.
		h, err := netlink.NewHandleAt(into, family)
		if err != nil {
			return fmt.Errorf("opening netlink: %w", err)
		}
		defer h.Close()
		return do(ns.UniqueId(), h)
	})
}

// inNamespace does something with a machine's network namespace, and with the namespace that a socket has to enter
// (into): none if it is there already, because to enter takes CAP_SYS_ADMIN.
func inNamespace(ctx context.Context, m Machine, do func(ns, into netns.NsHandle) error) error {
	path, err := m.Netns(ctx)
	if err != nil {
		return fmt.Errorf("finding the network namespace: %w", err)
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("opening network namespace %s: %w", path, err)
	}
	defer ns.Close()
	into := ns
	if _, own := m.(Own); own {
		into = netns.None()
	}
	if err := do(ns, into); err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	return nil
}

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func routesOf(ctx context.Context, m Machine) ([]Route, error) {
	var routes []Route
	err := inNetns(ctx, m, unix.NETLINK_ROUTE, func(_ string, h *netlink.Handle) (err error) {
		routes, err = bgp.Routes(ctx, h, false)
		return err
	})
	return routes, err
}

func socketsOf(ctx context.Context, m Machine) ([]Socket, error) {
	var sockets []Socket
	err := inNetns(ctx, m, unix.NETLINK_INET_DIAG, func(_ string, h *netlink.Handle) error {
		list, err := rtnl.Dump(ctx, func() ([]*netlink.Socket, error) { return h.SocketDiagTCP(unix.AF_INET) })
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

func interfacesOf(ctx context.Context, m Machine, seen *sightings) ([]Interface, error) {
	var interfaces []Interface
	err := inNetns(ctx, m, unix.NETLINK_ROUTE, func(namespace string, h *netlink.Handle) error {
		links, err := rtnl.Dump(ctx, h.LinkList)
		if err != nil {
			return fmt.Errorf("listing interfaces: %w", err)
		}
		list, err := rtnl.Dump(ctx, func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("listing addresses: %w", err)
		}
		addresses := map[int][]netip.Prefix{} // by index of the interface
		for _, a := range list {
			bits, _ := a.Mask.Size()
			addresses[a.LinkIndex] = append(addresses[a.LinkIndex], netip.PrefixFrom(address(a.IP), bits))
		}
		for _, l := range links {
			attrs := l.Attrs()
			interfaces = append(interfaces, Interface{
				Name: attrs.Name, Index: attrs.Index, Type: l.Type(), Flags: attrs.Flags.String(), Addresses: addresses[attrs.Index],
			})
		}
		seen.note(namespace, interfaces, time.Now())
		return nil
	})
	return interfaces, err
}

// flowsOf lists what a node's kernel tracks of IPv4, without what comes from the loopback network.
func flowsOf(ctx context.Context, m Machine) ([]Flow, error) {
	if own, ok := m.(Own); ok {
		if tracks, err := own.tracks(); !tracks {
			return nil, err
		}
	}
	var flows []Flow
	err := inNetns(ctx, m, unix.NETLINK_NETFILTER, func(_ string, h *netlink.Handle) error {
		entries, err := rtnl.Dump(ctx, func() ([]*netlink.ConntrackFlow, error) {
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

var protocols = map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp"}

// tcpEstablished is TCP_CONNTRACK_ESTABLISHED of linux/netfilter/nf_conntrack_tcp.h.
const tcpEstablished = 3

func flowOf(e *netlink.ConntrackFlow) Flow {
	protocol, ok := protocols[e.Forward.Protocol]
	if !ok {
		protocol = strconv.Itoa(int(e.Forward.Protocol))
	}
	tcp, ok := e.ProtoInfo.(*netlink.ProtoInfoTCP)
	f := Flow{
		Protocol:    protocol,
		Source:      netip.AddrPortFrom(address(e.Forward.SrcIP), e.Forward.SrcPort),
		Destination: netip.AddrPortFrom(address(e.Forward.DstIP), e.Forward.DstPort),
		// The destination of the replies is the source that the server saw.
		SeenAs:      netip.AddrPortFrom(address(e.Reverse.DstIP), e.Reverse.DstPort),
		Established: ok && tcp.State == tcpEstablished,
		Expires:     time.Duration(e.TimeOut) * time.Second,
	}
	if by := netip.AddrPortFrom(address(e.Reverse.SrcIP), e.Reverse.SrcPort); by != f.Destination {
		f.Redirected, f.AnsweredBy = true, by
	}
	return f
}

// programsOf lists the BPF programs that are attached where packets leave a node's devices.
func programsOf(ctx context.Context, m Machine) ([]Program, error) {
	programs := []Program{}
	err := inNetns(ctx, m, unix.NETLINK_ROUTE, func(_ string, h *netlink.Handle) error {
		qdiscs, err := rtnl.Dump(ctx, func() ([]netlink.Qdisc, error) { return h.QdiscList(nil) })
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
			filters, err := rtnl.Dump(ctx, func() ([]netlink.Filter, error) { return h.FilterList(link, netlink.HANDLE_MIN_EGRESS) })
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
