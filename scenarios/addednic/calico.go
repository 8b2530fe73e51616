package addednic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// manifestImage holds Calico's own manifest, manifests/calico.yaml.
const manifestImage = "relapse.dev/calico-manifest:v" + version

// Autodetection methods: IP_AUTODETECTION_METHOD of calico-node.
const (
	firstFound = "first-found" // the default
	internalIP = "kubernetes-internal-ip"
)

// calico is a configuration of Calico.
type calico struct {
	Method string
	// Poll is how often calico-node -monitor-addresses looks for the node's
	// address: AUTODETECT_POLL_INTERVAL, by default 60 s.
	Poll time.Duration
}

// apply brings Calico to this configuration. The pods of an earlier
// configuration are replaced, and those of the same one as well: each
// calico-node looks for its address anew.
func (c calico) apply(ctx context.Context, r *framework.Run) error {
	images := registry.New(r.Lab.Registry().Addr.String())
	manifest, err := images.File(ctx, manifestImage, "/calico.yaml")
	if err = errors.Join(err, images.Close()); err != nil {
		return err
	}
	objects, err := c.objects(string(manifest))
	if err != nil {
		return err
	}
	return workload.ApplyObjects(ctx, r.Cluster, objects...)
}

// objects are those of the vendor's manifest, for this lab.
func (c calico) objects(manifest string) ([]*unstructured.Unstructured, error) {
	objects, err := workload.Objects(manifest)
	if err != nil {
		return nil, err
	}
	// What kube-controllers does, to clean up after nodes that are deleted, the
	// lab has no use for.
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetName() == "calico-kube-controllers"
	})
	for i, o := range objects {
		if o.GetKind() != "DaemonSet" {
			continue
		}
		var set appsv1.DaemonSet
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &set); err != nil {
			return nil, fmt.Errorf("reading Calico's DaemonSet: %w", err)
		}
		if err := c.configure(&set); err != nil {
			return nil, err
		}
		if objects[i], err = unstructuredOf(&set); err != nil {
			return nil, fmt.Errorf("writing Calico's DaemonSet: %w", err)
		}
	}
	endpoint, err := unstructuredOf(&corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		// The vendor's manifest reads it where there is one. Calico then needs no
		// kube-proxy to come up.
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes-services-endpoint", Namespace: metav1.NamespaceSystem},
		Data: map[string]string{
			"KUBERNETES_SERVICE_HOST": lab.Clusters[0].Nodes[0].Links[0].Address.String(),
			"KUBERNETES_SERVICE_PORT": "6443",
		},
	})
	return slices.Insert(objects, 0, endpoint), err
}

// configure changes what the lab must have otherwise than the vendor.
func (c calico) configure(set *appsv1.DaemonSet) error {
	template := &set.Spec.Template
	i := slices.IndexFunc(template.Spec.Containers, func(c corev1.Container) bool { return c.Name == agent })
	if i < 0 {
		return fmt.Errorf("no container %s in Calico's DaemonSet", agent)
	}
	container := &template.Spec.Containers[i]
	for name, value := range map[string]string{
		// BGP routes and no tunnels: kernels without ipip run it as well.
		"CALICO_IPV4POOL_IPIP":     "Never",
		"CALICO_IPV4POOL_CIDR":     podCIDR.String(),
		"IP_AUTODETECTION_METHOD":  c.Method,
		"AUTODETECT_POLL_INTERVAL": c.Poll.String(),
	} {
		container.Env = slices.DeleteFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == name })
		container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: value})
	}
	slices.SortStableFunc(container.Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	// Looked at each second in place of every ten, and rolled on all nodes at
	// once in place of one by one: the lab waits for it.
	container.ReadinessProbe.PeriodSeconds = 1
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromString("100%"))}
	if template.Annotations == nil {
		template.Annotations = map[string]string{}
	}
	template.Annotations["relapse.dev/applied"] = time.Now().Format(time.RFC3339Nano)
	return nil
}

func unstructuredOf(object any) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	delete(fields, "status")
	return &unstructured.Unstructured{Object: fields}, nil
}

// agent is the name of calico-node's DaemonSet, container and label.
const agent = "calico-node"

// ready waits until a DaemonSet in kube-system has a pod of its newest
// template on each node, and each is ready.
func ready(ctx context.Context, r *framework.Run, name string, bound time.Duration) error {
	return await.Until(ctx, name+" to be ready on every node", 100*time.Millisecond, bound,
		func(ctx context.Context) (bool, string, error) {
			var set appsv1.DaemonSet
			if err := r.Cluster.Client.Resources().Get(ctx, name, metav1.NamespaceSystem, &set); err != nil {
				return false, "", err
			}
			s := set.Status
			n := len(r.Cluster.Nodes())
			return s.ObservedGeneration >= set.Generation && int(s.UpdatedNumberScheduled) == n && int(s.NumberReady) == n,
				fmt.Sprintf("%d of %d updated, %d ready", s.UpdatedNumberScheduled, n, s.NumberReady), nil
		})
}

// podsCanStart waits until the newest calico-node runs on every node, which
// means that the CNI plugin is installed, and has told the plugin the node's
// name, without which the plugin refuses every pod.
func podsCanStart(ctx context.Context, r *framework.Run) error {
	return await.Until(ctx, "Calico's CNI plugin on every node", 200*time.Millisecond, 2*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var set appsv1.DaemonSet
			if err := r.Cluster.Client.Resources().Get(ctx, agent, metav1.NamespaceSystem, &set); err != nil {
				return false, "", err
			}
			list, err := pods(ctx, r, agent)
			if err != nil {
				return false, "", err
			}
			running := 0
			for _, p := range list {
				if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
					running++
				}
			}
			n := len(r.Cluster.Nodes())
			if set.Status.ObservedGeneration < set.Generation || int(set.Status.UpdatedNumberScheduled) != n || len(list) != n || running != n {
				return false, fmt.Sprintf("%d of %d updated, %d pods, %d of them run", set.Status.UpdatedNumberScheduled, n, len(list), running), nil
			}
			_, err = onEachNode(ctx, r, func(ctx context.Context, node string) (string, error) {
				return r.Lab.Node(node).Exec(ctx, "test", "-s", "/var/lib/calico/nodename")
			})
			return err == nil, "", err
		})
}

// pods lists the pods in kube-system that have this name for their k8s-app.
func pods(ctx context.Context, r *framework.Run, name string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := r.Cluster.Client.Resources(metav1.NamespaceSystem).List(ctx, &list, resources.WithLabelSelector("k8s-app="+name))
	if err != nil {
		return nil, fmt.Errorf("listing the pods of %s: %w", name, err)
	}
	return list.Items, nil
}

// restart deletes the pods of a DaemonSet in kube-system, on some nodes or on
// all of them, and waits until their successors run. Whether those are ready
// is another question.
func restart(ctx context.Context, r *framework.Run, name string, nodes ...string) error {
	old, err := pods(ctx, r, name)
	if err != nil {
		return err
	}
	gone := map[string]bool{}
	for _, p := range old {
		if len(nodes) > 0 && !slices.Contains(nodes, p.Spec.NodeName) {
			continue
		}
		gone[string(p.UID)] = true
		err := r.Cluster.Client.Resources(p.Namespace).Delete(ctx, &p, resources.WithGracePeriod(0))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting pod %s of %s: %w", p.Name, p.Spec.NodeName, err)
		}
	}
	return await.Until(ctx, "new pods of "+name, 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			now, err := pods(ctx, r, name)
			if err != nil {
				return false, "", err
			}
			running := 0
			for _, p := range now {
				if !gone[string(p.UID)] && p.Status.Phase == corev1.PodRunning {
					running++
				}
			}
			return running == len(old) && len(now) == len(old), fmt.Sprintf("%d of %d run", running, len(old)), nil
		})
}
