package detect_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Three snapshots of a cluster whose worker announces its pod range in the first
// one and no more in the others, while its BGP session is up. A single snapshot
// may catch a change halfway: the finding is settling until a second one agrees.
func ExampleRouteOwnership() {
	began := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	worker, pods := netip.MustParseAddr("10.30.4.12"), netip.MustParsePrefix("10.30.65.0/24")

	polled := func(after time.Duration, announced ...netip.Prefix) snapshot.Snapshot {
		s := snapshot.Snapshot{Time: began.Add(after)}
		s.CiliumNodes.Read = true // there are none
		s.Nodes.Read = true
		s.Nodes.Items = []snapshot.Node{{
			Name: "worker", Created: began.Add(-time.Hour), Ready: true,
			InternalIPs: []netip.Addr{worker}, PodCIDRs: []netip.Prefix{pods},
		}}
		s.Pods.Read = true
		s.Pods.Items = []snapshot.Pod{{Namespace: "default", Name: "web", Node: "worker", IP: pods.Addr().Next()}}
		tor := snapshot.Router{Name: "tor"}
		tor.Paths.Read, tor.Routes.Read, tor.Neighbors.Read = true, true, true
		tor.Neighbors.Items = []snapshot.Neighbor{{Address: worker, AS: 64513, State: "established", Established: began.Add(-time.Hour)}}
		for _, prefix := range announced {
			tor.Paths.Items = append(tor.Paths.Items, snapshot.Path{Prefix: prefix, NextHop: worker, Neighbor: worker, Best: true, Multipath: true})
		}
		s.Routers = []snapshot.Router{tor}
		return s
	}
	history := []snapshot.Snapshot{polled(0, pods), polled(time.Second), polled(2 * time.Second)}
	for n := range history {
		fmt.Println("after", time.Duration(n)*time.Second)
		for _, finding := range detect.Run([]detect.Detector{detect.RouteOwnership{}}, history[:n+1]) {
			fmt.Printf("%s, %s: %s\n", finding.Kind, finding.State, finding.Says)
		}
	}
	// Output:
	// after 0s
	// after 1s
	// unannounced, settling: tor has no route to 10.30.65.0/24: Node worker holds that range, with 1 pod in it (default/web), but worker announces nothing; pending: the route has been missing for 0s, and this becomes active after 10s, or after 2 snapshots in which worker has had a session for 2s.
	// after 2s
	// unannounced, active: tor has no route to 10.30.65.0/24: Node worker holds that range, with 1 pod in it (default/web), but worker announces nothing.
}
