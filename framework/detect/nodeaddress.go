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
	"github.com/relapse-dev/relapse/topology/lab/router"
)

// Kinds of findings of NodeAddress. Object is always the node.
const (
	// WrongAddress: a CNI speaks for its node from an address that is none of
	// the Node's InternalIPs. Active if sessions of Calico's mesh with the node
	// are missing; else latent. Not found while every session is up and
	// somebody has chosen the address: Calico was given it, or the interface
	// or subnet that it is of.
	WrongAddress = "wrong-address"
	// NextAddress: Calico would take another address than it has when it looks
	// again, after a while or at its next start, and that is none of the
	// Node's InternalIPs. Latent.
	NextAddress = "next-address"
	// AddedInterface: an interface with an address appeared after boot, and
	// whether Calico will take that address cannot be told. Latent.
	AddedInterface = "added-interface"
	// SessionDown: a node lacks BGP sessions that the list of nodes demands,
	// while its address is right. Active, and settling until they have been
	// missing for longer than sessions take to come up.
	SessionDown = "session-down"
	// DuplicateAddress: two nodes have the same address of Calico's. Active.
	DuplicateAddress = "duplicate-address"
)

// sessionGrace is how long a session of Calico's mesh may be down and still be
// coming up: BIRD's connect retry, and a calico-node that restarts. Where the
// node's address is wrong there is none.
const sessionGrace = 10 * time.Second

// NodeAddress compares the address that a CNI took for its node with what
// Kubernetes knows the node by, and Calico's BGP mesh with the list of nodes;
// and it foretells what Calico's autodetection will take when it looks next.
//
// The mesh is looked at where some node's BIRD has a session of it (protocols
// named Mesh_*, as Calico's bird.cfg.template names them): a cluster without
// one has another design. A session that is missing is settling while it may
// still be coming up; with a wrong address it is not, for then it will not.
type NodeAddress struct{}

// Name implements Detector.
func (NodeAddress) Name() string { return "node-address" }

// Reads implements Detector.
func (NodeAddress) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Nodes, snapshot.CiliumNodes, snapshot.CalicoAgents, snapshot.NodeNetworks, snapshot.NodeTables}
}

// Detect implements Detector. Findings are in order of node and kind, an active
// one before a settling one.
func (d NodeAddress) Detect(history []snapshot.Snapshot) []Finding {
	if len(history) == 0 || !history[len(history)-1].Nodes.Read {
		return nil
	}
	a := addressing{history: history, now: history[len(history)-1], wrong: map[string]bool{}}
	a.missing = missingSessions(a.now)
	var findings []Finding
	for _, n := range a.now.Nodes.Items {
		findings = append(findings, a.wrongAddresses(n)...)
		findings = append(findings, a.duplicates(n)...)
		findings = append(findings, a.next(n)...)
	}
	findings = append(findings, a.lackingSessions()...)
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Object.name, b.Object.name), cmp.Compare(a.Kind, b.Kind))
	})
	for i := range findings {
		findings[i].Detector = d.Name()
		findings[i].Owner = findings[i].Object.name
	}
	return findings
}

type addressing struct {
	history []snapshot.Snapshot
	now     snapshot.Snapshot
	missing []missing // now
	// wrong are the nodes that have another address of Calico's than an
	// InternalIP.
	wrong map[string]bool
}

const calico = "Calico"

// claim is an address that a CNI takes for its node.
type claim struct {
	cni  string // whose it is
	says string // where it says so
	addr netip.Addr
}

// claims are what CNIs say of a node.
func (a addressing) claims(n snapshot.Node) []claim {
	var all []claim
	if p := n.Calico.Address; p.IsValid() {
		all = append(all, claim{calico, "the annotation projectcalico.org/IPv4Address", p.Addr()})
	}
	for _, c := range a.now.CiliumNodes.Items {
		if c.Name != n.Name {
			continue
		}
		for _, addr := range c.InternalIPs {
			all = append(all, claim{"Cilium", "its CiliumNode", addr})
		}
	}
	for _, addr := range n.KubeRouterAddresses {
		all = append(all, claim{"kube-router", "the annotation kube-router.io/bgp-local-addresses", addr})
	}
	return all
}

// wrongAddresses are findings of claims that are none of the Node's
// InternalIPs. Addresses of another family than those are not compared.
func (a addressing) wrongAddresses(n snapshot.Node) []Finding {
	var findings []Finding
	for _, c := range a.claims(n) {
		comparable := slices.ContainsFunc(n.InternalIPs, func(ip netip.Addr) bool { return ip.Is4() == c.addr.Is4() })
		if !comparable || slices.Contains(n.InternalIPs, c.addr) {
			continue
		}
		f := Finding{Kind: WrongAddress, State: Latent, Object: Named(n.Name), Announcer: c.addr.String()}
		hurt := ""
		if c.cni == calico {
			a.wrong[n.Name] = true
			if sessions := with(a.missing, n.Name); len(sessions) > 0 {
				f.State, hurt = Active, ": "+saySessions(sessions)
			} else if agent, ok := a.agent(n.Name); ok && chosen(agent) {
				continue
			}
		}
		f.Says = fmt.Sprintf("%s speaks for %s from %s%s, by %s; but the Node's InternalIP is %s%s.",
			c.cni, n.Name, c.addr, a.sayInterface(n, c.addr), c.says, and(n.InternalIPs), hurt)
		findings = append(findings, f)
	}
	return findings
}

// chosen tells whether an operator chose which address Calico takes. While the
// sessions are up, an address other than the InternalIP is then intended.
func chosen(agent snapshot.CalicoAgent) bool {
	if len(agent.Unknown) > 0 {
		return false
	}
	if settings(agent).Fixed(true) {
		return true
	}
	for _, vague := range []string{"", autodetection.FirstFound, autodetection.KubernetesInternalIP} {
		if agent.Method == vague {
			return false
		}
	}
	return !strings.HasPrefix(agent.Method, autodetection.SkipInterface)
}

func settings(agent snapshot.CalicoAgent) autodetection.Settings {
	return autodetection.Settings{IP: agent.IP, Method: agent.Method}
}

// agent is the calico-node of a node.
func (a addressing) agent(node string) (snapshot.CalicoAgent, bool) {
	i := slices.IndexFunc(a.now.CalicoAgents.Items, func(c snapshot.CalicoAgent) bool { return c.Node == node })
	if i < 0 {
		return snapshot.CalicoAgent{}, false
	}
	return a.now.CalicoAgents.Items[i], true
}

// duplicates finds a node whose address another one has as well. Both are
// named, each in its own finding.
func (a addressing) duplicates(n snapshot.Node) []Finding {
	if !n.Calico.Address.IsValid() {
		return nil
	}
	holder, there := a.holder(n.Name, n.Calico.Address.Addr())
	if !there {
		return nil
	}
	return []Finding{{
		Kind: DuplicateAddress, State: Active, Object: Named(n.Name), Announcer: n.Calico.Address.Addr().String(),
		Says: fmt.Sprintf("Calico speaks for %s from %s%s, and for %s from the same address: BIRD on either takes the other for itself.",
			n.Name, n.Calico.Address.Addr(), a.sayInterface(n, n.Calico.Address.Addr()), holder),
	}}
}

// holder is another node for which Calico has an address.
func (a addressing) holder(node string, addr netip.Addr) (string, bool) {
	for _, o := range a.now.Nodes.Items {
		if o.Name != node && o.Calico.Address.IsValid() && o.Calico.Address.Addr() == addr {
			return o.Name, true
		}
	}
	return "", false
}

// next foretells what Calico will take for a node.
func (a addressing) next(n snapshot.Node) []Finding {
	interfaces, read := a.interfaces(n.Name)
	agent, ok := a.agent(n.Name)
	if !read || !ok || !n.Calico.Address.IsValid() {
		return nil
	}
	if len(agent.Unknown) > 0 {
		return a.added(n, interfaces, fmt.Sprintf("%s of pod %s is not in the pod", and(agent.Unknown), agent.Pod))
	}
	if settings(agent).Fixed(true) {
		return nil
	}
	choice, err := autodetection.Choose(agent.Method, a.host(n, interfaces))
	switch {
	case errors.Is(err, autodetection.ErrNone): // it keeps what it has
		return nil
	case err != nil:
		return a.added(n, interfaces, err.Error())
	case choice.Address.Addr() == n.Calico.Address.Addr(), slices.Contains(n.InternalIPs, choice.Address.Addr()):
		return nil
	}
	method := agent.Method
	if method == "" {
		method = autodetection.FirstFound
	}
	f := Finding{Kind: NextAddress, State: Latent, Object: Named(n.Name), Announcer: choice.Address.Addr().String()}
	f.Says = fmt.Sprintf("Calico will move %s from %s to %s%s when it looks next, every %s or at its next start: "+
		"its method is %s, and the Node's InternalIP is %s.",
		n.Name, n.Calico.Address.Addr(), choice.Address.Addr(), a.sayInterface(n, choice.Address.Addr()), agent.Poll, method, and(n.InternalIPs))
	if holder, taken := a.holder(n.Name, choice.Address.Addr()); taken {
		f.Says = strings.TrimSuffix(f.Says, ".") + fmt.Sprintf("; %s has that address, so calico-node will give its own up and end.", holder)
	}
	return []Finding{f}
}

// added finds interfaces that appeared after boot. It is asked where Calico's
// choice cannot be foretold; why says for what reason.
func (a addressing) added(n snapshot.Node, interfaces []snapshot.Interface, why string) []Finding {
	var findings []Finding
	for _, i := range interfaces {
		how, appeared := a.appeared(n, i)
		_, passed := autodetection.Excluded(i.Name)
		usable := func(p netip.Prefix) bool {
			return p.Addr().Is4() && p.Addr().IsGlobalUnicast() && p.Addr() != n.Calico.Address.Addr() && !slices.Contains(n.InternalIPs, p.Addr())
		}
		at := slices.IndexFunc(i.Addresses, usable)
		if !appeared || passed || at < 0 {
			continue
		}
		findings = append(findings, Finding{
			Kind: AddedInterface, State: Latent, Object: Named(n.Name), Announcer: i.Addresses[at].Addr().String(),
			Says: fmt.Sprintf("%s has an interface %s with %s, which %s. Whether Calico takes that address in place of %s cannot be told: %s.",
				n.Name, i.Name, i.Addresses[at].Addr(), how, n.Calico.Address.Addr(), why),
		})
	}
	return findings
}

// interfaces are those of a node, if they were read.
func (a addressing) interfaces(node string) ([]snapshot.Interface, bool) {
	return interfacesAt(a.now, node)
}

func interfacesAt(s snapshot.Snapshot, node string) ([]snapshot.Interface, bool) {
	for _, n := range s.NodeNetworks {
		if n.Node == node && n.Interfaces.Read {
			return n.Interfaces.Items, true
		}
	}
	return nil, false
}

// host is a node as autodetection sees it.
func (a addressing) host(n snapshot.Node, interfaces []snapshot.Interface) autodetection.Host {
	h := autodetection.Host{InternalIPs: n.InternalIPs}
	for _, i := range interfaces {
		h.Interfaces = append(h.Interfaces, autodetection.Interface{Name: i.Name, Addresses: i.Addresses})
	}
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
	for _, i := range interfaces { // the table local comes first
		for _, p := range i.Addresses {
			if p.Addr() == to {
				return to, nil
			}
		}
	}
	var best *snapshot.Route
	for i, r := range routes {
		if r.Prefix.Contains(to) && (best == nil || r.Prefix.Bits() > best.Prefix.Bits() ||
			r.Prefix.Bits() == best.Prefix.Bits() && r.Metric < best.Metric) {
			best = &routes[i]
		}
	}
	if best == nil || best.Type != router.TypeUnicast || len(best.NextHops) == 0 {
		return netip.Addr{}, errors.New("no route")
	}
	if best.Source.IsValid() {
		return best.Source, nil
	}
	var found []netip.Addr
	for _, hop := range best.NextHops {
		via := hop.Address
		if !via.IsValid() {
			via = to
		}
		if addr := sourceOn(interfaces, hop.Interface, via); addr.IsValid() && !slices.Contains(found, addr) {
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

// sayInterface says which interface of the node has an address, and whether it
// appeared after boot.
func (a addressing) sayInterface(n snapshot.Node, addr netip.Addr) string {
	interfaces, read := a.interfaces(n.Name)
	if !read {
		return ""
	}
	for _, i := range interfaces {
		if !slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == addr }) {
			continue
		}
		if how, appeared := a.appeared(n, i); appeared {
			return fmt.Sprintf(" of %s, which %s", i.Name, how)
		}
		return " of " + i.Name
	}
	return ", which no interface of it has"
}

// appeared tells whether an interface came after the node had booted, and how
// that is known: it was seen to come, or an earlier snapshot lacks it, or the
// kernel numbered it after the interface that the node is known by.
func (a addressing) appeared(n snapshot.Node, i snapshot.Interface) (how string, yes bool) {
	const after = "appeared after boot"
	if !i.Since.IsZero() {
		return fmt.Sprintf("%s (at %s)", after, i.Since.Format(time.TimeOnly)), true
	}
	for _, s := range a.history {
		earlier, read := interfacesAt(s, n.Name)
		if read && !slices.ContainsFunc(earlier, func(e snapshot.Interface) bool { return e.Name == i.Name && e.Index == i.Index }) {
			return fmt.Sprintf("%s (after %s)", after, s.Time.Format(time.TimeOnly)), true
		}
	}
	interfaces, _ := a.interfaces(n.Name)
	for _, first := range interfaces {
		known := slices.ContainsFunc(first.Addresses, func(p netip.Prefix) bool { return slices.Contains(n.InternalIPs, p.Addr()) })
		if known && first.Index < i.Index {
			return fmt.Sprintf("came after %s (index %d after %d)", first.Name, i.Index, first.Index), true
		}
	}
	return "", false
}
