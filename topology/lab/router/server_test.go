package router

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/topology/bgp"
	"github.com/relapse-dev/relapse/topology/must"
)

// memory is a table that is not a kernel's.
type memory struct {
	routes []bgp.Route
	broken map[netip.Prefix]bool
}

func (m *memory) Routes() ([]bgp.Route, error) { return slices.Clone(m.routes), nil }

func (m *memory) Replace(r bgp.Route) error {
	if m.broken[r.Prefix] {
		return errors.New("broken")
	}
	m.routes = slices.DeleteFunc(m.routes, func(o bgp.Route) bool { return o.Prefix == r.Prefix && o.Metric == r.Metric })
	m.routes = append(m.routes, r)
	return nil
}

func (m *memory) Remove(r bgp.Route) error {
	m.routes = slices.DeleteFunc(m.routes, func(o bgp.Route) bool { return same(o, r) })
	return nil
}

// scripted is a speaker with a RIB and without sessions. It installs no routes.
type scripted struct {
	speaker
	rib func(context.Context) ([]bgp.Path, error)
}

func (s scripted) paths(ctx context.Context) ([]bgp.Path, error) { return s.rib(ctx) }

func testServer(m *memory, rib func(context.Context) ([]bgp.Path, error)) *server {
	s := newServer(Config{AS: 64524}, m, log.New(io.Discard, "", 0))
	s.speaker = scripted{rib: rib}
	return s
}

func TestReconcileInstallsWhatItCan(t *testing.T) {
	left := via("203.0.113.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.9", "eth0")
	good := via("10.5.113.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.31", "eth0")
	m := &memory{
		routes: append([]bgp.Route{left, via("0.0.0.0/0", bgp.RouteBoot, 0, "10.4.94.1", "eth0")}, twoLinks...),
		broken: map[netip.Prefix]bool{prefix("10.5.112.0/24"): true},
	}
	s := testServer(m, func(context.Context) ([]bgp.Path, error) {
		return []bgp.Path{
			learned("10.5.112.0/24", "10.4.94.32", "10.4.94.32"),
			learned("10.5.113.0/24", "10.4.94.31", "10.4.94.31"),
		}, nil
	})
	must.Fail(t, s.reconcile(t.Context()), "broken")
	must.Contain(t, s.status.Error, "broken")
	must.Equal(t, "table", append(slices.Clone(twoLinks), guard, good), m.routes, byValue)

	must.NoError(t, s.withdrawAll())
	must.Equal(t, "table at the end", append(slices.Clone(twoLinks), guard), m.routes, byValue)
}

func TestReconcileLoop(t *testing.T) {
	for _, tt := range []struct {
		name  string
		asks  int // one a millisecond
		fails int // reconciliations, from the first on
		want  []time.Duration
	}{
		{name: "one event", asks: 1, want: []time.Duration{0}},
		{name: "a burst", asks: 25, want: []time.Duration{0, settle, 2 * settle, 3 * settle}},
		{name: "tried again", asks: 1, fails: 2, want: []time.Duration{0, retryAfter, 2 * retryAfter}},
		{name: "an event comes before the retry", asks: 2, fails: 1, want: []time.Duration{0, settle}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Duration
				start := time.Now()
				s := testServer(&memory{}, func(context.Context) ([]bgp.Path, error) {
					at = append(at, time.Since(start))
					if len(at) <= tt.fails {
						return nil, errors.New("not now")
					}
					return nil, nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { s.reconcileLoop(ctx); close(done) }()
				for range tt.asks {
					s.request()
					time.Sleep(time.Millisecond)
				}
				time.Sleep(10 * retryAfter)
				cancel()
				<-done
				must.Equal(t, "times of reconciliation", tt.want, at)
			})
		})
	}
}

func TestHTTP(t *testing.T) {
	path := learned("10.5.115.0/24", "10.4.94.23", "10.4.94.23")
	m := &memory{routes: slices.Clone(twoLinks)}
	s := testServer(m, func(context.Context) ([]bgp.Path, error) { return []bgp.Path{path}, nil })
	web := httptest.NewServer(s.handler())
	defer web.Close()

	// One after the other, on one router.
	for _, step := range []struct {
		name, method, path, body string
		code                     int
		says                     string
		route                    bgp.Route // to 10.5.115.0/24 afterwards
	}{
		{name: "next hop not on-link", method: "PUT", path: "/static",
			body: `{"prefix":"10.5.115.0/24","next_hops":["192.0.2.1"]}`, code: 422, says: "next hop 192.0.2.1: not usable as next hop: not on-link"},
		{name: "static wins", method: "PUT", path: "/static", body: `{"prefix":"10.5.115.0/24","next_hops":["10.4.94.21"]}`, code: 204,
			route: via("10.5.115.0/24", bgp.RouteStatic, DistanceStatic, "10.4.94.21", "eth0")},
		{name: "static replaced", method: "PUT", path: "/static",
			body: `{"prefix":"10.5.115.0/24","next_hops":["10.4.94.22","10.4.94.21"]}`, code: 204,
			route: via("10.5.115.0/24", bgp.RouteStatic, DistanceStatic, "10.4.94.21", "eth0", "10.4.94.22", "eth0")},
		{name: "static removed", method: "DELETE", path: "/static/10.5.115.0/24", code: 204,
			route: via("10.5.115.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.23", "eth0")},
		{name: "removed twice", method: "DELETE", path: "/static/10.5.115.0/24", code: 204,
			route: via("10.5.115.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.23", "eth0")},
		{name: "no prefix", method: "DELETE", path: "/static/", code: 400, says: "no '/'"},
		{name: "no such path", method: "GET", path: "/routes", code: 404},
	} {
		t.Run(step.name, func(t *testing.T) {
			req := must.Get(http.NewRequestWithContext(t.Context(), step.method, web.URL+step.path, strings.NewReader(step.body)))(t)
			resp := must.Get(web.Client().Do(req))(t)
			defer resp.Body.Close()
			body := must.Get(io.ReadAll(resp.Body))(t)
			if resp.StatusCode != step.code || !strings.Contains(string(body), step.says) {
				t.Errorf("answer %d %s, want %d and %q in it", resp.StatusCode, body, step.code, step.says)
			}
			if !step.route.Prefix.IsValid() {
				return
			}
			routes := slices.DeleteFunc(slices.Clone(m.routes), func(r bgp.Route) bool { return r.Prefix != step.route.Prefix })
			must.Equal(t, "table", []bgp.Route{step.route}, routes, byValue)
		})
	}

	t.Run("FIB is plain data", func(t *testing.T) {
		resp := must.Get(web.Client().Get(web.URL + "/fib"))(t)
		defer resp.Body.Close()
		var got []bgp.Route
		must.NoError(t, json.NewDecoder(resp.Body).Decode(&got))
		must.Equal(t, "routes", m.routes, got, byValue)
	})
}

func TestSetSysctls(t *testing.T) {
	root := t.TempDir()
	for _, s := range sysctls {
		must.Write(t, filepath.Join(root, s.path), "2\n")
	}
	must.NoError(t, setSysctls(root))
	for _, s := range sysctls {
		must.Equal(t, s.path, s.value, strings.TrimSpace(string(must.Read(t, filepath.Join(root, s.path)))))
	}
	must.Fail(t, setSysctls(filepath.Join(root, "nowhere")))
}
