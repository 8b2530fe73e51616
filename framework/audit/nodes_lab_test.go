//go:build lab && night

package audit_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/nodestate"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

var (
	nodesNet = topology.NewNetwork("nodes", "10.233.1.0/24")
	uplink   = topology.NewNetwork("uplink", "10.233.2.0/24")
)

// audited is a lab of two nodes and a router.
var audited = topology.Topology{
	Name: "audit-nodes", Networks: []topology.Network{nodesNet, uplink},
	Clusters: []topology.Cluster{{
		NodeMask: 24, PodCIDR: netip.MustParsePrefix("10.234.0.0/16"), Nodes: []topology.Node{nodesNet.Node("first", 21), nodesNet.Node("second", 11)},
	}},
}.Behind(topology.OneToR(nodesNet, uplink))

// The printed manifest starts a pod on every node, which reads the node and changes nothing on it. Without its pod a
// node is unread, by name. A guest is tested as well: its own kernel would load modules if a read caused that.
func TestNodesOfALab(t *testing.T) {
	for name, kernel := range map[string]string{"containers": "", "a guest": topology.Kernels[0]} {
		t.Run(name, func(t *testing.T) {
			audited := audited
			audited.Clusters = slices.Clone(audited.Clusters)
			audited.Clusters[0].Nodes = slices.Clone(audited.Clusters[0].Nodes)
			audited.Clusters[0].Nodes[1].Kernel = kernel
			testNodes(t, audited)
		})
	}
}

func testNodes(t *testing.T, audited topology.Topology) {
	ctx := t.Context()
	guest := audited.Clusters[0].Nodes[1].Kernel != ""
	docker := must.Get(client.New(client.FromEnv))(t)
	catalogue := must.Get(images.Open("../.."))(t)
	serve := []string{audit.NodeImage}
	must.Get(catalogue.Build(ctx, append(kindlab.ImagesOf(audited), serve...), func(images.Event) {}))(t)
	down := func() {
		if err := kindlab.Down(context.WithoutCancel(ctx), docker, audited.Name); err != nil {
			t.Error(err)
		}
	}
	down()
	lab, err := kindlab.Up(ctx, docker, audited, kindlab.Options{Images: catalogue, Serve: serve})
	t.Cleanup(func() {
		if lab != nil {
			lab.Release()
		}
		down()
	})
	must.NoError(t, err)
	on := func(node string, command ...string) string {
		t.Helper()
		out, err := lab.Node(node).Exec(ctx, command...)
		if err != nil {
			t.Fatalf("%s on %s: %v", command, node, err)
		}
		return out
	}
	// kubectl runs kubectl on the control plane's node.
	kubectl := func(command string) string {
		return on("first", "bash", "-c", "export KUBECONFIG=/etc/kubernetes/admin.conf; "+command)
	}
	text := must.Get(audit.NodesManifest(audit.NodeImage, false))(t)
	// state prints what reading could change on a node.
	const state = `nft list tables; cat /proc/net/ip_tables_names /proc/net/ip6_tables_names 2>&1; cut -d' ' -f1 /proc/modules 2>&1
find /proc/sys/net -type f ! -name nf_conntrack_count ! -path '*/veth*' | sort | xargs grep -H '' 2>&1; ls -d /run/calico 2>&1; true`
	if guest { // it has no rule, and so no module for rules
		loaded := strings.Fields(on("second", "cut", "-d ", "-f1", "/proc/modules"))
		t.Logf("modules: %q", loaded)
		for _, module := range []string{"ip_vs", "nf_conntrack_netlink"} {
			on("second", "modprobe", "--dry-run", module)
			if len(loaded) == 0 || slices.Contains(loaded, module) {
				t.Fatalf("module %s, which reading could load, is there", module)
			}
		}
	} else {
		on("second", "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "10.234.0.0/16", "-d", "192.0.2.0/24", "-j", "MASQUERADE")
	}
	before := map[string]string{}
	for _, node := range []string{"first", "second"} {
		before[node] = on(node, "bash", "-c", state)
	}
	kubectl("kubectl apply -f - <<'end'\n" + text + "\nend")
	waitFor := func(pods int) {
		t.Helper()
		err := await.Until(ctx, fmt.Sprintf("%d pods are ready", pods), time.Second, 2*time.Minute, func(context.Context) (bool, string, error) {
			ready := kubectl(`kubectl -n relapse-nodes get pods -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}'`)
			return len(strings.Fields(ready)) == pods && strings.Count(ready, "True") == pods, ready, nil
		})
		must.NoError(t, err)
	}
	waitFor(2)

	file := filepath.Join(t.TempDir(), "nodes.yaml")
	must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	read := func(text string) audit.Result {
		t.Helper()
		nodes := must.Get(audit.ParseNodes(file, []byte(text)))(t)
		config, _, err := audit.Client{Kubeconfig: lab.Clusters[0].Kubeconfig, Version: "test", Nodes: nodes}.Config()
		must.NoError(t, err)
		reads := must.Get(audit.Read(ctx, audit.Access{Config: config, ByNode: nodes}, time.Second, func(text string) { t.Log(text) }))(t)
		last := reads[len(reads)-1]
		for _, n := range last.NAT {
			if n.Node == "second" && !guest && n.Rules.Read {
				must.Contain(t, fmt.Sprint(n.Rules.Items), "192.0.2.0/24")
			}
		}
		return must.Get(audit.Judge(reads))(t)
	}
	var unread []snapshot.Missing
	if guest {
		unread = []snapshot.Missing{{Source: "flows of second", Reason: "the kernel tracks connections, but to ask for them would load nf_conntrack_netlink"}}
	}
	r := read(text)
	must.Equal(t, "unread", unread, r.Unread, cmpopts.EquateEmpty())
	must.Equal(t, "nodes", 2, r.Nodes)
	for node, was := range before {
		must.Equal(t, node, was, on(node, "bash", "-c", state))
	}
	key := strings.Index(text, "  key: ")
	r = read(text[:key] + "  key: other\n" + text[key+strings.IndexByte(text[key:], '\n')+1:])
	must.Equal(t, "unread with another key", 16, len(r.Unread))
	must.Contain(t, fmt.Sprint(r.Unread), "does not take the key")
	pod := netip.AddrPortFrom(netip.MustParseAddr("10.233.1.11"), nodestate.Port)
	url := "https://" + pod.String() + nodestate.Path
	ask := exec.CommandContext(ctx, "curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", url)
	must.Equal(t, "without a key", "401", string(must.Get(ask.Output())(t)))

	kubectl(`kubectl -n relapse-nodes patch daemonset relapse-nodes -p '{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"first"}}}}}'`)
	kubectl("kubectl -n relapse-nodes rollout status daemonset --timeout=2m >&2")
	waitFor(1)
	r = read(text)
	for _, m := range r.Unread {
		must.Contain(t, m.String(), "of second: ", "none of the pods that read nodes is on it")
	}
	must.Equal(t, "", 8, len(r.Unread))
	kubectl("kubectl delete --wait -f - <<'end'\n" + text + "\nend")
}
