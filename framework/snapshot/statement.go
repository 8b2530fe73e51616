package snapshot

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Layer is where something is said, from what is wanted down to what forwards
// packets.
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
}

// Statements are what the layers say, object by object, from the top layer down.
// Of what was not read there are none.
func (s Snapshot) Statements() []Statement {
	nodes := map[netip.Addr]string{}
	s.addNodes(nodes)
	return s.statements(nodes, true)
}

// statements are Statements, with the names of nodes by their addresses; bulk is
// whether those of which there are too many for Changes are among them.
func (s Snapshot) statements(nodes map[netip.Addr]string, bulk bool) []Statement {
	var all []Statement
	say := func(layer Layer, where, object, node, format string, args ...any) {
		all = append(all, Statement{Layer: layer, Where: where, Object: object, Node: node, Says: fmt.Sprintf(format, args...)})
	}
	for _, n := range s.Nodes.Items {
		ready := "ready"
		if !n.Ready {
			ready = "not ready"
		}
		say(API, "Node "+n.Name, n.Name, n.Name, "InternalIP %s, %s", join(n.InternalIPs), ready)
		for _, p := range n.PodCIDRs {
			say(API, "Node.spec.podCIDRs", p.String(), n.Name, "%s", n.Name)
		}
		if n.Calico.Address.IsValid() {
			say(Agent, "Calico's annotation of "+n.Name, n.Name, "", "%s", n.Calico.Address)
		}
		if len(n.KubeRouterAddresses) > 0 {
			say(Agent, "kube-router's annotation of "+n.Name, n.Name, "", "%s", join(n.KubeRouterAddresses))
		}
	}
	for _, n := range s.CiliumNodes.Items {
		for _, p := range n.PodCIDRs {
			say(Agent, "CiliumNode.spec.ipam.podCIDRs", p.String(), n.Name, "%s", n.Name)
		}
	}
	for _, w := range s.Workloads.Items {
		for _, c := range w.Containers {
			say(API, "template", w.Kind+" "+w.Namespace+"/"+w.Name+", "+c.kind()+" "+c.Name, "", "%s, pulled %s", c.Image, c.PullPolicy)
		}
	}
	for _, p := range s.PodImages.Items {
		for _, c := range p.Containers {
			object := p.OwnerKind + " " + p.Namespace + "/" + p.OwnerName + ", " + c.kind() + " " + c.Name
			say(Kernel, "runs on "+p.Node, object, "", "%s", cmp.Or(c.ImageID, "nothing yet"))
		}
	}
	for _, t := range s.Tags.Items {
		if t.Error == "" {
			say(Agent, "registry", t.Image, "", "%s", t.Digest)
		}
	}
	for _, m := range s.ConfigMaps.Items {
		for key, value := range m.Data {
			say(API, "ConfigMap "+m.String(), "ConfigMap "+m.String()+", "+key, "", "%q", value)
		}
	}
	for _, r := range s.Routers {
		for _, n := range r.Neighbors.Items {
			say(BGP, r.Name, nameOf(n.Address, nodes), "", "session with %s (AS %d): %s", n.Address, n.AS, n.State)
		}
		for _, p := range r.Paths.Items {
			if p.Best || p.Multipath {
				say(RIB, r.Name, p.Prefix.String(), nodes[p.NextHop], "next hop %s", named(p.NextHop, nodes))
			}
		}
		for _, route := range r.Routes.Items {
			all = append(all, routeStatement(FIB, r.Name, route, nodes))
		}
	}
	for _, n := range s.NodeNetworks {
		for _, i := range n.Interfaces.Items {
			if i.Type == "device" && len(i.Addresses) > 0 && !strings.Contains(i.Flags, "loopback") {
				say(Kernel, i.Name+" of "+n.Node, n.Node, "", "%s", join(i.Addresses))
			}
		}
		for _, p := range n.BIRD.Items {
			if p.Proto == "BGP" {
				say(BGP, "BIRD on "+n.Node, nameOf(p.Neighbor, nodes), "", "session with %s: %s", p.Neighbor, p.BGPState)
			}
		}
	}
	for _, t := range s.NodeTables {
		for _, route := range t.Routes.Items {
			all = append(all, routeStatement(Kernel, t.Node, route, nodes))
		}
	}
	for _, p := range s.Proxies {
		if !p.Read {
			continue
		}
		health := "does not answer"
		if p.Health.Status != 0 {
			health = fmt.Sprintf("healthz %d", p.Health.Status)
		}
		say(Agent, "kube-proxy on "+p.Node, p.Node, "", "%s, %s", cmp.Or(p.Mode, "mode unknown"), health)
	}
	for _, n := range s.NAT {
		for _, p := range n.Programs.Items {
			say(Kernel, "tc egress of "+n.Node, n.Node, "", "%s: %s", p.Device, p.Name)
		}
	}
	if bulk {
		all = append(all, s.serviceStatements()...)
		all = append(all, s.ruleStatements()...)
	}
	slices.SortStableFunc(all, func(a, b Statement) int {
		return cmp.Or(
			slices.Index(Layers, a.Layer)-slices.Index(Layers, b.Layer),
			cmp.Compare(a.Object, b.Object), cmp.Compare(a.Where, b.Where), cmp.Compare(a.Says, b.Says),
		)
	})
	return all
}

func (c Container) kind() string {
	if c.Init {
		return "init container"
	}
	return "container"
}

// addNodes names the nodes by each address that anybody takes for theirs.
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

// nameOf is the node that has an address, or the address itself.
func nameOf(a netip.Addr, nodes map[netip.Addr]string) string { return cmp.Or(nodes[a], a.String()) }

// named is an address, with the node that has it.
func named(a netip.Addr, nodes map[netip.Addr]string) string {
	switch {
	case !a.IsValid():
		return "none"
	case nodes[a] == "":
		return a.String()
	}
	return a.String() + " (" + nodes[a] + ")"
}

func routeStatement(layer Layer, where string, r Route, nodes map[netip.Addr]string) Statement {
	st := Statement{Layer: layer, Where: where, Object: r.Prefix.String()}
	var hops []string
	for _, h := range r.NextHops {
		switch {
		case h.Address.IsValid():
			st.Node = nodes[h.Address]
			hops = append(hops, "via "+named(h.Address, nodes)+" dev "+h.Interface)
		default:
			hops = append(hops, "dev "+h.Interface)
		}
	}
	if len(hops) == 0 {
		hops = []string{r.Type.String()}
	}
	st.Says = strings.Join(hops, ", ")
	return st
}

// serviceStatements are what the API and IPVS say of Services.
func (s Snapshot) serviceStatements() []Statement {
	var all []Statement
	names := map[netip.Addr]string{}
	for _, one := range s.Services.Items {
		for _, a := range one.ClusterIPs {
			names[a] = one.String()
		}
	}
	for _, e := range s.EndpointSlices.Items {
		all = append(all, Statement{
			Layer: API, Where: "EndpointSlice", Object: e.Namespace + "/" + e.Service, Says: cmp.Or(join(e.Ready), "no ready endpoint"),
		})
	}
	for _, p := range s.Proxies {
		for _, v := range p.Table {
			var servers []string
			for _, r := range v.Servers {
				if r.Weight > 0 {
					servers = append(servers, r.Address.Addr().String())
				}
			}
			all = append(all, Statement{
				Layer: Kernel, Where: "IPVS of " + p.Node, Object: cmp.Or(names[v.Address.Addr()], v.Address.String()),
				Says: cmp.Or(strings.Join(servers, ", "), "no real server"),
			})
		}
	}
	return all
}

// ruleStatements are the rules that the nodes' kernels apply to packets.
func (s Snapshot) ruleStatements() []Statement {
	var all []Statement
	rules := func(table, node string, rules []Rule) {
		for _, r := range rules {
			all = append(all, Statement{Layer: Kernel, Where: table + " of " + node, Object: node, Says: r.Text})
		}
	}
	for _, f := range s.Firewalls {
		rules("filter table", f.Node, f.Rules.Items)
	}
	for _, n := range s.NAT {
		rules("nat table", n.Node, n.Rules.Items)
	}
	return all
}

func join[T fmt.Stringer](all []T) string {
	var texts []string
	for _, one := range all {
		texts = append(texts, one.String())
	}
	return strings.Join(texts, ", ")
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

// Changes are what changed of sessions, routes, addresses and images from one
// snapshot to a later one. Rules of iptables, Services and what is behind them are
// left out: a load changes them all the time. What was not read in one of the two
// has not changed.
func Changes(before, after Snapshot) []Change {
	nodes := map[netip.Addr]string{} // the same for both: that a node has gone changes no route
	before.addNodes(nodes)
	after.addNodes(nodes)
	was, is := before.said(nodes), after.said(nodes)
	var all []Change
	add := func(key place, from, to string) {
		if from != to {
			all = append(all, Change{At: after.Time, Layer: key.layer, Where: key.where, Object: key.object, From: from, To: to})
		}
	}
	unread := unreadParts(before, after)
	for key, to := range is {
		if !unread(key) {
			add(key, was[key], to)
		}
	}
	for key, from := range was {
		if _, there := is[key]; !there && !unread(key) {
			add(key, from, "")
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

// place is where a layer says something of an object.
type place struct {
	layer         Layer
	where, object string
}

// said joins what is said of the same object in the same place.
func (s Snapshot) said(nodes map[netip.Addr]string) map[place]string {
	all := map[place]string{}
	for _, st := range s.statements(nodes, false) {
		key := place{st.Layer, st.Where, st.Object}
		if before, there := all[key]; there {
			st.Says = before + "; " + st.Says
		}
		all[key] = st.Says
	}
	return all
}

// unreadParts tells of a place whether one of two snapshots did not read it. A part
// that was not asked for says nothing in either.
func unreadParts(snapshots ...Snapshot) func(place) bool {
	layers, places := map[Layer]bool{}, map[place]bool{}
	note := func(layer Layer, where string, read bool) {
		if !read {
			places[place{layer: layer, where: where}] = true
		}
	}
	for _, s := range snapshots {
		layers[API] = layers[API] || s.Nodes.Error != "" || s.Workloads.Error != "" || s.ConfigMaps.Error != ""
		layers[Agent] = layers[Agent] || s.Nodes.Error != "" || s.CiliumNodes.Error != "" || s.Tags.Error != ""
		for _, r := range s.Routers {
			note(BGP, r.Name, r.Neighbors.Read)
			note(RIB, r.Name, r.Paths.Read)
			note(FIB, r.Name, r.Routes.Read)
		}
		for _, t := range s.NodeTables {
			note(Kernel, t.Node, t.Routes.Read)
		}
		for _, n := range s.NodeNetworks {
			note(BGP, "BIRD on "+n.Node, n.BIRD.Read)
			note(Kernel, n.Node, n.Interfaces.Read)
		}
		for _, p := range s.Proxies {
			note(Agent, "kube-proxy on "+p.Node, p.Read)
		}
	}
	return func(p place) bool {
		_, node, _ := strings.Cut(p.where, " of ") // an interface is said to be of its node
		return layers[p.layer] || places[place{layer: p.layer, where: p.where}] || places[place{layer: p.layer, where: node}]
	}
}
