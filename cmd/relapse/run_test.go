package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/cmd/relapse/display"
	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// If a version cannot run on a dual-stack lab, the status is the status of an unsuitable machine, and not of bad usage.
func TestCheckRunnable(t *testing.T) {
	s := framework.Scenario{
		Variants:   []framework.Variant{{Name: "old", OnlyIPv4: "it has no IPv6"}},
		Parameters: []framework.Parameter{framework.Family}, With: framework.WithFamily,
	}
	must.NoError(t, checkRunnable([]framework.Scenario{s}, engine.Options{}))
	dual := []framework.Scenario{must.Get(s.Set(map[string]string{"family": "dual"}))(t)}
	for _, wanted := range [][]string{nil, {"old"}} {
		err := checkRunnable(dual, engine.Options{Variants: wanted})
		must.Fail(t, err, `variant "old" runs only with --family ipv4: it has no IPv6`)
		must.Equal(t, "status", exitMachine, exitStatus(t.Context(), err))
	}
}

func TestCheckVariants(t *testing.T) {
	scenario := func(name string, variants ...string) framework.Scenario {
		s := framework.Scenario{Incident: framework.Incident{Name: name}}
		for _, v := range variants {
			s.Variants = append(s.Variants, framework.Variant{Name: v})
		}
		return s
	}
	two := []framework.Scenario{scenario("drain", "cilium-1", "cilium-2"), scenario("nic", "calico-3", "cilium-2")}
	for _, test := range []struct {
		name   string
		chosen []framework.Scenario
		wanted []string
		says   string // part of the error; empty: no error
	}{
		{"all of them", two, nil, ""},
		{"one of each", two, []string{"cilium-1", "calico-3"}, ""},
		{"one that both have", two, []string{"cilium-2"}, ""},
		{"one of one", two[:1], []string{"cilium-1"}, ""},
		{"the other would run nothing", two, []string{"cilium-1"},
			`scenario "nic" has none of the variants asked for; there are ["calico-3" "cilium-2"]`},
		{"of the other scenario alone", two[:1], []string{"calico-3"}, `no variant "calico-3"; nearest is "cilium-1"`},
		{"two slips", two, []string{"cilium-9", "calico-9"},
			"no variant \"cilium-9\"; nearest is \"cilium-1\"\nno variant \"calico-9\"; nearest is \"calico-3\""},
		{"a slip beside a good one", two, []string{"cilium-2", "calico-4"}, `no variant "calico-4"; nearest is "calico-3"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := checkVariants(test.chosen, test.wanted)
			must.Equal(t, "error", test.says, complaint(t.Context(), err))
			must.Equal(t, "status", map[bool]int{true: exitUsage}[test.says != ""], exitStatus(t.Context(), err))
		})
	}
}

// TestSeveral runs two scenarios as far as that goes without a lab.
func TestSeveral(t *testing.T) {
	got := relapse(t, "run", "node-drain", "added-nic", "--dry-run", "--variant", "cilium-1.12.0,first-found")
	got.prints(t, exitExpected, "node-drain cilium-1.12.0 ", "added-nic first-found ")
	for _, part := range []string{"cilium-1.11.6", "first-found-restarted"} {
		must.Equal(t, part, 0, strings.Count(got.stdout+got.stderr, part))
	}
}

// The command in a report has only the flags that affect the scenario's verdict, and can be pasted into a shell.
func TestCommandOf(t *testing.T) {
	run := runCommand(&settings{})
	must.NoError(t, run.ParseFlags([]string{
		"--variant", "a,b", "--variant", "c", "--set", "bgp=frr,mtu=1 400", "--with", "cilium=1.12.1,coredns=1.9.1",
		"--keep", "--output", "x", "--repeat", "3", "--parallel", "2", "--timeout", "5m",
	}))
	got := commandOf(framework.Scenario{
		Incident:   framework.Incident{Name: "drain"},
		Variants:   []framework.Variant{{Name: "a"}, {Name: "c"}, {Name: "d"}},
		Parameters: []framework.Parameter{{Name: "mtu"}},
		Tested:     []framework.Tested{{Name: "cilium"}},
	}, run.Flags())
	must.Equal(t, "", "relapse run drain --repeat=3 '--set=mtu=1 400' --variant=a --variant=c --with=cilium=1.12.1", got)
}

func TestSelection(t *testing.T) {
	for _, test := range []struct {
		name     string
		sel      selection
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
			chosen, variants, err := test.sel.scenarios()
			must.NoError(t, err)
			must.Equal(t, "scenarios", test.want, each.Joined(chosen, " ", nameOf))
			must.Equal(t, "variants", test.variants, strings.Join(variants, " "))
		})
	}
}

// make test builds the images of its own scenarios, and not the images of the scenarios of the night.
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
	first, _, _ := strings.Cut(got.stdout, `"timeout"`) // the rest depends on measured times
	must.Equal(t, got, `{"include":[{"shard":1,"scenario":"added-nic","label":"bgp","with":"",`, first)
	got = relapse(t, "plan", "--shards", "9", "--with", "cilium=1.12.1")
	got.prints(t, exitExpected, `{"shard":2,`, `"with":"cilium=1.12.1"`)
	got.complains(t, exitExpected, "3 shards are enough for 3 scenarios: a scenario is not split")
	relapse(t, "plan", "--with", "cilium=9.9.9").complains(t, exitUsage, "no recipe builds")
}

func TestQuiet(t *testing.T) {
	out, stdout := must.Get(os.Create(filepath.Join(t.TempDir(), "out")))(t), os.Stdout
	defer func() { os.Stdout = stdout }()
	os.Stdout = out
	for quiet, shows := range map[bool]bool{true: false, false: true} {
		s := settings{Settings: portable.Settings{Quiet: quiet}}
		must.NoError(t, out.Truncate(0))
		d := s.display(display.Look{})
		d.Note("lab", "it is up")
		d.Close()
		must.Equal(t, quiet, shows, strings.Contains(read(t, out.Name()), "it is up"))
	}
}
