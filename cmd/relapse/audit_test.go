package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/audit/render"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// auditedCluster is one read of two nodes that announce the ranges of their CiliumNodes, and of one router.
func auditedCluster(change func(*snapshot.Snapshot)) snapshot.Snapshot {
	s := snapshot.Snapshot{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for _, source := range []snapshot.Source{
		snapshot.Nodes, snapshot.CiliumNodes, snapshot.CalicoBlocks, snapshot.Pods, snapshot.Routers, snapshot.Services, snapshot.EndpointSlices,
		snapshot.BGPAdvertisements, snapshot.L2Announcements, snapshot.CalicoPools, snapshot.CalicoPeers, snapshot.NodeSelections, snapshot.MetalLBPeers, snapshot.AddressPools, snapshot.CalicoAgents, snapshot.RunningImages, snapshot.Accounts, snapshot.Workloads,
	} {
		s.Sources = append(s.Sources, snapshot.Asked{Name: source.String()})
	}
	for _, read := range []*bool{
		&s.Nodes.Read, &s.CiliumNodes.Read, &s.CalicoBlocks.Read, &s.Pods.Read, &s.Services.Read, &s.EndpointSlices.Read,
		&s.BGPAdvertisements.Read, &s.L2Announcements.Read, &s.CalicoPools.Read, &s.CalicoPeers.Read, &s.NodeSelections.Read, &s.MetalLBPeers.Read, &s.AddressPools.Read, &s.Workloads.Read, &s.PodImages.Read, &s.Accounts.Read, &s.CalicoAgents.Read,
	} {
		*read = true
	}
	tor := snapshot.Router{Name: "tor1"}
	tor.Paths.Read, tor.Routes.Read, tor.Neighbors.Read = true, true, true
	for _, n := range []struct{ name, ip, announces string }{
		{"master1", "10.4.94.32", "10.5.113.0/24"}, {"master2", "10.4.94.21", "10.5.115.0/24"},
	} {
		ip, p := netip.MustParseAddr(n.ip), netip.MustParsePrefix(n.announces)
		s.Nodes.Items = append(s.Nodes.Items, snapshot.Node{Name: n.name, Ready: true, InternalIPs: []netip.Addr{ip}})
		s.CiliumNodes.Items = append(s.CiliumNodes.Items, snapshot.CiliumNode{Name: n.name, PodCIDRs: []netip.Prefix{p}})
		tor.Neighbors.Items = append(tor.Neighbors.Items, snapshot.Neighbor{Address: ip, AS: 64513, State: snapshot.SessionEstablished})
		tor.Paths.Items = append(tor.Paths.Items, snapshot.Path{Prefix: p, NextHop: ip, Neighbor: ip, Best: true})
	}
	s.Pods.Items = []snapshot.Pod{{Namespace: "default", Name: "web", Node: "master2", IP: netip.MustParseAddr("10.5.115.7")}}
	s.Routers = []snapshot.Router{tor}
	change(&s)
	return s
}

// exchanged has the routers send the range of each node to the other.
func exchanged(s *snapshot.Snapshot) {
	p := s.Routers[0].Paths.Items
	p[0].Prefix, p[1].Prefix = p[1].Prefix, p[0].Prefix
}

// unannounced has master2 announce the range of its Node.spec.podCIDR, and not the range of its CiliumNode.
func unannounced(s *snapshot.Snapshot) {
	p := netip.MustParsePrefix("10.5.114.0/24")
	s.Nodes.Items[1].PodCIDRs = []netip.Prefix{p}
	s.Routers[0].Paths.Items[1].Prefix = p
}

// forgotten removes the session of master2, and the routes that came by it.
func forgotten(s *snapshot.Snapshot) {
	tor := &s.Routers[0]
	tor.Neighbors.Items, tor.Paths.Items = tor.Neighbors.Items[:1], tor.Paths.Items[:1]
	tor.Routes.Items = []snapshot.Route{{
		Prefix: netip.MustParsePrefix("10.4.94.0/24"), Type: snapshot.RouteUnicast, Protocol: snapshot.RouteKernel, NextHops: []snapshot.NextHop{{Interface: "eth0"}},
	}}
}

// ribOnly has the router read by a means that gives no FIB.
func ribOnly(s *snapshot.Snapshot) {
	s.Routers[0].RIBOnly, s.Routers[0].Routes = true, snapshot.List[snapshot.Route]{}
}

func unreadFIB(s *snapshot.Snapshot) {
	s.Routers[0].Routes = snapshot.List[snapshot.Route]{Error: "running ssh tor1: exit status 255: Permission denied (publickey)."}
}

func saveReads(t *testing.T, reads ...snapshot.Snapshot) string {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, audit.Save(dir, reads))
	return dir
}

func TestAuditStatus(t *testing.T) {
	reads := func(change func(*snapshot.Snapshot)) []snapshot.Snapshot {
		return []snapshot.Snapshot{auditedCluster(change), auditedCluster(change)}
	}
	well, both := func(*snapshot.Snapshot) {}, func(changes ...func(*snapshot.Snapshot)) func(*snapshot.Snapshot) {
		return func(s *snapshot.Snapshot) {
			for _, change := range changes {
				change(s)
			}
		}
	}
	noNodes := func(s *snapshot.Snapshot) {
		s.Nodes = snapshot.List[snapshot.Node]{Error: "listing Nodes: nodes is forbidden"}
	}
	joining := func(s *snapshot.Snapshot) { // a node that has no session yet
		unannounced(s)
		s.Nodes.Items[1].Created = s.Time.Add(-2 * time.Second)
		s.Routers[0].Neighbors.Items[1].State = "active"
		s.Routers[0].Paths.Items = s.Routers[0].Paths.Items[:1]
	}
	for _, test := range []struct {
		name   string
		reads  []snapshot.Snapshot
		status int
		stdout []string
		stderr string
	}{
		{"nothing", reads(well), exitExpected, []string{"nothing found\n"}, ""},
		{"active", reads(unannounced), exitUnexpected, []string{"Active\n", "findings: 1 active, 1 latent\n", "incident node-drain: relapse describe node-drain\n"}, ""},
		{"latent", reads(exchanged), exitLatent, []string{"Latent\n", "findings: 2 latent\n"}, ""},
		{"nothing, and the FIB not read", reads(unreadFIB), exitInconclusive, []string{"Not read\n  FIB of tor1: running ssh tor1", "nothing found that holds, but not all could be judged\n"}, ""},
		{"nothing, and no FIB that could be read", reads(ribOnly), exitInconclusive, []string{"Not judged\n  The FIB of tor1 is not read", "nothing found that holds, but not all could be judged\n"}, ""},
		{"active, and no FIB that could be read", reads(both(unannounced, ribOnly)), exitUnexpected, []string{"The FIB of tor1 is not read", "findings: 1 active, 1 latent\n"}, ""},
		{"a session that the router has forgotten", reads(forgotten), exitInconclusive, []string{"Not judged\n  tor1 has no route to pod ranges of master2"}, ""},
		{"latent, and the FIB not read", reads(both(exchanged, unreadFIB)), exitLatent, []string{"Not read\n", "findings: 2 latent\n"}, ""},
		{"settling", reads(joining), exitInconclusive, []string{"Settling (may pass by itself: audit again)\n", "findings: 1 settling\n"}, ""},
		{"seen once", []snapshot.Snapshot{auditedCluster(well), auditedCluster(unannounced)}, exitInconclusive, []string{"Seen in one of the last two reads (audit again)\n"}, ""},
		{"no Nodes", reads(noNodes), exitMachine, nil, "relapse: the cluster cannot be read: listing Nodes: nodes is forbidden\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := relapse(t, "audit", "--from", saveReads(t, test.reads...))
			got.prints(t, test.status, test.stdout...)
			must.Equal(t, "standard error", test.stderr, got.stderr)
		})
	}
}

func TestAuditOutput(t *testing.T) {
	dir := saveReads(t, auditedCluster(unannounced), auditedCluster(unannounced))
	got := relapse(t, "audit", "--from", dir)
	golden(t, "audit", got.stdout)
	got = relapse(t, "audit", "--from", dir, "-o", "json")
	var r audit.Result
	got.prints(t, exitUnexpected)
	must.NoError(t, json.Unmarshal([]byte(got.stdout), &r))
	f := r.Findings[0]
	must.Equal(t, "schema, and findings", [...]any{audit.Schema, 2}, [...]any{r.Schema, len(r.Findings)})
	must.Equal(t, f, [...]any{detect.Active, true}, [...]any{f.State, len(f.Incidents) > 0})
	for format, has := range map[string]string{
		"sarif": `"relapseFinding/v1": "2edadcd36f84"`, "openmetrics": `relapse_audit_findings{state="active"} 1.0`,
		"html": `<section id="2edadcd36f84">`,
	} {
		relapse(t, "audit", "--from", dir, "-o", format).prints(t, exitUnexpected, has)
	}
	golden(t, "audit-rbac", relapse(t, "audit", "--rbac").stdout)
	must.Contain(t, relapse(t, "audit", "--prometheus-rules").stdout, "expr: relapse_audit_complete == 0")
}

// A suppressed finding does not count, and a source that was not read does.
func TestAuditSuppressed(t *testing.T) {
	const active, latent = "- {id: 2edadcd36f84, active: true, reason: r, expires: 2099-01-02}\n", "- {detector: route-ownership, kind: absent-node, object: 10.5.*, reason: the rack moves, expires: 2099-01-01, owner: net}\n"
	unread := func(s *snapshot.Snapshot) {
		unannounced(s)
		s.Services = snapshot.List[snapshot.Service]{Error: "services is forbidden"}
	}
	for _, test := range []struct {
		name     string
		change   func(*snapshot.Snapshot)
		suppress string
		status   int
		says     string
	}{
		{"the active one", unannounced, active, exitLatent, "findings: 1 latent; 1 suppressed\n"},
		{"the active one as a latent one", unannounced, strings.ReplaceAll(active, "active: true, ", ""), exitUnexpected, "findings: 1 active, 1 latent\n"},
		{"the latent one", unannounced, latent, exitUnexpected, "findings: 1 active; 1 suppressed\n"},
		{"both", unannounced, active + latent, exitExpected, "suppressed by net until 2099-01-01 (line 2): the rack moves\n\nnothing found; 2 suppressed\n"},
		{"both, and Services not read", unread, active + latent, exitInconclusive, "nothing found that holds, but not all could be judged; 2 suppressed\n"},
		{"expired", func(*snapshot.Snapshot) {}, strings.ReplaceAll(active, "2099-01-02", "2026-01-01"), exitLatent, "suppression, expired: The suppression of 2edadcd36f84 on line 1 expired after 2026-01-01"},
		{"of nothing", func(*snapshot.Snapshot) {}, active, exitExpected, "Suppressions that match nothing\n  line 1, 2edadcd36f84: r\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := saveReads(t, auditedCluster(test.change), auditedCluster(test.change))
			file := must.Write(t, filepath.Join(t.TempDir(), "suppress.yaml"), test.suppress)
			relapse(t, "audit", "--from", dir, "--suppress", file).prints(t, test.status, test.says)
		})
	}
}

// secret is a cluster with names and addresses in each place that has them, the errors too.
func secret(s *snapshot.Snapshot) {
	unannounced(s)
	s.Pods.Items[0].Namespace, s.Pods.Items[0].Name = "shop", "cart-7d9f"
	s.Services.Items = []snapshot.Service{{Namespace: "shop", Name: "checkout", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.7.7")}}}
	image := snapshot.Container{Name: "app", Image: "harbor.corp.example/cart", PullPolicy: "Always"}
	s.Workloads.Items = []snapshot.Workload{{Kind: "Deployment", Namespace: "shop", Name: "cart", Containers: []snapshot.Container{image}}}
	s.PodImages.Items = []snapshot.PodImages{{
		Namespace: "shop", Name: "cart-7d9f", Node: "master2", OwnerKind: "Deployment", OwnerName: "cart", ServiceAccount: "cashier", Containers: []snapshot.RunningContainer{{Container: image}},
	}}
	s.Accounts.Items = []snapshot.Account{{Namespace: "shop", Name: "cashier"}}
	s.EndpointSlices = snapshot.List[snapshot.EndpointSlice]{Error: `Get "https://api.corp.example:6443/apis": dial tcp: lookup api.corp.example on 10.4.94.53:53: no such host`}
	s.Routers = append(s.Routers, snapshot.Router{Name: "spine9", Paths: snapshot.List[snapshot.Path]{Error: "running ssh -T -- ops@edge.corp.example 'vtysh -c ...': exit status 255"}})
}

var secrets = []string{
	"master1", "master2", "tor1", "spine9", "shop", "cart", "checkout", "cashier", "harbor", "corp.example", "edge", "ops@",
	"10.4.94.", "10.5.113.", "10.5.114.", "10.5.115.", "10.96.7.", "10-4-94", "10-5-11",
}

// With --redact no name or address of the cluster is in the output, in any format, or in the saved reads.
func TestAuditRedact(t *testing.T) {
	dir := saveReads(t, auditedCluster(secret), auditedCluster(secret))
	routers := must.Write(t, filepath.Join(t.TempDir(), "routers.yaml"), "- {name: tor1, kind: frr, ssh: ops@tor1.corp.example}\n")
	suppress := must.Write(t, filepath.Join(t.TempDir(), "suppress.yaml"),
		"- {detector: image-pin, kind: untagged, object: Deployment shop/*, reason: master1 and 10.4.94.32 are old, expires: 2099-01-01}\n"+
			"- {id: 000000000000, reason: see tor1, expires: 2020-01-01}\n")
	clean := func(where, text string) {
		for _, secret := range secrets {
			must.Equal(t, where+" has "+secret, 0, strings.Count(text, secret))
		}
	}
	parse := func(text string) (r audit.Result) {
		must.NoError(t, json.Unmarshal([]byte(text), &r))
		return r
	}
	saved := filepath.Join(t.TempDir(), "kept")
	var redacted audit.Result
	for _, format := range render.Formats() {
		args := []string{"audit", "--from", dir, "--redact", "--routers", routers, "--suppress", suppress, "-o", format}
		if format == "json" {
			args = append(args, "--save", saved)
		}
		got := relapse(t, args...)
		must.Equal(t, format, ended{exitUnexpected, got.stdout, ""}, got)
		clean("-o "+format, got.stdout)
		if format == "json" {
			redacted = parse(got.stdout)
		}
	}
	files := must.Get(filepath.Glob(filepath.Join(saved, "*")))(t)
	must.Equal(t, "reads", 2, len(files))
	for _, file := range files {
		clean(file, string(must.Read(t, file)))
	}
	original := parse(relapse(t, "audit", "--from", dir, "--suppress", suppress, "-o", "json").stdout)
	sizes := func(r audit.Result) [2]int { return [...]int{len(r.Findings), len(r.Unread)} }
	must.Equal(t, "findings, and unread", sizes(original), sizes(redacted))
	must.Equal(t, "three findings", true, len(redacted.Findings) >= 3)
	relapse(t, "audit", "--from", saved).complains(t, exitUsage, "its names and addresses were replaced")
	must.Equal(t, redacted.Suppressed, 1, len(redacted.Suppressed))
}

// What an upgrade changes is found from the version that runs, or from the version that the user gives.
func TestAuditUpgrade(t *testing.T) {
	running := func(image string) func(*snapshot.Snapshot) {
		return func(s *snapshot.Snapshot) {
			s.Sources = append(s.Sources, snapshot.Asked{Name: "ConfigMaps"})
			s.ConfigMaps = snapshot.List[snapshot.ConfigMap]{Read: true, Items: []snapshot.ConfigMap{{
				Namespace: "kube-system", Name: "cilium-config", Data: map[string]string{"masquerade": "false", "tunnel": "disabled", "native-routing-cidr": "10.0.0.0/8"},
			}}}
			s.Workloads.Items = []snapshot.Workload{{Kind: "DaemonSet", Namespace: "kube-system", Name: "cilium", Containers: []snapshot.Container{{Name: "cilium-agent", Image: image, PullPolicy: "IfNotPresent"}}}}
		}
	}
	unread := func(s *snapshot.Snapshot) {
		running("example.org/cilium:v1.10.0")(s)
		s.ConfigMaps = snapshot.List[snapshot.ConfigMap]{Error: "reading ConfigMap kube-system/cilium-config: forbidden"}
	}
	for _, test := range []struct {
		name           string
		change         func(*snapshot.Snapshot)
		upgrade        string
		status         int
		stdout, stderr string
	}{
		{"from the tag", running("example.org/cilium:v1.10.0"), "cilium=1.11.1", exitLatent, "upgrade of cilium from 1.10.0 (the tag of the image of DaemonSet kube-system/cilium) to 1.11.1\n", ""},
		{"its finding", running("example.org/cilium:v1.10.0"), "cilium=v1.11.1", exitLatent, "config-drift, not-read: masquerade is set to \"false\"", ""},
		{"its incident", running("example.org/cilium:v1.10.0"), "cilium=1.11.1", exitLatent, "incident masquerade-drift: relapse describe masquerade-drift\n", ""},
		{"as given", running("example.org/cilium@sha256:" + strings.Repeat("0", 64)), "cilium=1.10.0..1.11.1", exitLatent, "from 1.10.0 (as given) to 1.11.1\n", ""},
		{"the ConfigMap is not read", unread, "cilium=1.11.1", exitInconclusive, "config-drift needs ConfigMap kube-system/cilium-config\n", ""},
		{"reads without it", func(*snapshot.Snapshot) {}, "cilium=1.10.0..1.11.1", exitInconclusive, "ConfigMap kube-system/cilium-config: not asked for\n", ""},
		{"without the flag", running("example.org/cilium:v1.10.0"), "", exitExpected, "config-drift needs the version of an upgrade (--upgrade)\n", ""},
		{"a digest alone", running("example.org/cilium@sha256:" + strings.Repeat("0", 64)), "cilium=1.11.1", exitUsage, "", "has no tag that is a version: the version of Cilium that runs is not known: expected both versions, such as cilium=1.11.6..1.11.1\n"},
		{"no Cilium", func(*snapshot.Snapshot) {}, "cilium=1.11.1", exitUsage, "", "no pod with a container cilium-agent was read, nor DaemonSet kube-system/cilium"},
		{"a key that is gone", running("example.org/cilium:v1.11.6"), "cilium=1.19.5", exitLatent, "config-drift, not-read: tunnel is set to \"disabled\", which 1.19.5 does not read; there routing-mode has effect, and is not set: native with 1.11.6, tunnel with 1.19.5.", ""},
		{"what no agent was asked", running("example.org/cilium:v1.18.4"), "cilium=1.19.5", exitLatent, "config-drift finds keys that the agent refuses together, but for old and new names of a setting; texts that it refuses or reads in another way, but for those of bpf-lb-algorithm, bpf-lb-mode, ", ""},
		{"a patch release takes the keys of the release before it", running("example.org/cilium:v1.18.7"), "cilium=1.19.5", exitLatent, "config-drift, default-changed: mesh-auth-enabled is not set, which means false with 1.19.5: with 1.18.7 it is true.", ""},
		{"a version without a table", running("example.org/cilium:v1.10.0"), "cilium=1.99.0", exitUsage, "", `relapse: --upgrade: no table of the keys of cilium "1.99.0": there are tables of 1.8, 1.9, 1.10,`},
		{"another component", running("example.org/cilium:v1.10.0"), "cilum=1.11.1", exitUsage, "", `relapse: --upgrade: no table of the keys of "cilum"; nearest is "cilium"`},
		{"no version", running("example.org/cilium:v1.10.0"), "cilium", exitUsage, "", `relapse: --upgrade: "cilium": expected the version of an upgrade, such as cilium=1.19.5`},
		{"half a version", running("example.org/cilium:v1.10.0"), "cilium=1.11..1.12.0", exitUsage, "", `relapse: --upgrade: version "1.11": expected`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"audit", "--from", saveReads(t, auditedCluster(test.change), auditedCluster(test.change))}
			if test.upgrade != "" {
				args = append(args, "--upgrade", test.upgrade)
			}
			got := relapse(t, args...)
			got.prints(t, test.status, test.stdout)
			got.complains(t, test.status, test.stderr)
			must.Equal(t, "complains", test.stderr != "", got.stderr != "")
		})
	}
	golden(t, "audit-rbac-upgrade", relapse(t, "audit", "--rbac", "--upgrade", "cilium=1.12.0").stdout)
}

// As a plugin of kubectl, the program names itself "kubectl relapse" in its output.
func TestAuditAsPlugin(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		says string
	}{
		{"usage", []string{"audit", "--help"}, "Usage:\n  kubectl relapse audit [flags]\n"},
		{"usage of all", []string{"--help"}, "Use \"kubectl relapse [command] --help\""},
		{"an unknown flag", []string{"audit", "--kubecfg", "a"}, "(see kubectl relapse audit --help)"},
		{"an argument", []string{"audit", "a"}, "kubectl relapse audit takes no argument"},
		{"an incident", []string{"audit", "--from", saveReads(t, auditedCluster(unannounced), auditedCluster(unannounced))}, "incident node-drain: kubectl relapse describe node-drain\n"},
	} {
		cmd := program(t.Context(), test.args...)
		cmd.Args[0] = "/usr/local/bin/kubectl-relapse"
		got := end(t, cmd)
		must.Contain(t, got.stdout+got.stderr, test.says)
	}
}

// --nodes accepts the printed manifest, and the nodes of a cluster that does not answer are not read.
func TestAuditNodes(t *testing.T) {
	printed := relapse(t, "audit", "--nodes-manifest", "--calico", "--image", "registry.example/nodestate:dev")
	printed.prints(t, exitExpected, `image: "registry.example/nodestate:dev"`, "/run/calico")
	nodes := must.Write(t, filepath.Join(t.TempDir(), "nodes.yaml"), printed.stdout)
	relapse(t, "audit", "--kubeconfig", kubeconfigOf(t, "http://127.0.0.1:1"), "--nodes", nodes, "--quiet").
		complains(t, exitMachine, "relapse: the cluster cannot be read: ")
}

// The status is 3 if no cluster answers, and 2 if the file of routers is wrong: nothing is read then.
func TestAuditInput(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string { return must.Write(t, filepath.Join(dir, name), text) }
	kubeconfig := kubeconfigOf(t, "http://127.0.0.1:1")
	routers := write("routers.yaml", "- {name: tor1, kind: frr, hsot: tor1}\n")
	well := write("well.yaml", "- {name: tor1, kind: frr, ssh: tor1}\n")
	fed := write("fed.yaml", "- {name: tor1, kind: bmp, address: 192.0.2.1}\n")
	dump := write("dump.yaml", "- {name: tor1, kind: mrt, file: "+filepath.Join(dir, "none")+"}\n")
	suppress := write("suppress.yaml", "- {id: 2edadcd36f84, expires: 2027-01-31}\n")
	noNodes := must.Write(t, filepath.Join(t.TempDir(), "services.json"), `{"apiVersion": "v1", "kind": "Service", "metadata":
  {"name": "kubernetes", "namespace": "default", "uid": "1", "creationTimestamp": "2026-01-05T10:00:00Z"}}`)
	for _, test := range []use{
		{"a bundle without nodes", []string{"--from", filepath.Dir(noNodes)}, exitMachine, `audit: 1 of 1 files of the bundle have objects of the cluster, as of 2026-01-05 10:00:00 UTC
audit: The bundle does not have all that is judged. To complete it, unpack the bundle, run this against the cluster, and save the output as a file in it: for list in `},
		{"no answer", []string{"--kubeconfig", kubeconfig, "--quiet"}, exitMachine, "relapse: the cluster cannot be read: listing Nodes: "},
		{"progress", []string{"--kubeconfig", kubeconfig}, exitMachine, "audit: cluster http://127.0.0.1:1 of context \"a\", 0 routers\naudit: read 1\nrelapse: "},
		{"routers", []string{"--kubeconfig", kubeconfig, "--routers", routers}, exitUsage, "relapse: --routers: " + routers + ": line 1: field hsot not found"},
		{"BMP, and no router that feeds", []string{"--kubeconfig", kubeconfig, "--routers", well, "--bmp", "127.0.0.1:0"}, exitUsage, "relapse: --bmp and routers of kind bmp in " + well + ": expected both or neither"},
		{"a router that feeds, and no BMP", []string{"--kubeconfig", kubeconfig, "--routers", fed}, exitUsage, "relapse: --bmp and routers of kind bmp in " + fed + ": expected both or neither"},
		{"BMP without routers", []string{"--bmp", ":0"}, exitUsage, "relapse: --bmp: expected --routers"},
		{"BMP elsewhere", []string{"--kubeconfig", kubeconfig, "--routers", fed, "--bmp", "192.0.2.99:1"}, exitUsage, "relapse: --bmp: listen tcp 192.0.2.99:1: "},
		{"a dump that is not there", []string{"--kubeconfig", kubeconfig, "--routers", dump}, exitUsage, "relapse: --routers: " + dump + ": router tor1: file: stat "},
		{"no kubeconfig", []string{"--kubeconfig", filepath.Join(dir, "none")}, exitUsage, "relapse: reading the kubeconfig: "},
		{"a context", []string{"--kubeconfig", kubeconfig, "--context", "b"}, exitUsage, "relapse: reading the kubeconfig: context \"b\" does not exist"},
		{"an output", []string{"-o", "toml"}, exitUsage, `relapse: -o: "toml": expected text, json, yaml, sarif, openmetrics, html`},
		{"a user of no cluster", []string{"--from", dir, "--as", "a"}, exitUsage, "relapse: --from and --as exclude each other"},
		{"both", []string{"--from", dir, "--context", "a"}, exitUsage, "relapse: --from and --context exclude each other"},
		{"a rate", []string{"--rate", "0"}, exitUsage, "relapse: --rate: 0: expected 1 or more"},
		{"too often", []string{"--every", "1s"}, exitUsage, "relapse: --every: 1s: expected 10s or more"},
		{"never", []string{"--every", "0s"}, exitUsage, "relapse: --every: 0s: expected 10s or more"},
		{"a listener alone", []string{"--listen", ":9110"}, exitUsage, "relapse: --listen is for --every alone"},
		{"a listener elsewhere", []string{"--kubeconfig", kubeconfig, "--every", "1m", "--listen", "192.0.2.99:1"}, exitUsage, "relapse: --listen: listen tcp 192.0.2.99:1: "},
		{"saved reads again and again", []string{"--from", dir, "--every", "1m"}, exitUsage, "relapse: --from and --every exclude each other"},
		{"again and again, and no answer", []string{"--kubeconfig", kubeconfig, "--quiet", "--every", "1m"}, exitMachine, "relapse: the cluster cannot be read: listing Nodes: "},
		{"again and again as a page", []string{"--every", "1m", "-o", "html"}, exitUsage, `relapse: -o: "html": expected text, json`},
		{"again and again saved", []string{"--every", "1m", "--save", dir}, exitUsage, "relapse: --every and --save exclude each other"},
		{"nodes", []string{"--kubeconfig", kubeconfig, "--nodes", routers}, exitUsage, "relapse: --nodes: " + routers + ": "},
		{"no nodes", []string{"--kubeconfig", kubeconfig, "--nodes", filepath.Join(dir, "none")}, exitUsage, "relapse: --nodes: open "},
		{"saved nodes", []string{"--from", dir, "--nodes", routers}, exitUsage, "relapse: --from and --nodes exclude each other"},
		{"no image", []string{"--nodes-manifest"}, exitUsage, "relapse: --nodes-manifest: expected --image, with the reference by which the nodes pull"},
		{"an image", []string{"--nodes-manifest", "--image", "a b"}, exitUsage, `relapse: --image: "a b" is no reference of an image`},
		{"an image alone", []string{"--image", "a"}, exitUsage, "relapse: --image is for --nodes-manifest"},
		{"one read", []string{"--from", saveReads(t, auditedCluster(func(*snapshot.Snapshot) {}))}, exitUsage, "relapse: --from: "},
		{"nothing saved", []string{"--from", dir}, exitUsage, "relapse: --from: reading the bundle " + dir + ": none of its "},
		{"a suppression without a reason", []string{"--from", dir, "--suppress", suppress}, exitUsage, "relapse: --suppress: " + suppress + ": line 1: field reason is missing: expected "},
		{"no suppressions", []string{"--from", dir, "--suppress", filepath.Join(dir, "none")}, exitUsage, "relapse: --suppress: open "},
		{"an argument", []string{"node-drain"}, exitUsage, "relapse: relapse audit takes no argument"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := relapse(t, append([]string{"audit"}, test.args...)...)
			must.Equal(t, "", ended{test.status, "", got.stderr}, got)
			must.Contain(t, "begins "+got.stderr, "begins "+test.says)
		})
	}
}

// A list that RBAC forbids is named, with the command that prints the missing ClusterRole.
func TestAuditForbidden(t *testing.T) {
	const forbidden = "listing Pods: list on pods in the core group is not permitted: no"
	read := auditedCluster(func(s *snapshot.Snapshot) { s.Pods = snapshot.List[snapshot.Pod]{Error: forbidden} })
	relapse(t, "audit", "--from", saveReads(t, read, read)).
		prints(t, exitInconclusive, "Not read\n  Pods: "+forbidden+"\n  relapse audit --rbac prints the ClusterRole")
}

func TestAuditInterrupted(t *testing.T) {
	asked := make(chan bool, 100)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- true
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	var stderr bytes.Buffer
	cmd := program(t.Context(), "audit", "--kubeconfig", kubeconfigOf(t, silent.URL), "--quiet")
	cmd.Stderr = &stderr
	must.NoError(t, cmd.Start())
	<-asked
	must.NoError(t, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait()
	must.Equal(t, "", ended{exitInterrupted, "", "relapse: interrupted\n"}, ended{cmd.ProcessState.ExitCode(), "", stderr.String()})
}

func kubeconfigOf(t *testing.T, server string) string {
	return must.Write(t, filepath.Join(t.TempDir(), "kubeconfig"), `{"apiVersion":"v1","kind":"Config","current-context":"a",
"contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],"clusters":[{"name":"a","cluster":{"server":"`+server+`"}}],
"users":[{"name":"a","user":{}}]}`)
}

// Redacted output names no file and no namespace of a bundle.
func TestAuditRedactsBundle(t *testing.T) {
	dir := t.TempDir()
	item := func(namespace, name, more string) string {
		return fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q,"uid":"u-%s","creationTimestamp":"2025-01-05T10:00:00Z"}%s}`, namespace, name, name, more)
	}
	for name, text := range map[string]string{
		"nodes.json": `{"request":"/api/v1/nodes"}{"apiVersion":"v1","kind":"NodeList","metadata":{"resourceVersion":"9"},"items":[` + item("", "n1", "") + `]}`,
		"ds.json":    `{"apiVersion":"apps/v1","kind":"DaemonSetList","metadata":{"resourceVersion":"9"},"items":[` + item("umbrella", "d", "") + `]}`,
		"acme.yaml":  "kind: Service\napiVersion: [v1\n",
	} {
		must.Write(t, filepath.Join(dir, name), text)
	}
	plain, redacted := relapse(t, "audit", "--from", dir), relapse(t, "audit", "--from", dir, "--redact")
	for _, name := range []string{"acme", "umbrella"} {
		must.Contain(t, plain.stdout, name)
		must.Equal(t, redacted, 0, strings.Count(redacted.stdout+redacted.stderr, name))
	}
	must.Contain(t, redacted.stdout, "files of the bundle: it is no YAML")
}
