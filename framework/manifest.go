package framework

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/e2e-framework/klient/k8s"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/kindlab"
)

// Apply brings the objects of a manifest (YAML documents) to the state that
// it asks for, as `kubectl apply --server-side` does.
func Apply(ctx context.Context, c *kindlab.Cluster, manifest string) error {
	return eachObject(manifest, func(o *unstructured.Unstructured) error {
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
		return nil
	})
}

// Delete deletes the objects of a manifest, with all that belongs to them,
// and waits until they are gone. Objects that are not there are no error.
func Delete(ctx context.Context, c *kindlab.Cluster, manifest string) error {
	foreground := func(d *metav1.DeleteOptions) {
		policy := metav1.DeletePropagationForeground
		d.PropagationPolicy = &policy
	}
	err := eachObject(manifest, func(o *unstructured.Unstructured) error {
		err := c.Client.Resources(o.GetNamespace()).Delete(ctx, o, foreground)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return eachObject(manifest, func(o *unstructured.Unstructured) error {
		name := o.GetKind() + " " + o.GetName()
		return await.Until(ctx, name+" to be deleted", 50*time.Millisecond, time.Minute,
			func(ctx context.Context) (bool, string, error) {
				err := c.Client.Resources().Get(ctx, o.GetName(), o.GetNamespace(), o)
				return apierrors.IsNotFound(err), "it is still there", err
			})
	})
}

func eachObject(manifest string, do func(*unstructured.Unstructured) error) error {
	documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096)
	for {
		var o unstructured.Unstructured
		if err := documents.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading a manifest: %w", err)
		}
		if len(o.Object) == 0 {
			continue // nothing but a comment
		}
		if err := do(&o); err != nil {
			return err
		}
	}
}
