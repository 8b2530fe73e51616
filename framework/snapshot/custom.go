package snapshot

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// custom is an object of a CustomResourceDefinition that is read as a T; err: it cannot be.
type custom[T any] struct {
	kind, namespace, name string
	labels                map[string]string
	is                    T
	err                   error
}

// String is its kind, and its name in its namespace.
func (c *custom[T]) String() string {
	if c.namespace != "" {
		return c.kind + " " + c.namespace + "/" + c.name
	}
	return c.kind + " " + c.name
}

// customList lists such objects, which decide which routes routers are to have.
func customList[T any](of schema.GroupVersionResource, what string) listed[*custom[T]] {
	return listing(resource{GroupVersionResource: of, what: what, routes: true}, func(o *unstructured.Unstructured) *custom[T] {
		c := &custom[T]{kind: o.GetKind(), namespace: o.GetNamespace(), name: o.GetName(), labels: o.GetLabels()}
		c.is, c.err = as[T](o)
		return c
	})
}

func as[T any](o *unstructured.Unstructured) (T, error) {
	var t T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &t); err != nil {
		return t, fmt.Errorf("%s %q: %w", o.GetKind(), o.GetName(), err)
	}
	return t, nil
}

// ignoreNotFound is nil for the error of a cluster that does not know a resource.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
