package detect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// GoneEndpoint is the kind of the findings of GoneEndpoints: connection tracking of a node
// sends the packets of UDP connections to a Service on to an address that is no endpoint of
// it. The packets vanish, or another pod gets them.
const GoneEndpoint = "gone-endpoint"

// endpointSettle is how long packets may be sent to an endpoint that is gone: kube-proxy
// writes its rules once a second at most (minSyncPeriod), and then forgets connections.
const endpointSettle = 3 * time.Second

// GoneEndpoints compares the UDP connections to Services' cluster IPs that nodes track with
// the Services' endpoints. The kernel chooses the endpoint with the first packet of a
// connection, and each packet prolongs it: a sender that never pauses is never given another
// one, unless the Service proxy deletes the entry. A terminating endpoint that still serves
// is one. An entry without new packets ends by itself, and is no finding.
//
// A difference is pending while it is younger than endpointSettle, or while no earlier snapshot has the connections
// and so tells whether packets still arrive. Node ports and external addresses are not examined, nor are proxies
// without connection tracking.
type GoneEndpoints struct{}

func (GoneEndpoints) Name() string { return "gone-endpoints" }

func (GoneEndpoints) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Services, snapshot.EndpointSlices, snapshot.NAT, snapshot.Pods}
}

// Detect implements Detector. Findings are in order of node and Service: one for each port of
// a Service, and one more for connections that are pending. Object is the port of the
// Service, Owner the node. Pods have the addresses now.
func (d GoneEndpoints) Detect(history []snapshot.Snapshot, _ *Index) []Finding {
	now := history[len(history)-1]
	if !now.Services.Read || !now.EndpointSlices.Read {
		return nil
	}
	indexed := lookups(history)
	last := indexed[len(indexed)-1]
	targets := map[netip.AddrPort][]target{}
	for i, service := range now.Services.Items {
		for j, port := range service.Ports {
			if port.Protocol != "UDP" {
				continue
			}
			for _, ip := range service.ClusterIPs {
				at := netip.AddrPortFrom(ip, port.Port)
				targets[at] = append(targets[at], target{i, j})
			}
		}
	}
	var findings []Finding
	for _, n := range now.NAT {
		active, pending := map[target][]snapshot.Flow{}, map[target][]snapshot.Flow{}
		var with []target
		for _, f := range n.Flows.Items {
			if f.Protocol != "udp" || !f.Redirected {
				continue
			}
			for _, at := range targets[f.Destination] {
				service := now.Services.Items[at.service]
				port := service.Ports[at.port]
				if serves(last, service, port, f.AnsweredBy) {
					continue
				}
				live, certain := alive(indexed, n.Node, f)
				if !live {
					continue
				}
				to := pending
				if certain && goneFor(indexed, service, port, f.AnsweredBy) >= endpointSettle {
					to = active
				}
				to[at] = append(to[at], f)
				with = append(with, at)
			}
		}
		slices.SortFunc(with, func(a, b target) int { return cmp.Or(cmp.Compare(a.service, b.service), cmp.Compare(a.port, b.port)) })
		for _, at := range slices.Compact(with) {
			service := now.Services.Items[at.service]
			port := service.Ports[at.port]
			if len(active[at]) > 0 {
				findings = append(findings, d.finding(last, n.Node, service, port, active[at]))
			}
			if len(pending[at]) > 0 {
				f := d.finding(last, n.Node, service, port, pending[at])
				f.State = Pending
				f.Says += fmt.Sprintf(" Pending: this becomes active after %s if packets still arrive.", endpointSettle)
				findings = append(findings, f)
			}
		}
	}
	return findings
}

type target struct{ service, port int }

func serves(s *lookup, service snapshot.Service, port snapshot.ServicePort, address netip.AddrPort) bool {
	return slices.ContainsFunc(s.slicesOf()[service.String()], func(slice *snapshot.EndpointSlice) bool {
		return slices.Contains(slice.Ports, snapshot.ServicePort{Name: port.Name, Protocol: port.Protocol, Port: address.Port()}) &&
			(slices.Contains(slice.Ready, address.Addr()) || slices.Contains(slice.Draining, address.Addr()))
	})
}

// goneFor is how long an address has not been an endpoint, as far as the snapshots tell.
func goneFor(history []*lookup, service snapshot.Service, port snapshot.ServicePort, address netip.AddrPort) time.Duration {
	now := history[len(history)-1].Time
	since := now
	for _, s := range slices.Backward(history) {
		if !s.EndpointSlices.Read {
			continue
		}
		if serves(s, service, port, address) {
			break
		}
		since = s.Time
	}
	return now.Sub(since)
}

func (d GoneEndpoints) finding(now *lookup, node string, service snapshot.Service, port snapshot.ServicePort,
	flows []snapshot.Flow) Finding {
	sp := servicePort{service.String(), port.Protocol, flows[0].Destination}
	finding := Finding{Kind: GoneEndpoint, State: Active, Object: Named(sp.String()), Owner: node}
	var to []string
	for _, f := range flows {
		holder := "which no pod has"
		for _, p := range now.podsIn(netip.PrefixFrom(f.AnsweredBy.Addr(), f.AnsweredBy.Addr().BitLen())) {
			holder = "which pod " + p.String() + " has now"
			if !slices.Contains(finding.Pods, p.String()) {
				finding.Pods = append(finding.Pods, p.String())
			}
		}
		if !now.Pods.Read {
			holder = "whose pod is not known"
		}
		if text := fmt.Sprintf("%s, %s", f.AnsweredBy, holder); !slices.Contains(to, text) {
			to = append(to, text)
		}
	}
	finding.Says = fmt.Sprintf("%s sends the packets of %d UDP %s to Service %s (%s) on to what is no endpoint of it: %s. "+
		"Connection tracking keeps to it for as long as packets arrive (conntrack -D -p udp --orig-dst %s --orig-port-dst %d ends it).",
		node, len(flows), plural(len(flows), "connection", "connections"), sp, sp.address, and(to), sp.address.Addr(), sp.address.Port())
	return finding
}
