package framework

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/framework/detect"
)

func TestMismatches(t *testing.T) {
	var m Mismatches
	if holds, saw, err := m.Result(); !holds || saw != "" || err != nil {
		t.Errorf("nothing was added: %t, %q, %v", holds, saw, err)
	}
	m.Addf("%s has %s", "node1", netip.MustParseAddr("10.4.94.23"))
	m.Addf("tor1 was not read")
	if holds, saw, err := m.Result(); holds || saw != "node1 has 10.4.94.23; tor1 was not read" || err != nil {
		t.Errorf("%t, %q, %v", holds, saw, err)
	}
}

func TestDetectorsSay(t *testing.T) {
	const says = "Calico speaks for worker1 from 10.51.7.21 of eth1."
	found := detect.Finding{
		Detector: "node-address", Kind: "moved", State: detect.Latent, Object: detect.Prefix(netip.MustParsePrefix("10.5.112.0/24")),
		Owner: "node1", Announcer: "node2", Routers: []string{"tor2", "tor1"}, Pods: []string{"default/web"}, Says: says,
	}
	want := func(change func(*Finding)) Finding {
		f := Finding{
			Detector: "node-address", Kind: "moved", State: detect.Latent, Object: found.Object,
			Owner: "node1", Announcer: "node2", Routers: []string{"tor1", "tor2"},
		}
		change(&f)
		return f
	}
	const asFound = "node-address: latent moved 10.5.112.0/24 of node1 announced by node2 on tor1, tor2"
	for _, test := range []struct {
		name string
		want Finding
		saw  string // empty: they say it
	}{
		{"all of it, and two words", want(func(f *Finding) { f.Words = []string{"10.51.7.21", "eth1"} }), ""},
		{"another detector", want(func(f *Finding) { f.Detector = "snat" }), "snat: latent moved 10.5.112.0/24 of node1 announced by node2 on tor1, tor2"},
		{"another kind", want(func(f *Finding) { f.Kind = "gone" }), "node-address: latent gone 10.5.112.0/24 of node1 announced by node2 on tor1, tor2"},
		{"another state", want(func(f *Finding) { f.State = detect.Active }), "node-address: active moved 10.5.112.0/24 of node1 announced by node2 on tor1, tor2"},
		{"another object", want(func(f *Finding) { f.Object = detect.Named("node1") }), "node-address: latent moved node1 of node1 announced by node2 on tor1, tor2"},
		{"another owner", want(func(f *Finding) { f.Owner = "" }), "node-address: latent moved 10.5.112.0/24 announced by node2 on tor1, tor2"},
		{"another announcer", want(func(f *Finding) { f.Announcer = "node3" }), "node-address: latent moved 10.5.112.0/24 of node1 announced by node3 on tor1, tor2"},
		{"another router", want(func(f *Finding) { f.Routers = []string{"tor1"} }), "node-address: latent moved 10.5.112.0/24 of node1 announced by node2 on tor1"},
		{"a word is missing", want(func(f *Finding) { f.Words = []string{"eth1", "after boot"} }), `node-address: latent moved 10.5.112.0/24 of node1 announced by node2 on tor1, tor2 that says ["eth1" "after boot"]`},
	} {
		t.Run(test.name, func(t *testing.T) {
			check := DetectorsSay("named", "it is named", As(found), test.want)
			if check.ID != "named" || check.Name != "it is named" || !check.AsksDetectors {
				t.Errorf("%+v", check)
			}
			r := &Run{Findings: func() []detect.Finding { return []detect.Finding{{Detector: "other"}, found} }}
			holds, saw, err := check.Holds(t.Context(), r)
			if err != nil || holds != (test.saw == "") {
				t.Fatalf("%t, %q, %v", holds, saw, err)
			}
			if want := "no finding " + test.saw + "; seen: other:: ; " + asFound + ": " + says; !holds && saw != want {
				t.Errorf("%q, want %q", saw, want)
			}
		})
	}
}

func TestUnnamed(t *testing.T) {
	found := func(object string, routers ...string) detect.Finding {
		return detect.Finding{Detector: "routes", Kind: "lost", State: detect.Active, Object: detect.Named(object), Routers: routers}
	}
	named := As(found("a", "tor1", "tor2"))
	all := []detect.Finding{found("a", "tor1", "tor2"), found("a", "tor2"), found("a", "tor3"), found("b", "tor1"), found("a")}
	got := Unexpected(all, named)
	if len(got) != 3 || got[0].Routers[0] != "tor3" || got[1].Object != detect.Named("b") || len(got[2].Routers) > 0 {
		t.Errorf("unnamed are %v, want what is seen on tor3, b, and what is seen on no router", got)
	}
	if got := Unexpected(all); len(got) != len(all) {
		t.Errorf("unnamed are %v, where nothing is named", got)
	}
}
