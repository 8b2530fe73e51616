package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestSelection(t *testing.T) {
	for _, test := range []struct {
		name     string
		of       selection
		want     string
		variants string
	}{
		{"all", selection{all: true}, strings.Join(scenarioNames(), " "), ""},
		{"some", selection{names: []string{"added-nic", "node-drain"}}, "added-nic node-drain", ""},
		{"by a component", selection{label: "kube-proxy"}, "ipvs-deadlock udp-blackhole nft-crash", "kube-proxy-1.13.0 kube-proxy-1.13.1 kube-proxy-1.13.2 kube-proxy-1.13.0-iptables iptables-1.34.4 nftables-1.34.4 nftables-1.37.0 iptables-1.37.0 iptables-1.31.14 nftables-set-1.34.4 nftables-set-1.35.4 nftables-set-1.36.3 iptables-set-1.34.4"},
		{"variants of one", selection{all: true, label: "bpf"}, "masquerade-drift", "default-on translated-bpf"},
		{"of all those that a version concerns", selection{all: true, with: map[string]string{"cilium": "1.12.1"}}, "node-drain masquerade-drift twin-cidr", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			chosen, variants, err := test.of.scenarios()
			must.NoError(t, err)
			var names []string
			for _, s := range chosen {
				names = append(names, s.Incident.Name)
			}
			must.Equal(t, "scenarios", test.want, strings.Join(names, " "))
			must.Equal(t, "variants", test.variants, strings.Join(variants, " "))
		})
	}
}

// make test builds the images of its own scenarios, and not the images of the night's.
func TestImagesUsed(t *testing.T) {
	all := must.Get(imagesUsed(""))(t)
	quick := must.Get(imagesUsed("!slow"))(t)
	const slow, common = "k8s.gcr.io/kube-proxy:v1.13.0", "relapse.dev/node:v1.34.4"
	if !slices.Contains(all, slow) || slices.Contains(quick, slow) || !slices.Contains(quick, common) {
		t.Errorf("all %v\nwithout the slow ones %v", all, quick)
	}
	if _, err := imagesUsed("no-label"); exitStatus(t.Context(), err) != exitUsage {
		t.Errorf("of an unknown label: %v", err)
	}
}

func TestRunByLabel(t *testing.T) {
	got := relapse(t, "run", "--label", "bpf", "--dry-run")
	for _, variant := range []string{"default-on", "translated-bpf"} {
		if !strings.Contains(got.stdout, variant) || got.status != exitExpected {
			t.Errorf("%s does not run: %+v", variant, got)
		}
	}
	if strings.Contains(got.stdout, "off-by-old-key") {
		t.Errorf("one without the label runs:\n%s", got.stdout)
	}
	got = relapse(t, "run", "--label", "bgp && !slow", "--dry-run", "--parallel", "2")
	if got.status != exitExpected || !strings.Contains(got.stdout, "node-drain lab ") || !strings.Contains(got.stdout, "added-nic lab ") || strings.Contains(got.stdout, "masquerade") {
		t.Errorf("%+v", got)
	}
}

func TestPlan(t *testing.T) {
	got := relapse(t, "plan", "--shards", "2", "--label", "bgp", "node-drain", "added-nic")
	if lines := strings.Count(got.stderr, "\n"); got.status != exitExpected || lines != 2 {
		t.Fatalf("%+v", got)
	}
	want := `{"include":[{"shard":1,"scenario":"added-nic","label":"bgp","with":"",` // the rest goes with what was measured
	if first, _, _ := strings.Cut(got.stdout, `"timeout"`); first != want {
		t.Errorf("%s", cmp.Diff(want, first))
	}
	got = relapse(t, "plan", "--shards", "9", "--with", "cilium=1.12.1")
	if got.status != exitExpected || !strings.Contains(got.stdout, `{"shard":2,`) || !strings.Contains(got.stdout, `"with":"cilium=1.12.1"`) ||
		!strings.Contains(got.stderr, "3 shards are enough for 3 scenarios: a scenario is not split") {
		t.Errorf("%+v", got)
	}
	got = relapse(t, "plan", "--with", "cilium=9.9.9")
	if got.status != exitUsage || !strings.Contains(got.stderr, "no recipe builds") {
		t.Errorf("%+v", got)
	}
}
