package qualify

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// inBundle are files as collectors write them.
func inBundle(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		text = strings.ReplaceAll(text, "NEW", "uid: u1, resourceVersion: '7', creationTimestamp: '2026-01-05T10:00:00Z'")
		written := []byte(text)
		if filepath.Ext(name) == ".yaml" {
			written = must.Get(yaml.YAMLToJSON(written))(t)
		}
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), written, 0o600))
	}
	return dir
}

const (
	settings = `{apiVersion: v1, kind: ConfigMap, metadata: {name: cilium-config, namespace: kube-system, NEW},
  data: {routing-mode: native, enable-bgp-control-plane: 'true', ipam: kubernetes, kube-proxy-replacement: 'true', enable-wireguard: 'true', enable-ipsec: 'false', bpf-ct-global-tcp-max: '4096'}}`
	advertised = `{apiVersion: cilium.io/v2, kind: CiliumBGPAdvertisement, metadata: {name: services, labels: {advertise: bgp}, NEW,
  annotations: {kubectl.kubernetes.io/last-applied-configuration: x}}, spec: {advertisements: []}, status: {conditions: []}}`
)

func TestLikenessOf(t *testing.T) {
	const own, nodes = "the lab has the chart's own, unless --values has others", "the lab has nodes of its own, without the labels of the bundle's"
	workload := func(kind, name, container, image, more string) string {
		return fmt.Sprintf(`{apiVersion: apps/v1, kind: %s, metadata: {name: %s, namespace: kube-system, NEW}, spec: {template: {spec: {containers: [
  {name: other, image: 'x:1'}, {name: %s, image: '%s', env: [{name: METALLB_BGP_TYPE, value: frr}]}], volumes: [{configMap: {name: %[2]s}}]}}}%[5]s}`, kind, name, container, image, more)
	}
	agents := workload("DaemonSet", "cilium", "cilium-agent", "quay.io/cilium/cilium:v1.18.4@sha256:49d87af187eeeb9e9e3ec2bc6bd372261a0b5cb2d845659463ba7cc10fe9e45f", "")
	const helm = "cilium-helm-values-20260105-101010.yaml"
	for _, tt := range []struct {
		name, component, from string
		files                 map[string]string
		want                  Likeness // Told has parts of sentences
		fails                 string
	}{
		{"Helm's values", "cilium", "", map[string]string{"ds.yaml": agents, "cm.yaml": settings, "a.yaml": advertised, helm: "routingMode: native\n"},
			Likeness{From: "1.18.4", Values: "routingMode: native\n", Manifests: "name: services", Told: []string{"values from " + helm,
				"keys of cilium-config that these values do not set as the bundle has them: agent-not-ready", "enable-bgp-control-plane", "the bundle may not have all ciliumbgpadvertisements, "}}, ""},
		{"the ConfigMap", "cilium", "", map[string]string{"ds.yaml": agents, "cm.yaml": settings},
			Likeness{From: "1.18.4", Values: "bgpControlPlane:\n  enabled: true\nencryption:\n  enabled: true\n  type: wireguard\nipam:\n  mode: kubernetes\nkubeProxyReplacement: true\nroutingMode: native\n", Told: []string{
				"they are taken from the ConfigMap kube-system/cilium-config", "bpf-ct-global-tcp-max", ": the lab has objects of its own", nodes}}, ""},
		{"no ConfigMap", "cilium", "", map[string]string{"ds.yaml": agents, helm: "routingMode: native\n"},
			Likeness{From: "1.18.4", Values: "routingMode: native\n", Told: []string{"whether the values are those with which the agents run is not known"}}, ""},
		{"neither", "cilium", "", map[string]string{"ds.yaml": agents, helm: "null"}, Likeness{}, "does not have the ConfigMap kube-system/cilium-config: expected --values as well"},
		{"two files of values", "cilium", "", map[string]string{"ds.yaml": agents, helm: "a: 1", "b-" + helm: "a: 1", "x": "", "cilium-helm-values-2.yaml": "a: 2"}, Likeness{}, "different values in cilium-helm-values-2.yaml and in " + helm},
		{"damage", "cilium", "1.18.4", map[string]string{"ds.yaml": agents, "cm.yaml": settings, "b.json": `{"apiVersion":"v1","kind":"Node"`}, Likeness{From: "1.18.4", Told: []string{"not read: b.json"}}, ""},
		{"another component", "metallb", "", map[string]string{"ds.yaml": agents}, Likeness{}, "no workload of metallb (daemonsets with a container speaker or metallb-speaker)"},
		{"no component", "celium", "", map[string]string{"ds.yaml": agents}, Likeness{}, `no component "celium"`},
		{"a preflight check beside it", "cilium", "", map[string]string{"ds.yaml": agents, "cm.yaml": settings, "p.yaml": workload("DaemonSet", "p", "cilium-pre-flight-check", "quay.io/cilium/cilium:v1.19.1", "")},
			Likeness{From: "1.18.4"}, ""},
		{"a DaemonSet without pods", "kube-router", "", map[string]string{"a.yaml": workload("DaemonSet", "a", "kube-router", "x/kube-router:v2.1.0", ", status: {desiredNumberScheduled: 0}"),
			"b.yaml": workload("DaemonSet", "b", "kube-router", "x/kube-router:v1.5.1", ", status: {desiredNumberScheduled: 2, updatedNumberScheduled: 2}")}, Likeness{From: "1.5.1"}, ""},
		{"two versions", "kube-router", "", map[string]string{"a.yaml": workload("DaemonSet", "a", "kube-router", "x/kube-router:v2.1.0", ""), "b.yaml": workload("DaemonSet", "b", "kube-router", "x/kube-router:v1.5.1", "")},
			Likeness{}, "several versions of kube-router: kube-system/a runs x/kube-router:v2.1.0; kube-system/b runs x/kube-router:v1.5.1: expected FROM as well"},
		{"one of two", "kube-router", "1.5.1", map[string]string{"a.yaml": workload("DaemonSet", "a", "kube-router", "x/kube-router:v2.1.0", ""), "b.yaml": workload("DaemonSet", "b", "kube-router", "x/kube-router:v1.5.1", "")},
			Likeness{From: "1.5.1"}, ""},
		{"a rollout", "kube-router", "", map[string]string{"a.yaml": workload("DaemonSet", "a", "kube-router", "x/kube-router:v2.1.0", ", status: {desiredNumberScheduled: 3, updatedNumberScheduled: 1}")},
			Likeness{}, "kube-system/a runs x/kube-router:v2.1.0 in some of its pods: a rollout was not finished: expected FROM as well"},
		{"a digest", "kube-router", "", map[string]string{"a.yaml": workload("DaemonSet", "a", "kube-router", "x/kube-router@sha256:49d87af187eeeb9e9e3ec2bc6bd372261a0b5cb2d845659463ba7cc10fe9e45f", "")},
			Likeness{}, "does not state the version of kube-router: kube-system/a runs x/kube-router@sha256:49d8"},
		{"a digest, and FROM", "kube-router", "1.5.1", map[string]string{"a.yaml": workload("DaemonSet", "a", "kube-router", "x/kube-router@sha256:49d87af187eeeb9e9e3ec2bc6bd372261a0b5cb2d845659463ba7cc10fe9e45f", "")},
			Likeness{From: "1.5.1", Told: []string{", and 1.5.1 was asked for"}}, ""},
		{"a release candidate", "kube-router", "", map[string]string{"a.yaml": workload("DaemonSet", "a", "kube-router", "x/kube-router:v2.1.0-rc2", "")}, Likeness{From: "2.1.0-rc2"}, ""},
		{"FRR, from Rancher", "metallb", "", map[string]string{"ds.yaml": workload("DaemonSet", "speaker", "speaker", "rancher/mirrored-metallb-speaker:v0.14.8", "")},
			Likeness{From: "0.14.8", Mode: "frr", Told: []string{own, "runs rancher/mirrored-metallb-speaker:v0.14.8: the lab has 0.14.8 as its project has published it"}}, ""},
		{"objects of another namespace", "metallb", "", map[string]string{"ds.yaml": workload("DaemonSet", "speaker", "speaker", "quay.io/metallb/speaker:v0.14.8", ""),
			"p.yaml": `{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: p, namespace: old, NEW}, spec: {addresses: [192.0.2.0/24]}}`},
			Likeness{From: "0.14.8", Mode: "frr", Told: []string{"IPAddressPool old/p is left out: metallb runs in kube-system"}}, ""},
		{"a Deployment", "coredns", "", map[string]string{"d.yaml": workload("Deployment", "rke2-coredns", "coredns", "rancher/hardened-coredns:v1.12.1-build1", ", status: {replicas: 2, updatedReplicas: 2}"),
			"c.yaml": `{apiVersion: v1, kind: ConfigMap, metadata: {name: rke2-coredns, namespace: kube-system, NEW}, data: {Corefile: '.:53 {}'}}`},
			Likeness{From: "1.12.1", Config: ".:53 {}"}, ""},
		{"of EKS", "kube-proxy", "", map[string]string{"d.yaml": workload("DaemonSet", "kube-proxy-config", "kube-proxy", "x/eks/kube-proxy:v1.35.4-eksbuild.2", ""),
			"c.yaml": `{apiVersion: v1, kind: ConfigMap, metadata: {name: kube-proxy-config, namespace: kube-system, NEW}, data: {config: 'kind: KubeProxyConfiguration'}}`},
			Likeness{From: "1.35.4", Config: "kind: KubeProxyConfiguration", Told: []string{"the lab has 1.35.4 as its project has published it"}}, ""},
		{"a slice", "cilium", "", map[string]string{"ds.yaml": strings.Replace(agents, "1.18.4", "1.11.6", 1), "cm.yaml": settings}, Likeness{From: "1.11.6", Config: "kind: ConfigMap"}, ""},
		{"without its ConfigMap", "kube-proxy", "", map[string]string{"d.yaml": workload("DaemonSet", "kube-proxy", "kube-proxy", "registry.k8s.io/kube-proxy:v1.35.4", "")},
			Likeness{From: "1.35.4", NoConfig: "the bundle does not have the ConfigMap kube-system/kube-proxy"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := LikenessOf(t.Context(), tt.component, tt.from, inBundle(t, tt.files))
			if tt.fails != "" {
				must.Fail(t, err, tt.fails)
				return
			}
			must.NoError(t, err)
			for _, sentence := range tt.want.Told {
				must.Contain(t, strings.Join(l.Told, "\n"), sentence)
			}
			must.Contain(t, l.Config, tt.want.Config)
			if must.Contain(t, l.Manifests, tt.want.Manifests); tt.want.Values == "" {
				l.Values = ""
			}
			l.Told, l.Manifests, tt.want.Told, tt.want.Manifests = nil, "", nil, ""
			if tt.want.Config != "" {
				l.Config = tt.want.Config
			}
			must.Equal(t, "likeness", tt.want, l)
		})
	}
}

func TestInBundle(t *testing.T) {
	node := func(spec, address string) string {
		return `{apiVersion: v1, kind: Node, metadata: {name: n1, NEW}, spec: {` + spec + `}, status: {addresses: [{type: InternalIP, address: '` + address + `'}]}}`
	}
	for _, tt := range []struct {
		node string
		want []topology.Family
	}{
		{node("podCIDRs: [10.0.0.0/24, 'fd00::/64']", "192.0.2.1"), []topology.Family{topology.IPv4, topology.IPv6}},
		{node("podCIDRs: [10.0.0.0/24]", "fd00::1"), []topology.Family{topology.IPv4}}, {node("", "fd00::1"), []topology.Family{topology.IPv6}},
	} {
		versions, families, err := InBundle(inBundle(t, map[string]string{"n.yaml": tt.node}), "cilium")
		must.NoError(t, err)
		must.Equal(t, "families", tt.want, families)
		must.Equal(t, "versions", 0, len(versions))
	}
}
