package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/relapse-dev/relapse/topology/bgp"
)

// NodeNetwork is what one node's kernel and BGP daemon say.
type NodeNetwork struct {
	Node string `json:"node"`
	// Interfaces are in the order in which the kernel lists them, which
	// Calico's autodetection goes by.
	Interfaces List[Interface] `json:"interfaces"`
	// BIRD's protocols are in its own order. There are none where no BIRD runs.
	BIRD List[BIRDProtocol] `json:"bird"`
}

// Interface is a network interface of a node.
type Interface struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	// Type is the kernel's kind of it, such as veth or vxlan; "device" is a card.
	Type string `json:"type"`
	// Flags are as in `ip link`: up|broadcast|multicast.
	Flags     string         `json:"flags"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Since is when the reader saw the interface first. It is zero for one
	// that existed when the reader first listed them: Index may tell more.
	Since time.Time `json:"since,omitzero"`
}

// NodeNetworks is the source of the nodes' interfaces and BIRDs.
var NodeNetworks = perNode("interfaces of the nodes", networkReader, func(n NodeNetwork) string { return n.Node },
	func(s *Snapshot) *[]NodeNetwork { return &s.NodeNetworks })

func (n NodeNetwork) parts() []part {
	return []part{
		listPart("interfaces of "+n.Node, n.Interfaces, func(i Interface, to *statements) {
			if i.Type == "device" && len(i.Addresses) > 0 && !strings.Contains(i.Flags, "loopback") {
				to.add(Kernel, i.Name+" of "+n.Node, n.Node, "", "%s", join(i.Addresses))
			}
		}),
		listPart("BIRD of "+n.Node, n.BIRD, func(p BIRDProtocol, to *statements) {
			if p.Proto == "BGP" {
				to.add(BGP, "BIRD on "+n.Node, to.nameOf(p.Neighbor), "", "session with %s: %s", p.Neighbor, p.BGPState)
			}
		}),
	}
}

// networkReader makes a reader that remembers what it has seen, for
// Interface.Since, as long as the node has the same namespace.
func networkReader(node string, m Machine) func(context.Context) NodeNetwork {
	var seen sightings
	return func(ctx context.Context) NodeNetwork {
		n := NodeNetwork{Node: node}
		var all sync.WaitGroup
		all.Go(func() {
			n.Interfaces = list(ctx, func(ctx context.Context) ([]Interface, error) { return interfacesOf(ctx, m, &seen) })
		})
		all.Go(func() {
			n.BIRD = list(ctx, func(ctx context.Context) ([]BIRDProtocol, error) { return birdOf(ctx, m) })
		})
		all.Wait()
		return n
	}
}

// sightings remembers when interfaces were seen first.
type sightings struct {
	mu        sync.Mutex
	namespace string
	since     map[sighted]time.Time
}

// sighted distinguishes interfaces: a name or an index alone may be used again.
type sighted struct {
	name  string
	index int
}

// note sets Since of the interfaces that were seen in a namespace.
func (s *sightings) note(namespace string, interfaces []Interface, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.namespace != namespace { // the first snapshot, or the node was started again
		s.namespace, s.since, now = namespace, nil, time.Time{}
	}
	before := s.since
	s.since = map[sighted]time.Time{} // forgets interfaces that are gone
	for i := range interfaces {
		key := sighted{interfaces[i].Name, interfaces[i].Index}
		since, found := before[key]
		if !found {
			since = now
		}
		s.since[key], interfaces[i].Since = since, since
	}
}

// birdSocket is BIRD's control socket on a node: calico-node's pod has the node's /var/run/calico
// for its own. It is named without the symbolic link /var/run, which would lead out of the node.
const birdSocket = "/run/calico/bird.ctl"

// birdOf asks a node's BIRD for its protocols, through its control socket.
// Where nothing listens no BIRD runs, which is not an error.
func birdOf(ctx context.Context, m Machine) ([]BIRDProtocol, error) {
	own, isOwn := m.(Own)
	if isOwn {
		if listens, err := own.listens("/calico/bird.ctl"); !listens {
			return nil, err
		}
	}
	path, err := m.Path(ctx, birdSocket)
	if err != nil {
		return nil, fmt.Errorf("finding BIRD's socket: %w", err)
	}
	text, err := bgp.AskBIRD(ctx, path, "show protocols all")
	switch {
	case !isOwn && errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("BIRD listens, but %s is not mounted here", path)
	case err != nil:
		return nil, err
	}
	return bgp.BIRDProtocols(text)
}
