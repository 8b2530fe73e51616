// Package kubeadm installs kube-proxy and CoreDNS, which a new lab has not, by the manifests of kubeadm.
package kubeadm

import (
	"context"
	_ "embed"
	"errors"
	"net/netip"
	"strings"
	"text/template"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Versions of the addons, which belong to the nodes' kubeadm.
const (
	KubernetesVersion = "1.34.4"
	CoreDNSVersion    = "1.12.1"
)

// Images are the addons' images.
func Images() []string {
	return []string{KubeProxyImage, DNSImage(CoreDNSVersion)}
}

// KubeProxyImage is the image of kube-proxy.
const KubeProxyImage = "registry.k8s.io/kube-proxy:v" + KubernetesVersion

var (
	KubeProxy = workload.SystemDaemonSet("kube-proxy")
	CoreDNS   = workload.Deployment{
		Name: "coredns",
		Pods: workload.Pods{Namespace: metav1.NamespaceSystem, Labels: client.MatchingLabels{"k8s-app": "kube-dns"}},
	}
)

//go:embed kubeadm.yaml
var configYAML string

var configTemplate = template.Must(template.New("kubeadm").Parse(configYAML))

func config(apiServer netip.AddrPort, t topology.Topology) (string, error) {
	c := t.Clusters[0]
	return workload.Render(configTemplate, map[string]any{
		"APIServer": apiServer, "Version": KubernetesVersion, "PodCIDR": t.Prefixes(c.PodCIDR), "ServiceCIDR": t.Prefixes(c.ServiceCIDR),
		"Dual": t.Dual, "NodeMaskV6": c.NodeMask + topology.V6Bits,
	})
}

// ApplyAddons is the action that installs kube-proxy and CoreDNS with kubeadm's manifests, except that CoreDNS
// is one pod on this node. It does not wait for them.
func ApplyAddons(coreDNSNode string) framework.Action {
	one := changes{"Deployment": changed(func(dns *appsv1.Deployment) {
		dns.Spec.Replicas = new(int32(1))
		dns.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": coreDNSNode}
	})}
	return labaccess.OnLab(func(ctx context.Context, l *kindlab.Lab) error { return apply(ctx, l, one, "kube-proxy", "coredns") })
}

// ApplyKubeProxy is ApplyAddons for kube-proxy alone. InstallKubeProxy also waits until it is ready on every node.
var (
	ApplyKubeProxy   = labaccess.OnLab(func(ctx context.Context, l *kindlab.Lab) error { return apply(ctx, l, nil, "kube-proxy") })
	InstallKubeProxy = framework.InOrder(ApplyKubeProxy, KubeProxyReady)
)

type changes map[string]func(*unstructured.Unstructured) error

func changed[T any](change func(*T)) func(*unstructured.Unstructured) error {
	return func(o *unstructured.Unstructured) error {
		return workload.Change(o, func(typed *T) error {
			change(typed)
			return nil
		})
	}
}

func apply(ctx context.Context, lab *kindlab.Lab, edits changes, names ...string) error {
	cluster := lab.Clusters[0]
	config, err := config(cluster.APIServer(), lab.Topology)
	if err != nil {
		return err
	}
	var manifest strings.Builder
	for _, addon := range names {
		text, err := lab.Node(cluster.Nodes()[0]).ExecInput(ctx, strings.NewReader(config),
			"kubeadm", "init", "phase", "addon", addon, "--config", "/dev/stdin", "--print-manifest")
		if err != nil {
			return err
		}
		manifest.WriteString(text + "\n---\n")
	}
	objects, err := workload.Objects(manifest.String())
	for _, o := range objects {
		if change := edits[o.GetKind()]; change != nil {
			err = errors.Join(err, change(o))
		}
	}
	if err != nil {
		return err
	}
	return workload.ApplyObjects(ctx, cluster, objects...)
}

// addonWithin bounds the start of an addon: an image of 30 MB, and CoreDNS is ready a few seconds after its start.
const addonWithin = time.Minute

// KubeProxyReady is the action that waits for kube-proxy on every node, and AddonsReady for CoreDNS as well.
var (
	KubeProxyReady = KubeProxy.Everywhere(addonWithin)
	AddonsReady    = framework.InOrder(KubeProxyReady, labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		return CoreDNS.Ready(ctx, c, addonWithin)
	}))
)
