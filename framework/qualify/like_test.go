package qualify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/topology/must"
)

// inBundle are files as collectors write them.
func inBundle(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		text = strings.ReplaceAll(text, "NEW", "uid: u1, resourceVersion: '7', creationTimestamp: '2026-01-05T10:00:00Z'")
		written := must.Get(yaml.YAMLToJSON([]byte(text)))(t)
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), written, 0o600))
	}
	return dir
}

const (
	agents = `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: cilium, namespace: kube-system, NEW}, spec: {template: {spec: {containers: [
  {name: cilium-agent, image: 'quay.io/cilium/cilium:v1.18.4@sha256:49d87af187eeeb9e9e3ec2bc6bd372261a0b5cb2d845659463ba7cc10fe9e45f'}]}}}}`
	settings = `{apiVersion: v1, kind: ConfigMap, metadata: {name: cilium-config, namespace: kube-system, NEW},
  data: {routing-mode: native, enable-bgp-control-plane: 'true', ipam: kubernetes, kube-proxy-replacement: 'true', bpf-ct-global-tcp-max: '4096'}}`
	advertised = `{apiVersion: cilium.io/v2, kind: CiliumBGPAdvertisement, metadata: {name: services, labels: {advertise: bgp}, NEW,
  annotations: {kubectl.kubernetes.io/last-applied-configuration: x}}, spec: {advertisements: []}, status: {conditions: []}}`
)

func TestLikenessOf(t *testing.T) {
	speaker := func(image, bgp string) string {
		return `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: speaker, namespace: m, NEW}, spec: {template: {spec: {containers: [
  {name: frr-metrics, image: 'quay.io/frrouting/frr:9.1.0'}, {name: speaker, image: '` + image + `', env: [` + bgp + `]}]}}}}`
	}
	for _, tt := range []struct {
		name, component string
		files           map[string]string
		want            Likeness
		fails           string
	}{
		{"Helm's values", "cilium", map[string]string{"ds.yaml": agents, "cm.yaml": settings, "a.yaml": advertised, "cilium-helm-values-20260105-101010.yaml": "a: 1\n"},
			Likeness{From: "1.18.4", Values: `{"a":1}`, Manifests: "---\napiVersion: cilium.io/v2\nkind: CiliumBGPAdvertisement\nmetadata:\n  labels:\n    advertise: bgp\n  name: services\nspec:\n  advertisements: []\n",
				Told: []string{"some ciliumbgpadvertisements may be missing: the bundle does not have all: it has single objects, but no complete list", "values: cilium-helm-values-20260105-101010.yaml"}}, ""},
		{"the ConfigMap", "cilium", map[string]string{"ds.yaml": agents, "cm.yaml": settings},
			Likeness{From: "1.18.4", Values: "bgpControlPlane:\n  enabled: true\nipam:\n  mode: kubernetes\nkubeProxyReplacement: true\nroutingMode: native\n", Told: []string{
				"the bundle has no Helm values: they are taken from the ConfigMap kube-system/cilium-config", "keys of it that the lab does not have as the bundle does: bpf-ct-global-tcp-max"}}, ""},
		{"neither", "cilium", map[string]string{"ds.yaml": agents}, Likeness{}, "neither a file cilium-helm-values-*.yaml nor the ConfigMap kube-system/cilium-config"},
		{"another component", "metallb", map[string]string{"ds.yaml": agents}, Likeness{}, "no DaemonSet and no Deployment with an image of metallb"},
		{"FRR", "metallb", map[string]string{"ds.yaml": speaker("quay.io/metallb/speaker:v0.14.8", "{name: METALLB_BGP_TYPE, value: frr}")}, Likeness{From: "0.14.8", Mode: "frr"}, ""},
		{"its own BGP, from Rancher", "metallb", map[string]string{"ds.yaml": speaker("rancher/mirrored-metallb-speaker:v0.14.8", "")}, Likeness{From: "0.14.8", Mode: "native"}, ""},
		{"a Deployment, and its nodes", "coredns", map[string]string{
			"d.yaml": `{apiVersion: apps/v1, kind: Deployment, metadata: {name: rke2-coredns, namespace: kube-system, NEW}, spec: {template: {spec: {containers: [{name: coredns, image: 'rancher/hardened-coredns:v1.12.1-build1'}]}}}}`,
			"c.yaml": `{apiVersion: v1, kind: ConfigMap, metadata: {name: rke2-coredns, namespace: kube-system, NEW}, data: {Corefile: '.:53 {}'}}`, "n.yaml": `{apiVersion: v1, kind: Node, metadata: {name: n1, NEW}}`},
			Likeness{From: "1.12.1", Config: "Corefile", Told: []string{"of the bundle's 1 nodes the lab has a few, which bear no label of the bundle's"}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := LikenessOf(t.Context(), tt.component, inBundle(t, tt.files))
			if tt.fails != "" {
				must.Fail(t, err, tt.fails)
				return
			}
			must.NoError(t, err)
			if tt.want.Config != "" && strings.Contains(l.Config, tt.want.Config) {
				l.Config = tt.want.Config
			}
			must.Equal(t, "likeness", tt.want, l)
		})
	}
}
