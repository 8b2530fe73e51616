package snapshot

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NodeNetwork is what one node's kernel and BGP daemon say.
type NodeNetwork struct {
	Node string `json:"node"`
	// Interfaces are in the order in which the kernel lists them, which
	// Calico's autodetection goes by.
	Interfaces List[Interface] `json:"interfaces"`
	// BIRD's protocols are in its own order. There are none where no BIRD
	// runs.
	BIRD List[BIRDProtocol] `json:"bird"`
}

// Interface is a network interface of a node.
type Interface struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	// Type is the kernel's kind of it, such as veth or vxlan; "device" is a
	// card.
	Type string `json:"type"`
	// Flags are as in `ip link`: up|broadcast|multicast.
	Flags     string         `json:"flags"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Since is when the reader saw the interface first. It is zero for one
	// that was there at the reader's first look: Index may tell more.
	Since time.Time `json:"since,omitzero"`
}

// NetworkReader reads the parts of a NodeNetwork. A nil part is not asked for.
type NetworkReader struct {
	Interfaces func(context.Context) ([]Interface, error)
	BIRD       func(context.Context) ([]BIRDProtocol, error)
}

// NetnsInterfaces returns a reader of the interfaces in the network namespace
// at a path, which is asked for every time as in NetnsRoutes. The reader
// remembers what it has seen, for Interface.Since, as long as the node has the
// same namespace.
func NetnsInterfaces(path func(context.Context) (string, error)) func(context.Context) ([]Interface, error) {
	var seen sightings
	return func(ctx context.Context) ([]Interface, error) {
		p, err := path(ctx)
		if err != nil {
			return nil, fmt.Errorf("finding the network namespace: %w", err)
		}
		ns, err := netns.GetFromPath(p)
		if err != nil {
			return nil, fmt.Errorf("opening network namespace %s: %w", p, err)
		}
		defer ns.Close()
		interfaces, err := namespaceInterfaces(ctx, ns)
		if err != nil {
			return nil, fmt.Errorf("network namespace %s: %w", p, err)
		}
		seen.note(ns.UniqueId(), interfaces, time.Now())
		return interfaces, nil
	}
}

func namespaceInterfaces(ctx context.Context, ns netns.NsHandle) ([]Interface, error) {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	defer h.Close()
	links, err := dump(ctx, h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	addresses, err := dump(ctx, func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	of := map[int][]netip.Prefix{}
	for _, a := range addresses {
		bits, _ := a.Mask.Size()
		of[a.LinkIndex] = append(of[a.LinkIndex], netip.PrefixFrom(address(a.IP), bits))
	}
	var interfaces []Interface
	for _, l := range links {
		attrs := l.Attrs()
		interfaces = append(interfaces, Interface{
			Name: attrs.Name, Index: attrs.Index, Type: l.Type(), Flags: attrs.Flags.String(), Addresses: of[attrs.Index],
		})
	}
	return interfaces, nil
}

// sightings remembers when interfaces were seen first.
type sightings struct {
	mu        sync.Mutex
	namespace string
	since     map[sighted]time.Time
}

// sighted tells interfaces apart: a name or an index alone may be used again.
type sighted struct {
	name  string
	index int
}

// note sets Since of the interfaces that were seen in a namespace.
func (s *sightings) note(namespace string, interfaces []Interface, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.namespace != namespace { // the first look, or the node was started again
		s.namespace, s.since, now = namespace, nil, time.Time{}
	}
	before := s.since
	s.since = map[sighted]time.Time{} // without those that have gone
	for i := range interfaces {
		key := sighted{interfaces[i].Name, interfaces[i].Index}
		since, known := before[key]
		if !known {
			since = now
		}
		s.since[key], interfaces[i].Since = since, since
	}
}
