package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/topology/each"
)

// Layer is where something is said, from what is wanted down to what forwards packets.
type Layer string

// Layers, from the top down.
const (
	API    Layer = "API"    // Kubernetes' objects
	Agent  Layer = "agent"  // what a CNI's agent or kube-proxy says of itself
	BGP    Layer = "BGP"    // sessions
	RIB    Layer = "RIB"    // routes that BGP has chosen
	FIB    Layer = "FIB"    // routes in a router's kernel
	Kernel Layer = "kernel" // routes, interfaces and tables of a node's kernel
)

// Layers are all of them, from the top down.
var Layers = []Layer{API, Agent, BGP, RIB, FIB, Kernel}

// Statement is what one layer says of one object in one place.
type Statement struct {
	Layer Layer `json:"layer"`
	// Where is the node or router that says it, or the object of the API.
	Where string `json:"where"`
	// Object is what it is about: a prefix, a node, a Service and so on.
	Object string `json:"object"`
	// Node is whom the layer gives the object to; empty where it names none.
	Node string `json:"node,omitempty"`
	Says string `json:"says"`
	// Rule is set for a rule that the kernel of the node Object applies to packets.
	Rule bool `json:"rule,omitempty"`
}

type statements struct {
	// nodes and services are their names, by address.
	nodes, services map[netip.Addr]string
	// bulk is whether rules of iptables, Services and their endpoints are wanted,
	// which a load changes all the time.
	bulk bool

	part string // that is read now
	all  []partStatement
}

type partStatement struct {
	Statement
	part string
}

// add notes what a layer says of an object, as in Statement. The result holds until
// the next one is added.
func (s *statements) add(layer Layer, where, object, node, format string, args ...any) *Statement {
	st := Statement{Layer: layer, Where: where, Object: object, Node: node, Says: fmt.Sprintf(format, args...)}
	s.all = append(s.all, partStatement{st, s.part})
	return &s.all[len(s.all)-1].Statement
}

func (s *statements) nameOf(a netip.Addr) string { return cmp.Or(s.nodes[a], a.String()) }

func (s *statements) named(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "none"
	case s.nodes[a] == "":
		return a.String()
	}
	return a.String() + " (" + s.nodes[a] + ")"
}

// Statements are what the layers say, object by object, from the top layer down.
// Of what was not read there are none.
func (s Snapshot) Statements() []Statement {
	nodes := map[netip.Addr]string{}
	s.addNodes(nodes)
	return each.Of(s.statements(nodes, true), func(st partStatement) Statement { return st.Statement })
}

func (s Snapshot) statements(nodes map[netip.Addr]string, bulk bool) []partStatement {
	to := &statements{nodes: nodes, services: map[netip.Addr]string{}, bulk: bulk}
	for _, one := range s.Services.Items {
		for _, a := range one.ClusterIPs {
			to.services[a] = one.String()
		}
	}
	for _, k := range kinds {
		for _, p := range k.parts(s) {
			if to.part = p.what; p.state != nil {
				p.state(to)
			}
		}
	}
	slices.SortStableFunc(to.all, func(a, b partStatement) int {
		return cmp.Or(
			slices.Index(Layers, a.Layer)-slices.Index(Layers, b.Layer),
			cmp.Compare(a.Object, b.Object), cmp.Compare(a.Where, b.Where), cmp.Compare(a.Says, b.Says),
		)
	})
	return to.all
}

// addNodes names the nodes by each address that a layer takes for theirs.
func (s Snapshot) addNodes(nodes map[netip.Addr]string) {
	for _, n := range s.CiliumNodes.Items { // they outlive a Node that is removed
		for _, a := range n.InternalIPs {
			nodes[a] = n.Name
		}
	}
	for _, n := range s.NodeNetworks {
		for _, i := range n.Interfaces.Items {
			for _, a := range i.Addresses {
				if i.Type == "device" && !a.Addr().IsLoopback() {
					nodes[a.Addr()] = n.Node
				}
			}
		}
	}
	for _, n := range s.Nodes.Items {
		if n.Calico.Address.IsValid() {
			nodes[n.Calico.Address.Addr()] = n.Name
		}
		for _, a := range slices.Concat(n.KubeRouterAddresses, n.InternalIPs) {
			nodes[a] = n.Name
		}
	}
}

func join[T fmt.Stringer](all []T) string {
	return each.Joined(all, ", ", T.String)
}

// Change is what changed in a layer from one snapshot to a later one.
type Change struct {
	// At is when the later one was begun.
	At     time.Time `json:"at"`
	Layer  Layer     `json:"layer"`
	Where  string    `json:"where"`
	Object string    `json:"object"`
	// From and To are what was said before and after; empty where nothing was.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// Changes are what changed of sessions, routes, addresses and images from one snapshot to a later
// one. Rules of iptables, Services and their endpoints are left out: a load changes them all the
// time. A part that was not read in one of the two has not changed.
func Changes(before, after Snapshot) []Change {
	nodes := map[netip.Addr]string{} // the same for both: a node that is removed changes no route
	before.addNodes(nodes)
	after.addNodes(nodes)
	unavailable := map[string]bool{}
	for _, s := range []Snapshot{before, after} {
		for _, k := range kinds {
			for _, p := range k.parts(s) {
				unavailable[p.what] = unavailable[p.what] || !p.read
			}
		}
	}
	earlier, later := before.said(nodes, unavailable), after.said(nodes, unavailable)
	places := maps.Clone(earlier)
	maps.Copy(places, later)
	var all []Change
	for key := range places {
		if from, to := earlier[key], later[key]; from != to {
			all = append(all, Change{At: after.Time, Layer: key.layer, Where: key.where, Object: key.object, From: from, To: to})
		}
	}
	slices.SortFunc(all, func(a, b Change) int {
		return cmp.Or(
			slices.Index(Layers, a.Layer)-slices.Index(Layers, b.Layer),
			cmp.Compare(a.Where, b.Where), cmp.Compare(a.Object, b.Object),
		)
	})
	return all
}

type place struct {
	layer         Layer
	where, object string
}

// said joins what is said of the same object in the same place, without some parts.
func (s Snapshot) said(nodes map[netip.Addr]string, without map[string]bool) map[place]string {
	all := map[place]string{}
	for _, st := range s.statements(nodes, false) {
		if without[st.part] {
			continue
		}
		key := place{st.Layer, st.Where, st.Object}
		if before, there := all[key]; there {
			st.Says = before + "; " + st.Says
		}
		all[key] = st.Says
	}
	return all
}
