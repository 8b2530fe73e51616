// Package workload handles Kubernetes' generic objects on a lab's cluster: manifests, DaemonSets and Deployments,
// their pods, and the pods that hold probe agents. The packages beside it, one a vendor's component, are built on it.
//
// A pod is in one of two conditions, which mean the same everywhere: it is [Started], or it is
// [Ready]. A pod that should crash starts and never gets ready.
package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/template"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Apply brings the objects of a manifest to the state that it asks for, as `kubectl apply --server-side` does.
func Apply(ctx context.Context, c *kindlab.Cluster, manifest string) error {
	objects, err := Objects(manifest)
	if err != nil {
		return err
	}
	return ApplyObjects(ctx, c, objects...)
}

// Render is what a template makes of data.
func Render(t *template.Template, data any) (string, error) {
	var text strings.Builder
	if err := t.Execute(&text, data); err != nil {
		return "", fmt.Errorf("rendering the manifest %s: %w", t.Name(), err)
	}
	return text.String(), nil
}

// Applied is the action that does Apply.
func Applied(manifest string) framework.Action {
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error { return Apply(ctx, c, manifest) })
}

// ApplyObjects is Apply for objects that have been read already. It does not change them.
func ApplyObjects(ctx context.Context, c *kindlab.Cluster, objects ...*unstructured.Unstructured) error {
	for _, o := range objects {
		// A copy, because the answer of the API server is written to it.
		state := client.ApplyConfigurationFromUnstructured(o.DeepCopy())
		if err := c.Kube().Apply(ctx, state, client.FieldOwner("relapse"), client.ForceOwnership); err != nil {
			return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// ApplyWhenTaken is ApplyObjects as soon as the API server takes the objects: when it knows their types, and their
// webhook answers. It ends at once if they are refused.
func ApplyWhenTaken(ctx context.Context, c *kindlab.Cluster, what string, within time.Duration,
	objects ...*unstructured.Unstructured) error {
	var refused error
	err := await.Until(ctx, what, 200*time.Millisecond, within, func(ctx context.Context) (bool, string, error) {
		err := ApplyObjects(ctx, c, objects...)
		// A webhook that is not up is an internal error.
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			refused = err
		}
		return err == nil || refused != nil, "", err
	})
	return cmp.Or(refused, err)
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

// Change reads an object of a manifest into its Go type, has it changed, and writes it back into the same object.
func Change[T any](o *unstructured.Unstructured, change func(*T) error) error {
	var typed T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed); err != nil {
		return fmt.Errorf("reading %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	if err := change(&typed); err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&typed)
	if err != nil {
		return fmt.Errorf("writing %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	delete(fields, "status") // a manifest has none
	o.Object = fields
	return nil
}
