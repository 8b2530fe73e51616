package snapshot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/each"
)

// proxyTable is the name of kube-proxy's tables of nftables, one for each family. Its map serviceIPs has the chain of
// each port of a Service, by address, protocol and port.
const (
	proxyTable = "kube-proxy"
	serviceIPs = "service-ips"
)

var protocolNames = map[byte]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_SCTP: "SCTP"}

// nftServices reads where the rules of a kube-proxy in mode nftables send connections to Services. That takes several
// requests, which are repeated if an object is gone meanwhile; other changes in between make a wrong answer once.
func nftServices(ctx context.Context, m Machine) (services []VirtualServer, err error) {
	err = inNamespace(ctx, m, func(_, ns netns.NsHandle) error {
		options := []nftables.ConnOption{nftables.AsLasting()}
		if ns.IsOpen() {
			options = append(options, nftables.WithNetNSFd(int(ns)))
		}
		conn, err := nftables.New(options...)
		if err != nil {
			return fmt.Errorf("opening nftables: %w", err)
		}
		defer conn.CloseLasting()
		for attempt := 0; attempt < 3; attempt++ {
			services, err = nil, nil
			for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
				found, failed := nftRules{conn, &nftables.Table{Name: proxyTable, Family: family}}.services(ctx)
				services, err = append(services, found...), errors.Join(err, failed)
			}
			if err == nil {
				return nil
			}
		}
		services = nil
		return fmt.Errorf("reading kube-proxy's rules of nftables: %w", err)
	})
	return services, err
}

type nftRules struct {
	conn  *nftables.Conn
	table *nftables.Table
}

func (r nftRules) services(ctx context.Context) (all []VirtualServer, err error) {
	elements, err := r.conn.GetSetElements(&nftables.Set{Table: r.table, Name: serviceIPs})
	if errors.Is(err, unix.ENOENT) || err != nil && strings.HasSuffix(err.Error(), unix.ENOENT.Error()) {
		return nil, nil // no kube-proxy has written rules
	}
	if err != nil {
		return nil, err
	}
	for _, e := range elements {
		// Each part of a key takes a multiple of four bytes.
		ip, ok := netip.AddrFromSlice(e.Key[:max(len(e.Key)-8, 0)])
		if !ok {
			continue
		}
		rest := e.Key[len(e.Key)-8:]
		v := VirtualServer{Protocol: protocolNames[rest[0]], Address: netip.AddrPortFrom(ip, binary.BigEndian.Uint16(rest[4:]))}
		to, err := r.destinations(ctx, chainOf(e), map[string]bool{})
		if err != nil {
			return nil, err
		}
		v.Servers = each.Of(to, func(a netip.AddrPort) RealServer { return RealServer{Address: a, Weight: 1} })
		all = append(all, v)
	}
	return all, nil
}

// destinations are the addresses to which a chain, or a chain that it leads to, may translate a packet's destination.
// Each endpoint has a chain, or from 1.36 on an element of a map, if the Service has no session affinity.
func (r nftRules) destinations(ctx context.Context, chain string, seen map[string]bool) (all []netip.AddrPort, err error) {
	if chain == "" || seen[chain] || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	seen[chain] = true
	rules, err := r.conn.GetRules(r.table, &nftables.Chain{Name: chain})
	if err != nil {
		return nil, err
	}
	var next []string
	for _, rule := range rules {
		var data []byte // what is loaded into registers: an address, and then a port
		for _, e := range rule.Exprs {
			switch e := e.(type) {
			case *expr.Immediate:
				data = append(data, e.Data...)
			case *expr.Verdict:
				next = append(next, e.Chain)
			case *expr.NAT:
				all = append(all, addressPort(data)...)
			case *expr.Lookup:
				if !e.IsDestRegSet {
					continue
				}
				elements, err := r.conn.GetSetElements(&nftables.Set{Table: r.table, Name: e.SetName})
				if err != nil {
					return nil, err
				}
				for _, element := range elements {
					if to := chainOf(element); to != "" {
						next = append(next, to)
					} else {
						all = append(all, addressPort(element.Val)...)
					}
				}
			}
		}
	}
	for _, chain := range next {
		further, err := r.destinations(ctx, chain, seen)
		if err != nil {
			return nil, err
		}
		all = append(all, further...)
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all), nil
}

// chainOf is the chain to which an element of a map leads; empty if it has a value or another verdict.
func chainOf(e nftables.SetElement) string {
	attributes, err := nl.ParseRouteAttr(e.Val)
	for _, a := range attributes {
		if err == nil && a.Attr.Type == unix.NFTA_VERDICT_CHAIN {
			return unix.ByteSliceToString(a.Value)
		}
	}
	return ""
}

// addressPort is an address of either family with a port behind it. The kernel may have padded its end.
func addressPort(data []byte) []netip.AddrPort {
	length := 4
	if len(data) >= 16 {
		length = 16
	}
	if len(data) < length+2 {
		return nil
	}
	ip, _ := netip.AddrFromSlice(data[:length])
	port := binary.BigEndian.Uint16(data[length:])
	if port == 0 { // a verdict
		return nil
	}
	return []netip.AddrPort{netip.AddrPortFrom(ip, port)}
}

// valueExpression is how nft from 1.1.2 on describes the key of a set that is declared with a plain type. Up to 1.1.1
// nft has no reader for that, and calls a function that is not there (nftables, src/netlink.c, set_make_key).
const valueExpression = 4

// unreadableSets are the sets and maps that crash an older nft when it lists sets: family, table and name.
// kube-proxy's own tables are left out.
func unreadableSets(ctx context.Context, m Machine) (all []string, err error) {
	err = inNamespace(ctx, m, func(_, ns netns.NsHandle) error {
		socket, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_NETFILTER)
		if err != nil {
			return fmt.Errorf("opening netlink: %w", err)
		}
		defer socket.Close()
		request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSET, unix.NLM_F_DUMP)
		request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}
		request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
		answers, err := request.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSET)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("listing sets of nftables: %w", err)
		}
		for _, a := range answers {
			if s := unreadableSet(a); s != "" {
				all = append(all, s)
			}
		}
		return nil
	})
	slices.Sort(all)
	return all, err
}

// unreadableSet names the set of an answer of the kernel, if an older nft cannot read it.
func unreadableSet(answer []byte) string {
	if len(answer) < nl.SizeofNfgenmsg {
		return ""
	}
	attributes, err := nl.ParseRouteAttr(answer[nl.SizeofNfgenmsg:])
	if err != nil {
		return ""
	}
	values := map[uint16][]byte{}
	for _, a := range attributes {
		values[a.Attr.Type&nl.NLA_TYPE_MASK] = a.Value
	}
	text := func(attribute uint16) string { return unix.ByteSliceToString(values[attribute]) }
	types := []userdata.Type{userdata.NFTNL_UDATA_SET_KEY_TYPEOF, userdata.NFTNL_UDATA_SET_DATA_TYPEOF}
	crashes := slices.ContainsFunc(types, func(t userdata.Type) bool {
		kind := tlv(tlv(values[unix.NFTA_SET_USERDATA], byte(t)), 0)
		return len(kind) == 4 && binary.NativeEndian.Uint32(kind) == valueExpression
	})
	family, ok := familyNames[answer[0]]
	if !crashes || !ok || text(unix.NFTA_SET_TABLE) == proxyTable {
		return ""
	}
	return family + " " + text(unix.NFTA_SET_TABLE) + " " + text(unix.NFTA_SET_NAME)
}

var familyNames = map[byte]string{
	unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge",
	unix.NFPROTO_NETDEV: "netdev",
}

// tlv is the value of a type in user data, which are a type, a length and a value each, in a byte, a byte and the value.
func tlv(data []byte, kind byte) []byte {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		if data[0] == kind {
			return data[2 : 2+int(data[1])]
		}
		data = data[2+int(data[1]):]
	}
	return nil
}
