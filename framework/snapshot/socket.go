package snapshot

import (
	"context"
	"net/netip"
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
var Sockets = perName("sockets", func(o *opening) (map[string]Machine, error) { return o.access.Outside(o.ctx) }, socketReader,
	func(s *Snapshot) *[]HostSockets { return &s.Outside })

func (h HostSockets) parts() []part { return []part{listPart("sockets of "+h.Host, h.Sockets, nil)} }

func socketReader(host string, m Machine) func(context.Context) HostSockets {
	return func(ctx context.Context) HostSockets {
		return HostSockets{Host: host, Sockets: list(ctx, func(ctx context.Context) ([]Socket, error) { return socketsOf(ctx, m) })}
	}
}
