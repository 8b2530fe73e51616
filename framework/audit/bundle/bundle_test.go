package bundle

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var wanted = []schema.GroupVersionResource{
	nodes.WithVersion("v1"), pods.WithVersion("v1"), services.WithVersion("v1"), leases.WithVersion("v1"), definitions.WithVersion("v1"),
	{Group: "apps", Version: "v1", Resource: "daemonsets"}, {Group: "cilium.io", Version: "v2", Resource: "ciliumbgppeerconfigs"},
	slicesOf.WithVersion("v1"), ciliumNodes.WithVersion("v2"),
}

// text is an item of a list. Its name has a namespace ("shop/web") or none ("n1").
func text(name string, revision int, more string) string {
	namespace, short, found := strings.Cut(name, "/")
	if !found {
		namespace, short = "", name
	}
	return fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q,"uid":"uid-%s","resourceVersion":"%d","creationTimestamp":"2025-01-05T10:00:00Z"}%s}`,
		namespace, short, name, revision, more)
}

// listed is a list of objects with these names, as the API server answers it.
func listed(version, kind string, revision int, names ...string) string {
	var items []string
	for _, name := range names {
		more := ""
		_, short, _ := strings.Cut(name, "/")
		switch {
		case kind == "Pod":
			more = `,"spec":{"nodeName":"n1"}`
		case kind == "EndpointSlice" && short == "kubernetes":
			items = append(items, strings.Replace(text(name, revision, ""), `"uid"`, `"labels":{"kubernetes.io/service-name":"kubernetes"},"uid"`, 1))
			continue
		case kind == "EndpointSlice":
			more = fmt.Sprintf(`,"endpoints":[{"targetRef":{"kind":"Pod","name":%q}}]`, short)
		}
		items = append(items, text(name, revision, more))
	}
	return fmt.Sprintf(`{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":"%d"},"items":[%s]}`, version, kind, revision, strings.Join(items, ","))
}

var cluster = map[string]string{
	"namespaces.json": listed("v1", "Namespace", 9, "kube-system", "default", "shop"), "nodes.json": listed("v1", "Node", 9, "n1"),
	"pods.json": listed("v1", "Pod", 9, "kube-system/dns", "shop/web"), "services.json": listed("v1", "Service", 9, "default/kubernetes", "shop/web"),
	"slices.json": listed("discovery.k8s.io/v1", "EndpointSlice", 9, "default/kubernetes", "kube-system/dns", "shop/web"),
}

// Each case replaces files of the cluster, and has the reasons why resources are then not read. A case without
// resources expects that Services are read.
func TestWhatIsWhole(t *testing.T) {
	service, all := "services.json", `kind: List
apiVersion: v1
metadata: {resourceVersion: ""}
`
	justDefault, peers := listed("v1", "Service", 9, "default/kubernetes"), `[{"apiVersion":"cilium.io/v2","kind":"CiliumBGPPeerConfig",`+text("one", 9, "")[1:]+"]"
	onGone := strings.ReplaceAll(cluster["pods.json"], `"}}`, `"},"spec":{"nodeName":"gone"}}`)
	item := func(name string) string { return "- {apiVersion: v1, kind: Service, " + text(name, 7, "")[1:] + "\n" }
	for _, c := range []struct {
		name  string
		files map[string]string
		want  map[string]string
	}{
		{"the cluster", nil, nil},
		{"of one namespace, as the server has answered", map[string]string{service: justDefault}, map[string]string{"services": "only namespace default was collected"}},
		{"asked for by its path", map[string]string{service: `{"request":"/api/v1/services"}` + "\n" + justDefault}, nil},
		{"asked for of one namespace", map[string]string{service: `{"request":"/api/v1/namespaces/default/services"}` + justDefault}, map[string]string{"services": "only namespace default was collected"}},
		{"asked for, and refused", map[string]string{service: `{"request":"/api/v1/services"}{"request":"/api/v1/pods"}` + justDefault}, map[string]string{"services": "only namespace default was collected"}},
		{"of a sysdump", map[string]string{service: "", "s/cilium-sysdump.log": "done", "s/k8s-services-20260105-101010.yaml": justDefault}, nil},
		{"named as of a sysdump", map[string]string{service: "", "s/k8s-services-20260105-101010.yaml": justDefault}, map[string]string{"services": "only namespace default was collected"}},
		{"without those of EndpointSlices", map[string]string{service: listed("v1", "Service", 9, "default/kubernetes", "shop/other"),
			"slices.json": strings.ReplaceAll(cluster["slices.json"], `"name":"web","uid"`, `"name":"web","labels":{"kubernetes.io/service-name":"web"},"uid"`)},
			map[string]string{"services": "the list is incomplete: 1 of the 2 services that EndpointSlices name are missing, such as shop/web"}},
		{"Pods without EndpointSlices", map[string]string{"slices.json": ""}, map[string]string{
			"pods": "Pods may be incomplete, and there are no EndpointSlices to check them against", "services": "Services may be incomplete, and there are no EndpointSlices"}},
		{"Services of a path, without EndpointSlices", map[string]string{"slices.json": "", "pods.json": "", service: `{"request":"/api/v1/services"}` + cluster[service]}, map[string]string{"nodes": "no Pods"}},
		{"Pods of one label", map[string]string{"pods.json": strings.ReplaceAll(cluster["pods.json"], `"uid"`, `"labels":{"app":"web"},"uid"`)}, map[string]string{"pods": "it may have been filtered (kubectl -l): all its objects have the label app"}},
		{"Pods of one label, of all", map[string]string{"slices.json": "", "pods.json": `{"request":"/api/v1/pods"}` + strings.ReplaceAll(cluster["pods.json"], `"uid"`, `"labels":{"app":"web"},"uid"`)}, map[string]string{"services": "no EndpointSlices"}},
		{"Nodes alone", map[string]string{"pods.json": ""}, map[string]string{"nodes": "Nodes may be incomplete, and there are no Pods to check them against"}},
		{"a Pod of a Node that is missing", map[string]string{"pods.json": onGone}, map[string]string{"nodes": "the list is incomplete: gone, where a Pod is, is missing"}},
		{"a Pod of a Node that has been deleted", map[string]string{"pods.json": onGone, "nodes.json": "", "d/nodes.json": cluster["nodes.json"],
			"d/kube-system/replication-controllers.json": "{}"}, nil},
		{"a Node that a newer list lacks, which may have been filtered", map[string]string{"pods.json": onGone, "nodes.json": "", "d/nodes.json": listed("v1", "Node", 9, "n1", "gone"),
			"d/kube-system/replication-controllers.json": "{}", "nodes2.json": listed("v1", "Node", 12, "n1")}, map[string]string{"nodes": "the list is incomplete: gone, where a Pod is, is missing"}},
		{"replication controllers by hand", map[string]string{"pods.json": onGone, "replication-controllers.json": "{}"}, map[string]string{"nodes": "the list is incomplete: gone"}},
		{"of each namespace, without Namespaces", map[string]string{"namespaces.json": "", service: "", "default/svc.json": justDefault, "shop/svc.json": listed("v1", "Service", 9, "shop/web"),
			"kube-system/svc.json": listed("v1", "Service", 9), "kube-public/svc.json": listed("v1", "Service", 9), "kube-node-lease/svc.json": listed("v1", "Service", 9)}, nil},
		{"of some namespaces, without Namespaces", map[string]string{"namespaces.json": "", service: "", "default/svc.json": justDefault, "shop/svc.json": listed("v1", "Service", 9, "shop/web"),
			"kube-system/svc.json": listed("v1", "Service", 9)}, map[string]string{"services": "only namespace default and namespace kube-system and namespace shop was collected (kubectl get services -A -o yaml has all)"}},
		{"of one namespace, by kubectl", map[string]string{service: all + "items:\n" + item("default/kubernetes")}, map[string]string{"services": "only namespace default was collected"}},
		{"of two, by kubectl, with a comment", map[string]string{service: all + "items:\n" + item("default/kubernetes") + "# two\n" + item("shop/web")}, nil},
		{"of one namespace, by its folder", map[string]string{service: "", "default/svc.json": listed("v1", "Service", 9, "default/kubernetes")}, map[string]string{"services": "only namespace default was collected"}},
		{"of each namespace", map[string]string{service: "", "default/svc.json": listed("v1", "Service", 9, "default/kubernetes"),
			"a/kube-system/svc.json": listed("v1", "Service", 9), "svc/shop.json": listed("v1", "Service", 9)}, nil},
		{"empty, of a namespace that a later file names", map[string]string{service: "", "a/shop/svc.json": listed("v1", "Service", 9)}, map[string]string{"services": "only namespace shop was collected"}},
		{"selected by a label", map[string]string{service: listed("v1", "Service", 9, "shop/web", "default/other")}, map[string]string{"services": "the list is incomplete: default/kubernetes is missing"}},
		{"cut off", map[string]string{service: "apiVersion: v1\nitems:\n" + item("default/kubernetes") + item("shop/web")}, map[string]string{"services": "was cut off"}},
		{"without uids", map[string]string{service: strings.ReplaceAll(cluster[service], `"uid"`, `"id"`)}, map[string]string{"services": "without metadata.uid"}},
		{"in pages", map[string]string{service: strings.Replace(cluster[service], `"metadata":{`, `"metadata":{"continue":"x",`, 1)}, map[string]string{"services": "collected in pages"}},
		{"in pages, by their number", map[string]string{service: strings.Replace(cluster[service], `"metadata":{`, `"metadata":{"remainingItemCount":3,`, 1)}, map[string]string{"services": "collected in pages"}},
		{"custom resources, as troubleshoot.sh writes them", map[string]string{"cluster-resources/custom-resources/ciliumbgppeerconfigs.cilium.io.json": peers}, nil},
		{"custom resources in a sequence", map[string]string{"peers.json": peers}, map[string]string{"ciliumbgppeerconfigs": "does not say of what it is one"}},
		{"never listed", map[string]string{service: ""}, map[string]string{"services": "the bundle has no list of it"}},
		{"an error in its place", map[string]string{service: "", "services-errors.json": `["not for you"]`}, map[string]string{"services": "the collector could not list it, because"}},
		{"UTF-16", map[string]string{service: utf16Of(cluster[service])}, nil},
		{"several documents", map[string]string{service: "", "nodes.json": "", "all.yaml": "--- {}\n---\n# none\n--- " + cluster[service] + "\n...\n---\n" + cluster["nodes.json"]}, nil},
		{"no items", map[string]string{"daemonsets.json": `{"apiVersion":"apps/v1","kind":"DaemonSetList","metadata":{"resourceVersion":"9"},"items":null}`}, map[string]string{"daemonsets": "an empty list, and it is not known whether of all namespaces"}},
		{"Nodes without one", map[string]string{"nodes.json": listed("v1", "Node", 9, "n2")}, map[string]string{"nodes": "the list is incomplete: n1, where a Pod is, is missing"}},
		{"Nodes of a path, before a Pod came to a new one", map[string]string{"nodes.json": `{"request":"/api/v1/nodes"}` + listed("v1", "Node", 9, "n2")}, nil},
		{"a single Node", map[string]string{"nodes.json": "", "cluster-scoped-resources/core/nodes/n1.yaml": nodeN1}, map[string]string{"nodes": "it has single objects, but no complete list"}},
		{"single Nodes as many as a DaemonSet has pods", map[string]string{"nodes.json": "", "cluster-scoped-resources/core/nodes/n1.yaml": nodeN1,
			"ds.json": `{"apiVersion":"apps/v1","kind":"DaemonSetList","items":[` + text("kube-system/proxy", 9, `,"status":{"desiredNumberScheduled":1}`) + `]}`},
			map[string]string{"daemonsets": "only namespace kube-system was collected"}},
		{"Namespaces without one", map[string]string{"namespaces.json": listed("v1", "Namespace", 9, "kube-system", "default")}, map[string]string{"namespaces": "shop is missing"}},
		{"Namespaces of a path, before one was made", map[string]string{"namespaces.json": `{"request":"/api/v1/namespaces"}` + listed("v1", "Namespace", 9, "kube-system", "default")}, nil},
		{"Pods without those of endpoints", map[string]string{"slices.json": `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSliceList","metadata":{"resourceVersion":"9"},"items":[` +
			text("shop/web", 9, `,"endpoints":[{"targetRef":{"kind":"Pod","name":"other"}}]`) + `]}`}, map[string]string{"pods": "1 of the 1 pods that EndpointSlices name are missing, such as shop/other", "services": "no EndpointSlices", "endpointslices": "only namespace shop was collected"}},
		{"two lists of one time", map[string]string{"old.json": listed("v1", "Service", 9, "default/kubernetes", "shop/old")}, map[string]string{"services": "two lists that differ"}},
		{"another version of its API", map[string]string{"a.json": `{"apiVersion":"cilium.io/v2","kind":"CiliumBGPPeerConfig",` + text("one", 9, "")[1:],
			"b.json": listed("cilium.io/v2alpha1", "CiliumBGPPeerConfig", 9, "one")}, map[string]string{"ciliumbgppeerconfigs": "it has single objects, but no complete list"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := opened(t, c.files)
			for _, r := range append(wanted, namespaces.WithVersion("v1")) {
				want, ok := c.want[r.Resource]
				if _, there := b.kinds[r]; !ok && !there && r != services.WithVersion("v1") {
					continue
				}
				must.Contain(t, b.lacks(r), want)
				must.Equal(t, r.Resource+": "+b.lacks(r), want == "", b.lacks(r) == "")
			}
		})
	}
}

const nodeN1 = "apiVersion: v1\nkind: Node\nmetadata: {name: n1, uid: uid-n1}\n"

func utf16Of(s string) string {
	var to bytes.Buffer
	for _, unit := range utf16.Encode([]rune("\ufeff" + s)) {
		to.Write([]byte{byte(unit), byte(unit >> 8)})
	}
	return to.String()
}

// folder is a bundle of the cluster with some files replaced; files without a text are left out.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, layer := range []map[string]string{cluster, files} {
		for name, text := range layer {
			if _, other := files[name]; other && text == cluster[name] || text == "" {
				continue
			}
			must.Write(t, filepath.Join(dir, name), text)
		}
	}
	return dir
}

func opened(t *testing.T, files map[string]string) *Bundle {
	t.Helper()
	return must.Get(Open(folder(t, files), wanted))(t)
}

// A newer collection replaces an older one as a whole, and a bundle of two clusters is refused.
func TestTwoCollections(t *testing.T) {
	b := opened(t, map[string]string{"new/svc.json": listed("v1", "Service", 12, "default/kubernetes", "shop/new"),
		"new/ds.json": listed("apps/v1", "DaemonSet", 12, "shop/a"), "old/ds.json": listed("apps/v1", "DaemonSet", 9, "kube-system/b")})
	must.Equal(t, "whole", "", b.lacks(services.WithVersion("v1")))
	for name, want := range map[string]int{"default/kubernetes": 1, "shop/web": 0, "shop/new": 1} {
		namespace, name, _ := strings.Cut(name, "/")
		must.Equal(t, "places of "+name, want, len(b.Where("Service", namespace, name)))
	}
	must.Equal(t, "of other labels", 2, len(b.kinds[wanted[5]].objects))
	_, err := Open(folder(t, map[string]string{"other.json": strings.ReplaceAll(cluster["namespaces.json"], "uid-kube-system", "uid-2")}), wanted)
	must.Fail(t, err, "it is of two clusters, which are audited one by one: Namespace kube-system has metadata.uid uid-")
}

func clock(t *testing.T, b *Bundle) string {
	answer := must.Get(b.RoundTrip(must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://b/api/v1/nodes", nil))(t)))(t)
	must.NoError(t, answer.Body.Close())
	return answer.Header.Get("Date")
}

// Leases are judged by the time when they were read, and not by objects that were collected minutes later.
func TestClockOfLeases(t *testing.T) {
	lease := strings.Replace(listed("coordination.k8s.io/v1", "Lease", 9, "kube-node-lease/n1", "shop/x"), `"}}`, `"},"spec":{"renewTime":"2025-01-05T09:00:00.000000Z"}}`, 1)
	b := opened(t, map[string]string{"leases.json": lease})
	must.Equal(t, "its time", "10:00:00", b.Time().UTC().Format("15:04:05"))
	must.Equal(t, "clock", "Sun, 05 Jan 2025 09:00:00 GMT", clock(t, b))
	b = opened(t, map[string]string{"leases.json": listed("coordination.k8s.io/v1", "Lease", 9, "kube-system/a", "shop/x")})
	must.Equal(t, "without nodes", "the bundle does not have all: the list is incomplete: each Lease of kube-node-lease is missing", b.lacks(leases.WithVersion("v1")))
}

// Custom resources without a list do not exist if the cluster cannot serve them.
func TestKnown(t *testing.T) {
	peers := wanted[6].GroupResource()
	for _, c := range []struct {
		name  string
		files map[string]string
		want  bool
	}{
		{"no program of the vendor runs", nil, false},
		{"one does", map[string]string{"pods.json": listed("v1", "Pod", 9, "kube-system/cilium-x", "shop/web")}, true},
		{"Pods of a part", map[string]string{"pods.json": "", "shop/pods.json": listed("v1", "Pod", 9, "shop/web")}, true},
		{"the server does not have it", map[string]string{"pods.json": listed("v1", "Pod", 9, "kube-system/cilium-x", "shop/web"),
			"cilium-sysdump.log": "failed to collect ciliumbgppeerconfigs (v2): the server could not find the requested resource\n"}, false},
		{"it has no definition", map[string]string{"pods.json": listed("v1", "Pod", 9, "kube-system/cilium-x", "shop/web"),
			"crds.json": listed("apiextensions.k8s.io/v1", "CustomResourceDefinition", 9, "others.example.org")}, false},
		{"it has no definition, as kubectl says, which does not tell that some were selected", map[string]string{
			"pods.json": listed("v1", "Pod", 9, "kube-system/cilium-x", "shop/web"),
			"crds.yaml": "kind: List\napiVersion: v1\nitems:\n- {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, " + text("others.example.org", 9, "")[1:]}, true},
	} {
		must.Equal(t, c.name, c.want, opened(t, c.files).mayServe(peers))
	}
	dir := folder(t, map[string]string{"cilium-sysdump.log": "failed to collect ciliumbgppeerconfigs (v2alpha1): the server could not find the requested resource\n"})
	b := must.Get(Open(dir, append(slices.Clone(wanted), peers.WithVersion("v2alpha1"))))(t)
	b.named["cilium.io"] = true
	must.Equal(t, "of two versions, of which the collector has asked for one", true, b.mayServe(peers))
}

// Lists of cluster-scoped resources by kubectl count as complete, and a note says so.
func TestAssumed(t *testing.T) {
	item := func(name string) string {
		return "- {apiVersion: cilium.io/v2, kind: CiliumNode, " + text(name, 7, "")[1:] + "\n"
	}
	const list = "kind: List\napiVersion: v1\nitems:\n"
	must.Equal(t, "parts", []string{"Lists of kubectl are taken for complete, which do not show whether they were filtered (kubectl -l): ciliumnodes.cilium.io."},
		opened(t, map[string]string{"cn.yaml": list + item("n1")}).Parts())
	must.Equal(t, "without one", "the bundle does not have all: the list is incomplete: n1 is missing",
		opened(t, map[string]string{"cn.yaml": list + item("n2")}).lacks(ciliumNodes.WithVersion("v2")))
	must.Equal(t, "of the server", 0, len(opened(t, map[string]string{"cn.json": listed("cilium.io/v2", "CiliumNode", 9, "n1")}).Parts()))
}

// The directory of a zip is bounded by the bytes read, whatever size the zip states.
func TestDirectory(t *testing.T) {
	var file bytes.Buffer
	w := zip.NewWriter(&file)
	for i := range mostZip>>16 + 2 {
		must.Get(w.CreateHeader(&zip.FileHeader{Name: strconv.Itoa(i), Comment: strings.Repeat("x", 1<<16-1)}))(t)
	}
	must.NoError(t, w.Close())
	must.Fail(t, newBundle(wanted).zip("", bytes.NewReader(file.Bytes()), int64(file.Len()), 0), "the directory of the zip has more than 64 MiB")
}

// A damaged document is named by its line, without its text. Other documents are read, and no file outside the bundle.
func TestDamage(t *testing.T) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	must.NoError(t, w.WriteHeader(&tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}))
	must.NoError(t, w.WriteHeader(&tar.Header{Name: "../../up.yaml", Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(nodeN1))}))
	must.Get(w.Write([]byte(nodeN1)))(t)
	must.NoError(t, w.Flush())
	node := `{"apiVersion":"v1","kind":"Node",` + text("n4", 12, "")[1:]
	dir := folder(t, map[string]string{
		"a.yaml":    nodeN1 + "---\nkind: Service\napiVersion: v1\npassword: [hunter2\n---\n" + strings.ReplaceAll(nodeN1, "name: n1", "name: n2, resourceVersion: '12'"),
		"b.json":    cluster["services.json"][:200],
		"c.yaml":    nodeN1 + "data: '" + strings.Repeat("x", mostDocument) + "'\n",
		"d.tar":     archive.String() + "torn",
		"f.yaml":    nodeN1 + "data: {a: &a-1 x, b: [*a-1, *a-1]}\n",
		"h.json":    `{"kind":"List","items":[{"kind":"List","items":[` + node + `,{"kind":"List","items":[` + strings.ReplaceAll(node, "n4", "n5") + `]}]}]}`,
		"g.yaml":    strings.ReplaceAll(nodeN1, "name: n1", "name: n3, resourceVersion: '12'") + "data: {run: '*/5 * * * * a && b &> c 2>&1 *.txt ?a=b&c=d'}\n",
		"e.gz":      "\x1f\x8b\x08 torn",
		"flows.log": `{"flow":{"kind":"Pod","time":"2030-01-01T00:00:00Z"}}` + "\n{torn",
	})
	must.NoError(t, os.Symlink("/etc", filepath.Join(dir, "etc")))
	b := must.Get(Open(dir, wanted))(t)
	broken := each.Of(b.Broken, func(m snapshot.Missing) string { return m.Source + " " + m.Reason })
	must.Equal(t, "damaged", []string{
		"a.yaml:5 of the bundle it is no YAML, or was cut off", "b.json:1 of the bundle it is no JSON, or was cut off",
		"c.yaml:1 of the bundle a document of YAML, or an object in one, has more than 4 MiB", "d.tar of the bundle unexpected EOF", "e.gz of the bundle unexpected EOF",
		"f.yaml:1 of the bundle it has YAML anchors, which no API server writes", "h.json:1 of the bundle it is a list in a list of lists",
	}, broken)
	must.Equal(t, "a Node", []string{"a.yaml:9"}, b.Where("Node", "", "n2"))
	must.Equal(t, "no anchor", []string{"g.yaml:1"}, b.Where("Node", "", "n3"))
	must.Equal(t, "in a list of a list", []string{"h.json:1"}, b.Where("Node", "", "n4"))
	must.Equal(t, "deeper", 0, len(b.Where("Node", "", "n5")))
	must.Equal(t, "its time", "2025-01-05 10:00:00", b.Time().UTC().Format("2006-01-02 15:04:05"))
	must.Equal(t, "its clock", "Sun, 05 Jan 2025 10:00:00 GMT", clock(t, b))
}

// Reading any file ends, and each object is JSON.
func FuzzDocuments(f *testing.F) {
	for _, text := range cluster {
		f.Add([]byte(text))
	}
	f.Add([]byte("kind: List\napiVersion: v1\nitems:\n- kind: Pod\n# x\n  metadata: {uid: a}\n---\n- a\n- {}\n--- [}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		b := newBundle(wanted)
		b.age(text)
		if b.documents(part{"shop/f", 1, utf8Of(text)}) != nil {
			return
		}
		b.settle()
		for _, c := range b.kinds {
			for _, o := range c.objects {
				must.Equal(t, o, true, json.Valid(o.json))
			}
		}
	})
}
