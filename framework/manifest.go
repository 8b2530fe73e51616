package framework

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/klient/k8s"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Apply brings the objects of a manifest (YAML documents) to the state that
// it asks for, as `kubectl apply --server-side` does.
func Apply(ctx context.Context, c *kindlab.Cluster, manifest string) error {
	objects, err := Objects(manifest)
	if err != nil {
		return err
	}
	return ApplyObjects(ctx, c, objects...)
}

// ApplyObjects is Apply for objects that have been read already.
func ApplyObjects(ctx context.Context, c *kindlab.Cluster, objects ...*unstructured.Unstructured) error {
	for _, o := range objects {
		data, err := json.Marshal(o)
		if err != nil {
			return fmt.Errorf("encoding %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		force := true
		err = c.Client.Resources(o.GetNamespace()).Patch(ctx, o, k8s.Patch{PatchType: types.ApplyPatchType, Data: data},
			func(p *metav1.PatchOptions) { p.FieldManager, p.Force = "relapse", &force })
		if err != nil {
			return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// DeleteWorkload deletes a DaemonSet or Deployment together with its pods, and
// waits until the pods are gone. A workload that is not there is no error.
//
// It does not leave the pods to Kubernetes' garbage collectors, which take
// half a minute to notice objects in a cluster whose types have just changed,
// and as long to give up the pods of a node that is gone.
func DeleteWorkload(ctx context.Context, c *kindlab.Cluster, workload k8s.Object, pods client.MatchingLabels) error {
	kube := c.Client.Resources().GetControllerRuntimeClient()
	namespace := client.InNamespace(workload.GetNamespace())
	err := client.IgnoreNotFound(kube.Delete(ctx, workload, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	for _, kind := range []client.Object{&appsv1.ReplicaSet{}, &corev1.Pod{}} {
		if err == nil {
			err = kube.DeleteAllOf(ctx, kind, namespace, pods)
		}
	}
	if err != nil {
		return fmt.Errorf("deleting %s: %w", workload.GetName(), err)
	}
	return await.Until(ctx, "the pods of "+workload.GetName()+" to go", 50*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var left corev1.PodList
			if err := kube.List(ctx, &left, namespace, pods); err != nil {
				return false, "", err
			}
			for _, pod := range left.Items {
				node := client.ObjectKey{Name: pod.Spec.NodeName}
				if err := kube.Get(ctx, node, &corev1.Node{}); apierrors.IsNotFound(err) {
					err = kube.Delete(ctx, &pod, client.GracePeriodSeconds(0)) // no kubelet will
					if client.IgnoreNotFound(err) != nil {
						return false, "", err
					}
				}
			}
			return len(left.Items) == 0, fmt.Sprintf("%d of them are there", len(left.Items)), nil
		})
}

// Objects reads a manifest (YAML documents), in its order.
func Objects(manifest string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := documents.Decode(o); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading a manifest: %w", err)
		}
		if len(o.Object) > 0 { // more than a comment
			objects = append(objects, o)
		}
	}
}
