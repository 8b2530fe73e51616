package snapshot

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/rtnl"
)

// flowsOf lists what a node's kernel tracks of IPv4, without what comes from the loopback network.
func flowsOf(ctx context.Context, m Machine) ([]Flow, error) {
	if own, is := m.(Own); is {
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
