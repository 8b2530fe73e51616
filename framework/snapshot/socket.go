package snapshot

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/rtnl"
)

// HostSockets are the TCP sockets of a host outside every cluster. Their remote
// ends are the addresses that the host sees pods and nodes come from.
type HostSockets struct {
	Host    string       `json:"host"`
	Sockets List[Socket] `json:"sockets"`
}

// Socket is a TCP connection as one end sees it, open or just closed (TIME_WAIT).
type Socket struct {
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
}

// Sockets is the source of the TCP sockets of the hosts outside.
var Sockets = perName("sockets", 0, func(o *opening) (map[string]Machine, error) { return o.access.Outside(o.ctx) }, socketReader,
	func(s *Snapshot) *[]HostSockets { return &s.Outside })

func (h HostSockets) parts() []part { return []part{listPart("sockets of "+h.Host, h.Sockets, nil)} }

func socketReader(host string, m Machine) func(context.Context) HostSockets {
	return func(ctx context.Context) HostSockets {
		return HostSockets{Host: host, Sockets: list(ctx, func(ctx context.Context) ([]Socket, error) { return socketsOf(ctx, m) })}
	}
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
