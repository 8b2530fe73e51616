//go:build lab && night

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"

	"k8s.io/kubectl/pkg/cmd"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// kubectl is the name under which a shell starts the test binary as a substitute for kubectl.
const kubectl = "kubectl"

func init() {
	if filepath.Base(os.Args[0]) == kubectl {
		if err := cmd.NewDefaultKubectlCommand().Execute(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// routerFiles are the commands of a router by the file that holds their output. GoBGP has none in the lab.
var routerFiles = map[topology.RouterKind]map[string]string{
	topology.FRR: {
		"bgp4": "vtysh -c 'show bgp ipv4 unicast json'", "bgp6": "vtysh -c 'show bgp ipv6 unicast json'",
		"neighbors": "vtysh -c 'show bgp neighbors json'", "vrfs": "vtysh -c 'show bgp vrfs json'",
		"routes4": "ip -4 -j -N route", "routes6": "ip -6 -j -N route", "neigh": "ip -j neigh",
	},
	topology.BIRD: {
		"routes": "birdc -r show route all", "protocols": "birdc -r show protocols all",
		"routes4": "ip -4 -j -N route", "routes6": "ip -6 -j -N route", "neigh": "ip -j neigh",
	},
}

// completion is the command that an audit prints for what a bundle lacks.
var completion = regexp.MustCompile(`for list in .*; done`)

// inBundle audits a bundle of the cluster's present state: the output of `kubectl cluster-info dump`, the lists that
// the command printed by the audit adds, and the output of routers. The findings are the findings of the live audit,
// without the detectors that the result names as not run.
func (a auditor) inBundle(ctx context.Context, r *framework.Run, when string, live audit.Result, flags ...string) {
	dir := a.TempDir()
	must.NoError(a, os.Symlink(must.Get(os.Executable())(a), filepath.Join(dir, kubectl)))
	shell := func(line string) []byte {
		c := exec.CommandContext(ctx, "sh", "-c", line)
		c.Dir = dir
		c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+labaccess.Cluster(r).Kubeconfig)
		return must.Get(c.Output())(a)
	}
	shell("kubectl cluster-info dump --all-namespaces --output-directory=dump")
	if routers := a.routerFiles(r, dir, shell); routers != "" {
		flags = append(flags, "--routers", routers)
	}
	read := func() audit.Result {
		got := relapse(a.T, append([]string{"audit", "--from", filepath.Join(dir, "dump"), "-o", "json"}, flags...)...)
		return got.audited(a.T)
	}
	without := read()
	line := completion.FindString(fmt.Sprint(without.NotJudged))
	must.Write(a, filepath.Join(dir, "dump", "more.txt"), string(shell(line)))
	result := read()
	a.Logf("%s, in a bundle: %d lists were missing; with them:\n%s", when, len(without.Unread), sayFindings(result))
	for _, f := range live.Findings {
		if !slices.ContainsFunc(result.Findings, alike(f)) && !slices.ContainsFunc(result.NotRun, func(n audit.NotRun) bool {
			return n.Detector == f.Detector && !slices.Contains(live.NotRun, n)
		}) {
			a.Errorf("%s: not found in a bundle, which does not say why: %s", when, framework.As(f.Finding))
		}
	}
	for _, f := range result.Findings {
		if !slices.ContainsFunc(live.Findings, func(g audit.Finding) bool {
			return alike(f)(g) && (f.State != detect.Active || g.State == detect.Active)
		}) {
			a.Errorf("%s: found in a bundle alone: %s", when, framework.As(f.Finding))
		}
	}
	must.Equal(a, when+": not read of a bundle that is complete", 0, len(result.Unread))
}

// alike matches a finding about the same object. The state is not compared: a bundle is one read, so it cannot show
// whether a state lasts, and without the nodes it cannot show whether sessions are missing already.
func alike(f audit.Finding) func(audit.Finding) bool {
	return func(g audit.Finding) bool {
		return f.Detector == g.Detector && f.Kind == g.Kind && f.Object.String() == g.Object.String()
	}
}

func (a auditor) routerFiles(r *framework.Run, dir string, shell func(string) []byte) string {
	var all []map[string]any
	for _, router := range r.Topology.Routers {
		files := map[string]string{}
		for name, command := range routerFiles[router.Kind] {
			answer := shell("docker exec relapse-" + r.Topology.Name + "-" + router.Name + " " + command)
			files[name] = must.Write(a, filepath.Join(dir, router.Name, name), string(answer))
		}
		if len(files) > 0 {
			all = append(all, map[string]any{"name": router.Name, "kind": string(router.Kind), "pods": len(router.Peers) > 0, "files": files})
		}
	}
	if all == nil {
		return ""
	}
	return must.Write(a, filepath.Join(dir, "routers.yaml"), string(must.Get(yaml.Marshal(all))(a)))
}
