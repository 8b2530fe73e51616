package addednic

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"text/template"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/topology/await"
)

//go:embed kubeadm.yaml
var kubeadmYAML string

var kubeadmConfig = template.Must(template.New("kubeadm").Parse(kubeadmYAML))

// applyServices brings kube-proxy and CoreDNS into the cluster, as kubeadm
// makes them, but for CoreDNS's place: one pod, on coreDNSNode.
func applyServices(ctx context.Context, r *framework.Run) error {
	cluster := lab.Clusters[0]
	var config strings.Builder
	if err := kubeadmConfig.Execute(&config, cluster); err != nil {
		return fmt.Errorf("rendering kubeadm's configuration: %w", err)
	}
	var manifest strings.Builder
	for _, addon := range []string{"kube-proxy", "coredns"} {
		text, err := r.Lab.Node(cluster.Nodes[0].Name).ExecInput(ctx, strings.NewReader(config.String()), "sh", "-c",
			"cat >/kind/addons.conf && kubeadm init phase addon "+addon+" --config /kind/addons.conf --print-manifest")
		if err != nil {
			return err
		}
		manifest.WriteString(text + "\n---\n")
	}
	objects, err := workload.Objects(manifest.String())
	if err != nil {
		return err
	}
	for i, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		var dns appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &dns); err != nil {
			return fmt.Errorf("reading CoreDNS's Deployment: %w", err)
		}
		dns.Spec.Replicas = new(int32(1))
		dns.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": coreDNSNode}
		if objects[i], err = unstructuredOf(&dns); err != nil {
			return fmt.Errorf("writing CoreDNS's Deployment: %w", err)
		}
	}
	if err := workload.ApplyObjects(ctx, r.Cluster, objects...); err != nil {
		return err
	}
	return workload.Apply(ctx, r.Cluster, servicesYAML)
}

// servicesReady waits until kube-proxy and CoreDNS do their work.
func servicesReady(ctx context.Context, r *framework.Run) error {
	if err := ready(ctx, r, "kube-proxy", time.Minute); err != nil {
		return err
	}
	return await.Until(ctx, "CoreDNS to be ready", 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var dns appsv1.Deployment
			if err := r.Cluster.Client.Resources().Get(ctx, "coredns", metav1.NamespaceSystem, &dns); err != nil {
				return false, "", err
			}
			return dns.Status.ObservedGeneration >= dns.Generation && dns.Status.ReadyReplicas == 1,
				fmt.Sprintf("%d ready", dns.Status.ReadyReplicas), nil
		})
}
