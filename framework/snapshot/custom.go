package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	return listing(resource{GroupVersionResource: of, what: what}, func(o *unstructured.Unstructured) *custom[T] {
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

// listedDefinitions are the names of the CustomResourceDefinitions, such as ciliumnodes.cilium.io.
var listedDefinitions = listing(resource{
	GroupVersionResource: schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	what:                 "CustomResourceDefinitions", metadata: true,
}, func(o *metav1.PartialObjectMetadata) string { return o.Name })

// absent is nil for the error of a cluster that has no such resource, in none of some versions.
//
// That the server answers a list with 404 does not say so: it has the resources of
// CustomResourceDefinitions from an informer, which begins to answer before it has all of them
// (apiextensions-apiserver, crdHandler.ServeHTTP; from Kubernetes 1.23 on with 503 until it has those
// that were there first). The definitions themselves are read from etcd. While the list has not been
// read since, what was found out stays: a snapshot may be taken several times a second.
func (c *cluster) absent(ctx context.Context, err error, versions ...*resource) error {
	r := versions[0]
	if _, known := c.absentees.Load(r); known || !apierrors.IsNotFound(err) {
		return notFoundIsNil(err)
	}
	name := r.GroupResource().String()
	switch definitions, unread := listedDefinitions.in(ctx, c); {
	case unread != nil:
		return fmt.Errorf("listing %s: the server does not know them, and whether there is a CustomResourceDefinition %s is not known: %w", r.what, name, unread)
	case slices.Contains(definitions, name):
		var of []string
		for _, r := range versions {
			of = append(of, r.Version)
		}
		return fmt.Errorf("listing %s: the server does not know %s %s, though there is a CustomResourceDefinition: it has started a moment ago, or serves another version", r.what, name, strings.Join(of, " or "))
	}
	c.absentees.Store(r, true)
	return nil
}

func notFoundIsNil(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
