// Package install brings what a vendor's chart renders to a lab's cluster, as Helm does.
package install

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Release is where a chart is installed. The namespace must exist.
type Release struct{ Name, Namespace string }

// Render renders the chart for the lab's cluster. Nothing here installs hooks, or CRDs outside of templates: an error.
func (r Release) Render(c *chart.Chart, values map[string]any) ([]unstructured.Unstructured, error) {
	rendered, err := c.Render(chart.Release{Name: r.Name, Namespace: r.Namespace, Values: values, KubeVersion: kubeadm.KubernetesVersion})
	if err != nil {
		return nil, err
	}
	if len(rendered.Hooks) > 0 || len(rendered.CRDs) > 0 {
		return nil, fmt.Errorf("the chart of %s %s has %d hooks and %d CRDs: expected none, as nothing here installs them",
			c.Name, c.Version, len(rendered.Hooks), len(rendered.CRDs))
	}
	return rendered.Objects, nil
}

// Apply brings the cluster to a version of the release as helm upgrade --install does: objects that only the earlier
// version has are deleted at the end. It calls before, if not nil, for each object before it applies it.
func (r Release) Apply(ctx context.Context, c *kindlab.Cluster, version string, rendered []unstructured.Unstructured,
	before func(*unstructured.Unstructured) error) error {
	earlier, err := r.recorded(ctx, c)
	if err != nil {
		return err
	}
	var objects []*unstructured.Unstructured
	for _, o := range rendered {
		namespaced, err := c.Kube().IsObjectNamespaced(&o)
		if err != nil {
			return fmt.Errorf("asking the cluster about %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if namespaced && o.GetNamespace() == "" {
			o.SetNamespace(r.Namespace)
		}
		objects = append(objects, &o)
	}
	// The record names the objects of both versions until all is done: an interrupted upgrade forgets none.
	current := each.Of(objects, referenceTo)
	gone := dropped(earlier, current)
	if err := r.write(ctx, c, version, slices.Concat(current, gone)); err != nil {
		return err
	}
	for _, o := range objects {
		if before != nil {
			if err := before(o); err != nil {
				return err
			}
		}
		if err := workload.ApplyObjects(ctx, c, o); err != nil {
			return err
		}
	}
	if err := remove(ctx, c, gone); err != nil {
		return err
	}
	return r.write(ctx, c, version, current)
}

type reference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	// Kept is set if Helm does not delete the object.
	Kept bool `json:"kept,omitempty"`
}

func referenceTo(o *unstructured.Unstructured) reference {
	return reference{
		APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(),
		Kept: o.GetAnnotations()["helm.sh/resource-policy"] == "keep",
	}
}

// same reports whether both name the same object. The version of its type may have changed.
func (r reference) same(s reference) bool {
	return r.Kind == s.Kind && r.group() == s.group() && r.Namespace == s.Namespace && r.Name == s.Name
}

func dropped(before, current []reference) []reference {
	return slices.DeleteFunc(slices.Clone(before), func(r reference) bool {
		return r.Kept || slices.ContainsFunc(current, r.same)
	})
}

// record is the name of the ConfigMap that refers to the objects of the release, as Helm keeps a release's manifest.
func (r Release) record() client.ObjectKey {
	return client.ObjectKey{Namespace: r.Namespace, Name: "relapse-release-" + r.Name}
}

const recordedObjects = "objects"

func (r Release) write(ctx context.Context, c *kindlab.Cluster, version string, objects []reference) error {
	text, err := json.Marshal(objects)
	if err != nil {
		return err
	}
	return workload.ApplyObjects(ctx, c, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": r.record().Name, "namespace": r.record().Namespace},
		"data":     map[string]any{"version": version, recordedObjects: string(text)},
	}})
}

func (r Release) recorded(ctx context.Context, c *kindlab.Cluster) ([]reference, error) {
	var stored corev1.ConfigMap
	if err := c.Kube().Get(ctx, r.record(), &stored); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the record of the release: %w", err)
	} else if err != nil {
		return nil, nil
	}
	var objects []reference
	if err := json.Unmarshal([]byte(stored.Data[recordedObjects]), &objects); err != nil {
		return nil, fmt.Errorf("reading the record of the release: %w", err)
	}
	return objects, nil
}

func remove(ctx context.Context, c *kindlab.Cluster, objects []reference) error {
	for _, r := range objects {
		err := c.Kube().Delete(ctx, r.object(), client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("deleting %s %s: %w", r.Kind, r.Name, err)
		}
	}
	return nil
}

// Exists reports whether the release is on the cluster.
func (r Release) Exists(ctx context.Context, c *kindlab.Cluster) (bool, error) {
	objects, err := r.recorded(ctx, c)
	return len(objects) > 0, err
}

// goneWithin bounds how long deleted objects stay: a namespace waits for all that is in it, which took 6 s.
const goneWithin = 2 * time.Minute

// Remove deletes the objects of the release, and its record, and waits until they are gone:
// nothing can be created in a namespace that is being deleted.
func (r Release) Remove(ctx context.Context, c *kindlab.Cluster) error {
	objects, err := r.recorded(ctx, c)
	if err != nil {
		return err
	}
	slices.Reverse(objects) // bindings before accounts
	own := reference{APIVersion: "v1", Kind: "ConfigMap", Namespace: r.record().Namespace, Name: r.record().Name}
	if err := remove(ctx, c, append(objects, own)); err != nil {
		return err
	}
	for _, r := range objects {
		what := r.Kind + " " + r.Name + " to be gone"
		err := await.Until(ctx, what, 100*time.Millisecond, goneWithin, func(ctx context.Context) (bool, string, error) {
			o := r.object()
			err := c.Kube().Get(ctx, client.ObjectKeyFromObject(o), o)
			gone := apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
			if gone {
				err = nil
			}
			return gone, "it is there", err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r reference) object() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(r.APIVersion)
	o.SetKind(r.Kind)
	o.SetNamespace(r.Namespace)
	o.SetName(r.Name)
	return o
}

func (r reference) group() string {
	gv, err := schema.ParseGroupVersion(r.APIVersion)
	if err != nil {
		return r.APIVersion
	}
	return gv.Group
}
