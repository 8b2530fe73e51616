package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/must"
)

func golden(t *testing.T, name, got string) {
	t.Helper()
	goldentest.Compare(t, name+".txt", got)
}

// TestBadUsage is bad input that is refused before anything is looked at:
// status 2, one sentence on standard error, nothing on standard output.
func TestBadUsage(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		says string
	}{
		{"unknown command", []string{"rum"}, `no command "rum"; nearest is "run"`},
		{"unknown command of images", []string{"images", "lst"}, `no command "lst"; nearest is "list"`},
		{"run without a name", []string{"run"}, `run needs the name of a scenario, --all or --label: ` + strings.Join(scenarioNames(), ", ")},
		{"all, and one", []string{"run", "node-drain", "--all"}, `--all and the name of a scenario exclude each other`},
		{"an unknown label", []string{"run", "--label", "cilium && !slwo"}, `--label: no scenario has the label "slwo"; nearest is "slow"`},
		{"no expression of labels", []string{"run", "--all", "--label", "cilium &&"}, `--label: "cilium &&" is no expression of labels: expected one such as "cilium && !slow"`},
		{"labels that nothing has", []string{"list", "--label", "cilium && guest"}, `--label: no variant matches "cilium && guest"`},
		{"labels that a scenario has not", []string{"run", "node-drain", "--label", "guest"}, `--label: no variant of scenario "node-drain" matches "guest"`},
		{"labels and variants", []string{"run", "node-drain", "--label", "bgp", "--variant", "cilium-1.12.0"}, `--label and --variant exclude each other`},
		{"a misspelt component for all", []string{"run", "--all", "--with", "cilum=1.11.4"}, `--with: no component "cilum"; nearest is "cilium"`},
		{"no machine", []string{"plan", "--shards", "0"}, `--shards: 0: expected 1 or more`},
		{"a plan for an unknown scenario", []string{"plan", "nodedrain"}, `no scenario "nodedrain"; nearest is "node-drain"`},
		{"an unknown component", []string{"run", "node-drain", "--with", "cilum=1.11.4"}, `--with: no component "cilum"; nearest is "cilium"`},
		{"no version", []string{"run", "node-drain", "--with", "cilium=1.11"}, `--with: cilium: "1.11" is no version: expected one such as 1.11.6`},
		{"a version that is the old one", []string{"run", "masquerade-drift", "--with", "cilium=1.8.1"},
			`--with: 1.8.1 to 1.8.1 is not an upgrade: choose cilium.from as well, which is 1.8.1 by default`},
		{"an old version that is newer", []string{"run", "masquerade-drift", "--with", "cilium.from=1.12.0"},
			`--with: 1.12.0 to 1.11.1 is not an upgrade: choose cilium.to as well, which is 1.11.1 by default`},
		{"one version twice", []string{"run", "masquerade-drift", "--with", "cilium.from=1.11.6", "--with", "cilium.to=1.11.6"},
			`--with: cilium.from and cilium.to are both 1.11.6: there is no upgrade`},
		{
			"a version that nothing builds", []string{"run", "added-nic", "--with", "calico=3.28.4"},
			"no recipe builds docker.io/calico/cni at version 3.28.4; there are those from 3.28.5 and below 3.28.6\n" +
				"no recipe builds docker.io/calico/node at version 3.28.4; there are those from 3.28.5 and below 3.28.6\n" +
				"no recipe builds relapse.dev/calico-manifest at version 3.28.4; there are those from 3.28.5 and below 3.28.6",
		},
		{"a version, and an expectation", []string{"run", "node-drain", "--with", "cilium=1.11.4", "--repeat", "2"},
			`--with and --like exclude --variant, --ablate, --repeat and --wait: such a version has no expected verdict`},
		{"an expectation of no version", []string{"run", "node-drain", "--expect", "prevented"}, `--expect is for --with: each variant has an expected verdict of its own`},
		{"an expectation that is near", []string{"run", "node-drain", "--with", "cilium=1.11.4", "--expect", "prevent"}, `--expect: "prevent"; nearest is "prevented": expected prevented, reproduced, refused`},
		{"a version for one of two scenarios", []string{"run", "node-drain", "added-nic", "--with", "cilium=1.11.4"},
			`--with: scenario "added-nic" tests none of these components`},
		{"bisect without a component", []string{"bisect", "node-drain"}, `relapse bisect takes two arguments, the names of a scenario and of a component, such as node-drain cilium`},
		{"bisect of a component that is not tested", []string{"bisect", "node-drain", "kube-proxy"}, `scenario "node-drain" tests no component "kube-proxy"; there are ["cilium"]`},
		{"bisect from what nothing builds", []string{"bisect", "ipvs-deadlock", "kube-proxy", "--from", "1.10.0"},
			`no recipe builds k8s.gcr.io/kube-proxy at version 1.10.0; there are those from 1.11.0 and below 1.14.0`},
		{"bisect from what is not a version", []string{"bisect", "node-drain", "cilium", "--from", "1.1"}, `--from: "1.1" is not a version: expected one such as 1.11.0`},
		{"bisect from a version to itself", []string{"bisect", "node-drain", "cilium", "--from", "1.12.0", "--to", "1.12.0"},
			`--from and --to are both 1.12.0: there is nothing between them`},
		{
			"bisect with exchanged ends", []string{"bisect", "node-drain", "cilium", "--from", "1.12.0", "--to", "1.11.6"},
			`--from 1.12.0 is newer than --to 1.11.6: give the older version as --from; bisect finds in either case whether the newer one broke or fixed it`,
		},
		{"bisect between nothing", []string{"bisect", "added-nic", "calico"}, `a bisection needs at least two versions: there are ["3.28.5"]`},
		{"bisect with a version of the component that it searches", []string{"bisect", "node-drain", "cilium", "--with", "cilium=1.11.6"}, `--with cilium: bisect searches the versions of this component`},
		{"qualify without versions", []string{"qualify", "cilium", "1.11.6"},
			`relapse qualify takes three arguments, the name of a component and two versions, such as cilium 1.18.4 1.19.3`},
		{"qualify of what is no version", []string{"qualify", "cilium", "1.11.6", "1.12"}, `"1.12" is not a version: expected one such as 1.11.0`},
		{"advise of a component that is misspelt", []string{"advise", "cilum", "1.11.6", "1.12.0"}, `relapse knows nothing of a component "cilum"; nearest is "cilium"`},
		{"advise with results that are none", []string{"advise", "cilium", "1.11.6", "1.12.0", "--known", "testdata/hostile.json"}, `--known: stat testdata/hostile.json: no such file or directory`},
		{"qualify of no upgrade", []string{"qualify", "cilium", "1.11.6", "1.11.6"}, `FROM and TO are both 1.11.6: there is no upgrade`},
		{"qualify of a component that is misspelt", []string{"qualify", "cilum", "1.11.6", "1.12.0"}, `relapse neither tests nor upgrades a component "cilum"; nearest is "cilium"`},
		{
			"qualify of a component that no scenario concerns", []string{"qualify", "mariadb", "10.11.0", "11.4.0"},
			`relapse neither tests nor upgrades a component "mariadb"; there are ["calico" "cilium" "coredns" "kube-proxy" "kube-router" "metallb"]`,
		},
		{"qualify to what nothing builds", []string{"qualify", "kube-router", "1.5.1", "0.4.0"},
			`no recipe builds docker.io/cloudnativelabs/kube-router at version 0.4.0; there are those from 1.4.0 and below 2.0.0, those from 2.1.0 and below 3.0.0`},
		{
			"qualify from kube-proxy's old versions to those of today", []string{"qualify", "kube-proxy", "1.13.2", "1.36.3"},
			`an upgrade of kube-proxy from 1.13.2 to 1.36.3 has no lab: expected two versions from 1.31.0 on`,
		},
		{"qualify in a mode that is none", []string{"qualify", "kube-proxy", "1.35.4", "1.36.3", "--mode", "ipsv"},
			`the KubeProxyConfiguration: kube-proxy has no mode "ipsv" on Linux; nearest is "ipvs"`},
		{
			"qualify with a Corefile that is none", []string{"qualify", "coredns", "1.12.1", "1.15.0", "--config", "testdata/qualify-help.txt"},
			`the Corefile: it has no plugin kubernetes with a zone`,
		},
		{
			"qualify with objects that are none", []string{"qualify", "metallb", "0.14.8", "0.14.9", "--manifests", "testdata/config-broken.yaml"},
			`--manifests: testdata/config-broken.yaml: it is not YAML: line 2: found a tab character that violates indentation`,
		},
		{
			"qualify with objects of a component without any", []string{"qualify", "calico", "3.28.4", "3.28.5", "--manifests", "testdata/config-without-data.yaml"},
			`the lab of an upgrade of calico takes no mode and no manifests`,
		},
		{"qualify with a gap that is none", []string{"qualify", "kube-proxy", "1.35.4", "1.36.3", "--max-gap", "-1s"}, `--max-gap: -1s: expected 0 or more`},
		{"qualify with a share that is none", []string{"qualify", "kube-proxy", "1.35.4", "1.36.3", "--max-lost", "few"},
			`--max-lost: "few" is not a share of packets: expected one such as 0.1%`},
		{"qualify with a share of more than all", []string{"qualify", "kube-proxy", "1.35.4", "1.36.3", "--max-lost", "101%"},
			`--max-lost: "101%" is not a share of packets: expected one such as 0.1%`},
		{"qualify in no time", []string{"qualify", "kube-proxy", "1.35.4", "1.36.3", "--timeout", "0s"}, `--timeout: 0s: expected more than 0`},
		{"qualify with a ConfigMap that is not there", []string{"qualify", "cilium", "1.11.6", "1.12.0", "--config", "none.yaml"}, `--config: open none.yaml: no such file or directory`},
		{
			"qualify with a ConfigMap that is no YAML", []string{"qualify", "cilium", "1.11.6", "1.12.0", "--config", "testdata/config-broken.yaml"},
			`--config: testdata/config-broken.yaml: document 1 is not YAML: line 2: found a tab character that violates indentation`,
		},
		{
			"qualify with a ConfigMap without data", []string{"qualify", "cilium", "1.11.6", "1.12.0", "--config", "testdata/config-without-data.yaml"},
			`--config: testdata/config-without-data.yaml: the ConfigMap kube-system/cilium-config has no data`,
		},
		{"qualify with an empty stream", []string{"qualify", "cilium", "1.11.6", "1.12.0", "--config", "-"}, `--config: standard input: it contains no ConfigMap`},
		{"qualify with values that are not there", []string{"qualify", "cilium", "1.18.4", "1.19.3", "--values", "none.yaml"}, `--values: open none.yaml: no such file or directory`},
		{
			"qualify with values that are no YAML", []string{"qualify", "cilium", "1.18.4", "1.19.3", "--values", "testdata/config-broken.yaml"},
			`--values: testdata/config-broken.yaml: it is not YAML: line 2: found a tab character that violates indentation`,
		},
		{"qualify with values of no version", []string{"qualify", "cilium", "1.19.3", "--values", "-"},
			`--values: standard input states no version of the chart: expected qualify cilium FROM 1.19.3`},
		{"qualify with a variable that is none", []string{"qualify", "cilium", "1.18.4", "1.19.3", "--values", "-", "--set-var", "X"},
			`--set-var: expected NAME=VALUE`},
		{"qualify with values of what has no chart here", []string{"qualify", "kube-proxy", "1.35.4", "1.36.3", "--values", "-"},
			`--values: kube-proxy is not installed by values here: expected cilium or metallb`},
		{
			"qualify with values and a ConfigMap", []string{"qualify", "cilium", "1.18.4", "1.19.3", "--values", "-", "--config", "testdata/config.yaml"},
			`--values and --config exclude each other: the charts render the ConfigMap from the values`,
		},
		{
			"qualify with values of a slice", []string{"qualify", "cilium", "1.12.0", "1.18.4", "--values", "-"},
			`--values: cilium 1.12.0 runs here as a slice, without its chart: expected versions from 1.15.0 on`,
		},
		{"versions of nothing", []string{"versions"}, `relapse versions takes one argument, the name of a component, such as cilium`},
		{
			"versions of an unknown component", []string{"versions", "ciliun"},
			`no recipe builds a component "ciliun"; there are calico, calico-cni, calico-node, cilium, cilium-operator, coredns, kube-proxy, kube-router, metallb`,
		},
		{"page of nothing", []string{"page"}, `relapse page needs the folder of a run, or one with runs in it, such as reports`},
		{"page of a folder that is not there", []string{"page", "no-such"}, `looking for runs: lstat no-such: no such file or directory`},
		{"page of a folder without runs", []string{"page", "testdata"}, `there is no report.json in testdata, nor in a folder below it`},
		{"unknown scenario", []string{"run", "node-drian"}, `no scenario "node-drian"; nearest is "node-drain"`},
		{"unknown scenario to describe", []string{"describe", "nodedrain"}, `no scenario "nodedrain"; nearest is "node-drain"`},
		{"unknown scenario to bring up", []string{"up", "xyzzy"}, fmt.Sprintf(`no scenario "xyzzy"; there are %q`, scenarioNames())},
		{"one scenario twice", []string{"run", "node-drain", "node-drain"}, `scenario "node-drain" is named twice`},
		{"unknown variant", []string{"run", "node-drain", "--variant", "cilium-1.11.5"},
			`no variant "cilium-1.11.5"; nearest is "cilium-1.11.6"`},
		{"a known and an unknown variant", []string{"run", "node-drain", "--variant", "cilium-1.12.0,cilium-1.13.0"},
			`no variant "cilium-1.13.0"; nearest is "cilium-1.12.0"`},
		{"unknown part", []string{"run", "node-drain", "--ablate", "detectors"}, `--ablate: no part "detectors"; nearest is "detector"`},
		{"a file of routers for no lab", []string{"run", "node-drain", "--routers", "routers.yml"}, `--routers and --yes-this-is-a-lab are for --on`},
		{"two scenarios on one lab", []string{"run", "node-drain", "twin-cidr", "--on", "lab"}, `--on: expected one scenario, not 2`},
		{"a lab that is not ours to keep", []string{"run", "node-drain", "--on", "lab", "--keep"}, `--on excludes --keep, --reuse, --subnets and --images=upstream: the lab stays up as it is, and gets its images from a registry of relapse's`},
		{"unknown flag", []string{"run", "node-drain", "--kep"}, `unknown flag: --kep (see relapse run --help)`},
		{"flag without a value", []string{"run", "--variant"}, `flag needs an argument: --variant (see relapse run --help)`},
		{"time-out that is no duration", []string{"run", "node-drain", "--timeout", "soon"},
			`invalid argument "soon" for "--timeout" flag: time: invalid duration "soon" (see relapse run --help)`},
		{"no run at all", []string{"run", "node-drain", "--repeat", "0"}, `--repeat: 0: expected 1 or more`},
		{"no run kept", []string{"run", "node-drain", "--keep-runs", "0"}, `--keep-runs: 0: expected 1 or more: this run is always kept`},
		{"half a run", []string{"run", "node-drain", "--repeat", "1.5"},
			`invalid argument "1.5" for "--repeat" flag: strconv.ParseInt: parsing "1.5": invalid syntax (see relapse run --help)`},
		{"repeats of a run without a part", []string{"run", "node-drain", "--repeat", "2", "--ablate", "fault"},
			`--repeat and --ablate exclude each other: one counts how often each verdict occurs, the other expects it to change`},
		{"repeats of every ablation", []string{"run", "node-drain", "--ablate", "all", "--repeat", "20"},
			`--repeat and --ablate exclude each other: one counts how often each verdict occurs, the other expects it to change`},
		{"time-out of nothing", []string{"run", "node-drain", "--timeout", "0s"}, `--timeout: 0s: expected more than 0`},
		{"time-out in the past", []string{"run", "node-drain", "--timeout=-1m"}, `--timeout: -1m0s: expected more than 0`},
		{"unknown log level", []string{"run", "node-drain", "--log-level", "loud"},
			`--log-level: "loud": expected debug, info, warn or error`},
		{"a report that has nowhere to go", []string{"run", "node-drain", "--output", "main_test.go/reports"},
			`--output: mkdir main_test.go: not a directory`},
		{"images from nowhere", []string{"run", "unpinned-image", "--images", "pull"}, `--images: "pull": expected build or upstream`},
		{"a mirror for built images", []string{"run", "unpinned-image", "--upstream", "docker.io=http://10.0.0.1"}, `--upstream is for --images=upstream alone`},
		{
			"a mirror of an unknown registry", []string{"run", "unpinned-image", "--images=upstream", "--upstream", "docker.oi=http://10.0.0.1"},
			`--upstream: unknown vendor's host "docker.oi"; expected one of docker.io, gcr.io, quay.io, registry.k8s.io`,
		},
		{"unknown parameter", []string{"run", "node-drain", "--set", "ruter=frr"}, `--set: no parameter "ruter"; nearest is "router"`},
		{"a parameter of no scenario that runs", []string{"run", "unpinned-image", "--set", "nic=eth2"}, `--set: no parameter "nic"; none is declared`},
		{"a lab with an unknown parameter", []string{"up", "unpinned-image", "--set", "nic=eth2"}, `--set: no parameter "nic"; none is declared`},
		{"an argument too many", []string{"list", "node-drain"}, `relapse list takes no argument, not "node-drain"`},
		{"an argument too few", []string{"describe"}, `relapse describe takes one argument, the name of a scenario`},
		{"two where one is wanted", []string{"up", "a", "b"}, `relapse up takes one argument, the name of a scenario`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := relapse(t, test.args...)
			want := ended{exitUsage, "", "relapse: " + test.says + "\n"}
			must.Equal(t, "", want, got)
		})
	}
}

func TestRendered(t *testing.T) {
	for name, args := range map[string][]string{
		"help":                     {"--help"},
		"run-help":                 {"run", "--help"},
		"bisect-help":              {"bisect", "--help"},
		"plan-help":                {"plan", "--help"},
		"archive-help":             {"archive", "--help"},
		"audit-help":               {"audit", "--help"},
		"qualify-help":             {"qualify", "--help"},
		"dry-run":                  {"run", "node-drain", "--dry-run", "--parallel", "1"},
		"dry-run-of-one-variant":   {"run", "node-drain", "--dry-run", "--variant", "cilium-1.12.0", "--keep"},
		"dry-run-ipvs-deadlock":    {"run", "ipvs-deadlock", "--dry-run"},
		"dry-run-with":             {"run", "masquerade-drift", "--dry-run", "--with", "cilium.to=1.11.4"},
		"dry-run-unpinned-image":   {"run", "unpinned-image", "--dry-run", "--parallel", "1"},
		"dry-run-added-nic":        {"run", "added-nic", "--dry-run", "--parallel", "1"},
		"dry-run-two-labs":         {"run", "node-drain", "--dry-run", "--parallel", "2"},
		"dry-run-masquerade-drift": {"run", "masquerade-drift", "--dry-run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := relapse(t, args...)
			if got.status != exitExpected || got.stderr != "" {
				t.Errorf("status %d, standard error %q", got.status, got.stderr)
			}
			golden(t, name, got.stdout)
		})
	}
}

// TestAblateAllIsPlanned wants a run for each part that matters to a variant.
func TestAblateAllIsPlanned(t *testing.T) {
	got := relapse(t, "run", "node-drain", "--dry-run", "--ablate", "all")
	var verdicts []string
	for line := range strings.Lines(got.stdout) {
		if strings.Contains(line, " verdict is ") {
			verdicts = append(verdicts, strings.TrimSpace(line))
		}
	}
	want := []string{
		"cilium-1.11.6 without fault verdict is vacuous",
		"cilium-1.11.6 without detector verdict is missed",
		"cilium-1.11.6 without remedy verdict is reproduced",
		"cilium-1.12.0 without fault verdict is vacuous",
	}
	if diff := cmp.Diff(want, verdicts); diff != "" || got.status != exitExpected {
		t.Errorf("status %d, (-want +got):\n%s", got.status, diff)
	}
}

// The night's run with exchanged roles must be one that validation lets pass.
func TestExchangedRolesAreValid(t *testing.T) {
	cmd := program(t.Context(), "run", "node-drain", "--dry-run", "--variant", "cilium-1.12.0")
	cmd.Env = append(cmd.Env, rolesExchanged+"=1")
	if got := end(t, cmd); got.status != exitExpected || !strings.Contains(got.stdout, "verdict is reproduced") {
		t.Errorf("%+v", got)
	}
}

// Every scenario of the catalogue must be listed, and describe itself.
func TestCatalogue(t *testing.T) {
	list := relapse(t, "list")
	for _, s := range scenarios.All {
		about := relapse(t, "describe", s.Incident.Name)
		symptom, _, _ := strings.Cut(s.Incident.Symptom, "\n")
		if about.status != exitExpected || !strings.Contains(about.stdout, symptom) {
			t.Errorf("%+v", about)
		}
		wanted := []string{s.Incident.Name, s.Incident.Title}
		for _, v := range s.Variants {
			wanted = append(wanted, v.Name, fmt.Sprintf("%s, %s: expected %s", v.Role, v.Form, v.Expected()))
		}
		for _, want := range wanted {
			if list.status != exitExpected || !strings.Contains(list.stdout, want) {
				t.Errorf("list does not say %q:\n%s", want, list.stdout)
			}
		}
	}
}

func TestDescribe(t *testing.T) {
	var out strings.Builder
	describe(&out, framework.Scenario{
		Incident: framework.Incident{
			Name: "flood", Title: "water in the rack", Source: "production",
			Symptom: "Cables float.\nNobody answers.\n", Cause: "A valve.",
			Affected: "1.0", Fixed: "1.1", Remedies: []string{"close the valve", "a towel does not help"},
			Reproduction: "A bucket.", Diagram: "  ~~~~\n  rack",
		},
		Labels: []framework.Label{"water"}, Slow: true, Owner: "@plumbers",
		Variants: []framework.Variant{
			{Name: "valve-1.0", Role: framework.Affected, Form: framework.Whole},
			{Name: "valve-1.1", Role: framework.Fixed, Form: framework.Slice},
		},
	})
	golden(t, "describe", out.String())
}

func TestDescribeContainerlab(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab")
	got := relapse(t, "describe", "node-drain", "--containerlab", dir)
	text, err := os.ReadFile(filepath.Join(dir, "node-drain.clab.yml"))
	if got.status != exitExpected || err != nil || !strings.Contains(string(text), "\nname: node-drain\ntopology:\n") {
		t.Errorf("%+v, %v", got, err)
	}
}

// A dry run must do nothing: neither look for Docker nor leave a report.
func TestDryRunTouchesNothing(t *testing.T) {
	dir := t.TempDir()
	cmd := program(t.Context(), "run", "node-drain", "--dry-run")
	cmd.Dir = dir // no source here either
	cmd.Env = append(cmd.Env, "DOCKER_HOST=unix:///nonexistent/docker.sock")
	got := end(t, cmd)
	if got.status != exitExpected || !strings.Contains(got.stdout, "lab is up") {
		t.Errorf("%+v", got)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("left %v, %v", files, err)
	}
}

// TestNoDocker points relapse at a socket without a listener.
func TestNoDocker(t *testing.T) {
	for _, args := range [][]string{{"doctor"}, {"run", "node-drain"}, {"up", "node-drain"}, {"down"}, {"down", "node-drain"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "docker.sock")
			ctx, cancel := context.WithTimeout(t.Context(), hangs)
			defer cancel()
			if args[0] == "run" {
				args = append(args, "--output", t.TempDir())
			}
			cmd := program(ctx, args...)
			cmd.Env = append(cmd.Env, "DOCKER_HOST=unix://"+socket)
			got := end(t, cmd)
			must.Equal(t, "status", exitMachine, got.status)
			if args[0] == "down" && os.Geteuid() != 0 {
				return // its error comes first
			}
			for _, want := range []string{socket, "octor"} {
				if args[0] == "down" && !strings.Contains(got.stderr, want) {
					t.Errorf("standard error %q does not say %q", got.stderr, want)
				}
			}
			if want := "Docker must answer at unix://" + socket; args[0] != "down" && !strings.Contains(got.stderr, want) {
				t.Errorf("standard error %q does not say %q", got.stderr, want)
			}
			if want := "unset DOCKER_HOST, or start the engine at that address"; args[0] != "down" && !strings.Contains(got.stderr, want) {
				t.Errorf("standard error %q does not name the cure: %q", got.stderr, want)
			}
			if strings.Contains(got.stderr, "goroutine") {
				t.Error("a stack trace")
			}
		})
	}
}

// source makes a source tree that has one image. Everybody may read it.
func source(t *testing.T, recipe string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		must.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
	}
	write("go.mod", "module "+modulePath+"\n")
	write("images/only/image.yaml", recipe)
	for name, text := range files {
		write("images/only/"+name, text)
	}
	return dir
}

// TestNotRoot runs relapse as a user other than root.
func TestNotRoot(t *testing.T) {
	dir := source(t, "images:\n- {ref: relapse.dev/only:dev, directories: [/only]}\n", nil)
	for _, args := range [][]string{{"doctor"}, {"run", "node-drain"}, {"up", "node-drain"}, {"down"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), hangs)
			defer cancel()
			home := t.TempDir()
			if args[0] == "run" {
				args = append(args, "--output", home)
			}
			cmd := program(ctx, args...)
			cmd.Dir = dir
			cmd.Env = append(cmd.Env, "HOME="+home, "XDG_CACHE_HOME="+home)
			uid := os.Geteuid()
			if uid == 0 {
				uid = 65534
				must.NoError(t, errors.Join(os.Chown(home, uid, uid), os.Chmod(filepath.Dir(home), 0o755)))
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
			}
			got := end(t, cmd)
			want := fmt.Sprintf("relapse must run as root (found: uid %d): run it with sudo", uid)
			if got.status != exitMachine || !strings.Contains(got.stderr, want) {
				t.Errorf("status %d, standard error %q; want %d and %q", got.status, got.stderr, exitMachine, want)
			}
		})
	}
}

// Images are built from relapse's own source; without it there is nothing to build them from.
func TestNoSource(t *testing.T) {
	for name, mod := range map[string]string{
		"nothing there":     "",
		"another's go.mod":  "module example.com/other\n",
		"a longer name":     "module github.com/relapse-dev/relapse-fork\n",
		"an image's go.mod": "module github.com/relapse-dev/relapse/images/kubernetes\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := program(t.Context(), "images", "list")
			cmd.Dir = t.TempDir()
			if mod != "" {
				must.Write(t, filepath.Join(cmd.Dir, "go.mod"), mod)
			}
			want := ended{exitUsage, "", "relapse: relapse builds its images from its own source, and cannot find it: run it from a checkout\n"}
			must.Equal(t, "", want, end(t, cmd))
		})
	}
}

func TestUnknownImage(t *testing.T) {
	got := relapse(t, "images", "build", "relapse.dev/tro:dev")
	if want := `relapse: no recipe makes image "relapse.dev/tro:dev"`; got.status != exitUsage || !strings.HasPrefix(got.stderr, want) {
		t.Errorf("%+v\nwant status %d and %q", got, exitUsage, want)
	}
}

// hangs is after how long a command of a test is ended: far longer than it takes on a machine
// on which everything else compiles at the same time.
const hangs = 5 * time.Minute

// TestBrokenRecipe has relapse read a recipe that is none, and build one
// whose program does not compile.
func TestBrokenRecipe(t *testing.T) {
	t.Run("recipe", func(t *testing.T) {
		cmd := program(t.Context(), "images", "list")
		cmd.Dir = source(t, "images:\n- ref: relapse.dev/broken:dev\n  entrypiont: [x]\n", nil)
		got := end(t, cmd)
		if got.status != exitUsage || !strings.Contains(got.stderr, "only/image.yaml") || !strings.Contains(got.stderr, "entrypiont") {
			t.Errorf("%+v; want status %d, the file and the field", got, exitUsage)
		}
	})
	t.Run("program", func(t *testing.T) {
		cache := t.TempDir()
		// Go's own packages come from the caller's cache, which is below XDG_CACHE_HOME by
		// default: to compile them takes longer than the test.
		compiled := must.Get(exec.Command("go", "env", "GOCACHE").Output())(t)
		ctx, cancel := context.WithTimeout(t.Context(), hangs)
		defer cancel()
		cmd := program(ctx, "images", "build", "relapse.dev/broken:dev")
		cmd.Dir = source(t, "images:\n- ref: relapse.dev/broken:dev\n  programs: [{package: ./program, path: /broken}]\n", map[string]string{
			"go.mod":          "module broken\n\ngo 1.26\n",
			"program/main.go": "package main\n\nfunc main() { undeclared() }\n",
		})
		cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+cache, "GOCACHE="+strings.TrimSpace(string(compiled)), "GOPROXY=off", "GOFLAGS=")
		got := end(t, cmd)
		must.Equal(t, "status", exitMachine, got.status)
		must.Contain(t, got.stderr, "building image relapse.dev/broken:dev", "program/main.go:3:15: undefined: undeclared")
		log := regexp.MustCompile(`the log (\S+) ends with`).FindStringSubmatch(got.stderr)
		if log == nil || !strings.HasPrefix(log[1], cache) {
			t.Fatalf("standard error does not name the log:\n%s", got.stderr)
		}
		if text, err := os.ReadFile(log[1]); err != nil || !strings.Contains(string(text), "undefined: undeclared") {
			t.Errorf("the log has %q, %v", text, err)
		}
		left, err := fs.Glob(os.DirFS(cache), "relapse/images/tmp/*")
		if err != nil || len(left) > 0 {
			t.Errorf("the build left %v, %v", left, err)
		}
	})
}

// A folder is what it is for kubectl apply -f: its YAML and JSON files.
func TestOpenFolder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.yaml": "kind: A", "b.json": `{"kind": "B"}`, "README.md": "# no YAML", "c.yml": "---\nkind: C"} {
		must.Write(t, filepath.Join(dir, name), text)
	}
	text, _, err := portable.Values{}.Input("--manifests", dir, nil)
	must.NoError(t, err)
	must.Equal(t, "the stream", "---\nkind: A\n---\n{\"kind\": \"B\"}\n---\n---\nkind: C\n", string(text))
}
