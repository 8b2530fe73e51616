package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/each"
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
			name := func(s framework.Scenario) string { return s.Incident.Name }
			must.Equal(t, "scenarios", test.want, each.Joined(chosen, " ", name))
			must.Equal(t, "variants", test.variants, strings.Join(variants, " "))
		})
	}
}

// make test builds the images of its own scenarios, and not the images of the night's.
func TestImagesUsed(t *testing.T) {
	all := must.Get(imagesUsed(""))(t)
	quick := must.Get(imagesUsed("!slow"))(t)
	const slow, common = "k8s.gcr.io/kube-proxy:v1.13.0", "relapse.dev/node:v1.34.4"
	has := [...]bool{slices.Contains(all, slow), slices.Contains(quick, slow), slices.Contains(quick, common)}
	must.Equal(t, quick, [...]bool{true, false, true}, has)
	must.Equal(t, "of an unknown label", exitUsage, exitStatus(t.Context(), must.Err(imagesUsed("no-label"))))
}

func TestRunByLabel(t *testing.T) {
	got := relapse(t, "run", "--label", "bpf", "--dry-run")
	got.prints(t, exitExpected, "default-on", "translated-bpf")
	must.Equal(t, "a variant without the label", 0, strings.Count(got.stdout, "off-by-old-key"))
	got = relapse(t, "run", "--label", "bgp && !slow", "--dry-run", "--parallel", "2")
	got.prints(t, exitExpected, "node-drain lab ", "added-nic lab ")
	must.Equal(t, "a scenario without the label", 0, strings.Count(got.stdout, "masquerade"))
}

func TestPlan(t *testing.T) {
	got := relapse(t, "plan", "--shards", "2", "--label", "bgp", "node-drain", "added-nic")
	must.Equal(t, got.stderr, 2, strings.Count(got.stderr, "\n"))
	first, _, _ := strings.Cut(got.stdout, `"timeout"`) // the rest goes with what was measured
	must.Equal(t, got, `{"include":[{"shard":1,"scenario":"added-nic","label":"bgp","with":"",`, first)
	got = relapse(t, "plan", "--shards", "9", "--with", "cilium=1.12.1")
	got.prints(t, exitExpected, `{"shard":2,`, `"with":"cilium=1.12.1"`)
	got.complains(t, exitExpected, "3 shards are enough for 3 scenarios: a scenario is not split")
	relapse(t, "plan", "--with", "cilium=9.9.9").complains(t, exitUsage, "no recipe builds")
}
