package audit

import (
	"net/netip"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

func twinOf(state detect.State, routers ...string) detect.Finding {
	return detect.Finding{Detector: "route-ownership", Kind: detect.TwinRange, State: state, Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")), Owner: "a", Announcer: "b", Routers: routers}
}

// A router that has a finding in one of two reads alone is not hidden by a suppression of the other.
func TestRoutersOfOneRead(t *testing.T) {
	for _, state := range []detect.State{detect.Active, detect.Latent} {
		for _, both := range [][2][]string{{{"tor1", "tor2"}, {"tor1"}}, {{"tor1"}, {"tor1", "tor2"}}} {
			var r Result
			r.add([]detect.Finding{twinOf(state, both[0]...)}, []detect.Finding{twinOf(state, both[1]...)}, nil)
			r.Suppress([]Suppression{{ID: id(twinOf(state)), Routers: []string{"tor1"}, Active: true, Reason: "r", Expires: "2027-01-31"}}, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))
			if r.Outcome() == Nothing {
				t.Errorf("%s %v: nothing", state, both)
			}
		}
	}
}

// A suppression that names routers does not hide what has none.
func TestSuppressionOfRouters(t *testing.T) {
	for _, state := range []detect.State{detect.Active, detect.Latent} {
		var r Result
		f := detect.Finding{Detector: "permission", Kind: "not-permitted", State: state, Object: detect.Named("x")}
		r.add([]detect.Finding{f}, []detect.Finding{f}, nil)
		r.Suppress([]Suppression{{Detector: "permission", Kind: "*", Object: "*", Routers: []string{"no-such-router"}, Active: true, Reason: "r", Expires: "2027-01-31"}}, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))
		if r.Outcome() == Nothing {
			t.Errorf("%s: nothing", state)
		}
	}
}

// Where the ConfigMap of a Cilium that runs cannot be read, the audit is not whole.
func TestConfigMapNotRead(t *testing.T) {
	var reads []snapshot.Snapshot
	for range 2 {
		s := cluster(false)
		of := nodeAnswer("master1")
		s.NodeNetworks, s.NodeTables, s.Firewalls, s.NAT, s.Proxies = of.NodeNetworks, of.NodeTables, of.Firewalls, of.NAT, of.Proxies
		s.Nodes.Items = s.Nodes.Items[:1]
		s.ConfigMaps.Error = "the server has timed out"
		s.Sources = nil
		for _, of := range sources(scope{routers: true, nodes: true}) {
			s.Sources = append(s.Sources, snapshot.Asked{Name: of.String()})
		}
		s.Sources = append(s.Sources, snapshot.Asked{Name: "ConfigMaps"})
		reads = append(reads, s)
	}
	r, err := Judge(reads, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Findings, r.Once = nil, nil
	if !r.Open() {
		t.Errorf("not open: outcome %s", r.Outcome())
	}
}
