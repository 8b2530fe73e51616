package chart

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func load(t *testing.T) *Chart {
	t.Helper()
	return must.Get(Load("testdata/app"))(t)
}

func values(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	must.NoError(t, yaml.Unmarshal([]byte(text), &v))
	return v
}

func names(objects []unstructured.Unstructured) []string {
	return each.Of(objects, func(o unstructured.Unstructured) string { return o.GetKind() + " " + o.GetName() })
}

func TestRender(t *testing.T) {
	c := load(t)
	must.Equal(t, "", "app 1.2.3", c.Name+" "+c.Version)
	users := values(t, "{mode: native, hidden: {key: x}, nodeSelector: {zone: a}, crds: {enabled: true}}")
	before := values(t, "{mode: native, hidden: {key: x}, nodeSelector: {zone: a}, crds: {enabled: true}}")
	r := must.Get(c.Render(Release{
		Name: "r", Namespace: "n", Values: users, KubeVersion: "1.34.4", APIVersions: []string{"monitoring.coreos.com/v1"},
	}))(t)
	for _, part := range []struct {
		name      string
		got, want []string
	}{
		{"objects, in the order of installation", names(r.Objects), []string{
			"ServiceAccount app", "ConfigMap app-config", "CustomResourceDefinition c.app.dev", "Deployment app",
		}},
		{"CRDs", names(r.CRDs), []string{"CustomResourceDefinition a.app.dev", "CustomResourceDefinition b.app.dev"}},
		{"hooks", names(r.Hooks), []string{"Job after"}},
		{"notes", []string{strings.TrimSpace(r.Notes)}, []string{"release r"}},
	} {
		must.Equal(t, part.name, part.want, part.got)
	}
	data, _, err := unstructured.NestedStringMap(Find(r.Objects, "ConfigMap", "app-config").Object, "data")
	want := map[string]string{"mode": "native", "kubernetes": "v1.34.4", "monitored": "true", "hidden": "x"}
	must.NoError(t, err)
	must.Equal(t, "data", want, data)
	selector, _, err := unstructured.NestedStringMap(Find(r.Objects, "Deployment", "app").Object, "spec", "template", "spec", "nodeSelector")
	must.NoError(t, err)
	must.Equal(t, "selector", map[string]string{"kubernetes.io/os": "linux", "zone": "a"}, selector)
	must.Equal(t, "the user's values were changed", before, users)
	must.Equal(t, "an object that is not there", nil, Find(r.Objects, "ConfigMap", "another"))
}

// A dependency that one release switches off is there for the next release.
func TestDependencySwitchedOff(t *testing.T) {
	c := load(t)
	for _, test := range []struct {
		users string
		want  bool
	}{{"{crds: {enabled: false}}", false}, {"{}", true}} {
		r := must.Get(c.Render(Release{Name: "r", Namespace: "n", Values: values(t, test.users), KubeVersion: "1.34.4"}))(t)
		must.Equal(t, test.users, test.want, Find(r.Objects, "CustomResourceDefinition", "c.app.dev") != nil)
	}
}

func TestRefused(t *testing.T) {
	for _, test := range []struct{ name, users, kubernetes, want string }{
		{"by a template", "old: 1", "1.34.4", "the chart of app 1.2.3 refuses these values: old was removed in 1.0, for details please refer to the notes"},
		{"by the schema", "{mode: 3, replicas: x}", "1.34.4", "the chart of app 1.2.3 refuses these values: at '/mode': got number, want string; at '/replicas': got string, want integer"},
		{"for its version of Kubernetes", "{}", "1.20.0", "rendering the chart of app 1.2.3: it needs Kubernetes >= 1.21.0-0, and the cluster has v1.20.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := load(t).Render(Release{Name: "r", Namespace: "n", Values: values(t, test.users), KubeVersion: test.kubernetes})
			must.Equal(t, "", test.want, fmt.Sprint(err))
			var refused *RefusedError
			must.Equal(t, err, strings.Contains(test.want, "refuses"), errors.As(err, &refused))
		})
	}
}

func TestUnread(t *testing.T) {
	for _, test := range []struct {
		name, users string
		want        []string
	}{
		{"of values.yaml", "{mode: native, bgp: {enabled: true}}", nil},
		{"of a template alone", "{hidden: {key: 1}}", nil},
		{"of a template by way of a variable", "{hidden: {other: 1}}", nil},
		{"which a template refuses in another form", "{hidden: {key: a}, mode: native}", nil},
		{"of a condition alone", "{crds: {enabled: true}}", nil},
		{"a map without keys", "{annotations: {a.b/c: d}, crds: {labels: {a: b}}}", nil},
		{"a part of a Kubernetes object", "{nodeSelector: {zone: a}, updateStrategy: {rollingUpdate: {maxSurge: 1}}}", nil},
		{"for all charts", "{global: {a: 1}}", nil},
		{"read by none", "{mod: native, bgp: {enable: true}, hidden: {kee: 1}, bgp.enabled: true}", []string{`"bgp.enabled"`, "bgp.enable", "hidden.kee", "mod"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			unread, err := load(t).Unread(t.Context(), Release{Name: "r", Namespace: "n", Values: values(t, test.users), KubeVersion: "1.34.4"})
			must.NoError(t, err)
			got := each.Of(unread, Path.String)
			slices.Sort(got)
			slices.Sort(test.want)
			must.Equal(t, "", test.want, got)
		})
	}
	_, err := load(t).Unread(t.Context(), Release{Name: "r", Namespace: "n", Values: values(t, "{old: 1, mod: 2}"), KubeVersion: "1.34.4"})
	must.Equal(t, err, true, errors.As(err, new(*RefusedError)))
}

func TestRenders(t *testing.T) {
	r := Release{Name: "r", Namespace: "n", Values: values(t, "{mode: '${MODE}', replicas: '${N}', mod: '${MOD}', annotations: {a: $(POD)}}"), KubeVersion: "1.34.4"}
	for text, want := range map[string]bool{"${MODE}": true, "${N}": true, "${MOD}": false, "$(POD)": false} {
		must.Equal(t, text, want, load(t).Renders(r, text))
	}
}

func TestHint(t *testing.T) {
	for _, test := range []struct {
		path Path
		want string
	}{
		{Path{"bgp", "enable"}, "nearest: bgp.enabled"},
		{Path{"bgp.peers.asn"}, `"bgp.peers.asn" is one key with dots in it: expected bgp: {peers: {asn: ...}}`},
		{Path{"bgp", "enabled", "now"}, ""},
		{Path{"ours", "enabled"}, ""},
		{Path{"nothing", "of", "the", "kind", "in", "any", "chart"}, ""},
	} {
		must.Equal(t, test.path, test.want, test.path.Hint(load(t)))
	}
}

func TestNoChart(t *testing.T) {
	must.Fail(t, must.Err(Load("testdata")), "reading the chart in testdata: ")
}

func TestMerge(t *testing.T) {
	first := values(t, "{a: {b: 1, c: 2}, d: {e: 1}, f: 1, g: [1, 2]}")
	second := values(t, "{a: {b: 3}, d: 4, f: {h: 1}, g: [3]}")
	got := Merge(first, second)
	must.Equal(t, "", values(t, "{a: {b: 3, c: 2}, d: 4, f: {h: 1}, g: [3]}"), got)
	Set(got, "a.c", "x")
	Set(got, "new.path", "z")
	Remove(got, "a.b")
	must.Equal(t, "", values(t, "{a: {c: x}, d: 4, f: {h: 1}, g: [3], new: {path: z}}"), got)
	must.Equal(t, "what was merged has changed", values(t, "{a: {b: 1, c: 2}, d: {e: 1}, f: 1, g: [1, 2]}"), first)
}
