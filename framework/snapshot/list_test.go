package snapshot

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/relapse-dev/relapse/topology/must"
)

const (
	gone      = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","message":"The provided continue parameter is too old","code":410}`
	busy      = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","message":"please wait","code":429}`
	forbidden = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"not allowed","code":403}`
)

// pager is an API server with some nodes, which it lists in pages of at most pageSize.
type pager struct {
	nodes int
	// instead answers a request, by its number from 1 on; nil: with a page.
	instead func(n int, w http.ResponseWriter) bool
	// version is of the page of a request; nil: 7.
	version func(n int) string

	mu    sync.Mutex
	asked []string
	at    []time.Time
}

func (p *pager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := r.URL.Query()
	p.asked, p.at = append(p.asked, fmt.Sprintf("limit=%s continue=%s resourceVersion=%s", q.Get("limit"), q.Get("continue"), q.Get("resourceVersion"))), append(p.at, time.Now())
	n := len(p.asked)
	if p.instead != nil && p.instead(n, w) {
		return
	}
	list := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	if p.version != nil {
		list.ResourceVersion = p.version(n)
	}
	from, _ := strconv.Atoi(q.Get("continue"))
	limit, _ := strconv.Atoi(q.Get("limit"))
	for i := from; i < min(from+limit, p.nodes); i++ {
		list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%05d", i)}})
	}
	if to := from + limit; to < p.nodes {
		list.Continue = strconv.Itoa(to)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

func says(w http.ResponseWriter, status int, body, retryAfter string) bool {
	if retryAfter != "" {
		w.Header().Set("Retry-After", retryAfter)
	}
	answer(status, body)(w, nil)
	return true
}

// A list is read whole and of one version, or not at all.
func TestPages(t *testing.T) {
	const first, second, third = "limit=500 continue= resourceVersion=", "limit=500 continue=500 resourceVersion=", "limit=500 continue=1000 resourceVersion="
	at := func(status int, body string, numbers ...int) func(int, http.ResponseWriter) bool {
		return func(n int, w http.ResponseWriter) bool {
			return slices.Contains(numbers, n) && says(w, status, body, "")
		}
	}
	for _, test := range []struct {
		name    string
		instead func(int, http.ResponseWriter) bool
		version func(int) string
		asked   []string
		err     string
	}{
		{"three pages", nil, nil, []string{first, second, third}, ""},
		{"gone in the middle: once more", at(http.StatusGone, gone, 3), nil, []string{first, second, third, first, second, third}, ""},
		{"gone without a reason", at(http.StatusGone, "gone", 3), nil, []string{first, second, third, first, second, third}, ""},
		{"gone twice", at(http.StatusGone, gone, 2, 4), nil, []string{first, second, first, second},
			"listing Nodes: the server has forgotten, twice, the version that the list began with: The provided continue parameter is too old"},
		{"pages of two versions", nil, func(n int) string { return strconv.Itoa(n) }, []string{first, second, first, second},
			"listing Nodes: the server's pages are of different versions: 3 and 4"},
		{"the second page fails", at(http.StatusInternalServerError, "no", 2), nil, []string{first, second}, "listing Nodes: an error on the server"},
		{"the second page is forbidden", at(http.StatusForbidden, forbidden, 2), nil, []string{first, second}, "listing Nodes: list on nodes in the core group is not permitted: not allowed"},
		{"the third page is no list", at(http.StatusOK, `{"kind":"Node","apiVersion":"v1"}`, 3), nil, []string{first, second, third}, "listing Nodes: the server sent a *v1.Node"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := &pager{nodes: 1200, instead: test.instead, version: test.version}
			c := open(t, fakeAccess{api: serve(t, map[string]http.HandlerFunc{nodesPath: server.ServeHTTP})}, Nodes)
			c.Allow(time.Minute) // a busy machine takes more than a second for six pages
			s := c.Collect(t.Context())
			must.Equal(t, "asked", test.asked, server.asked)
			if test.err != "" {
				if s.Nodes.Read || len(s.Nodes.Items) > 0 || !strings.HasPrefix(s.Nodes.Error, test.err) {
					t.Errorf("read %t, %d nodes, error %q, want %q", s.Nodes.Read, len(s.Nodes.Items), s.Nodes.Error, test.err)
				}
				return
			}
			if !s.Nodes.Read || len(s.Nodes.Items) != 1200 || s.Nodes.Items[1199].Name != "node01199" {
				t.Errorf("read %t, %d nodes, error %q, want 1200, each once", s.Nodes.Read, len(s.Nodes.Items), s.Nodes.Error)
			}
		})
	}
}

// A server that asks for time is asked again when that has passed, and not before.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			server := &pager{nodes: 1, instead: func(n int, w http.ResponseWriter) bool { return n == 1 && says(w, status, busy, "1") }}
			c := open(t, fakeAccess{api: serve(t, map[string]http.HandlerFunc{nodesPath: server.ServeHTTP})}, Nodes)
			c.Allow(time.Minute)
			s := c.Collect(t.Context())
			if !s.Nodes.Read || len(server.at) != 2 {
				t.Fatalf("read %t, %q; asked %d times, want twice", s.Nodes.Read, s.Nodes.Error, len(server.at))
			}
			must.Equal(t, "asked again too soon", false, server.at[1].Sub(server.at[0]) < time.Second)
		})
	}
	// The bound holds while it waits.
	server := &pager{instead: func(_ int, w http.ResponseWriter) bool { return says(w, http.StatusTooManyRequests, busy, "3600") }}
	c := open(t, fakeAccess{api: serve(t, map[string]http.HandlerFunc{nodesPath: server.ServeHTTP})}, Nodes)
	if s := c.Collect(t.Context()); s.Nodes.Read || s.Took > 10*time.Second || s.Nodes.Error != "no answer within 1s" {
		t.Errorf("after %s: %+v", s.Took, s.Nodes)
	}
}

// Each page has its own time, and a list of many pages as much as they take.
func TestAllowBoundsPages(t *testing.T) {
	t.Parallel()
	const within = time.Second // a busy machine may take seven eighths of it
	slow := func(hang int) *pager {
		return &pager{nodes: 10_000, instead: func(n int, _ http.ResponseWriter) bool {
			wait := within / 8
			if n == hang {
				wait = 2 * within
			}
			<-time.After(wait)
			return false
		}}
	}
	for _, test := range []struct {
		name  string
		hang  int
		error string
	}{
		{"all in time", 0, ""},
		{"one hangs", 3, "listing Nodes: no answer within 1s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := open(t, fakeAccess{api: serve(t, map[string]http.HandlerFunc{nodesPath: slow(test.hang).ServeHTTP})}, Nodes)
			c.Allow(within)
			if s := c.Collect(t.Context()); s.Nodes.Error != test.error || s.Nodes.Read != (test.error == "") || test.error == "" && s.Took < 2*within {
				t.Errorf("after %s: %q", s.Took, s.Nodes.Error)
			}
		})
	}
}

// What several sources need is asked for once in a snapshot, and again in the next.
func TestListsAreShared(t *testing.T) {
	asked := map[string]int{}
	var mu sync.Mutex
	answers := map[string]http.HandlerFunc{}
	for _, r := range Resources(allSources()...) {
		path := "/apis/" + r.Group + "/" + r.Version + "/" + r.Resource
		if r.Group == "" {
			path = "/api/v1/" + r.Resource
		}
		kind := map[string]string{"nodes": "NodeList", "pods": "PodList", "services": "ServiceList"}[r.Resource]
		answers[path] = func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			asked[r.Resource]++
			switch {
			case kind != "":
				answer(http.StatusOK, `{"kind":"`+kind+`","apiVersion":"v1","metadata":{},"items":[]}`)(w, nil)
			case strings.Contains(r.Group, "cilium") || strings.Contains(r.Group, "metallb"):
				answer(http.StatusOK, fmt.Sprintf(`{"kind":"AList","apiVersion":"%s","items":[{"kind":"A","apiVersion":"%[1]s","metadata":{"name":"a"}}]}`, r.GroupVersion()))(w, nil)
			default:
				answer(http.StatusNotFound, "404 page not found\n")(w, nil)
			}
		}
	}
	c := open(t, fakeAccess{api: serve(t, answers)}, Nodes, BGPAdvertisements, Pods, RunningImages, CalicoAgents, Accounts, Services)
	for n := range 2 {
		c.Collect(t.Context())
		for _, name := range []string{"nodes", "pods", "services", "ciliumbgpclusterconfigs", "bgpadvertisements"} {
			must.Equal(t, name, n+1, asked[name])
		}
	}
}

// The list of a source that has no more time is still of use to another.
func TestSharedListOutlivesItsFirstSource(t *testing.T) {
	t.Parallel()
	server := &pager{nodes: 1, instead: func(int, http.ResponseWriter) bool { <-time.After(1500 * time.Millisecond); return false }}
	c := open(t, fakeAccess{api: serve(t, map[string]http.HandlerFunc{
		nodesPath:          server.ServeHTTP,
		"/api/v1/services": answer(http.StatusOK, `{"kind":"ServiceList","apiVersion":"v1","items":[]}`),
		advertisementsPath: answer(http.StatusOK, `{"kind":"BGPAdvertisementList","apiVersion":"metallb.io/v1beta1","items":[{"kind":"BGPAdvertisement","apiVersion":"metallb.io/v1beta1","metadata":{"name":"a"}}]}`),
		poolsPath:          answer(http.StatusOK, `{"kind":"IPAddressPoolList","apiVersion":"metallb.io/v1beta1","items":[]}`),
	})}, Nodes, BGPAdvertisements)
	for _, s := range c.sources {
		if s.kind == BGPAdvertisements.kind {
			s.usual, s.within = proxyTimeout, proxyTimeout
		}
	}
	s := c.Collect(t.Context())
	if s.Nodes.Error != "no answer within 1s" || !s.BGPAdvertisements.Read || len(server.asked) != 1 {
		t.Errorf("Nodes %q, advertisements %+v, asked %q", s.Nodes.Error, s.BGPAdvertisements, server.asked)
	}
}

// Each rule that is missing is named, and what is not there needs none.
func TestMissingPermissions(t *testing.T) {
	no := answer(http.StatusForbidden, forbidden)
	c := open(t, fakeAccess{api: serve(t, map[string]http.HandlerFunc{
		"/apis/apps/v1/daemonsets": no, "/apis/apps/v1/statefulsets": no,
		"/apis/apps/v1/deployments": answer(http.StatusOK, `{"kind":"DeploymentList","apiVersion":"apps/v1","items":[]}`),
		blockPath:                   no,
		ciliumPath:                  answer(http.StatusNotFound, "404 page not found\n"),
		nodesPath:                   protobuf(t, &nodeList),
	})}, Workloads, CalicoBlocks, CiliumNodes, Nodes)
	s := c.Collect(t.Context())
	must.Equal(t, "unavailable", "IPAMBlocks: listing IPAMBlocks: list on ipamblocks in crd.projectcalico.org is not permitted: not allowed; "+
		"workloads: listing DaemonSets: list on daemonsets in apps is not permitted: not allowed; "+
		"listing StatefulSets: list on statefulsets in apps is not permitted: not allowed", Sentences(s.Unavailable()))
	must.Equal(t, "Nodes", 2, len(s.Nodes.Items))
}

func TestResources(t *testing.T) {
	want := []schema.GroupVersionResource{{Version: "v1", Resource: "nodes"}, {Version: "v1", Resource: "pods"}}
	must.Equal(t, "", want, Resources(Pods, Nodes, RunningImages, Routers))
}
