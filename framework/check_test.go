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
	found := detect.Finding{Kind: "moved", State: detect.Latent, Object: detect.Prefix(netip.MustParsePrefix("10.5.112.0/24")), Owner: "node1", Says: says}
	for _, test := range []struct {
		name string
		want Finding
		saw  string // empty: they say it
	}{
		{"anything", Finding{}, ""},
		{"all of it", Finding{Kind: "moved", State: detect.Latent, Object: detect.Prefix(netip.MustParsePrefix("10.5.112.0/24")), Owner: "node1", Words: []string{"10.51.7.21", "eth1"}}, ""},
		{"another kind", Finding{Kind: "gone"}, "no finding gone"},
		{"another object", Finding{Kind: "moved", Object: detect.Prefix(netip.MustParsePrefix("10.5.113.0/24"))}, "no finding moved 10.5.113.0/24"},
		{"another owner", Finding{Object: detect.Prefix(netip.MustParsePrefix("10.5.112.0/24")), Owner: "node2"}, "no finding 10.5.112.0/24 of node2"},
		{"another state", Finding{Kind: "moved", State: detect.Active}, "no finding active moved"},
		{"a word is missing", Finding{Kind: "moved", Words: []string{"eth1", "after boot"}}, `no finding moved that says ["eth1" "after boot"]`},
	} {
		t.Run(test.name, func(t *testing.T) {
			check := DetectorsSay("it is named", Finding{Kind: "moved"}, test.want)
			if check.Name != "it is named" || !check.AsksDetectors {
				t.Errorf("%+v", check)
			}
			r := &Run{Findings: func() []detect.Finding { return []detect.Finding{{Kind: "other"}, found} }}
			holds, saw, err := check.Holds(t.Context(), r)
			if err != nil || holds != (test.saw == "") {
				t.Fatalf("%t, %q, %v", holds, saw, err)
			}
			if want := test.saw + "; seen: other (): ; moved (latent): " + says; !holds && saw != want {
				t.Errorf("%q, want %q", saw, want)
			}
		})
	}
}
