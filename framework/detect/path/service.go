package path

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Service says why packets for the address of a Service get no further than the IPVS
// table of the client's node. It is empty where that table leads to a ready endpoint, or
// where it, the Services or the EndpointSlices were not read. Protocol is "tcp" or "udp".
func (t Tracer) Service(node string, target netip.AddrPort, protocol string) (end string) {
	table, read := t.ipvs(node)
	service, ready, known := t.service(target.Addr())
	if !read || !known {
		return ""
	}
	virtual, there := each.First(table, func(v snapshot.VirtualServer) bool {
		return v.Address == target && strings.EqualFold(v.Protocol, protocol)
	})
	if !there {
		return fmt.Sprintf("%s has no IPVS service %s (%s)", node, target, service)
	}
	var servers []string
	for _, server := range virtual.Servers {
		switch {
		case server.Weight == 0:
		case slices.Contains(ready, server.Address.Addr()):
			return ""
		default:
			servers = append(servers, server.Address.String())
		}
	}
	endpoints := "none"
	if len(ready) > 0 {
		endpoints = fmt.Sprint(ready)
	}
	if len(servers) == 0 {
		return fmt.Sprintf("%s has no real server for %s (%s) in IPVS; ready endpoints: %s", node, target, service, endpoints)
	}
	return fmt.Sprintf("%s forwards %s (%s) to %s by IPVS; ready endpoints: %s", node, target, service, strings.Join(servers, " and "),
		endpoints)
}

// ipvs is the IPVS table of a node; read is false where kube-proxy runs in another mode.
func (t Tracer) ipvs(node string) (table []snapshot.VirtualServer, read bool) {
	if t.Tables == nil {
		return nil, false
	}
	p, read := each.First(t.Tables.Proxies, func(p snapshot.Proxy) bool { return p.Node == node && p.Read && p.Mode == "ipvs" })
	return p.Table, read
}

func (t Tracer) service(address netip.Addr) (s snapshot.Service, ready []netip.Addr, known bool) {
	if t.Tables == nil || !t.Tables.EndpointSlices.Read {
		return s, nil, false
	}
	s, known = each.First(t.Tables.Services.Items, func(s snapshot.Service) bool { return slices.Contains(s.ClusterIPs, address) })
	for _, e := range t.Tables.EndpointSlices.Items {
		if known && e.Namespace == s.Namespace && e.Service == s.Name {
			ready = append(ready, e.Ready...)
		}
	}
	return s, ready, known
}
