package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/topology/must"
)

type fakeRouter struct {
	paths []Path
	fib   error
	// asked are the lists in the order in which they were asked for.
	asked *[]string
}

func (f fakeRouter) RIB(context.Context) ([]Path, error) {
	*f.asked = append(*f.asked, "RIB")
	return f.paths, nil
}
func (f fakeRouter) FIB(context.Context) ([]Route, error) { return nil, f.fib }
func (f fakeRouter) Neighbors(context.Context) ([]Neighbor, error) {
	*f.asked = append(*f.asked, "Neighbors")
	return nil, nil
}
func (f fakeRouter) Close() error {
	*f.asked = append(*f.asked, "Close")
	return nil
}

// hanging are machines that never answer: one obeys its context, the other does not, until hung is closed.
func hanging(hung <-chan struct{}) (obeys, deaf fakeMachine) {
	obeys.netns = func(ctx context.Context) (string, error) { <-ctx.Done(); return "", context.Cause(ctx) }
	deaf.netns = func(context.Context) (string, error) { <-hung; return "", errors.New("too late") }
	deaf.exec = func(context.Context, ...string) (string, error) { <-hung; return "", errors.New("too late") }
	return obeys, deaf
}

func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := []string{}
		path := Path{Prefix: netip.MustParsePrefix("10.5.112.0/24"), NextHop: netip.MustParseAddr("10.4.94.32")}
		hung := make(chan struct{})
		defer close(hung)
		obeys, deaf := hanging(hung)
		c := must.Get(Open(t.Context(), fakeAccess{
			routers: map[string]RouterReader{"tor2": fakeRouter{paths: []Path{path}, fib: errors.New("refused"), asked: &asked}},
			nodes:   map[string]Machine{"master2": obeys, "master1": deaf, "guest": fakeMachine{}},
		}, NodeTables, Routers, Sockets, Routers))(t)
		must.Equal(t, "Timeout()", time.Second, c.Timeout())
		s := c.Collect(t.Context())
		must.Equal(t, "took", time.Second, s.Took)
		if r := s.Routers[0]; len(s.Routers) != 1 || r.Name != "tor2" || !r.Paths.Read || !r.Neighbors.Read || r.Paths.Items[0].Prefix != path.Prefix {
			t.Errorf("routers = %+v", s.Routers)
		}
		want := []string{
			"FIB of tor2: refused",
			"routes of guest: finding the network namespace: it has a kernel of its own",
			"routes of master1: no answer within 1s",
			"routes of master2: no answer within 1s",
			"sockets: no host was given",
		}
		// Whoever notices the deadline first says so.
		got := strings.ReplaceAll(Sentences(s.Unavailable()), "finding the network namespace: no answer", "no answer")
		must.Equal(t, "Unread()", strings.Join(want, "; "), got)
		must.NoError(t, c.Close())
		must.Equal(t, "asked for", []string{"RIB", "Neighbors", "Close"}, asked) // the RIB before the sessions, and closed once
	})
}

// A source with more time than others does not hold their answers up, and what
// they need is read before.
func TestCollectGivesEachSourceItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := make(chan struct{})
		defer close(hung)
		_, deaf := hanging(hung)
		c := open(t, fakeAccess{nodes: map[string]Machine{"edge": deaf}}, Proxies, NodeTables)
		s := c.Collect(t.Context())
		must.Equal(t, "bound, taken, taken by routes", [3]time.Duration{proxyTimeout, proxyTimeout, time.Second},
			[3]time.Duration{c.Timeout(), s.Took, s.NodeTables[0].Routes.Took})
	})
}

// A source that does not answer is given more time in the next poll, and its usual time
// again when it answers soon.
func TestCollectIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := time.Hour
		slow := fakeMachine{netns: func(ctx context.Context) (string, error) {
			select {
			case <-ctx.Done():
				return "", context.Cause(ctx)
			case <-time.After(takes):
				return "", errors.New("there is none")
			}
		}}
		c := open(t, fakeAccess{nodes: map[string]Machine{"busy": slow}}, NodeTables)
		for n, poll := range []struct{ takes, want time.Duration }{
			{time.Hour, time.Second}, {time.Hour, 2 * time.Second}, {time.Hour, 4 * time.Second}, {time.Hour, 4 * time.Second},
			{3 * time.Second, 3 * time.Second}, {3 * time.Second, 3 * time.Second},
			{100 * time.Millisecond, 100 * time.Millisecond}, {3 * time.Second, time.Second},
		} {
			takes = poll.takes
			must.Equal(t, fmt.Sprint("poll ", n+1), poll.want, c.Collect(t.Context()).Took)
		}
	})
}

func TestCollectEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := make(chan struct{})
		defer close(hung)
		_, deaf := hanging(hung)
		c := open(t, fakeAccess{nodes: map[string]Machine{"edge": deaf}}, NodeTables)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("interrupted"))
		must.Equal(t, "routes", "interrupted", c.Collect(ctx).NodeTables[0].Routes.Error)
	})
}

func allSources() []Source {
	sources := []Source{ConfigMaps("kube-system/cilium-config")}
	for _, k := range kinds {
		if k != configMaps {
			sources = append(sources, Source{kind: k})
		}
	}
	return sources
}

// Without access, each source that was asked for is unavailable, and no other.
func TestUnreachable(t *testing.T) {
	for _, source := range allSources() {
		t.Run(source.String(), func(t *testing.T) {
			unavailable := open(t, fakeAccess{}, source).Collect(t.Context()).Unavailable()
			at := slices.IndexFunc(unavailable, func(m Missing) bool { return m.Source == source.kind.name && strings.HasPrefix(m.Reason, "no ") })
			if at < 0 || len(unavailable) != 1 {
				t.Errorf("unavailable: %q", unavailable)
			}
		})
	}
	must.Equal(t, "nothing was asked for", nil, open(t, fakeAccess{}).Collect(t.Context()).Unavailable())
}

func TestOpenErrors(t *testing.T) {
	must.Fail(t, must.Err(Open(t.Context(), fakeAccess{}, Nodes, Source{})), "zero Source")
	asked := []string{}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	access := fakeAccess{routers: map[string]RouterReader{"tor": fakeRouter{asked: &asked}}}
	must.Fail(t, must.Err(Open(ctx, access, Routers)), "interrupted")
	must.Equal(t, "the router is closed", []string{"Close"}, asked)
}

func TestSourcesAreComparable(t *testing.T) {
	nodes, one, again := Nodes, ConfigMaps("a/b"), ConfigMaps("a/b")
	if nodes != Nodes || nodes == Pods || one != again || one == ConfigMaps("a/c") {
		t.Error("sources do not compare as what they read")
	}
	must.Equal(t, "String()", "ConfigMaps a/b", ConfigMaps("a/b").String())
}

// ofAll are the fields of a snapshot that no source has for itself.
var ofAll = []string{"Time", "Took", "ServerAhead", "Sources", "Redacted"}

// full is a snapshot with something in every part that a source fills.
func full(t *testing.T) Snapshot {
	t.Helper()
	s := Snapshot{Time: time.Unix(1, 0), Took: time.Second, ServerAhead: time.Hour}
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case slices.Contains(ofAll, v.Type().Field(i).Name):
		case f.Kind() == reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		default:
			f.FieldByName("Read").SetBool(true)
			f.FieldByName("Items").Set(reflect.MakeSlice(f.FieldByName("Items").Type(), 1, 1))
		}
	}
	s.ConfigMaps.Items = []ConfigMap{{Namespace: "kube-system", Name: "cilium-config"}}
	for _, k := range kinds {
		s.Sources = append(s.Sources, Asked{Name: k.name})
	}
	return s
}

// Each part of a snapshot belongs to one source, and each source has one.
func TestOnly(t *testing.T) {
	whole := full(t)
	parts := map[string]string{}
	for _, source := range allSources() {
		seen := whole.Only(source)
		if !seen.Time.Equal(whole.Time) || seen.Took != whole.Took || seen.ServerAhead != whole.ServerAhead || len(seen.Sources) != 1 || seen.Sources[0].Name != source.kind.name {
			t.Errorf("%s: %s, %s, sources %v", source, seen.Time, seen.Took, seen.Sources)
		}
		v := reflect.ValueOf(seen)
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if slices.Contains(ofAll, name) || v.Field(i).IsZero() {
				continue
			}
			if other, found := parts[name]; found {
				t.Errorf("%s is of %s, and of %s", name, other, source)
			}
			parts[name] = source.String()
		}
	}
	if fields := reflect.TypeFor[Snapshot]().NumField() - len(ofAll); len(parts) != fields || len(parts) != len(kinds) {
		t.Errorf("%d parts of %d in a snapshot, by %d kinds of sources: %v", len(parts), fields, len(kinds), parts)
	}
	compare := cmp.Comparer(func(a, b Snapshot) bool { return reflect.DeepEqual(a, b) })
	must.Equal(t, "all sources", whole, whole.Only(allSources()...), compare)
	must.Equal(t, "another ConfigMap", 0, len(whole.Only(ConfigMaps("kube-system/other")).ConfigMaps.Items))
}

func TestSnapshotIsPlainJSON(t *testing.T) {
	asked := []string{}
	s := open(t, fakeAccess{
		api: newAPIServer(t, 0),
		routers: map[string]RouterReader{"tor1": fakeRouter{
			paths: []Path{{Prefix: netip.MustParsePrefix("10.5.112.0/24"), Neighbor: netip.MustParseAddr("10.4.94.32")}}, asked: &asked,
		}},
	}, Nodes, Routers, Sockets).Collect(t.Context())
	s.Time = s.Time.Round(0) // JSON has no monotonic clock
	data := must.Get(json.Marshal(s))(t)
	var back Snapshot
	must.NoError(t, json.Unmarshal(data, &back))
	must.Equal(t, "read back", string(data), string(must.Get(json.Marshal(back))(t)))
	must.Equal(t, "read back", s.Routers[0].Paths.Items[0].Prefix, back.Routers[0].Paths.Items[0].Prefix)
	// What was not read is known of a stored snapshot as well.
	must.Equal(t, "Unread()", []Missing{{"sockets", "no host was given"}}, back.Unavailable())
	back.Sources = append(back.Sources, Asked{Name: "tea leaves"})
	unread := []Missing{{"sockets", "no host was given"}, {"tea leaves", "no source has that name"}}
	must.Equal(t, "with a source of another version", unread, back.Unavailable())
}

func BenchmarkCollect(b *testing.B) {
	routers := map[string]RouterReader{}
	for i := range 2 {
		routers[fmt.Sprintf("tor%d", i+1)] = fakeRouter{paths: make([]Path, 4), asked: new([]string)}
	}
	c := open(b, fakeAccess{api: newAPIServer(b, 30), routers: routers}, Nodes, CiliumNodes, Pods, Routers)
	for b.Loop() {
		if s := c.Collect(b.Context()); len(s.Unavailable()) > 0 {
			b.Fatal(s.Unavailable())
		}
	}
}

type ribOnly struct{ value bool }

func (ribOnly) RIB(context.Context) ([]Path, error)           { return nil, nil }
func (ribOnly) FIB(context.Context) ([]Route, error)          { return nil, errors.New("refused") }
func (ribOnly) Neighbors(context.Context) ([]Neighbor, error) { return nil, nil }
func (r ribOnly) Describe(to *Router)                         { to.RIBOnly = r.value }

// A FIB that cannot be read is not among what is unavailable, and one that could be is.
func TestRIBOnly(t *testing.T) {
	for value, want := range map[bool][]Missing{true: nil, false: {{"FIB of tor1", "refused"}}} {
		r := routerReader("tor1", ribOnly{value})(t.Context())
		s := Snapshot{Sources: []Asked{{Name: Routers.String()}}, Routers: []Router{r}}
		must.Equal(t, value, want, s.Unavailable())
		must.Equal(t, value, false, r.Routes.Read)
	}
}
