package detect

import (
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
// A difference that is younger than endpointSettle is pending, and so is one of which no earlier
// snapshot tells whether packets still arrive, because there is none or because the connections
// were not read. Node ports and external addresses are not
// examined, nor are proxies without connection tracking.
type GoneEndpoints struct{}

// Name implements Detector.
func (GoneEndpoints) Name() string { return "gone-endpoints" }

// Reads implements Detector.
func (GoneEndpoints) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Services, snapshot.EndpointSlices, snapshot.NAT, snapshot.Pods}
}

// Detect implements Detector. Findings are in order of node and Service: one for each port of
// a Service, and one more for connections that are pending. Object is the port of the
// Service, Owner the node. Pods have the addresses now.
func (d GoneEndpoints) Detect(history []snapshot.Snapshot) []Finding {
	if len(history) == 0 {
		return nil
	}
	now := history[len(history)-1]
	if !now.Services.Read || !now.EndpointSlices.Read {
		return nil
	}
	var findings []Finding
	for _, n := range now.NAT {
		for _, service := range now.Services.Items {
			for _, port := range service.Ports {
				if port.Protocol != "UDP" {
					continue
				}
				var active, pending []snapshot.Flow
				for _, f := range n.Flows.Items {
					at := slices.ContainsFunc(service.ClusterIPs, func(ip netip.Addr) bool { return f.Destination == netip.AddrPortFrom(ip, port.Port) })
					if f.Protocol != "udp" || !at || !f.Redirected || serves(now, service, port, f.AnsweredBy) {
						continue
					}
					live, known := alive(history, n.Node, f)
					if !live {
						continue
					}
					if known && goneFor(history, service, port, f.AnsweredBy) >= endpointSettle {
						active = append(active, f)
					} else {
						pending = append(pending, f)
					}
				}
				if len(active) > 0 {
					findings = append(findings, d.finding(now, n.Node, service, port, active))
				}
				if len(pending) > 0 {
					f := d.finding(now, n.Node, service, port, pending)
					f.State = Pending
					f.Says += fmt.Sprintf(" Pending: this becomes active after %s if packets still arrive.", endpointSettle)
					findings = append(findings, f)
				}
			}
		}
	}
	return findings
}

// serves reports whether an address is an endpoint that may have connections.
func serves(s snapshot.Snapshot, service snapshot.Service, port snapshot.ServicePort, address netip.AddrPort) bool {
	return servers(s, service, port, func(slice snapshot.EndpointSlice) []netip.Addr { return slices.Concat(slice.Ready, slice.Draining) })[address]
}

// goneFor is how long an address has not been an endpoint, as far as the snapshots tell.
func goneFor(history []snapshot.Snapshot, service snapshot.Service, port snapshot.ServicePort, address netip.AddrPort) time.Duration {
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

func (d GoneEndpoints) finding(now snapshot.Snapshot, node string, service snapshot.Service, port snapshot.ServicePort, flows []snapshot.Flow) Finding {
	sp := servicePort{service.String(), port.Protocol, flows[0].Destination}
	finding := Finding{Detector: d.Name(), Kind: GoneEndpoint, State: Active, Object: Named(sp.String()), Owner: node}
	var to []string
	for _, f := range flows {
		holder := "which no pod has"
		for _, p := range now.Pods.Items {
			if p.Has(f.AnsweredBy.Addr()) {
				holder = "which pod " + p.String() + " has now"
				if !slices.Contains(finding.Pods, p.String()) {
					finding.Pods = append(finding.Pods, p.String())
				}
			}
		}
		if !now.Pods.Read {
			holder = "whose pod is not known"
		}
		if text := fmt.Sprintf("%s, %s", f.AnsweredBy, holder); !slices.Contains(to, text) {
			to = append(to, text)
		}
	}
	finding.Says = fmt.Sprintf("%s sends the packets of %d UDP %s to Service %s (%s) on to what is no endpoint of it: %s. Connection tracking keeps to it for as long as packets arrive (conntrack -D -p udp --orig-dst %s --orig-port-dst %d ends it).",
		node, len(flows), plural(len(flows), "connection", "connections"), sp, sp.address, and(to), sp.address.Addr(), sp.address.Port())
	return finding
}
