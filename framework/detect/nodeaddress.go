package detect

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect/autodetection"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Kinds of findings of NodeAddress. Object is always the node.
const (
	// WrongAddress: a CNI uses an address for its node that is none of the
	// Node's InternalIPs. Active if sessions of Calico's mesh with the node are
	// missing; else latent. Not found while every session is up and the operator
	// has configured the address, or the interface or subnet that it is in.
	WrongAddress = "wrong-address"
	// NextAddress: at its next autodetection, after the poll interval or at its next start, Calico
	// would choose another address than it has, which is none of the Node's InternalIPs. Latent.
	NextAddress = "next-address"
	// AddedInterface: an interface with an address appeared after boot, and
	// whether Calico will choose that address is unknown. Latent.
	AddedInterface = "added-interface"
	// SessionDown: a node lacks BGP sessions that the list of nodes demands,
	// while its address is right. Active, and pending until they have been
	// missing for longer than sessions take to come up.
	SessionDown = "session-down"
	// DuplicateAddress: Calico uses the same address for two nodes. Active.
	DuplicateAddress = "duplicate-address"
)

// sessionGrace is how long a session of Calico's mesh may be down and still be coming up: BIRD's
// connect retry, and a calico-node that restarts. Where the node's address is wrong there is none.
const sessionGrace = 10 * time.Second

// NodeAddress compares the address that a CNI uses for its node with the Node's
// InternalIPs, and Calico's BGP mesh with the list of nodes; and it predicts what
// Calico's next autodetection will choose.
//
// The mesh is checked where the BIRD of some node has a session of it (protocols
// named Mesh_*, as in Calico's bird.cfg.template): a cluster without one has
// another design. A session that is missing is pending while it may still come up;
// with a wrong address it is active at once, because it cannot come up.
type NodeAddress struct {
	// Peering: kube-router's addresses are compared in a lab alone (Declared). Elsewhere an operator who wants other
	// addresses has written its annotation.
	Peering Peering
}

func (NodeAddress) Name() string { return "node-address" }

func (NodeAddress) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Nodes, snapshot.CiliumNodes, snapshot.CalicoAgents, snapshot.NodeNetworks, snapshot.NodeTables}
}

// Detect implements Detector. Findings are in order of node and kind, an active
// one before a pending one.
func (d NodeAddress) Detect(history []snapshot.Snapshot, _ *Index) []Finding {
	if !history[len(history)-1].Nodes.Read {
		return nil
	}
	a := newAddressing(history, d.Peering)
	var findings []Finding
	for _, n := range a.now.Nodes.Items {
		findings = append(findings, a.wrongAddresses(n)...)
		findings = append(findings, a.duplicates(n)...)
		findings = append(findings, a.next(n)...)
	}
	findings = append(findings, a.lackingSessions()...)
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Kind, b.Kind))
	})
	for i := range findings {
		findings[i].Owner = findings[i].Object.String()
	}
	return findings
}

type addressing struct {
	history []snapshot.Snapshot
	now     snapshot.Snapshot
	missing []missing // now
	// wrong are the nodes for which Calico uses an address that is no InternalIP.
	wrong   map[string]bool
	peering Peering

	// By node.
	cilium   map[string][]*snapshot.CiliumNode
	agents   map[string][]*snapshot.CalicoAgent // the first counts
	networks map[string][]snapshot.Interface
	// holders are the nodes for which Calico has an address, in order.
	holders map[netip.Addr][]string
}

func newAddressing(history []snapshot.Snapshot, p Peering) addressing {
	a := addressing{
		history: history, now: history[len(history)-1], wrong: map[string]bool{}, peering: p,
		networks: map[string][]snapshot.Interface{}, holders: map[netip.Addr][]string{},
	}
	a.missing = missingSessions(a.now)
	a.cilium = grouped(a.now.CiliumNodes.Items, func(c *snapshot.CiliumNode) string { return c.Name })()
	a.agents = grouped(a.now.CalicoAgents.Items, func(c *snapshot.CalicoAgent) string { return c.Node })()
	for _, n := range slices.Backward(a.now.NodeNetworks) {
		if n.Interfaces.Read {
			a.networks[n.Node] = n.Interfaces.Items
		}
	}
	for _, n := range a.now.Nodes.Items {
		if addr := n.Calico.Address.Addr(); addr.IsValid() {
			a.holders[addr] = append(a.holders[addr], n.Name)
		}
	}
	return a
}

const calico = "Calico"

type claim struct {
	cni  string
	says string // where it is recorded
	addr netip.Addr
}

func (a addressing) claims(n snapshot.Node) []claim {
	var all []claim
	if p := n.Calico.Address; p.IsValid() {
		all = append(all, claim{calico, "the annotation projectcalico.org/IPv4Address", p.Addr()})
	}
	for _, c := range a.cilium[n.Name] {
		all = append(all, each.Of(c.InternalIPs, func(addr netip.Addr) claim { return claim{"Cilium", "its CiliumNode", addr} })...)
	}
	if a.peering == Declared {
		for _, addr := range n.KubeRouterAddresses {
			all = append(all, claim{"kube-router", "the annotation kube-router.io/bgp-local-addresses", addr})
		}
	}
	return all
}

// wrongAddresses finds claims that are none of the Node's InternalIPs. An address is compared only if the Node has an
// InternalIP of its family.
func (a addressing) wrongAddresses(n snapshot.Node) []Finding {
	var findings []Finding
	for _, c := range a.claims(n) {
		comparable := slices.ContainsFunc(n.InternalIPs, func(ip netip.Addr) bool { return ip.Is4() == c.addr.Is4() })
		if !comparable || slices.Contains(n.InternalIPs, c.addr) {
			continue
		}
		f := Finding{Kind: WrongAddress, State: Latent, Object: Named(n.Name), Announcer: c.addr.String()}
		sessionsDown := ""
		if c.cni == calico {
			a.wrong[n.Name] = true
			if sessions := with(a.missing, n.Name); len(sessions) > 0 {
				f.State, sessionsDown = Active, ": "+saySessions(sessions)
			} else if agents := a.agents[n.Name]; len(agents) > 0 && chosen(agents[0]) {
				continue
			}
		}
		f.Says = fmt.Sprintf("For %[2]s, %[1]s uses address %[3]s%[4]s, according to %[5]s; but the Node's InternalIP is %[6]s%[7]s.",
			c.cni, n.Name, c.addr, a.sayInterface(n, c.addr), c.says, and(n.InternalIPs), sessionsDown)
		findings = append(findings, f)
	}
	return findings
}

// chosen reports whether an operator chose which address Calico uses. While the
// sessions are up, an address other than the InternalIP is then intended.
func chosen(agent *snapshot.CalicoAgent) bool {
	if len(agent.Unknown) > 0 {
		return false
	}
	vague := []string{"", autodetection.FirstFound, autodetection.KubernetesInternalIP}
	return autodetection.Fixed(agent.IP) ||
		!slices.Contains(vague, agent.Method) && !strings.HasPrefix(agent.Method, autodetection.SkipInterface)
}

// duplicates finds a node whose address another one has as well. Each of the two has a finding.
func (a addressing) duplicates(n snapshot.Node) []Finding {
	addr := n.Calico.Address.Addr()
	holder, there := a.holder(n.Name, addr)
	if !there {
		return nil
	}
	return []Finding{{
		Kind: DuplicateAddress, State: Active, Object: Named(n.Name), Announcer: addr.String(), Says: fmt.Sprintf(
			"For %s, Calico uses address %s%s, and the same one for %s: on each of the two, BIRD takes the other's address for its own.",
			n.Name, addr, a.sayInterface(n, addr), holder),
	}}
}

// holder is another node for which Calico has an address.
func (a addressing) holder(node string, addr netip.Addr) (string, bool) {
	return each.First(a.holders[addr], func(name string) bool { return name != node })
}

func (a addressing) next(n snapshot.Node) []Finding {
	interfaces, read := a.networks[n.Name]
	agents := a.agents[n.Name]
	if !read || len(agents) == 0 || !n.Calico.Address.IsValid() {
		return nil
	}
	agent := agents[0]
	if len(agent.Unknown) > 0 {
		return a.added(n, interfaces, fmt.Sprintf("the value of %s is not in the spec of pod %s", and(agent.Unknown), agent.Pod))
	}
	if autodetection.Fixed(agent.IP) {
		return nil
	}
	choice, err := autodetection.Choose(agent.Method, a.host(n, interfaces))
	switch {
	case errors.Is(err, autodetection.ErrNone): // it keeps what it has
		return nil
	case err != nil:
		return a.added(n, interfaces, err.Error())
	case choice.Addr() == n.Calico.Address.Addr(), slices.Contains(n.InternalIPs, choice.Addr()):
		return nil
	}
	method := cmp.Or(agent.Method, autodetection.FirstFound)
	to, exits := choice.Addr(), ""
	if holder, found := a.holder(n.Name, to); found {
		exits = fmt.Sprintf("; %s has that address already, so calico-node will exit", holder)
	}
	return []Finding{{Kind: NextAddress, State: Latent, Object: Named(n.Name), Announcer: to.String(), Says: fmt.Sprintf(
		"Calico will change the address of %s from %s to %s%s at its next autodetection, every %s or at its next start: "+
			"its method is %s, and the Node's InternalIP is %s%s.",
		n.Name, n.Calico.Address.Addr(), to, a.sayInterface(n, to), agent.Poll, method, and(n.InternalIPs), exits)}}
}

// added finds interfaces that appeared after boot. It is for nodes for which Calico's choice cannot be predicted; why
// says for what reason.
func (a addressing) added(n snapshot.Node, interfaces []snapshot.Interface, why string) []Finding {
	var findings []Finding
	for _, i := range interfaces {
		how, appeared := a.appeared(n, i)
		usable := func(p netip.Prefix) bool {
			return p.Addr().Is4() && p.Addr().IsGlobalUnicast() && p.Addr() != n.Calico.Address.Addr() && !slices.Contains(n.InternalIPs, p.Addr())
		}
		at := slices.IndexFunc(i.Addresses, usable)
		if !appeared || autodetection.Excluded(i.Name) || at < 0 {
			continue
		}
		findings = append(findings, Finding{
			Kind: AddedInterface, State: Latent, Object: Named(n.Name), Announcer: i.Addresses[at].Addr().String(),
			Says: fmt.Sprintf("%s has an interface %s with %s, which %s. Whether Calico will use that address in place of %s is unknown: %s.",
				n.Name, i.Name, i.Addresses[at].Addr(), how, n.Calico.Address.Addr(), why),
		})
	}
	return findings
}

func (a addressing) host(n snapshot.Node, interfaces []snapshot.Interface) autodetection.Host {
	h := autodetection.Host{InternalIPs: n.InternalIPs, Interfaces: interfaces}
	for _, t := range a.now.NodeTables {
		if t.Node == n.Name && t.Routes.Read {
			h.Source = func(to netip.Addr) (netip.Addr, error) { return source(t.Routes.Items, interfaces, to) }
		}
	}
	return h
}

// source returns the address that a kernel sends from to a destination, by its
// main table: the route's own source, else the first address of the interface
// in whose subnet the next hop is, else its first.
func source(routes []snapshot.Route, interfaces []snapshot.Interface, to netip.Addr) (netip.Addr, error) {
	if slices.ContainsFunc(interfaces, func(i snapshot.Interface) bool { return has(i, to) }) {
		return to, nil // the kernel looks into the table local first
	}
	best := snapshot.RouteTo(routes, to)
	if best == nil || best.Type != snapshot.RouteUnicast || len(best.NextHops) == 0 {
		return netip.Addr{}, errors.New("no route")
	}
	if best.Source.IsValid() {
		return best.Source, nil
	}
	var found []netip.Addr
	for _, hop := range best.NextHops {
		if addr := sourceOn(interfaces, hop.Interface, cmp.Or(hop.Address, to)); addr.IsValid() && !slices.Contains(found, addr) {
			found = append(found, addr)
		}
	}
	switch len(found) {
	case 0:
		return netip.Addr{}, errors.New("the interface of the route has no address")
	case 1:
		return found[0], nil
	}
	return netip.Addr{}, fmt.Errorf("the route has several next hops, from %s", and(found))
}

func has(i snapshot.Interface, addr netip.Addr) bool {
	return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == addr })
}

func sourceOn(interfaces []snapshot.Interface, name string, via netip.Addr) netip.Addr {
	first := netip.Addr{}
	for _, i := range interfaces {
		if i.Name != name {
			continue
		}
		for _, p := range i.Addresses {
			switch {
			case !p.Addr().Is4():
			case p.Contains(via):
				return p.Addr()
			case !first.IsValid():
				first = p.Addr()
			}
		}
	}
	return first
}

func (a addressing) sayInterface(n snapshot.Node, addr netip.Addr) string {
	interfaces, read := a.networks[n.Name]
	if !read {
		return ""
	}
	for _, i := range interfaces {
		if !has(i, addr) {
			continue
		}
		if how, appeared := a.appeared(n, i); appeared {
			return fmt.Sprintf(" of %s, which %s", i.Name, how)
		}
		return " of " + i.Name
	}
	return " (on none of its interfaces)"
}

// appeared reports whether an interface was added after the node had booted, and how that is known: the reader saw it
// appear, an earlier snapshot lacks it, or its index is higher than the index of the interface with the InternalIP.
func (a addressing) appeared(n snapshot.Node, i snapshot.Interface) (how string, yes bool) {
	const after = "appeared after boot"
	if !i.Since.IsZero() {
		return fmt.Sprintf("%s (at %s)", after, i.Since.Format(time.TimeOnly)), true
	}
	for _, s := range a.history {
		earlier, read := each.First(s.NodeNetworks, func(o snapshot.NodeNetwork) bool { return o.Node == n.Name && o.Interfaces.Read })
		same := func(e snapshot.Interface) bool { return e.Name == i.Name && e.Index == i.Index }
		if read && !slices.ContainsFunc(earlier.Interfaces.Items, same) {
			return fmt.Sprintf("%s (after %s)", after, s.Time.Format(time.TimeOnly)), true
		}
	}
	for _, first := range a.networks[n.Name] {
		primary := slices.ContainsFunc(n.InternalIPs, func(a netip.Addr) bool { return has(first, a) })
		if primary && first.Index < i.Index {
			return fmt.Sprintf("was added after %s (index %d, after %d)", first.Name, i.Index, first.Index), true
		}
	}
	return "", false
}
