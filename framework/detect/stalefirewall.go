package detect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Kinds of findings of StaleFirewallRules.
const (
	// FrozenRules: packets of a running pod pass rules that are no longer kept up
	// to date, and that end at a REJECT. Active.
	FrozenRules = "frozen-rules"
	// LeftoverRules: the same for an address that no pod has. Latent, until a pod gets it.
	LeftoverRules = "leftover-rules"
)

// Chains of kube-router's network policy controller.
const (
	podChains     = "KUBE-POD-FW-"        // one for each pod
	forwardJumper = "KUBE-ROUTER-FORWARD" // since v1.0 all jumps to them are in chains such as this
)

// StaleFirewallRules finds what kube-router before v1.0 leaves behind when a later version takes over: jumps from
// FORWARD, INPUT and OUTPUT straight into a pod's chain. v1.0 keeps its jumps in chains of its own and ignores the
// old ones, so the pods' chains stay as they were at the upgrade: they let through what the policies of that day
// allowed, and reject the rest. Flushing the filter table, or a reboot, removes them.
type StaleFirewallRules struct{}

func (StaleFirewallRules) Name() string { return "stale-firewall-rules" }

func (StaleFirewallRules) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Pods, snapshot.Firewalls}
}

// Detect implements Detector. Findings are in order of node and of the rules.
func (d StaleFirewallRules) Detect(history []snapshot.Snapshot, _ *Index) []Finding {
	now := history[len(history)-1]
	var findings []Finding
	for _, f := range now.Firewalls {
		for _, chain := range frozenChains(f.Rules.Items) {
			findings = append(findings, d.finding(now, f, chain))
		}
	}
	return findings
}

// frozenChain is a pod's chain that kube-router before v1.0 made.
type frozenChain struct {
	name string
	from []string // chains that lead into it
	pod  string   // its address, as the rules have it
}

// frozenChains lists the pods' chains that end at a REJECT and are entered
// from a chain of iptables' own, where later versions keep a chain between.
func frozenChains(rules []snapshot.Rule) []frozenChain {
	if !slices.ContainsFunc(rules, func(r snapshot.Rule) bool { return r.Target == forwardJumper }) {
		return nil // no later version runs, and the rules are kept up to date
	}
	var chains []frozenChain
	for _, r := range rules {
		if !strings.HasPrefix(r.Target, podChains) || !slices.Contains([]string{"INPUT", "FORWARD", "OUTPUT"}, r.Chain) ||
			!rejects(rules, r.Target) {
			continue
		}
		i := slices.IndexFunc(chains, func(c frozenChain) bool { return c.name == r.Target })
		if i < 0 {
			chains = append(chains, frozenChain{name: r.Target})
			i = len(chains) - 1
		}
		c := &chains[i]
		if !slices.Contains(c.from, r.Chain) {
			c.from = append(c.from, r.Chain)
		}
		for _, m := range []snapshot.Match{r.Destination, r.Source} {
			if c.pod == "" && m.Range.IsValid() && !m.Not {
				c.pod = m.Range.Addr().String()
			}
		}
	}
	return chains
}

// rejects reports whether packets that reach the end of a chain are rejected.
func rejects(rules []snapshot.Rule, chain string) bool {
	return slices.ContainsFunc(rules, func(r snapshot.Rule) bool {
		return r.Chain == chain && (r.Target == "REJECT" || r.Target == "DROP") &&
			!r.Conditional && r.Out == "" && !r.Source.Not && !r.Destination.Not
	})
}

func (d StaleFirewallRules) finding(now snapshot.Snapshot, f snapshot.Firewall, c frozenChain) Finding {
	finding := Finding{
		Kind: LeftoverRules, State: Latent, Object: Named(f.Node + " " + c.name), Owner: f.Node,
	}
	whose := fmt.Sprintf("%s, which no pod on it has", c.pod)
	for _, p := range now.Pods.Items {
		if p.Node == f.Node && (p.IP.String() == c.pod || p.IPv6.String() == c.pod) {
			finding.Kind, finding.State, finding.Pods = FrozenRules, Active, []string{p.String()}
			whose = fmt.Sprintf("pod %s (%s)", p, c.pod)
		}
	}
	if !now.Pods.Read {
		whose = c.pod + " (the pods could not be read)"
	}
	finding.Says = fmt.Sprintf("%s sends packets of %s from %s directly to %s, which ends at a REJECT. kube-router's "+
		"rules now start from %s: "+
		"that chain stays out of date until the filter table is flushed.", f.Node, whose, and(c.from), c.name, forwardJumper)
	return finding
}
