package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
)

// layer2 are the Services whose addresses nodes answer for by ARP, on the network that they share with the ToR.
type layer2 struct {
	// labels, annotation and class of the Services decide which addresses they get.
	labels            map[string]string
	annotation, class string
	// addresses are the Services' addresses, by the name of the endpoint at each.
	addresses map[string]netip.Addr
	ranges    []snapshot.AddressRange
	// local is set if a node without an endpoint does not answer for a Service of policy Local.
	local bool
}

// Endpoints at the Services' addresses. The pod of byARP is on the control plane, so that it is behind the link of
// no node that answers; the pod of byARPLocal (policy Local) is on the one node that answers.
const (
	byARP      = "address by ARP"
	byARPLocal = "address by ARP, policy Local"
)

const ofIPv4 = "addresses for which nodes answer by ARP are of IPv4 alone: who answers by neighbour discovery is not asked"

// onlyIPv4 is why a lab has one address family although the settings have both.
const onlyIPv4 = "--family ipv4, so nothing of IPv6 is tested"

// speakers are the nodes that answer by ARP.
var speakers = []string{worker1, worker2}

// answering are the Services' pods, one on each node, with no other probe from outside: see balanced.
var answering = each.Of(allNodes, func(node string) framework.ProbePod {
	return framework.ProbePod{Name: "arp-" + node, Node: node}
})

func (l layer2) services() map[string]workload.LoadBalancer {
	one := workload.LoadBalancer{Name: "by-arp", Pod: answering[0].Name, OnlyIPv4: true}
	one.Labels, one.Annotation, one.Class = l.labels, l.annotation, l.class
	all := map[string]workload.LoadBalancer{byARP: one}
	if l.local {
		one.Name, one.Pod, one.Policy = "by-arp-local", answering[1].Name, "Local"
		all[byARPLocal] = one
	}
	return all
}

// linkRange are unused addresses of the nodes' network.
func linkRange(t topology.Topology) snapshot.AddressRange {
	nodes, _ := t.Network("nodes")
	base := nodes.Subnet.Masked().Addr().As4()
	first, last := base, base
	first[3] |= 128
	last[3] |= 143
	return snapshot.AddressRange{First: netip.AddrFrom4(first), Last: netip.AddrFrom4(last)}
}

func (l layer2) ends() (ends []framework.Endpoint) {
	for name := range l.services() {
		ends = append(ends, framework.Server(name, func(*framework.Run) netip.AddrPort {
			return netip.AddrPortFrom(l.addresses[name], wire.DefaultPort)
		}))
	}
	return ends
}

func (l layer2) paths() []PathKind {
	return slices.Concat(each.Of(slices.Sorted(maps.Keys(l.services())), balancerPaths)...)
}

// install creates the Services, and waits until a node answers for each.
func (l layer2) install(ctx context.Context, r *framework.Run) error {
	lab := labaccess.Lab(r)
	if err := workload.Added(answering...)(ctx, r); err != nil {
		return err
	}
	for _, node := range allNodes {
		if err := lab.WatchLink(ctx, "nodes", r.Address(node)); err != nil {
			return err
		}
	}
	for name, service := range l.services() {
		if err := service.Create(ctx, r); err != nil {
			return err
		}
		given, err := service.Given(ctx, r)
		if err != nil {
			return err
		}
		l.addresses[name] = given[0]
		if err := answered(ctx, r, given[0], speakers...); err != nil {
			return err
		}
	}
	return nil
}

// answered waits until one of some nodes answers the ToR for an address.
func answered(ctx context.Context, r *framework.Run, address netip.Addr, by ...string) error {
	if err := labaccess.Lab(r).WatchLink(ctx, "nodes", address); err != nil {
		return err
	}
	router, err := labaccess.Lab(r).Router(tor)
	if err != nil {
		return err
	}
	defer router.Close()
	began := time.Now()
	what := fmt.Sprintf("%s to answer by ARP for %s", strings.Join(by, " or "), address)
	return await.Until(ctx, what, 100*time.Millisecond, reachedWithin, func(ctx context.Context) (bool, string, error) {
		links, err := router.Links(ctx)
		s := linksOf(r.Topology, links)
		saw := "nobody does"
		for node, answer := range s.answers[address] {
			if slices.Contains(by, node) && answer.Replied.After(began) {
				return true, "", err
			}
			saw = node + " does"
		}
		return false, saw, err
	})
}

// answersAnew asks a node's speaker for new work: a new Service of policy Local, whose only endpoint is on the node.
func (l layer2) answersAnew(ctx context.Context, r *framework.Run, node string) error {
	if !l.local || !slices.Contains(speakers, node) {
		return nil
	}
	pod := answering[slices.IndexFunc(answering, func(p framework.ProbePod) bool { return p.Node == node })]
	fresh := workload.LoadBalancer{Name: "fresh-arp", Pod: pod.Name, Policy: "Local", OnlyIPv4: true}
	fresh.Labels, fresh.Annotation = l.labels, l.annotation
	return withFresh(ctx, r, fresh, func(given []netip.Addr) error { return answered(ctx, r, given[0], node) })
}

// failovers are the ways to change the node that answers. Their times depend on chance by up to chance.
func (l layer2) failovers(chance time.Duration) []FailoverKind {
	all := []FailoverKind{{
		chance: chance, returns: l.local, Name: "the link of the answering node is lost", Path: byARP,
		address: func() netip.Addr { return l.addresses[byARP] },
		do: func(ctx context.Context, r *framework.Run, node string) (func(context.Context) error, error) {
			return labaccess.Lab(r).Node(node).CutLink(ctx, "nodes")
		},
	}}
	if !l.local {
		return all
	}
	return append(all, FailoverKind{
		returns: true, Name: "the answering node is drained, policy Local", Path: byARPLocal,
		address: func() netip.Addr { return l.addresses[byARPLocal] },
		do: func(ctx context.Context, r *framework.Run, node string) (func(context.Context) error, error) {
			cordon, service := fault.Cordon(node), l.services()[byARPLocal]
			undo := func(ctx context.Context) error {
				return errors.Join(cordon.Undo(ctx, r), service.Create(ctx, r))
			}
			if err := cordon.Inject(ctx, r); err != nil {
				return undo, err
			}
			moved := service
			moved.Pod = answering[2].Name
			return undo, moved.Create(ctx, r)
		},
	})
}

// normalize is a Normalize that also omits connections to the addresses: which node has them is chance.
func (l layer2) normalize(others func(kind, what string) string) func(kind, what string) string {
	return func(kind, what string) string {
		_, to, _ := strings.Cut(what, " to ")
		address, err := netip.ParseAddr(strings.SplitN(to, ":", 2)[0])
		inRange := func(r snapshot.AddressRange) bool { return r.Contains(address) }
		if kind == "connection" && err == nil && slices.ContainsFunc(l.ranges, inRange) {
			return ""
		}
		return others(kind, what)
	}
}

// linkState says which nodes answer on the links of a router.
type linkState struct {
	// entries are the nodes to which the router sends packets, by address, and answers are the nodes' answers. A station
	// that is no node is named by its MAC.
	entries map[netip.Addr]string
	answers map[netip.Addr]map[string]snapshot.Answer
}

// heardWithin is the age of an answer from which on a station no longer answers: the router asks four times a second.
const heardWithin = 700 * time.Millisecond

func (s linkState) two(at time.Time) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for address, answers := range s.answers {
		names := each.Where(slices.Sorted(maps.Keys(answers)), func(name string) bool {
			return at.Sub(answers[name].Replied) < heardWithin
		})
		if len(names) > 1 {
			all[address] = strings.Join(names, " and ")
		}
	}
	return all
}

func linksOf(t topology.Topology, links []snapshot.LinkNeighbor) linkState {
	s := linkState{map[netip.Addr]string{}, map[netip.Addr]map[string]snapshot.Answer{}}
	nodes, names := map[netip.Addr]string{}, map[string]string{}
	for _, n := range t.Nodes() {
		for _, l := range n.Links {
			nodes[l.Address] = n.Name
		}
	}
	named := func(mac string) string { return cmp.Or(names[mac], mac) }
	for _, l := range links {
		if node := nodes[l.Address]; node != "" {
			names[l.MAC] = node
			for _, a := range l.Answers {
				names[a.MAC] = node
			}
		}
	}
	delete(names, "")
	for _, l := range links {
		if nodes[l.Address] != "" {
			continue
		}
		if l.MAC != "" {
			s.entries[l.Address] = named(l.MAC)
		}
		s.answers[l.Address] = map[string]snapshot.Answer{}
		for _, a := range l.Answers {
			s.answers[l.Address][named(a.MAC)] = a
		}
	}
	return s
}

// balancerPaths are the kinds of paths from outside to a Service of type LoadBalancer.
func balancerPaths(end string) []PathKind {
	to := func(protocols ...probe.Protocol) []probe.Probe {
		return each.Of(protocols, func(p probe.Protocol) probe.Probe {
			return probe.Probe{From: outside, To: end, Protocol: p}.WithDefaults()
		})
	}
	return []PathKind{
		{Name: end + ", outside, UDP", Probes: to(probe.UDP)},
		{Name: end + ", outside, new connections", Probes: to(probe.TCP, probe.UDPFlow)},
		{Name: end + ", outside, long-lived TCP", Probes: to(probe.Stream)},
	}
}

const loadBalancer = "LoadBalancer address"

// balancedEnd is the endpoint at the addresses of the Service of type LoadBalancer.
func balancedEnd(given *[]netip.Addr) framework.Endpoint {
	e := framework.PodEndpoint(beside)
	at := func(family int) func(*framework.Run) netip.AddrPort {
		return func(*framework.Run) netip.AddrPort {
			if family >= len(*given) {
				return netip.AddrPort{}
			}
			return netip.AddrPortFrom((*given)[family], wire.DefaultPort)
		}
	}
	e.Name, e.Address, e.V6 = loadBalancer, at(0), at(1)
	return e
}

// announcesAnew waits for new sessions, and asks a node's BGP speaker for new work: to announce the addresses of a new
// Service to each router, and to withdraw them when it is deleted. The next new Service gets the same addresses.
func announcesAnew(ctx context.Context, r *framework.Run, node string, labels map[string]string, began time.Time) error {
	if err := labaccess.Lab(r).SessionsUp(ctx, []string{node}, began); err != nil {
		return err
	}
	var announced []netip.Addr
	err := withFresh(ctx, r, freshlyBalanced(labels), func(addresses []netip.Addr) (err error) {
		announced = addresses
		for _, a := range addresses {
			err = errors.Join(err, labaccess.Lab(r).Announced(ctx, node, a))
		}
		return err
	})
	for _, a := range announced {
		if err == nil {
			err = labaccess.Lab(r).Withdrawn(ctx, node, a)
		}
	}
	return err
}

// balanced has the pod beside, to which no other probe goes from outside. Cilium's connection tracking keeps a flow's
// translation by client and pod: replies to a new flow from the same port to the pod itself would be translated, too.
var balanced = workload.LoadBalancer{Name: "balanced", Pod: beside.Name}

func freshlyBalanced(labels map[string]string) workload.LoadBalancer {
	return workload.LoadBalancer{Name: "fresh", Pod: beside.Name, Labels: labels}
}

func withFresh(ctx context.Context, r *framework.Run, fresh workload.LoadBalancer, do func([]netip.Addr) error) error {
	if err := fresh.Create(ctx, r); err != nil {
		return err
	}
	addresses, err := fresh.Given(ctx, r)
	if err == nil {
		err = do(addresses)
	}
	return errors.Join(err, fresh.Remove(context.WithoutCancel(ctx), r))
}

func balance(labels map[string]string) framework.Action {
	b := balanced
	b.Labels = labels
	return b.Create
}

func addressed(given *[]netip.Addr) framework.Action {
	return func(ctx context.Context, r *framework.Run) (err error) {
		*given, err = balanced.Given(ctx, r)
		return err
	}
}
