package audit

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/audit/bundle"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// forms are the formats in which collectors write the objects of a cluster.
var forms = []struct {
	name    string
	collect func(t *testing.T, objects []map[string]any) string
}{
	{"kubectl get --all-namespaces --output=yaml, and what the audit asks for", func(t *testing.T, objects []map[string]any) string {
		files := fstest.MapFS{}
		for name, list := range lists(objects) {
			nsNames := map[string]bool{}
			for _, item := range list["items"].([]any) {
				nsNames[namespaceOf(item.(map[string]any))] = true
			}
			if len(nsNames) < 2 { // it does not show that it is a list of all namespaces
				plural, _ := meta.UnsafeGuessKindToResource(schema.FromAPIVersionAndKind(name.version, strings.TrimSuffix(name.kind, "List")))
				files[name.kind+".yaml"] = fileOf(fmt.Appendf(nil, "{\"request\":%q}\n%s\n", bundle.Path(plural), must.Get(json.Marshal(list))(t)))
				continue
			}
			list["kind"], list["apiVersion"] = "List", "v1"
			files[name.kind+".yaml"] = fileOf(must.Get(yaml.Marshal(list))(t))
		}
		dir := t.TempDir()
		must.NoError(t, os.CopyFS(dir, files))
		return dir
	}},
	{"sysdump, a zip with typed lists", func(t *testing.T, objects []map[string]any) string {
		files := fstest.MapFS{"sysdump-1/cilium-sysdump.log": fileOf(nil)}
		for name, list := range lists(objects) {
			for _, item := range list["items"].([]any) {
				if !strings.Contains(name.version, ".io/") || strings.Contains(name.version, "k8s.io/") {
					typed(item)
				}
			}
			files["sysdump-1/k8s-"+strings.ToLower(name.kind)+"-20260105-101010.yaml"] = fileOf(must.Get(yaml.Marshal(list))(t))
		}
		file := filepath.Join(t.TempDir(), "sysdump.zip")
		f := must.Get(os.Create(file))(t)
		z := zip.NewWriter(f)
		must.NoError(t, errors.Join(z.AddFS(files), z.Close(), f.Close()))
		return file
	}},
	{"must-gather, a tar.gz with a folder for each namespace", func(t *testing.T, objects []map[string]any) string {
		namespaces := map[string]bool{"default": true}
		for _, o := range objects {
			if n := namespaceOf(o); n != "" {
				namespaces[n] = true
			}
		}
		all := []any{}
		for n := range namespaces {
			all = append(all, map[string]any{"metadata": map[string]any{"name": n, "uid": n}})
		}
		files := fstest.MapFS{"a/namespaces.json": fileOf(must.Get(json.Marshal(map[string]any{"kind": "NamespaceList", "apiVersion": "v1", "items": all}))(t))}
		for name, list := range lists(objects) {
			byNamespace := map[string][]any{"": {}}
			for n := range namespaces {
				byNamespace[n] = []any{}
			}
			for _, item := range list["items"].([]any) {
				byNamespace[namespaceOf(item.(map[string]any))] = append(byNamespace[namespaceOf(item.(map[string]any))], item)
			}
			for n, items := range byNamespace {
				if (n == "") == (clusterScoped[name.kind] || len(byNamespace[""]) > 0) {
					document := map[string]any{"kind": name.kind, "apiVersion": name.version, "metadata": list["metadata"], "items": items}
					files[path.Join("a/namespaces", n, name.kind+".json")] = fileOf(must.Get(json.MarshalIndent(document, "", "  "))(t))
				}
			}
		}
		file := filepath.Join(t.TempDir(), "must-gather.tar.gz")
		f := must.Get(os.Create(file))(t)
		compressed := gzip.NewWriter(f)
		archive := tar.NewWriter(compressed)
		must.NoError(t, errors.Join(archive.AddFS(files), archive.Close(), compressed.Close(), f.Close()))
		return file
	}},
}

func fileOf(text []byte) *fstest.MapFile { return &fstest.MapFile{Data: text, Mode: 0o600} }

var clusterScoped = map[string]bool{"NodeList": true, "ClusterRoleList": true, "ClusterRoleBindingList": true, "CustomResourceDefinitionList": true,
	"CiliumNodeList": true, "IPAMBlockList": true, "IPPoolList": true}

type listName struct{ kind, version string }

// lists returns the objects by type. A Kubernetes type without objects has an empty list, and a custom type without
// objects has no CustomResourceDefinition.
func lists(objects []map[string]any) map[listName]map[string]any {
	all := map[listName]map[string]any{}
	add := func(n listName) map[string]any {
		if all[n] == nil {
			all[n] = map[string]any{"kind": n.kind, "apiVersion": n.version, "metadata": map[string]any{"resourceVersion": "7"}, "items": []any{}}
		}
		return all[n]
	}
	for _, r := range resources {
		if !strings.Contains(r.Group, ".") || strings.HasSuffix(r.Group, "k8s.io") {
			add(listName{kinds[r.Resource], r.GroupVersion().String()})
		}
	}
	defined := add(listName{"CustomResourceDefinitionList", "apiextensions.k8s.io/v1"})
	for _, o := range objects {
		key := listName{o["kind"].(string) + "List", o["apiVersion"].(string)}
		plural, _ := meta.UnsafeGuessKindToResource(schema.FromAPIVersionAndKind(key.version, o["kind"].(string)))
		if name := plural.GroupResource().String(); all[key] == nil {
			defined["items"] = append(defined["items"].([]any), map[string]any{"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
				"metadata": map[string]any{"name": name, "uid": name}})
		}
		list := add(key)
		list["items"] = append(list["items"].([]any), o)
	}
	return all
}

func namespaceOf(o map[string]any) string {
	n, _ := o["metadata"].(map[string]any)["namespace"].(string)
	return n
}

// typed removes from an item the fields that the API server sets only on its list.
func typed(item any) {
	delete(item.(map[string]any), "kind")
	delete(item.(map[string]any), "apiVersion")
}

// everywhere returns objects that each cluster has, in namespaces that a case may not have. One has just changed.
func everywhere() string {
	bound := func(kind, role string) string {
		return fmt.Sprintf("roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %s, name: %q}\nsubjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: a}]", kind, role)
	}
	slice := func(address, pod string) string {
		return fmt.Sprintf("addressType: IPv4\nendpoints: [{addresses: [%s], conditions: {ready: true}%s}]", address, pod)
	}
	const auth, rbac = "extension-apiserver-authentication-reader", "rbac.authorization.k8s.io/v1"
	var text strings.Builder
	for _, o := range []struct{ version, kind, namespace, name, more string }{
		{"v1", "Service", "default", "kubernetes", "spec: {type: ClusterIP, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 443}]}"},
		{"v1", "Service", "kube-system", "metrics-server", "spec: {type: ClusterIP, clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], ports: [{port: 443}]}"},
		{"discovery.k8s.io/v1", "EndpointSlice", "default", "kubernetes", slice("192.0.2.250", "")},
		{"discovery.k8s.io/v1", "EndpointSlice", "kube-system", "metrics-server", slice("192.0.2.251", ", targetRef: {kind: Pod, name: etcd}")},
		{rbac, "Role", "kube-system", auth, ""}, {rbac, "RoleBinding", "kube-system", "system::" + auth, bound("Role", auth)},
		{rbac, "Role", "kube-public", "info", ""}, {rbac, "RoleBinding", "kube-public", "info", bound("Role", "info")},
		{rbac, "ClusterRole", "", "cluster-admin", ""}, {rbac, "ClusterRoleBinding", "", "cluster-admin", bound("ClusterRole", "cluster-admin")},
		{"coordination.k8s.io/v1", "Lease", "kube-node-lease", "worker", `spec: {renewTime: "[[ago "1s"]]"}`},
		{"coordination.k8s.io/v1", "Lease", "kube-system", "kube-scheduler", ""},
		{"v1", "Pod", "kube-system", "etcd", "spec: {hostNetwork: true}"}, {"v1", "Pod", "default", "shell", "spec: {hostNetwork: true}"},
	} {
		fmt.Fprintf(&text, "---\napiVersion: %s\nkind: %s\nmetadata: {namespace: %q, name: %q%s}\n%s\n",
			o.version, o.kind, o.namespace, o.name, map[string]string{"EndpointSlice": ", labels: {kubernetes.io/service-name: " + o.name + "}"}[o.kind], o.more)
	}
	return text.String()
}

// Ages count from the time of the bundle, and what depends on Pods that were not collected is not judged.
func TestFromBundle(t *testing.T) {
	text := at(t, everywhere()+`---
apiVersion: v1
kind: Node
metadata: {name: worker}
spec: {podCIDRs: [10.1.0.0/24]}
---
apiVersion: cilium.io/v2
kind: CiliumNode
metadata: {name: worker}
spec: {ipam: {podCIDRs: [10.2.0.0/24]}}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {namespace: kube-system, name: cilium-l2announce-kube-system-metrics-server}
spec: {holderIdentity: worker, leaseDurationSeconds: 15, renewTime: "[[ago "9s"]]"}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: kube-system, name: more, labels: {kubernetes.io/service-name: metrics-server}, managedFields: [{time: "[[ago "1h"]]"}]}
addressType: IPv4
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: kube-system, name: unknown, labels: {kubernetes.io/service-name: metrics-server}, managedFields: []}
addressType: IPv4
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: kube-system, name: cilium-config}
data: {tunnel: vxlan}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: shop, name: other}
data: {tunnel: vxlan}
`, time.Now().AddDate(-1, 0, 0))
	text = strings.ReplaceAll(text, `Z"`, `.000000Z"`) // the format in a Lease
	for _, part := range []bool{false, true} {
		objects := slices.DeleteFunc(objectsOf(t, text), func(o map[string]any) bool { return part && o["kind"] == "Pod" && namespaceOf(o) == "default" })
		dir := forms[0].collect(t, objects)
		if file := filepath.Join(dir, "PodList.yaml"); part { // another command wrote it
			_, list, _ := strings.Cut(string(must.Get(os.ReadFile(file))(t)), "\n")
			must.NoError(t, os.WriteFile(file, []byte(list), 0o600))
		}
		b := must.Get(bundle.Open(dir, Bundled))(t)
		s := must.Get(FromBundle(t.Context(), b, nil))(t)
		must.Equal(t, "announcements, by "+s.L2Announcements.Error, 1, len(s.L2Announcements.Items))
		must.Equal(t, "a year old", true, time.Since(s.Time) > 300*24*time.Hour)
		must.Equal(t, "Pods read", !part, s.Pods.Read)
		must.Equal(t, "CiliumNodes read: "+s.CiliumNodes.Error, !part, s.CiliumNodes.Read)
		r := must.Get(Judge([]snapshot.Snapshot{s}))(t)
		changed := map[string]int{}
		for _, e := range s.EndpointSlices.Items {
			changed[min(s.Time.Sub(e.Changed), 2*time.Hour).Round(time.Minute).String()]++
		}
		must.Equal(t, "EndpointSlices by when they have changed", map[string]int{"0s": 1, "1h0m0s": 1, "2h0m0s": 2}, changed)
		must.Equal(t, "other ConfigMaps", 0, len(b.Where("ConfigMap", "shop", "other")))
		must.NoError(t, r.Upgrade([]snapshot.Snapshot{s}, must.Get(ParseUpgrade("cilium=1.11.6..1.12.0"))(t)))
		must.Equal(t, "judges the upgrade", true, slices.Contains(r.Ran, configdrift.Detector{}.Name()))
		lasts := func(kind string) Finding {
			return Finding{Finding: detect.Finding{Kind: kind, State: detect.Active, Owner: "worker"}}
		}
		r.Findings = []Finding{lasts(detect.SharedAddress), lasts(detect.LeaseWithoutEndpoint), lasts(detect.TwoSpeakers)}
		b.Broken = []snapshot.Missing{{Source: "shop.yaml of the bundle"}}
		r.Locate(b, s, part)
		must.Equal(t, "active", 1, len(r.Of(detect.Active)))
		must.Equal(t, "pending", 2, len(r.Of(detect.Pending)))
		must.Equal(t, "damaged", map[bool]string{false: "shop.yaml of the bundle", true: "files of the bundle"}[part], r.Unread[len(r.Unread)-1].Source)
		must.Equal(t, "places", !part, len(r.Findings[0].Bundle) > 0)
		asks := slices.ContainsFunc(r.NotJudged, func(g detect.Gap) bool { return g.Open && strings.Contains(g.Says, "for list in /api/v1/pods; do") })
		must.Equal(t, "asks for Pods", part, asks)
	}
}

// objectsOf returns the documents of a YAML file, each with a uid as by an API server. EndpointSlices are old.
func objectsOf(t *testing.T, text string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for i, document := range strings.Split(strings.TrimPrefix(text, "---\n"), "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		var o map[string]any
		must.NoError(t, yaml.Unmarshal([]byte(document), &o))
		if m := o["metadata"].(map[string]any); m["uid"] == nil {
			m["uid"] = fmt.Sprintf("uid-%d", i)
		}
		if m := o["metadata"].(map[string]any); o["kind"] == "EndpointSlice" && m["managedFields"] == nil {
			m["managedFields"] = []any{map[string]any{"time": "2020-01-01T00:00:00Z"}}
		}
		all = append(all, o)
	}
	return all
}
