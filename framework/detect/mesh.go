package detect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// missing is a session of Calico's mesh that the list of nodes demands and that
// is not up, as one of its ends sees it.
type missing struct {
	ends
	// state and error are BIRD's; state is empty where the BIRD of the one
	// end has no neighbour of the other's address.
	state, error string
}

// ends are two nodes and the addresses that Calico has for them.
type ends struct {
	from, to       string
	source, target netip.Addr
}

// meshPrefix begins the names of the mesh's protocols in bird.cfg.template.
const meshPrefix = "Mesh_"

// missingSessions returns what the mesh lacks: each node is to have a session
// with the address that Calico has for each other node. Nodes whose BIRD was
// not read lack nothing, and neither do route reflectors.
func missingSessions(s snapshot.Snapshot) []missing {
	protocols := map[string]map[netip.Addr]snapshot.BIRDProtocol{}
	mesh := false
	for _, n := range s.NodeNetworks {
		if !n.BIRD.Read {
			continue
		}
		protocols[n.Node] = map[netip.Addr]snapshot.BIRDProtocol{}
		for _, p := range n.BIRD.Items {
			if p.Neighbor.IsValid() {
				protocols[n.Node][p.Neighbor] = p
			}
			mesh = mesh || strings.HasPrefix(p.Name, meshPrefix)
		}
	}
	if !mesh || !s.Nodes.Read {
		return nil
	}
	member := func(n snapshot.Node) bool { return n.Calico.Address.IsValid() && n.Calico.RouteReflector == "" }
	var all []missing
	for _, from := range s.Nodes.Items {
		have, read := protocols[from.Name]
		if !read || !member(from) {
			continue
		}
		for _, to := range s.Nodes.Items {
			if to.Name == from.Name || !member(to) {
				continue
			}
			target := to.Calico.Address.Addr()
			if p := have[target]; p.BGPState != snapshot.Established {
				all = append(all, missing{ends{from.Name, to.Name, from.Calico.Address.Addr(), target}, p.BGPState, p.LastError})
			}
		}
	}
	return all
}

// with are the sessions that a node is an end of.
func with(all []missing, node string) []missing {
	return slices.DeleteFunc(slices.Clone(all), func(m missing) bool { return m.from != node && m.to != node })
}

// lackingSessions finds the nodes that have lacked sessions for longer than
// sessions take to come up, though every address is right. A session is
// reported for the end that lacks more sessions: the other end is usually
// healthy.
func (a addressing) lackingSessions() []Finding {
	lasting := a.lasting()
	byNode := map[string][]missing{}
	for _, m := range lasting {
		one, other := m.from, m.to
		if n, o := len(with(lasting, one)), len(with(lasting, other)); o > n || o == n && other < one {
			one = other
		}
		byNode[one] = append(byNode[one], m)
	}
	var findings []Finding
	for node, sessions := range byNode {
		findings = append(findings, Finding{
			Kind: SessionDown, State: Active, Object: Named(node),
			Says: fmt.Sprintf("%s has lacked BGP sessions of Calico's mesh for more than %s, though Calico's address for it is the Node's InternalIP: %s.",
				node, sessionGrace, saySessions(sessions)),
		})
	}
	return findings
}

// lasting are the sessions that are missing now, and were in every snapshot
// that is younger than the grace, between the same addresses. There are none
// if the snapshots do not reach back that far, and none that a wrong address
// explains.
func (a addressing) lasting() []missing {
	lasting := slices.DeleteFunc(slices.Clone(a.missing), func(m missing) bool { return a.wrong[m.from] || a.wrong[m.to] })
	for _, at := range slices.Backward(a.history) {
		if len(lasting) == 0 {
			return nil
		}
		then := map[ends]bool{}
		for _, m := range missingSessions(at) {
			then[m.ends] = true
		}
		lasting = slices.DeleteFunc(lasting, func(m missing) bool { return !then[m.ends] })
		if a.now.Time.Sub(at.Time) >= sessionGrace {
			return lasting
		}
	}
	return nil
}

// saySessions says which sessions are missing, and how.
func saySessions(all []missing) string {
	var texts []string
	for _, m := range all {
		text := fmt.Sprintf("BIRD on %s has %s (%s) in state %s", m.from, m.target, m.to, m.state)
		switch {
		case m.state == "":
			text = fmt.Sprintf("BIRD on %s has no neighbour %s (%s)", m.from, m.target, m.to)
		case m.error != "":
			text += " (" + m.error + ")"
		}
		texts = append(texts, text)
	}
	if more := len(texts) - maxNamed; more > 0 {
		texts = append(texts[:maxNamed:maxNamed], fmt.Sprintf("%d more", more))
	}
	return and(texts)
}
