package detect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// missing is a session of Calico's mesh that the list of nodes demands and that is not up, as one of its nodes reports it.
type missing struct {
	ends
	// state and error are BIRD's; state is empty if the BIRD of one node has no
	// neighbour with the other's address.
	state, error string
}

// ends are two nodes and the addresses that Calico has for them.
type ends struct {
	from, to       string
	source, target netip.Addr
}

// meshPrefix begins the names of the mesh's protocols in bird.cfg.template.
const meshPrefix = "Mesh_"

// missingSessions returns what the mesh lacks: each node must have a session
// with the address that Calico has for each other node. Nodes whose BIRD was
// not read are not checked, and neither are route reflectors.
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

func with(all []missing, node string) []missing {
	return each.Where(all, func(m missing) bool { return m.from == node || m.to == node })
}

// lackingSessions finds the nodes that lack sessions although every address is right. A session that has been missing
// for longer than sessions take to come up is in an active finding of its node, a younger one in a pending finding.
func (a addressing) lackingSessions() (findings []Finding) {
	all, since := a.lacking()
	lasts := func(m missing) time.Duration { return a.now.Time.Sub(since[m.ends]) }
	add := func(state State, node, how, pending string, sessions []missing) {
		findings = append(findings, Finding{Kind: SessionDown, State: state, Object: Named(node), Says: fmt.Sprintf(
			"%s has lacked BGP sessions of Calico's mesh for %s, although Calico's address for it is the Node's InternalIP%s: %s.",
			node, how, pending, saySessions(sessions))})
	}
	lasting := each.Where(all, func(m missing) bool { return lasts(m) >= sessionGrace })
	for node, sessions := range byCulprit(lasting, lasting) {
		add(Active, node, fmt.Sprintf("more than %s", sessionGrace), "", sessions)
	}
	// Pending sessions are grouped as they will be once they are active, together with the lasting ones.
	pending := each.Where(all, func(m missing) bool { return lasts(m) < sessionGrace })
	for node, sessions := range byCulprit(pending, all) {
		longest := slices.Max(each.Of(sessions, lasts))
		add(Pending, node, seconds(longest), fmt.Sprintf("; pending: this becomes active after %s", sessionGrace), sessions)
	}
	return findings
}

// byCulprit groups sessions by the one of their two nodes that lacks more of all:
// the other one is usually healthy.
func byCulprit(sessions, all []missing) map[string][]missing {
	lacks := map[string]int{}
	for _, m := range all {
		lacks[m.from]++
		lacks[m.to]++
	}
	byNode := map[string][]missing{}
	for _, m := range sessions {
		one, other := m.from, m.to
		if n, o := lacks[one], lacks[other]; o > n || o == n && other < one {
			one = other
		}
		byNode[one] = append(byNode[one], m)
	}
	return byNode
}

// lacking are the sessions that are missing now and that no wrong address
// explains, and since when each has been missing in every snapshot, between the
// same addresses. Snapshots older than the grace are not examined.
func (a addressing) lacking() (all []missing, since map[ends]time.Time) {
	all = each.Where(a.missing, func(m missing) bool { return !a.wrong[m.from] && !a.wrong[m.to] })
	open := slices.Clone(all)
	since = map[ends]time.Time{}
	for _, at := range slices.Backward(a.history) {
		if len(open) == 0 {
			break
		}
		then := map[ends]bool{}
		for _, m := range missingSessions(at) {
			then[m.ends] = true
		}
		open = slices.DeleteFunc(open, func(m missing) bool { return !then[m.ends] })
		for _, m := range open {
			since[m.ends] = at.Time
		}
		if a.now.Time.Sub(at.Time) >= sessionGrace {
			break
		}
	}
	return all, since
}

func saySessions(all []missing) string {
	return and(few(each.Of(all, func(m missing) string {
		switch {
		case m.state == "":
			return fmt.Sprintf("BIRD on %s has no neighbour %s (%s)", m.from, m.target, m.to)
		case m.error != "":
			return fmt.Sprintf("BIRD on %s has %s (%s) in state %s (%s)", m.from, m.target, m.to, m.state, m.error)
		}
		return fmt.Sprintf("BIRD on %s has %s (%s) in state %s", m.from, m.target, m.to, m.state)
	})))
}
