package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/relapse-dev/relapse/topology/each"
)

type resource struct {
	schema.GroupVersionResource
	// what names its objects in sentences: "Nodes".
	what           string
	fields, labels string
	// metadata is set if the metadata of its objects is enough.
	metadata bool
	// selectable is set if its objects are selected by labels, which are kept then.
	selectable bool
	// keep returns what is kept of an object. Of 150,000 pods that is 70 MB, and the pods themselves are more than 1
	// GB.
	keep func(runtime.Object) (any, error)
}

func resourceOf(group schema.GroupVersion, name, what string) resource {
	return resource{GroupVersionResource: group.WithResource(name), what: what}
}

type listed[T any] struct {
	*resource
	// order sorts the items of the T's own source; nil: by namespace and name.
	order func(a, b T) int
}

type object[T any] struct {
	kind, namespace, name string
	labels                map[string]string // where the resource is selectable
	value                 T
	// err is why it could not be read as a T: a source may be content with its name and labels.
	err error
	// other is set if the T's own source leaves it out.
	other bool
}

// String is its kind, and its name in its namespace.
func (o *object[T]) String() string {
	if o.namespace != "" {
		return o.kind + " " + o.namespace + "/" + o.name
	}
	return o.kind + " " + o.name
}

// listing declares a resource whose objects are an O: of a built-in type, which is asked for as
// protobuf, or else unstructured, which is JSON, or metadata alone (PartialObjectMetadata), where
// that is enough. Own is whether the T's own source has it.
func listing[O interface {
	runtime.Object
	metav1.Object
}, T any](r resource, read func(O) (value T, own bool, err error)) listed[T] {
	r.keep = func(sent runtime.Object) (any, error) {
		o, ok := sent.(O)
		if !ok {
			return nil, fmt.Errorf("the server sent a %T", sent)
		}
		value, own, err := read(o)
		entry := &object[T]{kind: sent.GetObjectKind().GroupVersionKind().Kind, namespace: same(o.GetNamespace()), name: o.GetName(),
			value: value, err: err, other: !own}
		if r.selectable {
			entry.labels = o.GetLabels()
		}
		return entry, nil
	}
	return listed[T]{resource: &r}
}

// list returns the objects of a cluster, in order of namespace and name. Other sources share them: they must not be
// changed.
func (l listed[T]) list(ctx context.Context, c *cluster) ([]*object[T], error) {
	items, err := c.objects(ctx, l.resource)
	if err != nil {
		return nil, err
	}
	c.absentees.Delete(l.resource)
	all := make([]*object[T], len(items))
	for i, item := range items {
		all[i] = item.(*object[T])
	}
	slices.SortFunc(all, func(a, b *object[T]) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	return all, nil
}

// whole is list, but an object that is no T is an error. A cluster that does not know a resource of a
// CustomResourceDefinition has nil.
func (l listed[T]) whole(ctx context.Context, c *cluster) ([]*object[T], error) {
	objects, err := l.list(ctx, c)
	if err != nil && !slices.Contains(builtIn, l.GroupVersion()) {
		return nil, c.absent(ctx, err, l.resource)
	}
	for _, o := range objects {
		if o.err != nil && !o.other {
			return nil, o.err
		}
	}
	return objects, err
}

// items are the objects of the T's own source, read as by whole.
func (l listed[T]) items(ctx context.Context, c *cluster) ([]T, error) {
	objects, err := l.whole(ctx, c)
	if err != nil || objects == nil {
		return nil, err
	}
	all := make([]T, 0, len(objects))
	for _, o := range objects {
		if !o.other {
			all = append(all, o.value)
		}
	}
	if l.order != nil {
		slices.SortStableFunc(all, l.order)
	}
	return all, nil
}

func listSource[T any](name string, l listed[T], field func(*Snapshot) *List[T], state func(item T, to *statements)) Source {
	lists := []*resource{l.resource}
	if !slices.Contains(builtIn, l.GroupVersion()) {
		lists = append(lists, listedDefinitions.resource) // see absent
	}
	return clusterList(name, lists, func(c *cluster, ctx context.Context) ([]T, error) { return l.items(ctx, c) }, field, state)
}

// failed says what was not read, and by which rule of RBAC it would be.
func (r *resource) failed(err error) error {
	if apierrors.IsForbidden(err) {
		group := cmp.Or(r.Group, "the core group")
		err = fmt.Errorf("list on %s in %s %s: %w", r.Resource, group, NotPermitted, err)
	}
	return fmt.Errorf("listing %s: %w", r.what, err)
}

// NotPermitted is in the reason of a source that was not read because RBAC does not permit it,
// after the rule that is missing: "list on ipamblocks in crd.projectcalico.org is not permitted".
const NotPermitted = "is not permitted"

// failures joins what went wrong, in one line. It is nil if nothing did.
func failures(errs ...error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	return errors.New(each.Joined(errs, "; ", error.Error))
}

// Resources are the lists of the API server that sources read, each once, in order of group,
// version and name.
func Resources(sources ...Source) []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	for _, s := range sources {
		for _, r := range s.kind.lists {
			all = append(all, r.GroupVersionResource)
		}
	}
	slices.SortFunc(all, func(a, b schema.GroupVersionResource) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all)
}

const pageSize = 500

var errCutOff = errors.New("the server's pages are of different versions")

// read reads a list in pages, all of the resource version of the first page, or returns nothing.
//
// No version is asked for, so the first page is of the newest one: the server answers it from
// etcd, or from its cache once that is as new (Kubernetes 1.34), and the continue token of a page
// has the version for the next. Version 0 would be answered from the cache of any API server as it
// is, which may be older than what was read a moment ago, and in one piece, because a limit does
// not hold for it: 150,000 pods are some hundred megabytes in the memory of both ends.
//
// The server forgets versions after 5 to 10 minutes, and a page is then 410 Gone. The
// list begins once more, and the second time it fails. (client-go's pager would ask for all in one
// piece, and its pages are not compared.)
func (c *cluster) read(ctx context.Context, r *resource) (items []any, err error) {
	for range 2 {
		items, err = c.pages(ctx, r)
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, errCutOff) {
			break
		}
	}
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		err = fmt.Errorf("the server has forgotten, twice, the version that the list began with: %w", err)
	}
	if err != nil {
		return nil, r.failed(err)
	}
	return items, nil
}

func (c *cluster) pages(ctx context.Context, r *resource) ([]any, error) {
	options := metav1.ListOptions{Limit: pageSize, FieldSelector: r.fields, LabelSelector: r.labels}
	var items []any
	version := ""
	for {
		page, err := c.page(ctx, r, options)
		if err != nil {
			return nil, err
		}
		accessor, err := meta.ListAccessor(page)
		if err != nil {
			return nil, fmt.Errorf("the server sent a %T", page)
		}
		switch {
		case options.Continue == "":
			version = accessor.GetResourceVersion()
		case accessor.GetResourceVersion() != version:
			return nil, fmt.Errorf("%w: %s and %s", errCutOff, version, accessor.GetResourceVersion())
		}
		if err := meta.EachListItem(page, func(o runtime.Object) error {
			item, err := r.keep(o)
			items = append(items, item)
			return err
		}); err != nil {
			return nil, err
		}
		if options.Continue = accessor.GetContinue(); options.Continue == "" {
			return items, nil
		}
	}
}

func (c *cluster) page(ctx context.Context, r *resource, options metav1.ListOptions) (runtime.Object, error) {
	if c.pageWithin > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.pageWithin, fmt.Errorf("no answer within %s", c.pageWithin))
		defer cancel()
	}
	var page runtime.Object
	var err error
	if r.metadata {
		page, err = c.metadata.Resource(r.GroupVersionResource).List(ctx, options)
	} else if client, builtIn := c.typed[r.GroupVersion()]; builtIn {
		page, err = client.Get().Resource(r.Resource).VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Get()
	} else {
		page, err = c.dynamic.Resource(r.GroupVersionResource).List(ctx, options)
	}
	if err != nil && ctx.Err() != nil { // client-go says which of its waits it was
		err = context.Cause(ctx)
	}
	return page, err
}

// builtIn are the groups whose types are asked for as protobuf.
var builtIn = []schema.GroupVersion{
	corev1.SchemeGroupVersion, {Group: "apps", Version: "v1"},
	{Group: "discovery.k8s.io", Version: "v1"}, {Group: "rbac.authorization.k8s.io", Version: "v1"},
}

func (c *cluster) begin(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ctx, c.lists = ctx, map[*resource]*reading{}
}

// objects are what is kept of a resource's objects. They are asked for once in a snapshot, and must not be changed,
// because sources share them. An error is apierrors.IsNotFound if the cluster does not know the resource.
func (c *cluster) objects(ctx context.Context, r *resource) ([]any, error) {
	c.mu.Lock()
	a, asked := c.lists[r]
	if !asked {
		a = &reading{done: make(chan struct{})}
		c.lists[r] = a
		go func(ctx context.Context) {
			defer close(a.done)
			a.items, a.err = c.read(ctx, r)
		}(c.ctx)
	}
	c.mu.Unlock()
	select {
	case <-a.done:
		return a.items, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
