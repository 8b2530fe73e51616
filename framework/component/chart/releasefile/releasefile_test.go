package releasefile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestRead(t *testing.T) {
	const namespace = "kind: Namespace\nmetadata: {name: kube-system}\n---\n"
	for _, test := range []struct {
		name, text string
		want       string // values, version, object
		says       string
	}{
		{"values", "a: {b: 1}\n", "map[a:map[b:1]]  ", ""},
		{"nothing", "# nothing\n", "map[]  ", ""},
		{"null", "USER-SUPPLIED VALUES:\nnull\n", "map[]  ", ""},
		{"as helm get values prints them", "USER-SUPPLIED VALUES:\na: 1\n", "map[a:1]  ", ""},
		{"of a chart that depends on it", "cilium: {a: 1}\nglobal: {}\nours: {x: 1}\n", "map[a:1]  ",
			"the values are those under the key cilium, as of a chart that depends on it; left out: ours"},
		{
			"HelmRelease", namespace + `
kind: HelmRelease
metadata: {name: cni, namespace: kube-system}
spec:
  chart: {spec: {chart: cilium, version: v1.18.4}}
  valuesFrom:
  - {kind: ConfigMap, name: common}
  - {kind: ConfigMap, name: common, valuesKey: port, targetPath: k8s.port}
  - {kind: Secret, name: keys}
  - {kind: ConfigMap, name: beside}
  - {kind: ConfigMap, name: generated, valuesKey: v.yaml}
  - {kind: ConfigMap, name: none, optional: true}
  values: {a: inline, id: '${ID}'}
---
kind: ConfigMap
metadata: {name: common}
data: {port: "6443", values.yaml: "a: common\nb: common\n"}
---
kind: HelmRelease
metadata: {name: dns}
spec: {chart: {spec: {chart: coredns}}}
`,
			"map[a:inline b:common c:beside d:generated id:7 k8s:map[port:6443]] 1.18.4 HelmRelease kube-system/cni",
			"of 4 documents that of the values is HelmRelease kube-system/cni; the values of Secret keys are not read: secrets stay where they are; " +
				"the values of ConfigMap none, which is optional, were not found",
		},
		{
			"HelmRelease with an OCIRepository", "kind: HelmRelease\nmetadata: {name: cilium}\nspec: {chartRef: {kind: OCIRepository, name: cni}, values: {a: 1}}\n---\n" +
				"kind: OCIRepository\nmetadata: {name: cni}\nspec: {ref: {tag: 1.19.5}}\n",
			"map[a:1] 1.19.5 HelmRelease cilium", "of 2 documents that of the values is HelmRelease cilium",
		},
		{
			"HelmRelease with a range of versions", "kind: HelmRelease\nmetadata: {name: x}\nspec: {chart: {spec: {chart: cilium, version: 1.18.x}}}\n",
			"map[]  HelmRelease x", "HelmRelease x states no single version of the chart, but 1.18.x",
		},
		{
			"Application", `
kind: Application
metadata: {name: cilium}
spec:
  sources:
  - {repoURL: https://example.com/git, ref: values}
  - {repoURL: https://example.com/git, path: cilium}
  - chart: cilium
    targetRevision: 1.18.4
    helm:
      valueFiles: [$values/of/values.yaml, none.yaml]
      ignoreMissingValueFiles: true
      values: "{a: text, b: {d: text}}"
      parameters: [{name: b.c, value: "1,2"}, {name: d, value: "1", forceString: true}]
      fileParameters: [{name: cert, path: cert.pem}]
`,
			"map[a:text b:map[c:1,2 d:text] d:1 file:true] 1.18.4 Application cilium", "the value cert, from the file cert.pem, is not read; Application cilium: the source cilium is not read: what it installs beside the chart is not in the lab",
		},
		{
			"Application with valuesObject", "kind: Application\nmetadata: {name: cilium}\nspec: {source: {path: apps/cni, helm: {valuesObject: {a: 1}, values: 'a: 2'}}}\n",
			"map[a:1]  Application cilium", "",
		},
		{
			"HelmChartConfig over a HelmChart", "kind: List\nitems:\n- {kind: HelmChartConfig, metadata: {name: cilium}, spec: {valuesContent: 'a: 1'}}\n" +
				"- {kind: HelmChart, metadata: {name: cilium}, spec: {chart: oci://example.com/charts/cilium, version: 1.18.4, set: {b.c: true}, valuesContent: 'a: 0'}}\n",
			"map[a:1 b:map[c:true]] 1.18.4 HelmChartConfig cilium", "",
		},
		{
			"HelmChartConfig of RKE2", "kind: HelmChartConfig\nmetadata: {name: rke2-cilium, namespace: kube-system}\nspec:\n  valuesContent: |-\n    a: 1\n    id: ${ID}\n",
			"map[a:1 id:7]  HelmChartConfig kube-system/rke2-cilium", "",
		},
		{
			"kustomization", "helmCharts:\n- {name: other, valuesInline: {a: 0}}\n- {name: cilium, version: 1.18.4, valuesFile: of/values.yaml, valuesInline: {a: 1}}\n",
			"map[a:1 file:true] 1.18.4 kustomization", "",
		},
		{
			"helmfile", "releases:\n- {name: cni, chart: cilium/cilium, version: 1.18.4, values: [of/values.yaml, {a: 1}], set: [{name: b, value: 2}, {name: c, values: [x, z]}], setString: [{name: d, value: 1}], secrets: [s.yaml]}\n",
			"map[a:1 b:2 c:[x z] d:1 file:true] 1.18.4 helmfile", "the values of secrets are not read: secrets stay where they are",
		},
		{
			"patches of HelmRelease", "kind: HelmRelease\nmetadata: {name: x}\nspec: {chart: {spec: {chart: cilium}}, postRenderers: [{kustomize: {}}]}\n",
			"map[]  HelmRelease x", "HelmRelease x: postRenderers is not read: what it changes is not in the lab",
		},
		{"patches of a kustomization", "helmCharts: [{name: cilium}]\npatches: [{path: p.yaml}]\n",
			"map[]  kustomization", "kustomization: patches is not read: what it changes is not in the lab"},
		{"encrypted by SOPS", "{a: 'ENC[AES256_GCM,data:x]', sops: {mac: y}}\n", "map[a:ENC[AES256_GCM,data:x]]  ", ""},
		{"ConfigMap", "kind: ConfigMap\nmetadata: {name: ours}\ndata: {values.yaml: 'a: 1'}\n", "map[a:1]  ConfigMap ours", ""},
		{"fleet.yaml", "helm: {chart: cilium, version: 1.18.4, values: {a: 1}}\n", "map[a:1] 1.18.4 fleet.yaml", ""},
		{"Cluster API", "kind: HelmChartProxy\nmetadata: {name: x}\nspec: {chartName: cilium, valuesTemplate: 'a: 1'}\n", "map[a:1]  HelmChartProxy x", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := Read("cilium", File{Name: filepath.Join(folder(t), "release.yaml"), Text: []byte(test.text)}, map[string]string{"ID": "7"})
			must.NoError(t, err)
			must.Equal(t, "", test.want, fmt.Sprint(r.Values, " ", r.Version, " ", r.Object))
			must.Equal(t, "told", test.says, strings.Join(r.Told, "; "))
		})
	}
}

func folder(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"release.yaml":       "{}",
		"more.yaml":          "kind: ConfigMap\nmetadata: {name: beside}\ndata: {values.yaml: 'c: beside'}\n",
		"kustomization.yaml": "configMapGenerator: [{name: generated, files: [v.yaml=of/generated.yaml]}]\n",
		"of/generated.yaml":  "d: generated\n",
		"of/values.yaml":     "{a: file, file: true}\n",
		"broken.yaml":        "{{",
	} {
		name = filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		must.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	return dir
}

func TestReadIsWrong(t *testing.T) {
	const release = "kind: HelmRelease\nmetadata: {name: cilium}\nspec: {values: {a: 1}}\n"
	for _, test := range []struct{ name, text, want string }{
		{"with the chart's own", "COMPUTED VALUES:\na: 1\n", "it has the chart's default values too: expected the output of helm get values without --all"},
		{"no YAML", "a: {b: 1\nc", "it is not YAML: line 2: did not find expected ',' or '}'"},
		{"a list", "a: 1\n---\n- a\n", "document 2: it is not a map of values"},
		{"two of values", "a: 1\n---\nb: 1\n", "it has 2 documents of values: expected one"},
		{"two releases", release + "---\n" + strings.Replace(release, "cilium", "cilium, namespace: x", 1), "HelmRelease cilium and HelmRelease x/cilium have values of cilium: expected one of them"},
		{
			"what the chart renders", "kind: DaemonSet\nmetadata: {name: cilium}\n", "it has no values but DaemonSet cilium: " +
				"expected values of cilium, or an object with them (HelmRelease, Application, HelmChart, HelmChartConfig, a kustomization with helmCharts)",
		},
		{
			"Talos", "version: v1alpha1\nmachine: {type: worker}\ncluster: {inlineManifests: [{name: cilium, contents: 'kind: DaemonSet'}]}\n",
			"it is a machine configuration of Talos, whose manifests are rendered charts, and none of their values: expected the values of cilium with which they were rendered",
		},
		{
			"a patch of Talos", "cluster:\n  network: {cni: {name: none}}\n  extraManifests: [https://example.com/cilium.yaml]\n",
			"it is a machine configuration of Talos, whose manifests are rendered charts, and none of their values: expected the values of cilium with which they were rendered",
		},
		{"another chart", "kind: HelmChart\nmetadata: {name: x}\nspec: {chart: coredns}\n", "HelmChart x installs coredns: expected what installs cilium, or its values"},
		{
			"values from nowhere", "kind: HelmRelease\nmetadata: {name: cilium}\nspec: {valuesFrom: [{kind: ConfigMap, name: x}]}\n",
			"HelmRelease cilium: it takes values from the key values.yaml of ConfigMap x, which is neither in the stream nor beside the file: expected that ConfigMap in the same stream",
		},
		{"a file that is not beside", "helmCharts: [{name: cilium, valuesFile: no.yaml}]\n",
			"kustomization: it takes values from the file no.yaml, which was not found: expected it beside standard input"},
	} {
		_, err := Read("cilium", File{Name: "standard input", Text: []byte(test.text)}, nil)
		must.Equal(t, test.name, test.want, fmt.Sprint(err))
	}
}
