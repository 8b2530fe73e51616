package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/topology/lab/router"
)

// A router's client is all that a collector needs.
var _ RouterReader = (*router.Client)(nil)

type fakeCluster struct {
	nodes  []Node
	cilium error
	pods   func(context.Context) ([]Pod, error)
}

func (f fakeCluster) Nodes(context.Context) ([]Node, error)             { return f.nodes, nil }
func (f fakeCluster) CiliumNodes(context.Context) ([]CiliumNode, error) { return nil, f.cilium }
func (f fakeCluster) Pods(ctx context.Context) ([]Pod, error)           { return f.pods(ctx) }

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

func noPods(context.Context) ([]Pod, error) { return nil, nil }

func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := []string{}
		path := Path{Prefix: netip.MustParsePrefix("10.5.112.0/24"), NextHop: netip.MustParseAddr("10.4.94.32")}
		hung := make(chan struct{})
		defer close(hung)
		c := Collector{
			Kubernetes: fakeCluster{
				nodes:  []Node{{Name: "master1"}},
				cilium: errors.New("forbidden"),
				// Obeys its context.
				pods: func(ctx context.Context) ([]Pod, error) { <-ctx.Done(); return nil, ctx.Err() },
			},
			Routers: map[string]RouterReader{
				"tor2": fakeRouter{paths: []Path{path}, fib: errors.New("refused"), asked: &asked},
			},
			Nodes: map[string]RouteReader{
				"master2": func(context.Context) ([]Route, error) { return []Route{{Metric: 7}}, nil },
				// Does not obey its context.
				"master1": func(context.Context) ([]Route, error) { <-hung; return nil, nil },
			},
			Timeout: 500 * time.Millisecond,
		}
		s := c.Collect(t.Context())

		if s.Took != 500*time.Millisecond {
			t.Errorf("took %s, want the timeout", s.Took)
		}
		if !s.Nodes.Read || s.Nodes.Items[0].Name != "master1" {
			t.Errorf("Nodes = %+v", s.Nodes)
		}
		if r := s.Routers[0]; r.Name != "tor2" || !r.Paths.Read || !r.Neighbors.Read || r.Paths.Items[0].Prefix != path.Prefix {
			t.Errorf("router = %+v", r)
		}
		if !slices.Equal(asked, []string{"RIB", "Neighbors"}) {
			t.Errorf("asked for %v, want the RIB before the sessions", asked)
		}
		if n := s.NodeTables; n[0].Node != "master1" || n[0].Routes.Read || n[1].Node != "master2" || !n[1].Routes.Read {
			t.Errorf("node tables = %+v", n)
		}
		got := s.Unread()
		// Whichever of the two notices the deadline first, it is said.
		if len(got) > 1 && got[1] == "Pods: context deadline exceeded" {
			got[1] = "Pods: no answer within 500ms"
		}
		want := []string{
			"CiliumNodes: forbidden",
			"Pods: no answer within 500ms",
			"FIB of tor2: refused",
			"routes of master1: no answer within 500ms",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Unread() (-want +got):\n%s", diff)
		}
	})
}

func TestCollectEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("interrupted"))
		hung := make(chan struct{})
		defer close(hung)
		s := Collector{Kubernetes: fakeCluster{pods: func(context.Context) ([]Pod, error) { <-hung; return nil, nil }}}.Collect(ctx)
		if s.Pods.Read || s.Pods.Error != "interrupted" {
			t.Errorf("Pods = %+v", s.Pods)
		}
	})
}

func TestSnapshotIsPlainJSON(t *testing.T) {
	asked := []string{}
	s := Collector{
		Kubernetes: fakeCluster{nodes: []Node{{Name: "master1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.4.94.32")}}}, pods: noPods},
		Routers: map[string]RouterReader{"tor1": fakeRouter{
			paths: []Path{{Prefix: netip.MustParsePrefix("10.5.112.0/24"), Neighbor: netip.MustParseAddr("10.4.94.32")}}, asked: &asked,
		}},
	}.Collect(t.Context())
	s.Time = s.Time.Round(0) // JSON has no monotonic clock
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back Snapshot
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(back)
	if err != nil {
		t.Fatal(err)
	}
	if string(data) != string(again) || back.Routers[0].Paths.Items[0].Prefix != s.Routers[0].Paths.Items[0].Prefix {
		t.Errorf("JSON does not read back:\n%s\n%s", data, again)
	}
}

func BenchmarkCollect(b *testing.B) {
	server := newAPIServer(b, 30)
	cluster, err := NewCluster(server)
	if err != nil {
		b.Fatal(err)
	}
	c := Collector{Kubernetes: cluster, Routers: map[string]RouterReader{}, Nodes: map[string]RouteReader{}}
	for i := range 2 {
		c.Routers[fmt.Sprintf("tor%d", i+1)] = fakeRouter{paths: make([]Path, 4), asked: new([]string)}
	}
	for b.Loop() {
		if s := c.Collect(b.Context()); len(s.Unread()) > 0 {
			b.Fatal(s.Unread())
		}
	}
}
