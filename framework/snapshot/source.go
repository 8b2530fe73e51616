package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/topology/each"
)

// Source is one thing that a snapshot can hold, such as Nodes or
// ConfigMaps("kube-system/cilium-config"). It says what is read; an Access says
// how that is reached. Sources are comparable.
type Source struct {
	kind *kind
	// name distinguishes sources of one kind, such as two ConfigMaps. It is
	// empty where a kind has one source only.
	name string
}

// String is what the source is called in Snapshot.Sources, with its name.
func (s Source) String() string {
	switch {
	case s.kind == nil:
		return "no source"
	case s.name == "":
		return s.kind.name
	}
	return s.kind.name + " " + s.name
}

// kind is what sources of one kind have in common. Each file of this package
// that declares a Source has one.
type kind struct {
	// name is what Snapshot.Sources and Snapshot.Unavailable call it.
	name string
	// timeout bounds one reading; zero means defaultTimeout.
	timeout time.Duration
	lists   []*resource
	// open prepares to read the sources of these names. An error is why they can never be read.
	open func(o *opening, names []string) (read, error)
	// copy copies the kind's part of a snapshot: only what the sources of these names read.
	copy func(to, from *Snapshot, names []string)
	// parts are what a collector that is opened for the kind reads.
	parts func(s Snapshot) []part
}

// part is one thing that is read at once, such as the RIB of one router.
type part struct {
	// what names it: no other part has the same name.
	what string
	read bool
	why  string
	// state adds what the part says of objects; nil if there is nothing to say.
	state func(to *statements)
}

// listPart is a part that is a list. State, which may be nil, is called for each of its items.
func listPart[T any](what string, l List[T], state func(item T, to *statements)) part {
	p := part{what: what, read: l.Read, why: l.Error}
	if state != nil {
		p.state = func(to *statements) {
			for _, item := range l.Items {
				state(item, to)
			}
		}
	}
	return p
}

// bound is how long one reading usually may take.
func (k *kind) bound() time.Duration { return cmp.Or(k.timeout, defaultTimeout) }

// read asks a source once and puts the answer into its part of the snapshot.
// It never fails: it returns when ctx ends, and what was not read is marked.
type read func(ctx context.Context, s *Snapshot)

// kinds are all that are registered, in order of name.
var kinds []*kind

// register makes a kind known. Each file that declares a Source calls it for a variable of the package.
func register(k kind) *kind {
	kinds = append(kinds, &k)
	slices.SortFunc(kinds, func(a, b *kind) int { return cmp.Compare(a.name, b.name) })
	return &k
}

// defaultTimeout is well above what a healthy source needs (milliseconds),
// and no longer than detection may take.
const defaultTimeout = time.Second

type opening struct {
	access  Access
	ctx     context.Context
	cluster func() (*cluster, error)
	nodes   func() (map[string]Machine, error)
	closers []io.Closer
}

func (o *opening) closes(opened any) {
	if c, ok := opened.(io.Closer); ok {
		o.closers = append(o.closers, c)
	}
}

// A source that did not answer in time may be slow, not dead: with four guests on two CPUs, reading a node's
// connections took over a second for half a minute. In the next snapshot it has twice the time, up to stretch times
// its usual time and at most mostStretched, until it answers quickly again.
const (
	stretch       = 4
	mostStretched = 10 * time.Second
)

// Collector takes snapshots of the sources that it was opened for, one at a time.
type Collector struct {
	sources []*opened
	closers []io.Closer
	// cluster is nil if no source reads it.
	cluster *cluster
}

type opened struct {
	kind *kind
	read read
	// unreachable is why they cannot be read; then read is of no use.
	unreachable error
	// usual bounds a reading, within bounds the next one.
	usual, within time.Duration
}

// collect reads the sources, and bounds the next reading by how long this one took.
func (o *opened) collect(ctx context.Context, s *Snapshot) {
	usual := o.usual
	ctx, cancel := context.WithTimeoutCause(ctx, o.within, fmt.Errorf("no answer within %s", o.within))
	defer cancel()
	began := time.Now()
	o.read(ctx, s)
	switch took := time.Since(began); {
	case took >= o.within:
		o.within = max(o.within, min(2*o.within, stretch*usual, mostStretched))
	case took <= usual/2:
		o.within = usual
	}
}

// Open makes a collector of some sources; a source that is named twice counts once. What the access cannot reach is
// no error: such a source is unavailable in each snapshot, and Snapshot.Unavailable says why. The collector must be
// closed.
func Open(ctx context.Context, access Access, sources ...Source) (*Collector, error) {
	asked, err := byKind(sources)
	if err != nil {
		return nil, err
	}
	o, c := &opening{access: access, ctx: ctx}, &Collector{}
	o.cluster = sync.OnceValues(func() (*cluster, error) {
		config, err := access.Kubernetes(ctx)
		if err != nil {
			return nil, err
		}
		c.cluster, err = newCluster(config)
		return c.cluster, err
	})
	o.nodes = sync.OnceValues(func() (map[string]Machine, error) { return access.Nodes(ctx) })
	for _, k := range kinds {
		names, wanted := asked[k]
		if !wanted {
			continue
		}
		read, err := k.open(o, names)
		c.sources = append(c.sources, &opened{kind: k, read: read, unreachable: err, usual: k.bound(), within: k.bound()})
	}
	c.closers = o.closers
	if ctx.Err() != nil {
		return nil, errors.Join(fmt.Errorf("opening the sources of snapshots: %w", context.Cause(ctx)), c.Close())
	}
	return c, nil
}

// byKind sorts sources by kind, with the names of each.
func byKind(sources []Source) (map[*kind][]string, error) {
	asked := map[*kind][]string{}
	for _, s := range sources {
		if s.kind == nil {
			return nil, errors.New("opening the sources of snapshots: one of them is the zero Source, which reads nothing")
		}
		asked[s.kind] = each.Once(append(asked[s.kind], s.name))
	}
	return asked, nil
}

// Close closes what Open has opened.
func (c *Collector) Close() error {
	errs := each.Of(c.closers, io.Closer.Close)
	c.closers = nil
	return errors.Join(errs...)
}

// ListWithin bounds all pages of a list together, beside the bound of each page: after this time the server may have
// forgotten the version that they are of.
const ListWithin = 5 * time.Minute

// Allow bounds one answer by at least a time, for a cluster and routers that are far away, or whose requests are
// limited. One answer is all that a router says, or a page of a list of the API server, which may have hundreds. It
// holds for these sources; none: for all.
func (c *Collector) Allow(within time.Duration, sources ...Source) {
	for _, s := range c.sources {
		if len(sources) > 0 && !slices.ContainsFunc(sources, func(o Source) bool { return o.kind == s.kind }) {
			continue
		}
		s.usual = max(s.usual, within)
		if len(s.kind.lists) > 0 {
			s.usual = max(s.usual, ListWithin)
		}
		s.within = s.usual
	}
	if c.cluster != nil && len(sources) == 0 {
		c.cluster.pageWithin = within
	}
}

// Timeout is the longest that Collect takes where sources answer or are dead. While
// some are slow it takes a few times as long.
func (c *Collector) Timeout() time.Duration {
	longest := defaultTimeout
	for _, s := range c.sources {
		longest = max(longest, s.usual)
	}
	return longest
}

// Collect reads all sources in parallel. It never fails: a source that does not answer in time
// is marked as unavailable, and delays the snapshot no longer than that.
func (c *Collector) Collect(ctx context.Context) Snapshot {
	s := Snapshot{Time: time.Now()}
	if c.cluster != nil {
		lists, cancel := context.WithCancel(ctx)
		defer cancel()
		c.cluster.begin(lists)
	}
	for _, o := range c.sources {
		asked := Asked{Name: o.kind.name}
		if o.unreachable != nil {
			asked.Unreachable = o.unreachable.Error()
		}
		s.Sources = append(s.Sources, asked)
	}
	var all sync.WaitGroup
	for _, o := range c.sources {
		if o.unreachable == nil {
			all.Go(func() { o.collect(ctx, &s) })
		}
	}
	all.Wait()
	s.Took = time.Since(s.Time)
	if c.cluster != nil {
		s.ServerAhead = c.cluster.clockAhead()
	}
	return s
}

// list asks for one list. It returns when ctx ends, even if ask does not.
func list[T any](ctx context.Context, ask func(context.Context) ([]T, error)) List[T] {
	began := time.Now()
	answers := make(chan List[T], 1)
	go func() {
		items, err := ask(ctx)
		if err != nil {
			answers <- List[T]{Error: err.Error()}
			return
		}
		answers <- List[T]{Read: true, Items: items}
	}()
	var l List[T]
	select {
	case l = <-answers:
	case <-ctx.Done():
		l.Error = context.Cause(ctx).Error()
	}
	l.Took = time.Since(began)
	return l
}

// clusterList makes a source of what a Kubernetes API server has, which ask makes of some of its
// lists. State, which may be nil, adds what an item says of objects.
func clusterList[T any](
	name string,
	lists []*resource,
	ask func(*cluster, context.Context) ([]T, error),
	field func(*Snapshot) *List[T],
	state func(item T, to *statements),
) Source {
	return Source{kind: register(kind{
		name:  name,
		lists: lists,
		open: func(o *opening, _ []string) (read, error) {
			c, err := o.cluster()
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context, s *Snapshot) {
				*field(s) = list(ctx, func(ctx context.Context) ([]T, error) { return ask(c, ctx) })
			}, nil
		},
		copy:  func(to, from *Snapshot, _ []string) { *field(to) = *field(from) },
		parts: func(s Snapshot) []part { return []part{listPart(name, *field(&s), state)} },
	})}
}

// within is the source with another bound on one reading.
func (s Source) within(timeout time.Duration) Source {
	s.kind.timeout = timeout
	return s
}

// perName makes a source of something that is read of each router, node or
// host, all at once, and kept in order of name. reachable lists them by name,
// and reader makes a function that reads one of them, once for each collector.
func perName[H any, T interface{ parts() []part }](
	name string,
	reachable func(*opening) (map[string]H, error),
	reader func(name string, from H) func(context.Context) T,
	field func(*Snapshot) *[]T,
) Source {
	return Source{kind: register(kind{
		name: name,
		open: func(o *opening, _ []string) (read, error) {
			handles, err := reachable(o)
			if err != nil {
				return nil, err
			}
			var readers []func(context.Context) T
			for _, name := range slices.Sorted(maps.Keys(handles)) {
				o.closes(handles[name])
				readers = append(readers, reader(name, handles[name]))
			}
			return func(ctx context.Context, s *Snapshot) {
				items := make([]T, len(readers))
				var all sync.WaitGroup
				for i, read := range readers {
					all.Go(func() { items[i] = read(ctx) })
				}
				all.Wait()
				*field(s) = items
			}, nil
		},
		copy:  func(to, from *Snapshot, _ []string) { *field(to) = *field(from) },
		parts: func(s Snapshot) []part { return slices.Concat(each.Of(*field(&s), T.parts)...) },
	})}
}
