package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// auditedCluster is one read of two nodes that announce the ranges of their CiliumNodes, and of
// one router.
func auditedCluster(change func(*snapshot.Snapshot)) snapshot.Snapshot {
	s := snapshot.Snapshot{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for _, of := range []snapshot.Source{
		snapshot.Nodes, snapshot.CiliumNodes, snapshot.CalicoBlocks, snapshot.Pods, snapshot.Routers, snapshot.Services, snapshot.EndpointSlices,
		snapshot.BGPAdvertisements, snapshot.CalicoAgents, snapshot.RunningImages, snapshot.Accounts, snapshot.Workloads,
	} {
		s.Sources = append(s.Sources, snapshot.Asked{Name: of.String()})
	}
	for _, read := range []*bool{
		&s.Nodes.Read, &s.CiliumNodes.Read, &s.CalicoBlocks.Read, &s.Pods.Read, &s.Services.Read, &s.EndpointSlices.Read,
		&s.BGPAdvertisements.Read, &s.Workloads.Read, &s.PodImages.Read, &s.Accounts.Read, &s.CalicoAgents.Read,
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

// unannounced has master2 announce a range that Node.spec gives it.
func unannounced(s *snapshot.Snapshot) {
	p := netip.MustParsePrefix("10.5.114.0/24")
	s.Nodes.Items[1].PodCIDRs = []netip.Prefix{p}
	s.Routers[0].Paths.Items[1].Prefix = p
}

// forgotten takes the session of master2 away, and what came by it.
func forgotten(s *snapshot.Snapshot) {
	tor := &s.Routers[0]
	tor.Neighbors.Items, tor.Paths.Items = tor.Neighbors.Items[:1], tor.Paths.Items[:1]
	tor.Routes.Items = []snapshot.Route{{
		Prefix: netip.MustParsePrefix("10.4.94.0/24"), Type: snapshot.RouteUnicast, Protocol: snapshot.RouteKernel, NextHops: []snapshot.NextHop{{Interface: "eth0"}},
	}}
}

func unreadFIB(s *snapshot.Snapshot) {
	s.Routers[0].Routes = snapshot.List[snapshot.Route]{Error: "running ssh tor1: exit status 255: Permission denied (publickey)."}
}

// saveReads writes reads as relapse audit --save does.
func saveReads(t *testing.T, reads ...snapshot.Snapshot) string {
	t.Helper()
	dir := t.TempDir()
	if err := audit.Save(dir, reads); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAuditStatus(t *testing.T) {
	is := func(change func(*snapshot.Snapshot)) []snapshot.Snapshot {
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
		{"nothing", is(well), exitExpected, []string{"nothing found\n"}, ""},
		{"active", is(unannounced), exitUnexpected, []string{"Active\n", "findings: 1 active, 1 latent\n", "incident node-drain: relapse describe node-drain\n"}, ""},
		{"latent", is(exchanged), exitLatent, []string{"Latent\n", "findings: 2 latent\n"}, ""},
		{"nothing, and the FIB not read", is(unreadFIB), exitInconclusive, []string{"Not read\n  FIB of tor1: running ssh tor1", "nothing found that holds, but not all could be judged\n"}, ""},
		{"a session that the router has forgotten", is(forgotten), exitInconclusive, []string{"Not judged\n  tor1 has no route to pod ranges of master2"}, ""},
		{"latent, and the FIB not read", is(both(exchanged, unreadFIB)), exitLatent, []string{"Not read\n", "findings: 2 latent\n"}, ""},
		{"settling", is(joining), exitInconclusive, []string{"Settling (may pass by itself: audit again)\n", "findings: 1 settling\n"}, ""},
		{"seen once", []snapshot.Snapshot{auditedCluster(well), auditedCluster(unannounced)}, exitInconclusive, []string{"Seen in one of the last two reads (audit again)\n"}, ""},
		{"no Nodes", is(noNodes), exitMachine, nil, "relapse: the cluster cannot be read: listing Nodes: nodes is forbidden\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := relapse(t, "audit", "--from", saveReads(t, test.reads...))
			if got.status != test.status || got.stderr != test.stderr {
				t.Errorf("status %d, standard error %q, want %d and %q", got.status, got.stderr, test.status, test.stderr)
			}
			for _, want := range test.stdout {
				if !strings.Contains(got.stdout, want) {
					t.Errorf("the output does not have %q:\n%s", want, got.stdout)
				}
			}
		})
	}
}

func TestAuditOutput(t *testing.T) {
	dir := saveReads(t, auditedCluster(unannounced), auditedCluster(unannounced))
	got := relapse(t, "audit", "--from", dir)
	golden(t, "audit", got.stdout)
	got = relapse(t, "audit", "--from", dir, "-o", "json")
	var r audit.Result
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.status != exitUnexpected {
		t.Fatalf("status %d, %v: %s", got.status, err, got.stdout)
	}
	if r.Schema != audit.Schema || len(r.Findings) != 2 || r.Findings[0].State != detect.Active || len(r.Findings[0].Incidents) == 0 {
		t.Errorf("%+v", r)
	}
	golden(t, "audit-rbac", relapse(t, "audit", "--rbac").stdout)
}

// A manifest that is printed is one that --nodes takes, and the nodes of a cluster that does not
// answer are not read.
func TestAuditNodes(t *testing.T) {
	printed := relapse(t, "audit", "--nodes-manifest", "--calico", "--image", "registry.example/nodestate:dev")
	if printed.status != exitExpected || !strings.Contains(printed.stdout, `image: "registry.example/nodestate:dev"`) || !strings.Contains(printed.stdout, "/run/calico") {
		t.Fatalf("%+v", printed)
	}
	dir := t.TempDir()
	nodes, kubeconfig := filepath.Join(dir, "nodes.yaml"), filepath.Join(dir, "kubeconfig")
	for file, text := range map[string]string{nodes: printed.stdout, kubeconfig: strings.ReplaceAll(kubeconfigOf, "SERVER", "http://127.0.0.1:1")} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := relapse(t, "audit", "--kubeconfig", kubeconfig, "--nodes", nodes, "--quiet")
	if got.status != exitMachine || !strings.HasPrefix(got.stderr, "relapse: the cluster cannot be read: ") {
		t.Errorf("%+v", got)
	}
}

// Without a cluster that answers the status is 3, and a file of routers that is wrong is 2
// before anything is read.
func TestAuditInput(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	kubeconfig := write("kubeconfig", strings.ReplaceAll(kubeconfigOf, "SERVER", "http://127.0.0.1:1"))
	routers := write("routers.yaml", "- {name: tor1, kind: frr, hsot: tor1}\n")
	for _, test := range []struct {
		name   string
		args   []string
		status int
		says   string
	}{
		{"no answer", []string{"--kubeconfig", kubeconfig, "--quiet"}, exitMachine, "relapse: the cluster cannot be read: listing Nodes: "},
		{"progress", []string{"--kubeconfig", kubeconfig}, exitMachine, "audit: cluster http://127.0.0.1:1 of context \"a\", 0 routers\naudit: read 1\nrelapse: "},
		{"routers", []string{"--kubeconfig", kubeconfig, "--routers", routers}, exitUsage, "relapse: --routers: " + routers + ": line 1: field hsot not found"},
		{"no kubeconfig", []string{"--kubeconfig", filepath.Join(dir, "none")}, exitUsage, "relapse: reading the kubeconfig: "},
		{"a context", []string{"--kubeconfig", kubeconfig, "--context", "b"}, exitUsage, "relapse: reading the kubeconfig: context \"b\" does not exist"},
		{"an output", []string{"-o", "yaml"}, exitUsage, `relapse: -o: "yaml": expected text or json`},
		{"both", []string{"--from", dir, "--routers", routers}, exitUsage, "relapse: --from and --routers exclude each other"},
		{"nodes", []string{"--kubeconfig", kubeconfig, "--nodes", routers}, exitUsage, "relapse: --nodes: " + routers + ": "},
		{"no nodes", []string{"--kubeconfig", kubeconfig, "--nodes", filepath.Join(dir, "none")}, exitUsage, "relapse: --nodes: open "},
		{"saved nodes", []string{"--from", dir, "--nodes", routers}, exitUsage, "relapse: --from and --nodes exclude each other"},
		{"an image", []string{"--nodes-manifest", "--image", "a b"}, exitUsage, `relapse: --image: "a b" is no reference of an image`},
		{"an image alone", []string{"--image", "a"}, exitUsage, "relapse: --image is for --nodes-manifest"},
		{"one read", []string{"--from", saveReads(t, auditedCluster(func(*snapshot.Snapshot) {}))}, exitUsage, "relapse: --from: "},
		{"nothing saved", []string{"--from", dir}, exitUsage, "relapse: --from: " + dir + " has 0 files such as 01-snapshot-audit.json"},
		{"an argument", []string{"node-drain"}, exitUsage, "relapse: relapse audit takes no argument"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := relapse(t, append([]string{"audit"}, test.args...)...)
			if got.status != test.status || got.stdout != "" || !strings.HasPrefix(got.stderr, test.says) {
				t.Errorf("%+v\nwant status %d and %q", got, test.status, test.says)
			}
		})
	}
}

// Ctrl-C ends an audit whose cluster does not answer.
func TestAuditInterrupted(t *testing.T) {
	asked := make(chan bool, 100)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- true
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := strings.ReplaceAll(kubeconfigOf, "SERVER", silent.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := program(t.Context(), "audit", "--kubeconfig", file, "--quiet")
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != exitInterrupted || stderr.String() != "relapse: interrupted\n" {
		t.Errorf("status %d, standard error %q", status, &stderr)
	}
}

const kubeconfigOf = `{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
"clusters":[{"name":"a","cluster":{"server":"SERVER"}}],"users":[{"name":"a","user":{}}]}`

// A finding belongs to the incidents with one of its kind, else to those with its detector.
func TestIncidentsOf(t *testing.T) {
	for _, test := range []struct {
		detector, kind string
		want           []string
	}{
		{detect.RouteOwnership{}.Name(), detect.TwinRange, []string{"twin-cidr"}},
		{detect.RouteOwnership{}.Name(), detect.WrongAnnouncer, []string{"node-drain"}},
		{detect.ImagePin{}.Name(), detect.LatestTag, []string{"unpinned-image"}},
		{detect.Permission{}.Name(), detect.NotPermitted, []string{"lost-permission"}},
		{"another", "kind", nil},
	} {
		var names []string
		for _, i := range incidentsOf(detect.Finding{Detector: test.detector, Kind: test.kind}) {
			names = append(names, i.Name)
		}
		if d := cmp.Diff(test.want, names); d != "" {
			t.Errorf("%s %s (-want +got):\n%s", test.detector, test.kind, d)
		}
	}
}
