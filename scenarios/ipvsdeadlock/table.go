package ipvsdeadlock

import (
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// virtualServer is what the node's kernel has for a cluster IP, as the detectors
// saw it last. It has no address if there is none.
func (s *story) virtualServer(r *framework.Run, vip netip.Addr, port uint16) snapshot.VirtualServer {
	table := s.seen(r).Table
	i := slices.IndexFunc(table, func(v snapshot.VirtualServer) bool {
		return v.Protocol == "TCP" && v.Address == netip.AddrPortFrom(vip, port)
	})
	if i < 0 {
		return snapshot.VirtualServer{}
	}
	return table[i]
}

// virtualServerOf is that of one of the application's Services.
func (s *story) virtualServerOf(r *framework.Run, service string) snapshot.VirtualServer {
	return s.virtualServer(r, vip(s.node, service), wire.DefaultPort)
}

// serving are the addresses to which the node's kernel sends new connections to one
// of the application's Services.
func (s *story) serving(r *framework.Run, service string) []netip.Addr {
	return weighted(s.virtualServerOf(r, service))
}

// weighted are the addresses to which a virtual server sends new connections.
func weighted(v snapshot.VirtualServer) []netip.Addr {
	var addresses []netip.Addr
	for _, server := range v.Servers {
		if server.Weight > 0 {
			addresses = append(addresses, server.Address.Addr())
		}
	}
	return addresses
}
