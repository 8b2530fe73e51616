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

	"github.com/relapse-dev/relapse/topology/each"
)

// customList lists objects of a CustomResourceDefinition that are read as a T.
func customList[T any](gvr schema.GroupVersionResource, what string) listed[T] {
	return customAs(gvr, what, func(_ *unstructured.Unstructured, value T) (T, bool, error) { return value, true, nil })
}

// customAs lists objects of a CustomResourceDefinition: each is decoded as an S, and read makes a T of it.
func customAs[S, T any](gvr schema.GroupVersionResource, what string,
	read func(o *unstructured.Unstructured, object S) (T, bool, error)) listed[T] {
	return listing(resource{GroupVersionResource: gvr, what: what, selectable: true}, func(o *unstructured.Unstructured) (T, bool, error) {
		var spec S
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &spec); err != nil {
			var none T
			return none, true, fmt.Errorf("%s %q: %w", o.GetKind(), o.GetName(), err)
		}
		return read(o, spec)
	})
}

// listedDefinitions are the names of the CustomResourceDefinitions, such as ciliumnodes.cilium.io.
var listedDefinitions = listing(resource{
	GroupVersionResource: schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	what:                 "CustomResourceDefinitions", metadata: true,
}, func(o *metav1.PartialObjectMetadata) (string, bool, error) { return o.Name, true, nil })

// absent is nil for an error by which a cluster has a resource in none of some versions.
//
// An answer of 404 to a list does not say so: the server has the resources of CustomResourceDefinitions from an
// informer, which begins to answer before it has all of them (apiextensions-apiserver, crdHandler.ServeHTTP; from
// Kubernetes 1.23 on with 503 until it has those that were there first). The definitions are read from etcd. While
// the list has not been read since, the result is kept: a snapshot may be taken several times a second.
func (c *cluster) absent(ctx context.Context, err error, versions ...*resource) error {
	if !apierrors.IsNotFound(err) {
		return err
	}
	r := versions[0]
	if _, found := c.absentees.Load(r); found {
		return nil
	}
	name := r.GroupResource().String()
	switch definitions, unread := listedDefinitions.list(ctx, c); {
	case unread != nil:
		return fmt.Errorf("listing %s: the server does not know them, and whether there is a CustomResourceDefinition %s is not known: %w",
			r.what, name, unread)
	case slices.ContainsFunc(definitions, func(o *object[string]) bool { return o.name == name }):
		names := each.Of(versions, func(r *resource) string { return r.Version })
		return fmt.Errorf("listing %s: the server does not know %s %s, though there is a CustomResourceDefinition: "+
			"it has started a moment ago, or serves another version",
			r.what, name, strings.Join(names, " or "))
	}
	c.absentees.Store(r, true)
	return nil
}
