package snapshot

import "context"

// Firewall is the filter table of one node.
type Firewall struct {
	Node string `json:"node"`
	// Rules are the rules of the nft kind of iptables, and then the rules of the legacy kind: a
	// program in a pod may be of the other kind than the node's own.
	Rules List[Rule] `json:"rules"`
}

// Firewalls is the source of the nodes' filter tables. It needs root on the
// machine of the nodes' containers.
var Firewalls = perNode("filter tables", firewallReader, func(f Firewall) string { return f.Node },
	func(s *Snapshot) *[]Firewall { return &s.Firewalls })

func (f Firewall) parts() []part {
	return []part{listPart("filter table of "+f.Node, f.Rules, ruleState("filter table", f.Node))}
}

func firewallReader(node string, m Machine) func(context.Context) Firewall {
	return func(ctx context.Context) Firewall {
		return Firewall{Node: node, Rules: list(ctx, func(ctx context.Context) ([]Rule, error) {
			return rulesOfBothKinds(ctx, m, FilterTable)
		})}
	}
}
