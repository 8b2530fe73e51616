package snapshot

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Kubernetes is what a Collector asks of a cluster.
type Kubernetes interface {
	Nodes(context.Context) ([]Node, error)
	// CiliumNodes returns none, and no error, in a cluster without Cilium.
	CiliumNodes(context.Context) ([]CiliumNode, error)
	Pods(context.Context) ([]Pod, error)
}

// RouterReader is what a Collector asks of a BGP router. A *router.Client is
// one.
type RouterReader interface {
	RIB(context.Context) ([]Path, error)
	FIB(context.Context) ([]Route, error)
	Neighbors(context.Context) ([]Neighbor, error)
}

// RouteReader lists the main routing table of a node. NetnsRoutes makes one.
type RouteReader func(context.Context) ([]Route, error)

// NATReader is what a Collector asks of a node that translates addresses.
type NATReader interface {
	Rules(context.Context) ([]NATRule, error)
	Flows(context.Context) ([]Flow, error)
	Programs(context.Context) ([]Program, error)
}

// SocketReader lists the TCP sockets of a host. NetnsSockets makes one.
type SocketReader func(context.Context) ([]Socket, error)

// Collector takes snapshots. Its fields are not changed after first use.
type Collector struct {
	Kubernetes Kubernetes
	// Routers and Nodes are by name. Both may be empty.
	Routers map[string]RouterReader
	Nodes   map[string]RouteReader
	// NAT is by node, Outside by host. Both may be empty.
	NAT     map[string]NATReader
	Outside map[string]SocketReader
	// Images, when set, tells what is asked to run and what runs, and
	// Registry, when set as well, what the names of those images stand for.
	Images   ImageReader
	Registry Resolver
	// Networks, by node, tell what the nodes' interfaces and BGP daemons are,
	// and Calico, when set, how calico-node chooses a node's address.
	Networks map[string]NetworkReader
	Calico   CalicoReader
	// Services, when set, tells which Services there are. Proxies are by node,
	// and say what becomes of Services there.
	Services ServiceReader
	Proxies  map[string]ProxyReader
	// ConfigMaps, when set, lists ConfigMaps that detectors look at.
	ConfigMaps func(context.Context) ([]ConfigMap, error)
	// Firewalls are by node.
	Firewalls map[string]FirewallReader
	// Timeout bounds one collection; zero means one second. What has not
	// answered by then counts as not read.
	Timeout time.Duration
}

// defaultTimeout is well above what a healthy source needs (milliseconds),
// and no longer than detection may take.
const defaultTimeout = time.Second

// Collect asks all sources at once and returns what they said. It never
// fails: a source that does not answer in time or at all is marked so, and
// the others are not held up by it beyond the timeout.
func (c Collector) Collect(ctx context.Context) Snapshot {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", timeout))
	defer cancel()

	s := Snapshot{
		Time:         time.Now(),
		Routers:      make([]Router, len(c.Routers)),
		NodeTables:   make([]NodeTable, len(c.Nodes)),
		NodeNetworks: make([]NodeNetwork, len(c.Networks)),
		NAT:          make([]NodeNAT, len(c.NAT)),
		Outside:      make([]HostSockets, len(c.Outside)),
		Proxies:      make([]Proxy, len(c.Proxies)),
	}
	var all sync.WaitGroup
	all.Go(func() { s.Nodes = list(ctx, c.Kubernetes.Nodes) })
	all.Go(func() { s.CiliumNodes = list(ctx, c.Kubernetes.CiliumNodes) })
	all.Go(func() { s.Pods = list(ctx, c.Kubernetes.Pods) })
	for i, name := range slices.Sorted(maps.Keys(c.Routers)) {
		r := &s.Routers[i]
		r.Name = name
		all.Go(func() {
			r.Paths = list(ctx, c.Routers[name].RIB)
			r.Neighbors = list(ctx, c.Routers[name].Neighbors) // after Paths: see Router
		})
		all.Go(func() { r.Routes = list(ctx, c.Routers[name].FIB) })
	}
	for i, name := range slices.Sorted(maps.Keys(c.Nodes)) {
		t := &s.NodeTables[i]
		t.Node = name
		all.Go(func() { t.Routes = list(ctx, c.Nodes[name]) })
	}
	for i, name := range slices.Sorted(maps.Keys(c.Networks)) {
		n, reader := &s.NodeNetworks[i], c.Networks[name]
		n.Node = name
		if reader.Interfaces != nil {
			all.Go(func() { n.Interfaces = list(ctx, reader.Interfaces) })
		}
		if reader.BIRD != nil {
			all.Go(func() { n.BIRD = list(ctx, reader.BIRD) })
		}
	}
	s.Firewalls = make([]Firewall, len(c.Firewalls))
	for i, name := range slices.Sorted(maps.Keys(c.Firewalls)) {
		f := &s.Firewalls[i]
		f.Node = name
		all.Go(func() { f.Rules = list(ctx, c.Firewalls[name]) })
	}
	if c.Calico != nil {
		all.Go(func() { s.CalicoAgents = list(ctx, c.Calico.CalicoAgents) })
	}
	for i, name := range slices.Sorted(maps.Keys(c.NAT)) {
		n := &s.NAT[i]
		n.Node = name
		all.Go(func() { n.Rules = list(ctx, c.NAT[name].Rules) })
		all.Go(func() { n.Flows = list(ctx, c.NAT[name].Flows) })
		all.Go(func() { n.Programs = list(ctx, c.NAT[name].Programs) })
	}
	for i, name := range slices.Sorted(maps.Keys(c.Outside)) {
		h := &s.Outside[i]
		h.Host = name
		all.Go(func() { h.Sockets = list(ctx, c.Outside[name]) })
	}
	if c.Services != nil {
		all.Go(func() { s.Services = list(ctx, c.Services.Services) })
		all.Go(func() { s.EndpointSlices = list(ctx, c.Services.EndpointSlices) })
	}
	for i, name := range slices.Sorted(maps.Keys(c.Proxies)) {
		all.Go(func() { s.Proxies[i] = readProxy(ctx, name, c.Proxies[name]) })
	}
	if c.ConfigMaps != nil {
		all.Go(func() { s.ConfigMaps = list(ctx, c.ConfigMaps) })
	}
	if c.Images != nil {
		all.Go(func() {
			var both sync.WaitGroup
			both.Go(func() { s.Workloads = list(ctx, c.Images.Workloads) })
			both.Go(func() { s.PodImages = list(ctx, c.Images.PodImages) })
			both.Wait()
			if c.Registry != nil {
				s.Tags = resolve(ctx, c.Registry, s.Workloads.Items, s.PodImages.Items)
			}
		})
	}
	all.Wait()
	s.Took = time.Since(s.Time)
	return s
}

// list asks one source. It returns when ctx ends, even if the source does not.
func list[T any](ctx context.Context, source func(context.Context) ([]T, error)) List[T] {
	began := time.Now()
	answers := make(chan List[T], 1)
	go func() {
		items, err := source(ctx)
		if err != nil {
			answers <- List[T]{Error: err.Error()}
			return
		}
		answers <- List[T]{Read: true, Items: items}
	}()
	var l List[T]
	select {
	case l = <-answers:
	case <-ctx.Done():
		l.Error = context.Cause(ctx).Error()
	}
	l.Took = time.Since(began)
	return l
}

// readProxy asks one kube-proxy, as list asks a source.
func readProxy(ctx context.Context, node string, read ProxyReader) Proxy {
	answer := list(ctx, func(ctx context.Context) ([]Proxy, error) {
		p, err := read(ctx)
		return []Proxy{p}, err
	})
	var p Proxy
	if answer.Read {
		p = answer.Items[0]
	}
	p.Node, p.Read, p.Error, p.Took = node, answer.Read, answer.Error, answer.Took
	return p
}
