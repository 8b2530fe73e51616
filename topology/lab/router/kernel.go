package router

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/bgp"
	"github.com/relapse-dev/relapse/topology/rtnl"
)

// sysctl is a setting that the router needs in its network namespace.
type sysctl struct {
	path, value, why string
}

// sysctls are the router's required settings. Those under conf/all take effect
// together with the settings of each interface, which kernel.Routes makes.
var sysctls = []sysctl{
	{"net/ipv4/ip_forward", "1", "a router forwards"},
	{"net/ipv4/conf/all/rp_filter", "0", "with two routers, the directions of a flow may use different ones"},
	{"net/ipv4/conf/all/send_redirects", "0", "a host that follows a redirect bypasses the router"},
}

// setSysctls makes the settings under root (/proc/sys). In most containers that is read-only, and
// the settings must be made when the container is created: the error says how.
func setSysctls(root string) error {
	var errs []error
	for _, s := range sysctls {
		file := root + "/" + s.path
		value, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, fmt.Errorf("reading a sysctl: %w", err))
			continue
		}
		if strings.TrimSpace(string(value)) == s.value {
			continue
		}
		if err := os.WriteFile(file, []byte(s.value), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("sysctl %s is %s and must be %s (%s); start the container with --sysctl %[1]s=%[3]s: %[5]w",
				strings.ReplaceAll(s.path, "/", "."), strings.TrimSpace(string(value)), s.value, s.why, err))
		}
	}
	return errors.Join(errs...)
}

// kernel is the main routing table of a network namespace, of IPv4 or of both families. It is not safe for
// concurrent use.
type kernel struct {
	dual   bool
	handle *netlink.Handle
	// setup is for requests for which handle has no method.
	setup *nl.SocketHandle
	// events is subscribed to changes of links, addresses and routes.
	events *nl.NetlinkSocket
	names  map[int]string
	// prepared are the interfaces that are set up for routing.
	prepared map[int]bool
}

func openKernel(dual bool) (*kernel, error) {
	if err := setSysctls("/proc/sys"); err != nil {
		return nil, fmt.Errorf("preparing the network namespace: %w", err)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	setup, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	groups := []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE}
	if dual {
		groups = append(groups, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE)
	}
	events, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		setup.Close()
		handle.Close()
		return nil, fmt.Errorf("subscribing to netlink events: %w", err)
	}
	return &kernel{
		dual:     dual,
		handle:   handle,
		setup:    &nl.SocketHandle{Socket: setup},
		events:   events,
		prepared: map[int]bool{},
	}, nil
}

// Close ends Watch and every other use of the table.
func (k *kernel) Close() {
	k.events.Close()
	k.setup.Close()
	k.handle.Close()
}

// Watch calls changed after each change of a link, an address or a route, until
// Close. It may run concurrently with the other methods. Events that the kernel
// drops (ENOBUFS) count as a change, because the content of events is not used.
func (k *kernel) Watch(changed func()) error {
	for {
		_, _, err := k.events.Receive()
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
			changed()
		case errors.Is(err, os.ErrClosed):
			return nil
		default:
			return fmt.Errorf("receiving netlink events: %w", err)
		}
	}
}

// dumpWithin bounds a dump with its repetitions: see rtnl.Dump.
const dumpWithin = 5 * time.Second

// Routes returns the table by prefix, then by metric. It first sets up interfaces
// for routing that are new since the last call.
func (k *kernel) Routes() ([]bgp.Route, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dumpWithin)
	defer cancel()
	if err := k.readLinks(ctx); err != nil {
		return nil, err
	}
	return bgp.Routes(ctx, k.handle, k.dual)
}

func (k *kernel) readLinks(ctx context.Context) error {
	dump, err := rtnl.Dump(ctx, k.handle.LinkList)
	if err != nil {
		return fmt.Errorf("listing links: %w", err)
	}
	names, prepared := map[int]string{}, map[int]bool{}
	for _, l := range dump {
		a := l.Attrs()
		names[a.Index] = a.Name
		if a.Flags&net.FlagLoopback == 0 && !k.prepared[a.Index] {
			if err := k.setUpLink(a.Index); err != nil {
				return fmt.Errorf("setting up %s for routing: %w", a.Name, err)
			}
		}
		prepared[a.Index] = true
	}
	k.names, k.prepared = names, prepared
	return nil
}

// From linux/if_link.h and linux/ip.h; package unix does not have them.
const (
	iflaInetConf             = 1
	ipv4DevconfSendRedirects = 6
	ipv4DevconfRPFilter      = 8
)

// setUpLink turns off the reverse path filter and ICMP redirects of an interface, for the reasons
// in sysctls. It uses netlink, which works if /proc/sys is read-only.
func (k *kernel) setUpLink(index int) error {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(iflaInetConf, nil)
	conf.AddRtAttr(ipv4DevconfSendRedirects, nl.Uint32Attr(0))
	conf.AddRtAttr(ipv4DevconfRPFilter, nl.Uint32Attr(0))
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.setup}
	req.AddData(msg)
	req.AddData(spec)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.ENODEV) {
		return nil // removed since it was listed
	}
	return err
}

// Replace installs a route. It atomically replaces the route with the same prefix
// and metric, if there is one.
func (k *kernel) Replace(r bgp.Route) error {
	n := toNetlink(r)
	n.Type, n.Protocol = typeNumbers[r.Type], protocolNumbers[r.Protocol]
	for _, h := range r.NextHops {
		index := 0
		for i, name := range k.names {
			if name == h.Interface {
				index = i
			}
		}
		if index == 0 {
			return fmt.Errorf("installing %s: no interface %q", r, h.Interface)
		}
		n.MultiPath = append(n.MultiPath, &netlink.NexthopInfo{LinkIndex: index, Gw: h.Address.AsSlice()})
	}
	if err := k.handle.RouteReplace(n); err != nil {
		return fmt.Errorf("installing %s: %w", r, err)
	}
	return nil
}

// Remove removes a route. It is no error if there is none.
func (k *kernel) Remove(r bgp.Route) error {
	if err := k.handle.RouteDel(toNetlink(r)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing %s: %w", r, err)
	}
	return nil
}

// Numbers of rtnetlink(7) for what a router installs.
var (
	typeNumbers     = map[bgp.RouteType]int{bgp.RouteUnicast: unix.RTN_UNICAST, bgp.RouteUnreachable: unix.RTN_UNREACHABLE}
	protocolNumbers = map[bgp.RouteProtocol]netlink.RouteProtocol{bgp.RouteStatic: unix.RTPROT_STATIC, bgp.RouteBGP: unix.RTPROT_BGP}
)

// toNetlink has the attributes by which the kernel distinguishes routes, without TOS, which is not used.
func toNetlink(r bgp.Route) *netlink.Route {
	return &netlink.Route{
		Dst:      &net.IPNet{IP: r.Prefix.Addr().AsSlice(), Mask: net.CIDRMask(r.Prefix.Bits(), r.Prefix.Addr().BitLen())},
		Priority: r.Metric,
	}
}
