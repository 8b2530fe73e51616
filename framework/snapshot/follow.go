package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// Follow is Open for a collector that keeps the lists of the API server in memory: it lists each
// once, and watches it from then on. Its snapshots are of what the server has sent so far, and
// what is made of lists that have not changed is the same in each, without a copy.
//
// Within bounds one answer, as Allow does, and how long a watch may be down: after that the
// sources that need it are not read until it is up again.
func Follow(ctx context.Context, access Access, within time.Duration, sources ...Source) (*Collector, error) {
	return begin(ctx, access, within, sources)
}

// Changed receives when something has changed, in the API server, that may change which routes
// routers are to have. It is nil, which never receives, if the collector does not follow one.
func (c *Collector) Changed() <-chan struct{} { return c.changed }

// Waits of the watches.
const (
	// A list or a watch that fails is tried again after a second, and then after twice as long
	// each time, up to a minute: a resource that the cluster does not know costs a request a minute.
	retry, mostRetry = time.Second, time.Minute
	// silent is how long a watch may say nothing. The server sends a bookmark each minute.
	silent = 3 * time.Minute
)

// followed has lists of which each is kept up to date by a watch.
type followed struct {
	lists map[*resource]*follower
	// changed receives when one that is of routes has.
	changed chan struct{}
}

// follow begins to follow lists, until ctx ends.
func (c *cluster) follow(ctx context.Context, within time.Duration, lists []*resource) *followed {
	f := &followed{lists: map[*resource]*follower{}, changed: make(chan struct{}, 1)}
	for _, r := range lists {
		if f.lists[r] == nil {
			f.lists[r] = &follower{of: r, within: within, changed: f.changed, objects: map[string]any{}, first: make(chan struct{})}
			go f.lists[r].run(ctx, c)
		}
	}
	return f
}

// list implements lister.
func (f *followed) list(ctx context.Context, r *resource) ([]any, uint64, error) {
	l, declared := f.lists[r]
	if !declared {
		return nil, 0, fmt.Errorf("listing %s: the source does not declare it", r.what)
	}
	select {
	case <-l.first:
		return l.list()
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
}

// follower is the store of a reflector, which lists and watches one resource.
type follower struct {
	of      *resource
	within  time.Duration
	changed chan<- struct{}
	// first is closed when it is known whether the list can be read.
	first chan struct{}

	mu      sync.Mutex
	objects map[string]any // by key
	// items are those of objects; nil: to be made anew. version counts their changes.
	items   []any
	version uint64
	// listed is set once objects has a whole list.
	listed bool
	// watching is set while a watch is up; known is when the last one ended, or the list was
	// read first: until then objects were the server's.
	watching bool
	known    time.Time
	// err is why the last attempt failed.
	err error
}

// list is what is known now.
func (f *follower) list() ([]any, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.listed {
		return nil, f.version, f.err
	}
	if !f.watching && time.Since(f.known) > f.within {
		why := cmp.Or(f.err, errors.New("it ends at once"))
		return nil, f.version, fmt.Errorf("listing %s: no watch since %s: %w", f.of.what, f.known.UTC().Format(time.RFC3339), why)
	}
	if f.items == nil {
		f.items = make([]any, 0, len(f.objects))
		for _, item := range f.objects {
			f.items = append(f.items, item)
		}
	}
	return f.items, f.version, nil
}

// run lists and watches until ctx ends. client-go's reflector does, from the version of the list
// on; when the server has forgotten that, it lists anew.
func (f *follower) run(ctx context.Context, c *cluster) {
	reflector := cache.NewReflectorWithOptions(listWatch{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			// The reflector asks for version 0 first: see cluster.read, which asks for none.
			objects, version, err := c.read(ctx, f.of, f.within)
			if err != nil {
				f.failed(err)
				return nil, err
			}
			list := &metainternalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: make([]runtime.Object, len(objects))}
			for i := range objects {
				list.Items[i] = &objects[i]
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			w, err := c.watch(ctx, f.of, options)
			if err != nil {
				f.failed(f.of.failed("watch", err))
				return nil, err
			}
			return f.watch(w), nil
		},
	}}, nil, f, cache.ReflectorOptions{Name: f.of.Resource, TypeDescription: f.of.what})
	backoff := wait.Backoff{Duration: retry, Factor: 2, Jitter: 0.5, Steps: 10, Cap: mostRetry}
	_ = backoff.DelayWithReset(clock.RealClock{}, 2*mostRetry).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		_ = reflector.ListAndWatchWithContext(ctx) // what fails is kept above
		return false, nil
	})
}

// listWatch lists by pages in place of the stream of a watch, which servers before 1.34 may
// not have.
type listWatch struct{ *cache.ListWatch }

func (listWatch) IsWatchListSemanticsUnSupported() bool { return true }

// watch passes on what a watch says: of each object, what is kept of it.
func (f *follower) watch(from watch.Interface) watch.Interface {
	f.mu.Lock()
	f.watching, f.err = true, nil
	f.mu.Unlock()
	to := make(chan watch.Event)
	w := watch.NewProxyWatcher(to)
	go func() {
		defer close(to)
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.watching, f.known = false, time.Now()
		}()
		defer from.Stop()
		silence := time.NewTimer(silent)
		defer silence.Stop()
		for {
			select {
			case e, more := <-from.ResultChan():
				if !more {
					return
				}
				silence.Reset(silent)
				switch e.Type {
				case watch.Added, watch.Modified, watch.Deleted:
					kept, err := f.of.kept(e.Object)
					if e.Object = &kept; err != nil {
						e = watch.Event{Type: watch.Error, Object: &apierrors.NewInternalError(err).ErrStatus}
					}
				}
				select {
				case to <- e:
				case <-w.StopChan():
					return
				}
			case <-silence.C:
				return
			case <-w.StopChan():
				return
			}
		}
	}()
	return w
}

// failed keeps why the list or the watch failed. A resource that is not there any more has no
// objects.
func (f *follower) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	if apierrors.IsNotFound(err) && f.listed {
		f.listed = false
		clear(f.objects)
		f.change()
	}
	f.know()
}

// know says that the first attempt has ended.
func (f *follower) know() {
	select {
	case <-f.first:
	default:
		close(f.first)
	}
}

// change says that objects have changed.
func (f *follower) change() {
	f.items = nil
	f.version++
	if f.of.routes {
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

// Replace implements cache.ReflectorStore, with a whole list.
func (f *follower) Replace(list []any, _ string) error {
	objects := make(map[string]any, len(list))
	for _, o := range list {
		objects[o.(*object).key] = o.(*object).item
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.listed || !reflect.DeepEqual(f.objects, objects) {
		f.objects = objects
		f.change()
	}
	if !f.listed {
		f.listed, f.known = true, time.Now()
	}
	f.know()
	return nil
}

// Add implements cache.ReflectorStore.
func (f *follower) Add(o any) error { return f.Update(o) }

// Update implements cache.ReflectorStore. Most updates, such as the heartbeat of a node, change
// nothing that is kept.
func (f *follower) Update(o any) error {
	of := o.(*object)
	f.mu.Lock()
	defer f.mu.Unlock()
	if was, there := f.objects[of.key]; !there || !reflect.DeepEqual(was, of.item) {
		f.objects[of.key] = of.item
		f.change()
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (f *follower) Delete(o any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, there := f.objects[o.(*object).key]; there {
		delete(f.objects, o.(*object).key)
		f.change()
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (*follower) Resync() error { return nil }

// GetObjectKind implements runtime.Object.
func (*object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. An object is never changed.
func (o *object) DeepCopyObject() runtime.Object { return o }

// GetObjectMeta implements metav1.ObjectMetaAccessor, for the reflector, which asks for the version.
func (o *object) GetObjectMeta() metav1.Object { return &metav1.ObjectMeta{ResourceVersion: o.version} }

// Same reports whether two snapshots of a collector that follows the API server have the same to
// say: the lists in memory are the same ones, and what routers say is equal. It may be false for
// snapshots that are equal.
func (s Snapshot) Same(o Snapshot) bool {
	a, b := reflect.ValueOf(s), reflect.ValueOf(o)
	for i := range a.NumField() {
		switch x, y := a.Field(i), b.Field(i); {
		case x.Kind() == reflect.Slice: // of routers and others, each with its times
		case x.Type().Name() == "Time" || x.Type().Name() == "Duration":
		case x.FieldByName("Read").Bool() != y.FieldByName("Read").Bool(),
			x.FieldByName("Error").String() != y.FieldByName("Error").String(),
			x.FieldByName("Items").Pointer() != y.FieldByName("Items").Pointer(),
			x.FieldByName("Items").Len() != y.FieldByName("Items").Len():
			return false
		}
	}
	// A source that only a lab has is never the same.
	others := len(s.NodeTables)+len(s.NodeNetworks)+len(s.Proxies)+len(s.Firewalls)+len(s.NAT)+len(s.Outside) > 0
	return !others && reflect.DeepEqual(s.Sources, o.Sources) && reflect.DeepEqual(untimed(s.Routers), untimed(o.Routers))
}

// untimed are routers without how long it took to read them.
func untimed(routers []Router) []Router {
	all := slices.Clone(routers)
	for i := range all {
		all[i].Paths.Took, all[i].Routes.Took, all[i].Neighbors.Took = 0, 0, 0
	}
	return all
}

// memo has what a source has made of lists, until one of them changes.
type memo[T any] struct {
	mu    sync.Mutex
	of    map[*resource]seen
	items []T
}

// seen is what a lister has said of a list: its version, or that the cluster does not know it.
type seen struct {
	version uint64
	absent  bool
}

// ask makes it anew if a list has changed that it was made of.
func (m *memo[T]) ask(ctx context.Context, c *cluster, ask func(*cluster, context.Context) ([]T, error)) ([]T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holds(ctx, c) {
		return m.items, nil
	}
	noted, with := &noting{lister: c.lister, of: map[*resource]seen{}}, *c
	with.lister = noted
	items, err := ask(&with, ctx)
	if m.of, m.items = nil, nil; err == nil && noted.versions {
		m.of, m.items = noted.of, items
	}
	return items, err
}

func (m *memo[T]) holds(ctx context.Context, c *cluster) bool {
	for r, was := range m.of {
		_, version, err := c.list(ctx, r)
		if err != nil && !apierrors.IsNotFound(err) || was != (seen{version, err != nil}) {
			return false
		}
	}
	return m.of != nil
}

// noting notes which lists it is asked for, and what it has said of them; versions: it knows them.
type noting struct {
	lister
	of       map[*resource]seen
	versions bool
}

func (n *noting) list(ctx context.Context, r *resource) ([]any, uint64, error) {
	items, version, err := n.lister.list(ctx, r)
	n.of[r] = seen{version, err != nil}
	n.versions = n.versions || version > 0
	return items, version, err
}
