package detect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Kinds of findings of SNAT.
const (
	// HiddenSource: a rule of a node, or a BPF program on egress, hides the
	// addresses of its pods from hosts outside, although the routers have routes to
	// them. Active when it has translated a flow. Until then a rule is a latent
	// finding, and a program none, because what it will do is unknown.
	HiddenSource = "hidden-source"
	// StaleTranslation: a flow keeps a translation that no rule makes any more.
	// Connection tracking keeps it for as long as packets flow. Active; latent where a native table of nftables,
	// which is not read, may make it (Observed).
	StaleTranslation = "stale-translation"
)

// SNAT compares the source address that a destination sees in pods' flows with the pods' own, and names the NAT rule
// that changes it. If no rule does, but a host outside has a connection from the node with the source port of a pod's
// flow, it names the BPF programs where packets leave the node. It does not examine pods to which no router has a
// route, because they must be translated; nor anything if no router was read; nor flows to endpoints of Services in
// the cluster, because kube-proxy translates flows whose replies would not come back to the node otherwise.
//
// A translation that the cluster's objects ask for is a hint (Observed): by natOutgoing of the pod's IPPool, towards
// what is in no pool; by enable-ipv4-masquerade of Cilium's ConfigMap, towards what is outside of its native routing
// range; or to an address that is none of the node's, or that a rule names, as egress gateways have. Cilium's chart
// sets that key by default, so with native routing the finding is latent towards private addresses, unless
// ip-masq-agent is asked for. Where Cilium runs and its ConfigMap was not read (Unasked), nothing is found.
// kube-router's own rule is a hint as well, since kube-router takes it away where it is told to
// (--enable-pod-egress=false). Whether another program was told to hide pods is not read: its translations are found
// as if it were not.
type SNAT struct {
	// Peering: where it is observed, nobody has said that pods' addresses are to be seen.
	Peering Peering
}

func (SNAT) Name() string { return "snat" }

func (d SNAT) Reads() []snapshot.Source {
	reads := []snapshot.Source{snapshot.Nodes, snapshot.Pods, snapshot.Routers, snapshot.NAT, snapshot.Sockets}
	if d.Peering == Observed {
		reads = append(reads, snapshot.CalicoPools, snapshot.CiliumNodes, snapshot.ConfigMaps(CiliumConfig), snapshot.NodeNetworks)
	}
	return reads
}

// CiliumConfig is the ConfigMap of Cilium's agents, under the name that the vendor's chart gives it.
const CiliumConfig = "kube-system/cilium-config"

func ciliumConfig(s snapshot.Snapshot) map[string]string {
	m, _ := each.First(s.ConfigMaps.Items, func(m snapshot.ConfigMap) bool { return m.String() == CiliumConfig })
	return m.Data
}

// Unasked reports whether Cilium runs, or may, and it is not known what it was told to hide (Observed).
func (d SNAT) Unasked(s snapshot.Snapshot) bool {
	return d.Peering == Observed && (!s.CiliumNodes.Read || len(s.CiliumNodes.Items) > 0) && ciliumConfig(s) == nil
}

// Detect implements Detector. Findings are in order of node; those of one node are about rules first, then programs,
// then stale translations.
func (d SNAT) Detect(history []snapshot.Snapshot, _ *Index) []Finding {
	now := history[len(history)-1]
	if !now.Pods.Read || len(now.NAT) == 0 || d.Unasked(now) {
		return nil
	}
	var findings []Finding
	indexed, inside := lookups(history), inCluster(now)
	for _, n := range now.NAT {
		if n.Rules.Read {
			findings = append(findings, d.node(indexed, n, inside)...)
		}
	}
	return findings
}

// hidden is what is hidden by one rule, by the BPF programs where packets
// leave the node, or by a translation that no rule makes any more.
type hidden struct {
	rule     snapshot.Rule
	programs []snapshot.Program
	pods     []snapshot.Pod
	route    podRoute
	// flow is an example of a translated flow, and host the host outside that has it among its
	// sockets; empty if none does. Flows is zero for a rule that has not translated any flow yet.
	flow  snapshot.Flow
	host  string
	flows int
	// wanted says which object asks for it; empty if none does.
	wanted string
}

// wanted says what asks for the translation of a pod's flow; empty if nothing does, or where the
// routers that pods' addresses are for are declared.
func (d SNAT) wanted(now *lookup, node string, pod snapshot.Pod, f snapshot.Flow, by snapshot.Rule) string {
	if d.Peering == Declared {
		return ""
	}
	if strings.Contains(by.Text, "--match-set kube-router-pod-subnets src") {
		return askedByKubeRouter
	}
	nodes, seen := now.named()[node], f.SeenAs.Addr()
	onCard := func(n *snapshot.NodeNetwork) bool {
		return slices.ContainsFunc(n.Interfaces.Items, func(i snapshot.Interface) bool { return has(i, seen) })
	}
	own := len(nodes) > 0 && slices.Contains(nodes[0].InternalIPs, seen) || by.To != seen && slices.ContainsFunc(now.networks()[node], onCard)
	if len(nodes) > 0 && seen.Is4() && !own {
		return fmt.Sprintf("%s is no address of %s, as that of an egress gateway", seen, node)
	}
	poolAt := func(a netip.Addr) int {
		return slices.IndexFunc(now.CalicoPools.Items, func(p snapshot.CalicoPool) bool { return p.CIDR.Contains(a) })
	}
	if pool := poolAt(pod.IP); pool >= 0 && now.CalicoPools.Items[pool].NATOutgoing && poolAt(f.Destination.Addr()) < 0 {
		return fmt.Sprintf("IPPool %s asks for it (natOutgoing)", now.CalicoPools.Items[pool].Name)
	}
	config := ciliumConfig(now.Snapshot)
	if native, asks := masquerades(config); asks && !native.Contains(f.Destination.Addr()) {
		if byDefault(config) && f.Destination.Addr().IsPrivate() {
			return askedByDefault
		}
		return askedByCilium
	}
	return ""
}

// askedByDefault is latent, because nobody may have asked.
const (
	askedByCilium  = "ConfigMap " + CiliumConfig + " asks for it (enable-ipv4-masquerade)"
	askedByDefault = "ConfigMap " + CiliumConfig + " asks for it (enable-ipv4-masquerade), as the chart does by default, and routing is native"
)

// byDefault reports whether Cilium's configuration hides pods as the chart does by default, though routing
// is native: pods' own addresses are not needed outside where there is a tunnel, the default.
func byDefault(config map[string]string) bool {
	return routesNatively(config) && config["enable-ip-masq-agent"] != "true"
}

func routesNatively(config map[string]string) bool {
	return config["routing-mode"] == "native" || config["tunnel"] == "disabled"
}

// hidesWithin reports whether a router has a route to private addresses that are neither in Cilium's native range nor
// nodes' addresses.
func (l *lookup) hidesWithin() bool {
	native, _ := masquerades(ciliumConfig(l.Snapshot))
	ofNode := func(p netip.Prefix) bool {
		return slices.ContainsFunc(l.Nodes.Items, func(n snapshot.Node) bool { return slices.ContainsFunc(n.InternalIPs, p.Contains) })
	}
	for _, r := range l.Routers {
		for _, route := range r.Routes.Items {
			p := route.Prefix
			if p.Addr().Is4() && p.Addr().IsPrivate() && (p.Bits() < native.Bits() || !native.Contains(p.Addr())) && !ofNode(p) {
				return true
			}
		}
	}
	return false
}

// askedByKubeRouter is what asks for the rule of kube-router, whose sets have this name (pkg/controllers/routing/pod_egress.go).
const askedByKubeRouter = "kube-router asks for it (--enable-pod-egress)"

// wantedRule says what asks for a rule that has translated nothing yet: a rule of Cilium that spares what is routed
// natively.
func (d SNAT) wantedRule(now *lookup, r snapshot.Rule) string {
	native, asks := masquerades(ciliumConfig(now.Snapshot))
	if d.Peering == Declared || !asks || !strings.HasPrefix(r.Chain, "CILIUM_") ||
		native.IsValid() && (!r.Destination.Not || r.Destination.Range != native) {
		return ""
	}
	if byDefault(ciliumConfig(now.Snapshot)) && now.within() {
		return askedByDefault
	}
	return askedByCilium
}

// masquerades reports whether Cilium's configuration says by its key of 1.10 and later, and does not deny
// by the one before, that pods are hidden, and the range towards which they are not; invalid if it
// names none. The default, which is to hide them, is nobody's wish, but normal with a tunnel. A range that
// cannot be read may spare anything.
func masquerades(config map[string]string) (native netip.Prefix, asks bool) {
	// The keys from 1.11 on, and before.
	if text := cmp.Or(config["ipv4-native-routing-cidr"], config["native-routing-cidr"]); text != "" {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return netip.Prefix{}, false
		}
		native = p.Masked()
	}
	says := config["enable-ipv4-masquerade"]
	return native, config["masquerade"] != "false" && (says == "true" || says == "" && config != nil && !routesNatively(config))
}

func (d SNAT) node(history []*lookup, n snapshot.NodeNAT, inside map[netip.Addr]bool) []Finding {
	now, pods := history[len(history)-1], map[netip.Addr]snapshot.Pod{}
	for _, p := range now.podsOn()[n.Node] {
		pods[p.IP] = *p
	}
	chains := grouped(n.Rules.Items, func(r *snapshot.Rule) string { return r.Chain })()
	leaving := snapshot.ChainsFrom(n.Rules.Items, "POSTROUTING")
	var rules, byPrograms, left []*hidden // by rule, by route, by pod
	for _, f := range n.Flows.Items {
		pod, ok := pods[f.Source.Addr()]
		if !ok || f.Redirected && inside[f.AnsweredBy.Addr()] {
			continue
		}
		route, ok := now.routes().Lookup(pod.IP)
		if !ok {
			continue
		}
		if !f.Translated() {
			if past, ok := translatedPast(now, n.Node, f); ok && len(n.Programs.Items) > 0 && current(history, n.Node, f, past) {
				same := func(h *hidden) bool { return h.route.prefix == route.prefix }
				findOrAdd(&byPrograms, same, hidden{programs: n.Programs.Items}).add(now, pod, route, past)
			}
			continue
		}
		rule, ok := translates(chains, f)
		wanted := d.wanted(now, n.Node, pod, f, rule)
		if ok {
			findOrAdd(&rules, sameRule(rule, wanted), hidden{rule: rule, wanted: wanted}).add(now, pod, route, f)
		} else if live, _ := alive(history, n.Node, f); live {
			findOrAdd(&left, func(h *hidden) bool { return h.pods[0] == pod && h.wanted == wanted }, hidden{wanted: wanted}).add(now, pod, route, f)
		}
	}
	for _, rule := range n.Rules.Items {
		if !isTranslation(rule.Target) || !rule.Source.Range.IsValid() || rule.Source.Not || !slices.Contains(leaving, rule.Chain) {
			continue
		}
		for _, p := range now.podsOn()[n.Node] {
			route, ok := now.routes().Lookup(p.IP)
			if ok && pods[p.IP] == *p && rule.Source.Matches(p.IP) {
				wanted := d.wantedRule(now, rule)
				if wanted == askedByCilium && slices.ContainsFunc(rules, sameRule(rule, askedByDefault)) {
					wanted = askedByDefault // a flow within the site shows it
				}
				findOrAdd(&rules, sameRule(rule, wanted), hidden{rule: rule, wanted: wanted}).addPod(*p, route)
			}
		}
	}
	return slices.Concat(
		each.Of(rules, func(h *hidden) Finding { return d.byRule(n.Node, h) }),
		each.Of(byPrograms, func(h *hidden) Finding { return d.byProgram(n.Node, h) }),
		each.Of(left, func(h *hidden) Finding { return d.stale(n.Node, h) }))
}

func inCluster(s snapshot.Snapshot) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, p := range s.Pods.Items {
		all[p.IP] = true
		if p.IPv6.IsValid() {
			all[p.IPv6] = true
		}
	}
	for _, n := range s.Nodes.Items {
		for _, a := range n.InternalIPs {
			all[a] = true
		}
	}
	return all
}

func sameRule(rule snapshot.Rule, wanted string) func(*hidden) bool {
	return func(h *hidden) bool { return h.rule.Text == rule.Text && h.wanted == wanted }
}

func findOrAdd(all *[]*hidden, matches func(*hidden) bool, otherwise hidden) *hidden {
	if found, there := each.First(*all, matches); there {
		return found
	}
	*all = append(*all, &otherwise)
	return &otherwise
}

func (h *hidden) addPod(p snapshot.Pod, route podRoute) {
	if !slices.Contains(h.pods, p) {
		h.pods = append(h.pods, p)
	}
	h.route = route
}

func (h *hidden) add(now *lookup, p snapshot.Pod, route podRoute, f snapshot.Flow) {
	h.addPod(p, route)
	h.flows++
	// The example is one that a host outside has seen, if there is one.
	if host := seenBy(now, f); h.flows == 1 || h.host == "" && host != "" {
		h.flow, h.host = f, host
	}
}

// seenBy names the host outside that has the flow among its sockets.
func seenBy(now *lookup, f snapshot.Flow) string {
	if f.Protocol != "tcp" {
		return ""
	}
	return now.outside()[snapshot.Socket{Local: f.Destination, Remote: f.SeenAs}]
}

// translatedPast returns a flow as its destination sees it, if the translation bypasses the node's
// connection tracking: a host outside has a connection from an address of the node, with the source
// port of the pod's flow, and none from the pod. A translation keeps the source port if it is free.
func translatedPast(now *lookup, node string, f snapshot.Flow) (snapshot.Flow, bool) {
	nodes := now.named()[node]
	if len(nodes) == 0 || seenBy(now, f) != "" {
		return f, false
	}
	for _, a := range nodes[0].InternalIPs {
		f.SeenAs = netip.AddrPortFrom(a, f.Source.Port())
		if seenBy(now, f) != "" {
			return f, true
		}
	}
	return f, false
}

// current reports whether packets of a flow still arrive, and whether the
// connection past, which a host outside has, is the same traffic. The node's
// kernel and the hosts outside keep ended connections for minutes: an old
// connection from the node and a new flow of a pod may have the same port.
func current(history []*lookup, node string, f, past snapshot.Flow) bool {
	then, _, there, read := earlier(history, node, f)
	if there || !read {
		return f.Established
	}
	return seenBy(then, past) == ""
}

type podRoute struct {
	prefix  netip.Prefix
	routers []string
}

func isTranslation(target string) bool { return target == "MASQUERADE" || target == "SNAT" }

// maxDepth is how deep chains may call each other: the kernel rejects loops, but a
// recorded table may have one.
const maxDepth = 16

// translates returns the rule that gives a flow the source that the
// destination sees. A rule with a condition that cannot be checked here, such
// as a set or a mark, is returned only if no other rule fits.
func translates(chains map[string][]*snapshot.Rule, f snapshot.Flow) (found snapshot.Rule, there bool) {
	var rule, maybe *snapshot.Rule
	var walk func(chain string, sure bool, depth int) (ended bool)
	walk = func(chain string, sure bool, depth int) bool {
		for _, r := range chains[chain] {
			if depth > maxDepth || !r.Source.Matches(f.Source.Addr()) || !r.Destination.Matches(f.Destination.Addr()) {
				continue
			}
			matches := sure && !r.Conditional // the flow is known to come here and to match
			switch {
			case isTranslation(r.Target) && r.To.IsValid() && r.To != f.SeenAs.Addr():
			case isTranslation(r.Target) && matches:
				rule = r
				return true
			case isTranslation(r.Target):
				maybe = cmp.Or(maybe, r)
			case r.Target == "ACCEPT" && matches && r.Out == "":
				return true
			case r.Target == "RETURN" && matches && r.Out == "":
				return false
			case r.Target == "RETURN" && r.Unmarked && !f.Redirected:
				// What follows is for packets with a mark. kube-proxy sets it on packets
				// to Services, which this flow does not go to.
				return false
			case r.Target == "RETURN": // what follows may not be for this flow
				sure = false
			default:
				if walk(r.Target, matches, depth+1) {
					return true
				}
			}
		}
		return false
	}
	walk("POSTROUTING", true, 0)
	if rule = cmp.Or(rule, maybe); rule != nil {
		return *rule, true
	}
	return found, false
}

// silentFor is for how long a flow must have been silent to count as ended, where the kernel does
// not know. Entries expire by whole seconds, so that less proves nothing.
const silentFor = flowHistory

// alive reports whether packets of a flow still arrive. That is not known without an earlier
// snapshot, and where that one lacks the node's flows: a flow is taken for alive then.
func alive(history []*lookup, node string, f snapshot.Flow) (alive, certain bool) {
	if f.Protocol == "tcp" {
		return f.Established, true
	}
	then, was, there, read := earlier(history, node, f)
	if there { // a packet in between would have reset it
		return was.Expires-f.Expires < history[len(history)-1].Time.Sub(then.Time)-time.Second, true
	}
	return true, read // if it was read, the flow is new
}

// earlier is the newest snapshot that is older by silentFor, with a flow in it, and whether the node's flows were
// read there. Forget removes the flows of older snapshots.
func earlier(history []*lookup, node string, f snapshot.Flow) (then *lookup, was snapshot.Flow, there, read bool) {
	for _, then := range slices.Backward(history) {
		if history[len(history)-1].Time.Sub(then.Time) >= silentFor {
			was, there, read = then.flow(node, f)
			return then, was, there, read
		}
	}
	return nil, was, false, false
}

func (d SNAT) finding(node string, h *hidden) Finding {
	f := Finding{State: Active, Owner: node, Routers: h.route.routers, Pods: each.Of(h.pods, snapshot.Pod.String)}
	switch h.wanted {
	case "":
	case askedByDefault:
		f.State = Latent
	default:
		f.State = Hint
	}
	return f
}

func (d SNAT) byRule(node string, h *hidden) Finding {
	f := d.finding(node, h)
	f.Kind = HiddenSource
	f.Object = Named("rule " + h.rule.Comment)
	if strings.HasPrefix(h.rule.Comment, "cali:") { // a checksum of the rule's, by which felix finds it again
		f.Object = Named("rule in " + h.rule.Chain)
	}
	if r := h.rule.Source; r.Range.IsValid() && !r.Not {
		f.Object = Prefix(r.Range)
	}
	routed := fmt.Sprintf("%s a route to them (%s)", do(h.route.routers, "has", "have"), h.route.prefix)
	if h.flows == 0 {
		if h.wanted == "" {
			f.State = Latent
		}
		f.Says = fmt.Sprintf("%s will translate the addresses of %d %s to its own, by the rule %q, although %s%s.",
			node, len(h.pods), plural(len(h.pods), "pod", "pods"), h.rule.Text, routed, h.sayWanted())
		return f
	}
	f.Says = fmt.Sprintf("%s: %s translates it, by the rule %q, although %s%s.", h.sees(), node, h.rule.Text, routed, h.sayWanted())
	return f
}

func (d SNAT) byProgram(node string, h *hidden) Finding {
	f := d.finding(node, h)
	f.Kind, f.Object = HiddenSource, Prefix(h.route.prefix)
	programs := each.Of(h.programs, func(p snapshot.Program) string {
		return fmt.Sprintf("BPF program %s on egress of %s", p.Name, p.Device)
	})
	f.Says = fmt.Sprintf("%s: no rule of %s translates it, and after the rules it passes %s, although %s a route to it (%s).",
		h.sees(), node, and(programs), do(h.route.routers, "has", "have"), h.route.prefix)
	return f
}

func (d SNAT) stale(node string, h *hidden) Finding {
	f := d.finding(node, h)
	f.Kind, f.Object = StaleTranslation, Named(h.flow.Source.Addr().String())
	if d.Peering == Observed {
		if f.State == Active {
			f.State = Latent // nobody knows what else is on the node
		}
		f.Says = fmt.Sprintf("%s, although no rule of %s that was read translates it: a table of nftables that iptables has not made, "+
			"which is not read, does so, or connection tracking keeps the translation of %d %s for as long as packets flow%s.",
			h.sees(), node, h.flows, plural(h.flows, "flow", "flows"), h.sayWanted())
		return f
	}
	f.Says = fmt.Sprintf("%s, although no rule of %s translates it any more: connection tracking keeps the translation of %d %s "+
		"for as long as packets flow (conntrack -D -s %s ends it)%s.",
		h.sees(), node, h.flows, plural(h.flows, "flow", "flows"), h.flow.Source.Addr(), h.sayWanted())
	return f
}

func (h *hidden) sayWanted() string {
	if h.wanted == "" {
		return ""
	}
	return "; " + h.wanted
}

// sees says which source address the destination of the example sees, and whose it is.
func (h *hidden) sees() string {
	source := h.flow.Source.Addr()
	pod, _ := each.First(h.pods, func(p snapshot.Pod) bool { return p.IP == source })
	if h.host != "" {
		return fmt.Sprintf("%s (%s) sees %s, which is pod %s (%s)", h.host, h.flow.Destination, h.flow.SeenAs.Addr(), pod, source)
	}
	return fmt.Sprintf("%s receives %s packets from %s, which is pod %s (%s)",
		h.flow.Destination, h.flow.Protocol, h.flow.SeenAs.Addr(), pod, source)
}
