package detect

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestSessionReset(t *testing.T) {
	start := time.Date(2026, 11, 28, 1, 0, 0, 0, time.UTC)
	address := netip.MustParseAddr("10.76.4.21")
	// moment is a cluster of one node; up is when its session came up, zero while it is down.
	type moment struct {
		image, profile string
		frr            bool
		services       string
		up, restarts   int
	}
	affected := moment{image: "quay.io/metallb/speaker:v0.14.5", profile: "fast", frr: true, services: "web", up: 1}
	at := func(second int, m moment) snapshot.Snapshot {
		s := snapshot.Snapshot{Time: start.Add(time.Duration(second) * time.Second)}
		s.Nodes = snapshot.List[snapshot.Node]{Read: true, Items: []snapshot.Node{{Name: "worker1", Ready: true, InternalIPs: []netip.Addr{address}}}}
		pod := snapshot.PodImages{Namespace: "metallb-system", Name: "speaker-1", UID: "1", Node: "worker1", Created: start.Add(-time.Hour), Containers: []snapshot.RunningContainer{
			{Container: snapshot.Container{Name: "speaker", Image: m.image}, Restarts: m.restarts}}}
		if m.frr {
			pod.Containers = append(pod.Containers, snapshot.RunningContainer{Container: snapshot.Container{Name: "frr", Image: "quay.io/frrouting/frr:9.1.0"}})
		}
		s.PodImages = snapshot.List[snapshot.PodImages]{Read: true, Items: []snapshot.PodImages{pod}}
		s.MetalLBPeers = snapshot.List[snapshot.MetalLBPeer]{Read: true, Items: []snapshot.MetalLBPeer{{Namespace: "metallb-system", Name: "tor", BFDProfile: m.profile}}}
		s.Services = snapshot.List[snapshot.Service]{Read: true, Items: each.Of(strings.Fields(m.services), func(name string) snapshot.Service {
			return snapshot.Service{Namespace: "default", Name: name, LoadBalancerIPs: []netip.Addr{address}, Created: start}
		})}
		neighbors := snapshot.List[snapshot.Neighbor]{Read: true}
		if m.up != 0 {
			neighbors.Items = []snapshot.Neighbor{{Address: address, State: snapshot.SessionEstablished, Established: start.Add(time.Duration(m.up) * time.Second)}}
		}
		s.Routers = []snapshot.Router{{Name: "tor", Neighbors: neighbors}}
		return s
	}
	created := func(m *moment) { m.services = "preview web" }
	ended := func(m *moment) { m.services, m.up = "preview web", 0 }
	anew := func(m *moment) { m.services, m.up = "preview web", 6 }
	newer := changed(affected, func(m *moment) { m.image = "quay.io/metallb/speaker:v0.15.2" })
	old := changed(affected, func(m *moment) { m.up = -9000 })
	const latent, pending, active = "latent resets-ahead MetalLB 0.14.5", "settling sessions-reset MetalLB 0.15.2", "active sessions-reset MetalLB 0.14.5"
	for _, tt := range []struct {
		name    string
		history []snapshot.Snapshot
		want    []string
		says    string
	}{
		{name: "before any change", history: []snapshot.Snapshot{at(20, old)}, want: []string{latent},
			says: "MetalLB 0.14.5 resets the BGP sessions of worker1 with each Service that gets or loses an address, because BGPPeer metallb-system/tor has a BFD profile. 0.14.6 does not."},
		{name: "one snapshot after a reset", history: []snapshot.Snapshot{at(20, affected)}, want: []string{latent},
			says: "All 1 sessions came up within 15s after Service default/web was created, and the speakers are older."},
		{name: "native BGP", history: []snapshot.Snapshot{at(20, changed(affected, func(m *moment) { m.frr = false }))}},
		{name: "no profile", history: []snapshot.Snapshot{at(20, changed(affected, func(m *moment) { m.profile = "" }))}},
		{name: "the version that mends it", history: []snapshot.Snapshot{at(20, changed(affected, func(m *moment) { m.image = "quay.io/metallb/speaker:v0.14.8" }))}},
		{name: "the image of a distribution", history: []snapshot.Snapshot{at(20, changed(affected, func(m *moment) { m.image = "docker.io/bitnami/metallb-speaker:0.14.5-debian-12-r1" }))}},
		{name: "an image without a version", history: []snapshot.Snapshot{at(20, changed(affected, func(m *moment) {
			m.image = "registry.redhat.io/openshift4/metallb-rhel9@sha256:" + strings.Repeat("a", 64)
		}))}},
		{name: "a session ends after a Service has come", want: []string{latent, active}, history: []snapshot.Snapshot{at(20, affected), at(21, changed(affected, created)), at(25, changed(affected, ended))},
			says: "BGP sessions of worker1 with tor ended after Service default/preview had changed, and their speakers are the same: the routes of all Services over these nodes were gone until the sessions came up anew."},
		{name: "a session is younger after a Service has gone", want: []string{latent, active}, history: []snapshot.Snapshot{at(3, changed(affected, created)), at(4, affected), at(9, changed(affected, func(m *moment) { m.up = 6 }))}},
		{name: "long ago", want: []string{latent}, history: []snapshot.Snapshot{at(0, affected), at(1, changed(affected, created)), at(5, changed(affected, ended)), at(7, changed(affected, anew)), at(21, changed(affected, anew))}},
		{name: "a router restarts, and no Service has changed", want: []string{latent}, history: []snapshot.Snapshot{at(20, affected), at(21, changed(affected, func(m *moment) { m.up = 0 })), at(25, changed(affected, func(m *moment) { m.up = 24 }))}},
		{name: "long after a change", want: []string{latent}, history: []snapshot.Snapshot{at(20, affected), at(21, changed(affected, created)), at(40, changed(affected, created)), at(41, changed(affected, ended))}},
		{name: "the speaker was restarted", want: []string{latent}, history: []snapshot.Snapshot{at(20, affected), at(21, changed(affected, created)), at(25, changed(affected, func(m *moment) { ended(m); m.restarts = 1 }))}},
		{name: "once, with a newer version", want: []string{pending}, history: []snapshot.Snapshot{at(20, newer), at(21, changed(newer, created)), at(25, changed(newer, ended))}},
		{name: "twice, with a newer version", want: []string{"active sessions-reset MetalLB 0.15.2"}, history: []snapshot.Snapshot{
			at(1, newer), at(2, changed(newer, created)), at(5, changed(newer, ended)), at(7, changed(newer, anew)), at(8, changed(newer, func(m *moment) { m.up = 6 })), at(11, changed(newer, func(m *moment) { m.up = 10 }))}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found := Run([]Detector{SessionReset{}}, tt.history)
			got := each.Of(found, func(f Finding) string { return string(f.State) + " " + f.Kind + " " + f.Object.String() })
			must.Equal(t, "found", tt.want, got)
			if said := each.Joined(found, "\n", sentenceOf); !strings.HasSuffix(said, tt.says) {
				t.Errorf("says %q", said)
			}
		})
	}
}
