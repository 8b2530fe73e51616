//go:build lab && night

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/router"
	"github.com/relapse-dev/relapse/topology/must"
)

type fromOutside struct {
	scenario, variant string
	// precursor leads to the latent form; empty: the lab has the latent form from its start.
	precursor string
	// upgrade is the value of --upgrade before the fault, if only a planned upgrade has the latent form.
	upgrade string
	// nodes: the audit needs --nodes; calico: and BIRD's socket.
	nodes, calico bool
	// lostRanges: after the fault the audit sees the lost ranges only, and not that the image has changed: it does not
	// know the image before the fault.
	lostRanges bool
	// onlyBefore: the finding after the fault needs a longer history than an audit has.
	onlyBefore bool
	// also is a detector that the lab does not run: the audit finds a consequence of the fault with it.
	also string
	// onlyFRR: the scenario needs BFD, and only FRR has it.
	onlyFRR bool
}

// seenFromOutside are the scenarios with a latent form, and one scenario without (nothing is found before its fault).
// In unpinned-image the audit sees that an image has no tag, but not that a tag has moved: the registry alone knows.
var seenFromOutside = []fromOutside{
	{scenario: "node-drain", variant: "cilium-1.11.6"},
	{scenario: "unpinned-image", variant: "untagged", lostRanges: true},
	{scenario: "added-nic", variant: "first-found-restarted", precursor: "card-unnoticed", nodes: true, calico: true},
	{scenario: "masquerade-drift", variant: "off-by-old-key", upgrade: "cilium=1.8.1..1.11.1", nodes: true},
	{scenario: "lost-permission", variant: "cilium-1.18.4-chart-1.19.3", precursor: "release-upgraded"},
	{scenario: "lost-selector", variant: "master-label"},
	{scenario: "cordon-withdraws", variant: "metallb-0.14.9"},
	{scenario: "nft-crash", variant: "nftables-set-1.34.4", precursor: "set", nodes: true, also: detect.GoneEndpoints{}.Name()},
	{scenario: "address-swap", variant: "metallb-0.13.12"},
	{scenario: "bfd-reset", variant: "metallb-0.14.5-bfd", onlyBefore: true, onlyFRR: true},
}

// The audit has a kubeconfig and a file of routers. Before the fault it names the latent form and nothing active;
// after the fault it names the active incident and nothing else. This holds for routers of each kind.
func TestAuditSeesScenarios(t *testing.T) {
	for _, s := range scenarios.All {
		matches := func(o fromOutside) bool { return o.scenario == s.Incident.Name }
		latent := slices.ContainsFunc(findingsOf(s), func(f framework.Finding) bool { return f.State == detect.Latent })
		if latent {
			must.Equal(t, s.Incident.Name, true, slices.ContainsFunc(seenFromOutside, matches))
		}
	}
	for _, from := range seenFromOutside {
		for _, kind := range topology.RouterKinds {
			if kind == topology.FRR || !from.onlyFRR {
				t.Run(from.scenario+"/"+string(kind), func(t *testing.T) { from.test(t, kind) })
			}
		}
	}
}

func (o fromOutside) test(t *testing.T, kind topology.RouterKind) {
	s := must.Get(scenarioNamed(o.scenario))(t)
	s.Incident.Facts = nil // some facts refer to steps that are left out
	s.Topology.Routers = slices.Clone(s.Topology.Routers)
	for i := range s.Topology.Routers {
		s.Topology.Routers[i].Kind = kind
	}
	s.Variants = slices.Clone(s.Variants)
	v := &s.Variants[slices.IndexFunc(s.Variants, func(v framework.Variant) bool { return v.Name == o.variant })]
	a := auditor{fromOutside: o, T: t, dir: t.TempDir()}
	if o.nodes {
		a.nodes = a.manifest()
		v.Images = append(slices.Clone(v.Images), audit.NodeImage)
	}
	script, audits := v.Script, 0
	v.Script = func() framework.Script {
		s := script()
		s.Remedies = nil
		if install := s.Install; o.nodes {
			s.Install = func(ctx context.Context, r *framework.Run) error {
				if err := install(ctx, r); err != nil {
					return err
				}
				return a.startNodes(ctx, r)
			}
		}
		// A check that fails is repeated: these checks never fail, whatever the audit says.
		audited := func(id string, judge func(context.Context, *framework.Run)) framework.Check {
			return framework.Check{ID: id, Name: "relapse audit has been run from outside", Holds: func(ctx context.Context, r *framework.Run) (bool, string, error) {
				audits++
				judge(ctx, r)
				return true, "", nil
			}}
		}
		latent, checks := s.Latent, &s.Baseline
		if o.precursor != "" {
			p := &s.Precursors[slices.IndexFunc(s.Precursors, func(p framework.Precursor) bool { return p.ID == o.precursor })]
			latent, checks = p.Expected, &p.Aftermath
		}
		*checks = append(*checks, audited("audit-before", func(ctx context.Context, r *framework.Run) { a.checkBefore(ctx, r, latent) }))
		expected, besides := s.Expected, s.Transient
		if o.lostRanges {
			expected, besides = besides, nil
		}
		if !o.onlyBefore {
			s.Aftermath = append(slices.Clone(s.Aftermath), audited("audit-after", func(ctx context.Context, r *framework.Run) { a.checkAfter(ctx, r, expected, besides) }))
		}
		return s
	}
	r := scenariotest.Judge(t, s, engine.Options{Variants: []string{o.variant}, Output: t.TempDir()})
	must.Equal(t, r.Variants[0].Reasons, string(framework.Pass), r.Verdict)
	must.Equal(t, "audits", map[bool]int{false: 2, true: 1}[o.onlyBefore], audits)
}

type auditor struct {
	fromOutside
	*testing.T
	// dir has the kubeconfig, the file of routers and all other input of an audit.
	dir string
	// nodes is the manifest of the pods that read nodes; empty: they are not read.
	nodes string
}

func (a auditor) write(name, text string) string {
	path := filepath.Join(a.dir, name)
	must.Equal(a, path, nil, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (a auditor) manifest() string {
	args := []string{"audit", "--nodes-manifest", "--image", audit.NodeImage}
	if a.calico {
		args = append(args, "--calico")
	}
	got := relapse(a.T, args...)
	must.Equal(a, got, exitExpected, got.status)
	return got.stdout
}

func (a auditor) startNodes(ctx context.Context, r *framework.Run) error {
	if err := workload.Apply(ctx, labaccess.Cluster(r), a.nodes); err != nil {
		return err
	}
	pods := workload.Pods{Namespace: "relapse-nodes", Labels: map[string]string{"app.kubernetes.io/name": "relapse-nodes"}}
	return pods.Started(ctx, labaccess.Cluster(r), len(labaccess.Cluster(r).Nodes()), time.Minute)
}

// routers is a file of routers: each by the program that it has, in its container.
func (a auditor) routers(r *framework.Run) string {
	var all []map[string]any
	for _, device := range r.Topology.Routers {
		one := map[string]any{"name": device.Name, "kind": string(device.Kind), "command": []string{"docker", "exec", "relapse-" + r.Topology.Name + "-" + device.Name}}
		// FRR and GoBGP forget a neighbour that they accepted from a range of addresses. Such a router is judged by its
		// routes if the file says that it gets pod ranges.
		if len(device.Peers) > 0 {
			one["pods"] = true
		}
		if device.Kind == topology.GoBGP {
			one["address"], one["plaintext"] = netip.AddrPortFrom(device.Links[0].Address, router.GoBGPPort).String(), true
		}
		all = append(all, one)
	}
	text, err := yaml.Marshal(all)
	must.Equal(a, "an error", nil, err)
	return a.write("routers.yaml", string(text))
}

func (a auditor) audit(ctx context.Context, r *framework.Run, when string, flags ...string) (audit.Result, int) {
	kubeconfig, err := os.ReadFile(labaccess.Cluster(r).Kubeconfig)
	must.Equal(a, "an error", nil, err)
	args := []string{"audit", "--kubeconfig", a.write("kubeconfig", string(kubeconfig)), "--routers", a.routers(r), "-o", "json"}
	if a.nodes != "" {
		args = append(args, "--nodes", a.write("nodes.yaml", a.nodes))
	}
	cmd := program(ctx, append(args, flags...)...)
	cmd.Dir = a.dir
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "HOME=") || strings.HasPrefix(v, "XDG_") })
	cmd.Env = append(cmd.Env, "HOME="+a.dir)
	began := time.Now()
	got := end(a.T, cmd)
	result := got.audited(a.T)
	a.Logf("%s: status %d in %s: relapse %q\n%s", when, got.status, time.Since(began).Round(100*time.Millisecond), args, sayFindings(result))
	must.Equal(a, fmt.Sprint(when, ": not read: ", result.Unread), 0, len(result.Unread))
	return result, got.status
}

// audited is the result that an audit has printed. An error does not end the test: it may run in another goroutine.
func (e ended) audited(t *testing.T) (r audit.Result) {
	t.Helper()
	r.Cost = &audit.Cost{}
	must.Equal(t, e, nil, json.Unmarshal([]byte(e.stdout), &r))
	return r
}

func sayFindings(r audit.Result) string {
	var text strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&text, "  %s\n", framework.As(f.Finding))
	}
	for _, f := range r.Once {
		fmt.Fprintf(&text, "  once: %s\n", framework.As(f.Finding))
	}
	for _, g := range r.NotJudged {
		fmt.Fprintf(&text, "  not judged: %s\n", g.Says)
	}
	return text.String()
}

func found(r audit.Result) []detect.Finding {
	return each.Of(r.Findings, func(f audit.Finding) detect.Finding { return f.Finding })
}

func (a auditor) checkBefore(ctx context.Context, r *framework.Run, latent []framework.Finding) {
	var flags []string
	if a.upgrade != "" {
		flags = []string{"--upgrade", a.upgrade}
	}
	result, status := a.audit(ctx, r, "before the fault", flags...)
	want := map[bool]int{true: exitLatent, false: exitExpected}[len(latent) > 0]
	must.Equal(a, "status before the fault", want, status)
	for _, f := range framework.Missing(latent, found(result)) {
		a.Errorf("before the fault: no finding %s", f)
	}
	a.inBundle(ctx, r, "before the fault", result, flags...)
}

func (a auditor) checkAfter(ctx context.Context, r *framework.Run, expected, besides []framework.Finding) {
	result, status := a.audit(ctx, r, "after the fault")
	must.Equal(a, "status after the fault", exitUnexpected, status)
	for _, f := range framework.Missing(expected, found(result)) {
		a.Errorf("after the fault: no finding %s", f)
	}
	active := slices.DeleteFunc(found(result), func(f detect.Finding) bool { return f.State != detect.Active || f.Detector == a.also })
	if more := framework.Unexpected(active, slices.Concat(expected, besides)...); len(more) > 0 {
		a.Errorf("after the fault also: %s", framework.DescribeFindings(more))
	}
	a.inBundle(ctx, r, "after the fault", result)
}
