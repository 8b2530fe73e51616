package detect

import (
	"net/netip"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// statsd is a snapshot some seconds after a first one. The Service has these ready endpoints,
// and a sender on node1 has a connection to it, which goes to 10.60.65.4.
func statsd(seconds float64, ready ...string) snapshot.Snapshot {
	var s snapshot.Snapshot
	s.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
	s.Services.Read, s.EndpointSlices.Read, s.Pods.Read = true, true, true
	s.Services.Items = []snapshot.Service{{
		Namespace: "default", Name: "statsd", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.80")},
		Ports: []snapshot.ServicePort{{Protocol: "TCP", Port: 8125}, {Name: "udp", Protocol: "UDP", Port: 8125}},
	}}
	slice := snapshot.EndpointSlice{Namespace: "default", Service: "statsd"}
	for _, address := range ready {
		slice.Ports = []snapshot.ServicePort{{Name: "udp", Protocol: "UDP", Port: 7007}} // none without endpoints
		slice.Ready = append(slice.Ready, netip.MustParseAddr(address))
	}
	s.EndpointSlices.Items = []snapshot.EndpointSlice{slice}
	f := flow("udp", "10.60.64.2:40000", "10.96.0.80:8125", "10.60.64.2:40000")
	f.Redirected, f.AnsweredBy = true, netip.MustParseAddrPort("10.60.65.4:7007")
	s.NAT = []snapshot.NodeNAT{{Node: "node1", Flows: snapshot.List[snapshot.Flow]{Read: true, Items: []snapshot.Flow{f}}}}
	return s
}

func TestGoneEndpoints(t *testing.T) {
	const old, other = "10.60.65.4", "10.60.65.5"
	silent := func(by time.Duration) func(*snapshot.Snapshot) {
		return func(s *snapshot.Snapshot) { s.NAT[0].Flows.Items[0].Expires -= by }
	}
	unread := func(s *snapshot.Snapshot) { s.NAT[0].Flows = snapshot.List[snapshot.Flow]{} }
	otherPort := func(s *snapshot.Snapshot) { s.EndpointSlices.Items[0].Ports[0].Port = 7008 }
	draining := func(s *snapshot.Snapshot) {
		s.EndpointSlices.Items[0].Ready, s.EndpointSlices.Items[0].Draining = nil, s.EndpointSlices.Items[0].Ready
	}
	for _, test := range []struct {
		name    string
		history []snapshot.Snapshot
		want    State // empty: no finding
		says    string
		pods    []string
	}{
		{name: "an endpoint", history: []snapshot.Snapshot{statsd(0, old), statsd(5, old)}},
		{name: "no endpoint any more", history: []snapshot.Snapshot{statsd(0, old), statsd(1), statsd(4)}, want: Active, says: "10.60.65.4:7007, which no pod has."},
		{name: "another endpoint", history: []snapshot.Snapshot{statsd(0, old), statsd(1, other), statsd(4, other)}, want: Active},
		{name: "a moment ago", history: []snapshot.Snapshot{statsd(0, old), statsd(2, old), statsd(3)}, want: Pending},
		{name: "another port of the endpoint", history: []snapshot.Snapshot{changed(statsd(0, old), otherPort), changed(statsd(4, old), otherPort)}, want: Active},
		{name: "one snapshot alone", history: []snapshot.Snapshot{statsd(0)}, want: Pending},
		{name: "terminating, and still serving", history: []snapshot.Snapshot{statsd(0, old), changed(statsd(1, old), draining), changed(statsd(5, old), draining)}},
		{name: "no packets any more", history: []snapshot.Snapshot{statsd(0, old), statsd(1), changed(statsd(5), silent(4*time.Second))}},
		{name: "no packets any more, and connections not read before", history: []snapshot.Snapshot{statsd(0, old), statsd(1), changed(statsd(2), unread), changed(statsd(4.5), silent(4500*time.Millisecond))}, want: Pending},
		{name: "connections not read in a snapshot that is too young to tell", history: []snapshot.Snapshot{statsd(0, old), statsd(1), changed(statsd(4), unread), statsd(4.5)}, want: Active},
		{name: "another pod has the address", want: Active, says: "10.60.65.4:7007, which pod default/heir has now.", pods: []string{"default/heir"},
			history: []snapshot.Snapshot{statsd(0), changed(statsd(4), func(s *snapshot.Snapshot) {
				s.Pods.Items = []snapshot.Pod{{Namespace: "default", Name: "heir", Node: "node2", IP: netip.MustParseAddr(old)}}
			})}},
		{name: "TCP", history: []snapshot.Snapshot{statsd(0), changed(statsd(4), func(s *snapshot.Snapshot) { s.NAT[0].Flows.Items[0].Protocol = "tcp" })}},
		{name: "to no Service", history: []snapshot.Snapshot{statsd(0), changed(statsd(4), func(s *snapshot.Snapshot) { s.Services.Items = nil })}},
		{name: "not translated", history: []snapshot.Snapshot{statsd(0), changed(statsd(4), func(s *snapshot.Snapshot) { s.NAT[0].Flows.Items[0].Redirected = false })}},
		{name: "endpoints not read", history: []snapshot.Snapshot{statsd(0), changed(statsd(4), func(s *snapshot.Snapshot) { s.EndpointSlices = snapshot.List[snapshot.EndpointSlice]{} })}},
		{name: "endpoints not read for a while", history: []snapshot.Snapshot{statsd(0, old), changed(statsd(1), func(s *snapshot.Snapshot) { s.EndpointSlices = snapshot.List[snapshot.EndpointSlice]{} }), statsd(3.5), statsd(4)}, want: Pending},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := Run([]Detector{GoneEndpoints{}}, test.history)
			if test.want == "" {
				must.Equal(t, "found", nil, found)
				return
			}
			want := Finding{Detector: "gone-endpoints", Kind: GoneEndpoint, State: test.want, Object: Named("default/statsd:8125/UDP"), Owner: "node1"}
			must.Equal(t, "found", []ID{want.ID()}, each.Of(found, Finding.ID))
			must.Contain(t, each.Joined(found, "\n", sentenceOf), test.says)
			must.Equal(t, "pods", [][]string{test.pods}, each.Of(found, func(f Finding) []string { return f.Pods }))
		})
	}
}
