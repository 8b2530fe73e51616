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

// Bad input leads to status 2, one sentence on standard error, and nothing on standard output.
func TestBadUsage(t *testing.T) {
	for _, test := range []struct{ line, says string }{
		{"rum", `no command "rum"; nearest is "run"`},
		{"images lst", `no command "lst"; nearest is "list"`},
		{"run", `run needs the name of a scenario, --all or --label: ` + strings.Join(scenarioNames(), ", ")},
		{"run node-drain --all", `--all and the name of a scenario exclude each other`},
		{"run --label cilium&&!slwo", `--label: no scenario has the label "slwo"; nearest is "slow"`},
		{"run --all --label cilium&&", `--label: "cilium&&" is no expression of labels: expected one such as "cilium && !slow"`},
		{"list --label cilium&&guest", `--label: no variant matches "cilium&&guest"`},
		{"run node-drain --label guest", `--label: no variant of scenario "node-drain" matches "guest"`},
		{"run node-drain --label bgp --variant cilium-1.12.0", `--label and --variant exclude each other`},
		{"run --all --with cilum=1.11.4", `--with: no component "cilum"; nearest is "cilium"`},
		{"plan --shards 0", `--shards: 0: expected 1 or more`},
		{"plan nodedrain", `no scenario "nodedrain"; nearest is "node-drain"`},
		{"run node-drain --with cilum=1.11.4", `--with: no component "cilum"; nearest is "cilium"`},
		{"run node-drain --with cilium=1.11", `--with: cilium: "1.11" is no version: expected one such as 1.11.6`},
		{"run masquerade-drift --with cilium=1.8.1",
			`--with: 1.8.1 to 1.8.1 is not an upgrade: choose cilium.from as well, which is 1.8.1 by default`},
		{"run masquerade-drift --with cilium.from=1.12.0",
			`--with: 1.12.0 to 1.11.1 is not an upgrade: choose cilium.to as well, which is 1.11.1 by default`},
		{"run masquerade-drift --with cilium.from=1.11.6 --with cilium.to=1.11.6",
			`--with: cilium.from and cilium.to are both 1.11.6: there is no upgrade`},
		{"run added-nic --with calico=3.28.4",
			"no recipe builds docker.io/calico/cni at version 3.28.4; there are those from 3.28.5 and below 3.28.6\n" +
				"no recipe builds docker.io/calico/node at version 3.28.4; there are those from 3.28.5 and below 3.28.6\n" +
				"no recipe builds relapse.dev/calico-manifest at version 3.28.4; there are those from 3.28.5 and below 3.28.6"},
		{"run node-drain --with cilium=1.11.4 --repeat 2",
			`--with and --like exclude --variant, --ablate, --repeat and --wait: such a version has no expected verdict`},
		{"run node-drain --expect prevented", `--expect is for --with: each variant has an expected verdict of its own`},
		{"run node-drain --with cilium=1.11.4 --expect prevent",
			`--expect: "prevent"; nearest is "prevented": expected prevented, reproduced, refused`},
		{"run node-drain added-nic --with cilium=1.11.4", `--with: scenario "added-nic" tests none of these components`},
		{"bisect node-drain", `relapse bisect takes two arguments, the names of a scenario and of a component, such as node-drain cilium`},
		{"bisect node-drain kube-proxy", `scenario "node-drain" tests no component "kube-proxy"; there are ["cilium"]`},
		{"bisect ipvs-deadlock kube-proxy --from 1.10.0",
			`no recipe builds k8s.gcr.io/kube-proxy at version 1.10.0; there are those from 1.11.0 and below 1.14.0`},
		{"bisect node-drain cilium --from 1.1", `--from: "1.1" is not a version: expected one such as 1.11.0`},
		{"bisect node-drain cilium --from 1.12.0 --to 1.12.0", `--from and --to are both 1.12.0: there is nothing between them`},
		{"bisect node-drain cilium --from 1.12.0 --to 1.11.6",
			`--from 1.12.0 is newer than --to 1.11.6: give the older version as --from; bisect finds in either case whether the newer one broke or fixed it`},
		{"bisect added-nic calico", `a bisection needs at least two versions: there are ["3.28.5"]`},
		{"bisect node-drain cilium --with cilium=1.11.6", `--with cilium: bisect searches the versions of this component`},
		{"qualify cilium 1.11.6",
			`relapse qualify takes three arguments, the name of a component and two versions, such as cilium 1.18.4 1.19.3`},
		{"qualify cilium 1.11.6 1.12", `"1.12" is not a version: expected one such as 1.11.0`},
		{"advise cilum 1.11.6 1.12.0", `relapse knows nothing of a component "cilum"; nearest is "cilium"`},
		{"advise cilium 1.11.6 1.12.0 --known testdata/hostile.json", `--known: stat testdata/hostile.json: no such file or directory`},
		{"qualify cilium 1.11.6 1.11.6", `FROM and TO are both 1.11.6: there is no upgrade`},
		{"qualify cilum 1.11.6 1.12.0", `relapse neither tests nor upgrades a component "cilum"; nearest is "cilium"`},
		{"qualify mariadb 10.11.0 11.4.0",
			`relapse neither tests nor upgrades a component "mariadb"; there are ["calico" "cilium" "coredns" "kube-proxy" "kube-router" "metallb"]`},
		{"qualify kube-router 1.5.1 0.4.0",
			`no recipe builds docker.io/cloudnativelabs/kube-router at version 0.4.0; there are those from 1.4.0 and below 2.0.0, those from 2.1.0 and below 3.0.0`},
		{"qualify kube-proxy 1.13.2 1.36.3", `an upgrade of kube-proxy from 1.13.2 to 1.36.3 has no lab: expected two versions from 1.31.0 on`},
		{"qualify kube-proxy 1.35.4 1.36.3 --mode ipsv", `the KubeProxyConfiguration: kube-proxy has no mode "ipsv" on Linux; nearest is "ipvs"`},
		{"qualify coredns 1.12.1 1.15.0 --config testdata/qualify-help.txt", `the Corefile: it has no plugin kubernetes with a zone`},
		{"qualify metallb 0.14.8 0.14.9 --manifests testdata/config-broken.yaml",
			`--manifests: testdata/config-broken.yaml: it is not YAML: line 2: found a tab character that violates indentation`},
		{"qualify calico 3.28.4 3.28.5 --manifests testdata/config-without-data.yaml",
			`the lab of an upgrade of calico takes no mode and no manifests`},
		{"qualify kube-proxy 1.35.4 1.36.3 --max-gap -1s", `--max-gap: -1s: expected 0 or more`},
		{"qualify kube-proxy 1.35.4 1.36.3 --max-lost few", `--max-lost: "few" is not a share of packets: expected one such as 0.1%`},
		{"qualify kube-proxy 1.35.4 1.36.3 --max-lost 101%", `--max-lost: "101%" is not a share of packets: expected one such as 0.1%`},
		{"qualify kube-proxy 1.35.4 1.36.3 --timeout 0s", `--timeout: 0s: expected more than 0`},
		{"qualify cilium 1.11.6 1.12.0 --config none.yaml", `--config: open none.yaml: no such file or directory`},
		{"qualify cilium 1.11.6 1.12.0 --config testdata/config-broken.yaml",
			`--config: testdata/config-broken.yaml: document 1 is not YAML: line 2: found a tab character that violates indentation`},
		{"qualify cilium 1.11.6 1.12.0 --config testdata/config-without-data.yaml",
			`--config: testdata/config-without-data.yaml: the ConfigMap kube-system/cilium-config has no data`},
		{"qualify cilium 1.11.6 1.12.0 --config -", `--config: standard input: it contains no ConfigMap`},
		{"qualify cilium 1.18.4 1.19.3 --values none.yaml", `--values: open none.yaml: no such file or directory`},
		{"qualify cilium 1.18.4 1.19.3 --values testdata/config-broken.yaml",
			`--values: testdata/config-broken.yaml: it is not YAML: line 2: found a tab character that violates indentation`},
		{"qualify cilium 1.19.3 --values -", `--values: standard input states no version of the chart: expected qualify cilium FROM 1.19.3`},
		{"qualify cilium 1.18.4 1.19.3 --values - --set-var X", `--set-var: expected NAME=VALUE`},
		{"qualify kube-proxy 1.35.4 1.36.3 --values -", `--values: kube-proxy is not installed by values here: expected cilium or metallb`},
		{"qualify cilium 1.18.4 1.19.3 --values - --config testdata/config.yaml",
			`--values and --config exclude each other: the charts render the ConfigMap from the values`},
		{"qualify cilium 1.12.0 1.18.4 --values -",
			`--values: cilium 1.12.0 runs here as a slice, without its chart: expected versions from 1.15.0 on`},
		{"versions", `relapse versions takes one argument, the name of a component, such as cilium`},
		{"versions ciliun",
			`no recipe builds a component "ciliun"; there are calico, calico-cni, calico-node, cilium, cilium-operator, coredns, kube-proxy, kube-router, metallb`},
		{"page", `relapse page needs the folder of a run, or one with runs in it, such as reports`},
		{"page no-such", `looking for runs: lstat no-such: no such file or directory`},
		{"page testdata", `there is no report.json in testdata, nor in a folder below it`},
		{"run node-drian", `no scenario "node-drian"; nearest is "node-drain"`},
		{"describe nodedrain", `no scenario "nodedrain"; nearest is "node-drain"`},
		{"up xyzzy", fmt.Sprintf(`no scenario "xyzzy"; there are %q`, scenarioNames())},
		{"run node-drain node-drain", `scenario "node-drain" is named twice`},
		{"run node-drain --variant cilium-1.11.5", `no variant "cilium-1.11.5"; nearest is "cilium-1.11.6"`},
		{"run node-drain --variant cilium-1.12.0,cilium-1.13.0", `no variant "cilium-1.13.0"; nearest is "cilium-1.12.0"`},
		{"run node-drain --ablate detectors", `--ablate: no part "detectors"; nearest is "detector"`},
		{"run node-drain --routers routers.yml", `--routers and --yes-this-is-a-lab are for --on`},
		{"run node-drain twin-cidr --on lab", `--on: expected one scenario, not 2`},
		{"run node-drain --on lab --keep",
			`--on excludes --keep, --reuse, --subnets and --images=upstream: the lab stays up as it is, and gets its images from a registry of relapse's`},
		{"run node-drain --kep", `unknown flag: --kep (see relapse run --help)`},
		{"run --variant", `flag needs an argument: --variant (see relapse run --help)`},
		{"run node-drain --timeout soon", `invalid argument "soon" for "--timeout" flag: time: invalid duration "soon" (see relapse run --help)`},
		{"run node-drain --repeat 0", `--repeat: 0: expected 1 or more`},
		{"run node-drain --keep-runs 0", `--keep-runs: 0: expected 1 or more: this run is always kept`},
		{"run node-drain --repeat 1.5",
			`invalid argument "1.5" for "--repeat" flag: strconv.ParseInt: parsing "1.5": invalid syntax (see relapse run --help)`},
		{"run node-drain --repeat 2 --ablate fault",
			`--repeat and --ablate exclude each other: one counts how often each verdict occurs, the other expects it to change`},
		{"run node-drain --ablate all --repeat 20",
			`--repeat and --ablate exclude each other: one counts how often each verdict occurs, the other expects it to change`},
		{"run node-drain --timeout 0s", `--timeout: 0s: expected more than 0`},
		{"run node-drain --timeout=-1m", `--timeout: -1m0s: expected more than 0`},
		{"run node-drain --log-level loud", `--log-level: "loud": expected debug, info, warn or error`},
		{"run node-drain --output main_test.go/reports", `--output: mkdir main_test.go: not a directory`},
		{"run unpinned-image --images pull", `--images: "pull": expected build or upstream`},
		{"run unpinned-image --upstream docker.io=http://10.0.0.1", `--upstream is for --images=upstream alone`},
		{"run unpinned-image --images=upstream --upstream docker.oi=http://10.0.0.1",
			`--upstream: unknown vendor's host "docker.oi"; expected one of docker.io, gcr.io, quay.io, registry.k8s.io`},
		{"run node-drain --set ruter=frr", `--set: no parameter "ruter"; nearest is "router"`},
		{"run unpinned-image --set nic=eth2", `--set: no parameter "nic"; none is declared`},
		{"up unpinned-image --set nic=eth2", `--set: no parameter "nic"; none is declared`},
		{"list node-drain", `relapse list takes no argument, not "node-drain"`},
		{"describe", `relapse describe takes one argument, the name of a scenario`},
		{"up a b", `relapse up takes one argument, the name of a scenario`},
	} {
		t.Run(test.line, func(t *testing.T) {
			t.Parallel()
			must.Equal(t, "", ended{exitUsage, "", "relapse: " + test.says + "\n"}, relapse(t, strings.Fields(test.line)...))
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
			must.Equal(t, "", ended{exitExpected, got.stdout, ""}, got)
			golden(t, name, got.stdout)
		})
	}
}

// --ablate all plans a run for each part that matters to a variant.
func TestAblateAllIsPlanned(t *testing.T) {
	got := relapse(t, "run", "node-drain", "--dry-run", "--ablate", "all")
	must.Equal(t, got, exitExpected, got.status)
	must.Equal(t, "verdicts", []string{
		"cilium-1.11.6 without fault verdict is vacuous",
		"cilium-1.11.6 without detector verdict is missed",
		"cilium-1.11.6 without remedy verdict is reproduced",
		"cilium-1.12.0 without fault verdict is vacuous",
	}, regexp.MustCompile(`\S.* verdict is .*`).FindAllString(got.stdout, -1))
}

// The variants with exchanged roles, of the night's run, pass validation.
func TestExchangedRolesAreValid(t *testing.T) {
	cmd := program(t.Context(), "run", "node-drain", "--dry-run", "--variant", "cilium-1.12.0")
	cmd.Env = append(cmd.Env, rolesExchanged+"=1")
	end(t, cmd).prints(t, exitExpected, "verdict is reproduced")
}

func TestCatalogue(t *testing.T) {
	list := relapse(t, "list")
	for _, s := range scenarios.All {
		symptom, _, _ := strings.Cut(s.Incident.Symptom, "\n")
		relapse(t, "describe", s.Incident.Name).prints(t, exitExpected, symptom)
		list.prints(t, exitExpected, s.Incident.Name, s.Incident.Title)
		for _, v := range s.Variants {
			list.prints(t, exitExpected, v.Name, fmt.Sprintf("%s, %s: expected %s", v.Role, v.Form, v.Expected()))
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
	relapse(t, "describe", "node-drain", "--containerlab", dir).prints(t, exitExpected)
	must.Contain(t, read(t, filepath.Join(dir, "node-drain.clab.yml")), "\nname: node-drain\ntopology:\n")
}

// A dry run must do nothing: neither look for Docker nor leave a report.
func TestDryRunTouchesNothing(t *testing.T) {
	dir := t.TempDir()
	cmd := program(t.Context(), "run", "node-drain", "--dry-run")
	cmd.Dir = dir // no source here either
	cmd.Env = append(cmd.Env, "DOCKER_HOST=unix:///nonexistent/docker.sock")
	end(t, cmd).prints(t, exitExpected, "lab is up")
	must.Equal(t, "files left", 0, len(must.Get(os.ReadDir(dir))(t)))
}

func TestNoDocker(t *testing.T) {
	for _, args := range [][]string{{"doctor"}, {"run", "node-drain"}, {"up", "node-drain"}, {"down"}, {"down", "node-drain"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "docker.sock")
			if args[0] == "run" {
				args = append(args, "--output", t.TempDir())
			}
			cmd := slow(t, args...)
			cmd.Env = append(cmd.Env, "DOCKER_HOST=unix://"+socket)
			want := []string{"Docker must answer at unix://" + socket, "unset DOCKER_HOST, or start the engine at that address"}
			switch {
			case args[0] == "down" && os.Geteuid() != 0: // its error comes first
				want = nil
			case args[0] == "down":
				want = []string{socket, "octor"}
			}
			got := end(t, cmd)
			got.complains(t, exitMachine, want...)
			must.Equal(t, "stack traces", 0, strings.Count(got.stderr, "goroutine"))
		})
	}
}

// source makes a source tree with one image, which everybody may read.
func source(t *testing.T, recipe string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	must.Write(t, filepath.Join(dir, "go.mod"), "module "+modulePath+"\n")
	must.Write(t, filepath.Join(dir, "images/only/image.yaml"), recipe)
	for name, text := range files {
		must.Write(t, filepath.Join(dir, "images/only", name), text)
	}
	return dir
}

func TestNotRoot(t *testing.T) {
	dir := source(t, "images:\n- {ref: relapse.dev/only:dev, directories: [/only]}\n", nil)
	for _, args := range [][]string{{"doctor"}, {"run", "node-drain"}, {"up", "node-drain"}, {"down"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			if args[0] == "run" {
				args = append(args, "--output", home)
			}
			cmd := slow(t, args...)
			cmd.Dir = dir
			cmd.Env = append(cmd.Env, "HOME="+home, "XDG_CACHE_HOME="+home)
			uid := os.Geteuid()
			if uid == 0 {
				uid = 65534
				must.NoError(t, errors.Join(os.Chown(home, uid, uid), os.Chmod(filepath.Dir(home), 0o755)))
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
			}
			end(t, cmd).complains(t, exitMachine, fmt.Sprintf("relapse must run as root (found: uid %d): run it with sudo", uid))
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
	relapse(t, "images", "build", "relapse.dev/tro:dev").complains(t, exitUsage, `relapse: no recipe makes image "relapse.dev/tro:dev"`)
}

// slow is a program with a timeout that is long enough while the machine compiles other packages.
func slow(t *testing.T, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return program(ctx, args...)
}

func TestBrokenRecipe(t *testing.T) {
	t.Run("recipe", func(t *testing.T) {
		cmd := program(t.Context(), "images", "list")
		cmd.Dir = source(t, "images:\n- ref: relapse.dev/broken:dev\n  entrypiont: [x]\n", nil)
		end(t, cmd).complains(t, exitUsage, "only/image.yaml", "entrypiont")
	})
	t.Run("program", func(t *testing.T) {
		cache := t.TempDir()
		// The build cache is below XDG_CACHE_HOME by default. Without the caller's cache, compiling the standard
		// library would take longer than the test.
		compiled := must.Get(exec.Command("go", "env", "GOCACHE").Output())(t)
		cmd := slow(t, "images", "build", "relapse.dev/broken:dev")
		cmd.Dir = source(t, "images:\n- ref: relapse.dev/broken:dev\n  programs: [{package: ./program, path: /broken}]\n", map[string]string{
			"go.mod":          "module broken\n\ngo 1.26\n",
			"program/main.go": "package main\n\nfunc main() { undeclared() }\n",
		})
		cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+cache, "GOCACHE="+strings.TrimSpace(string(compiled)), "GOPROXY=off", "GOFLAGS=")
		got := end(t, cmd)
		got.complains(t, exitMachine, "building image relapse.dev/broken:dev", "program/main.go:3:15: undefined: undeclared")
		_, log, _ := strings.Cut(got.stderr, "the log "+cache)
		log, _, named := strings.Cut(log, " ends with")
		must.Equal(t, got.stderr, true, named)
		must.Contain(t, read(t, cache+log), "undefined: undeclared")
		must.Equal(t, "left by the build", nil, must.Get(fs.Glob(os.DirFS(cache), "relapse/images/tmp/*"))(t))
	})
}

// Of a folder, the YAML and JSON files are read, as by kubectl apply -f.
func TestOpenFolder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.yaml": "kind: A", "b.json": `{"kind": "B"}`, "README.md": "# no YAML", "c.yml": "---\nkind: C"} {
		must.Write(t, filepath.Join(dir, name), text)
	}
	text, _, err := portable.Values{}.Input("--manifests", dir, nil)
	must.NoError(t, err)
	must.Equal(t, "the stream", "---\nkind: A\n---\n{\"kind\": \"B\"}\n---\n---\nkind: C\n", string(text))
}
