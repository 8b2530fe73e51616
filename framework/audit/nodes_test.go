package audit

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/nodestate"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

func read[T any](items ...T) snapshot.List[T] { return snapshot.List[T]{Read: true, Items: items} }

// nodeAnswer is the answer of a node without a fault.
func nodeAnswer(node string) snapshot.Snapshot {
	return snapshot.Snapshot{
		NodeNetworks: []snapshot.NodeNetwork{{Node: node, Interfaces: read(snapshot.Interface{Name: "eth0"}), BIRD: read[snapshot.BIRDProtocol]()}},
		NodeTables:   []snapshot.NodeTable{{Node: node, Routes: read[snapshot.Route]()}},
		Firewalls:    []snapshot.Firewall{{Node: node, Rules: read[snapshot.Rule]()}},
		NAT:          []snapshot.NodeNAT{{Node: node, Rules: read[snapshot.Rule](), Flows: read[snapshot.Flow](), Programs: read[snapshot.Program]()}},
		Proxies:      []snapshot.Proxy{{Node: node, Read: true}},
	}
}

func zipped(w io.Writer, answer any) {
	zip := gzip.NewWriter(w)
	_ = json.NewEncoder(zip).Encode(answer)
	_ = zip.Close()
}

func installed(t *testing.T) *Nodes {
	t.Helper()
	return must.Get(ParseNodes("nodes.yaml", []byte(must.Get(nodesManifest(NodeImage, false, "secret", time.Now()))(t))))(t)
}

func auditedWith(t *testing.T, s *server) ([]snapshot.Snapshot, Result) {
	t.Helper()
	by := installed(t)
	reads := must.Get(Read(t.Context(), Access{Config: s.configOf(t, by), ByNode: by}, time.Millisecond, func(string) {}))(t)
	return reads, must.Get(Judge(reads))(t)
}

// many is a server with some nodes, each with a pod. asked is called before each answer, and its result after it.
func many(t *testing.T, nodes int, asked func(context.Context) (answered func())) *server {
	s := newServer(t)
	for i := range nodes {
		name, prefix := fmt.Sprintf("node%d", i), fmt.Sprintf("10.5.%d.0/24", i)
		s.node(name, fmt.Sprintf("10.4.94.%d", i+1), prefix, prefix)
		s.podOn(name, ready)
	}
	s.pods = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer asked(r.Context())()
		pod, _ := nodestate.Pod(r.URL.Path, "relapse-nodes")
		zipped(w, nodeAnswer(strings.TrimPrefix(pod, "pod-on-")))
	})
	return s
}

func (s *server) podOn(node, status string) {
	s.add("/api/v1/namespaces/relapse-nodes/pods",
		fmt.Sprintf(`{"metadata":{"namespace":"relapse-nodes","name":"pod-on-%s"},"spec":{"nodeName":%q},"status":%s}`, node, node, status))
}

const ready = `{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}`

var podsNode = regexp.MustCompile(`master\d`)

// One request reads a node completely, or the node is unread, by name.
func TestNodes(t *testing.T) {
	const everything = 8 // the number of a node's parts
	for name, test := range map[string]struct {
		status string // of master2's pod; empty: there is none
		answer http.HandlerFunc
		unread string // of master2
		parts  int
	}{
		"read":      {ready, func(w http.ResponseWriter, _ *http.Request) { zipped(w, nodeAnswer("master2")) }, "", 0},
		"no pod":    {"", nil, "none of the pods that read nodes is on it", everything},
		"not ready": {`{"phase":"Pending","containerStatuses":[{"state":{"waiting":{"reason":"ImagePullBackOff"}}}]}`, nil, "pod relapse-nodes/pod-on-master2 on it is not ready: ImagePullBackOff", everything},
		"another key": {ready, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
			"pod pod-on-master2 does not take the key of nodes.yaml", everything},
		"an old key": {ready, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) },
			"the key of nodes.yaml has ended: expected a new manifest", everything},
		"an error": {ready, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "full", http.StatusInternalServerError) }, "asking pod pod-on-master2: ", everything},
		"a page":   {ready, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }, "the answer is not gzip", everything},
		"half an answer": {ready, func(w http.ResponseWriter, _ *http.Request) {
			var b strings.Builder
			zipped(&b, nodeAnswer("master2"))
			fmt.Fprint(w, b.String()[:b.Len()/2])
		}, "the answer ends early", everything},
		"too much":     {ready, func(w http.ResponseWriter, _ *http.Request) { zipped(w, strings.Repeat(" ", nodestate.MaxAnswer)) }, "the answer has more than", everything},
		"no snapshot":  {ready, func(w http.ResponseWriter, _ *http.Request) { zipped(w, []int{1}) }, "the answer is no snapshot", everything},
		"another node": {ready, func(w http.ResponseWriter, _ *http.Request) { zipped(w, nodeAnswer("master1")) }, "has not answered with ", everything},
		"another version": {ready, func(w http.ResponseWriter, _ *http.Request) {
			answer := nodeAnswer("master2")
			answer.Proxies = nil
			zipped(w, answer)
		}, "the program on it has not answered with kube-proxies of this node", 1},
		"a part is unread there": {ready, func(w http.ResponseWriter, _ *http.Request) {
			answer := nodeAnswer("master2")
			answer.NAT[0].Flows = snapshot.List[snapshot.Flow]{Error: "too many"}
			zipped(w, answer)
		}, "flows of master2: too many", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := incident(t, "10.5.112.0/24", "10.5.114.0/24")
			s.podOn("master1", ready)
			if test.status != "" {
				s.podOn("master2", test.status)
			}
			s.pods = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method != http.MethodGet || r.Header.Get(nodestate.KeyHeader) != nodestate.Key("secret", podsNode.FindString(r.URL.Path)):
					t.Errorf("%s %s with key %q", r.Method, r.URL, r.Header.Get(nodestate.KeyHeader))
				case strings.Contains(r.URL.Path, "master1"):
					zipped(w, nodeAnswer("master1"))
				default:
					test.answer(w, r)
				}
			})
			reads, r := auditedWith(t, s)
			must.Equal(t, r.Unread, test.parts, len(r.Unread))
			for _, m := range r.Unread {
				must.Contain(t, m.String(), test.unread, "of master2")
			}
			must.Equal(t, "not run", 0, strings.Count(fmt.Sprint(r.NotRun), "--nodes"))
			must.Equal(t, "master1 was asked", len(reads), s.asked["GET "+nodestate.Proxied("relapse-nodes", "pod-on-master1")])
		})
	}
}

// Only some of many nodes are asked at the same time, and each node is asked once in a read.
func TestManyNodes(t *testing.T) {
	const nodes = 3 * atOnce
	var now, most atomic.Int32
	full := make(chan bool) // closed when atOnce nodes are asked
	s := many(t, nodes, func(ctx context.Context) func() {
		n := now.Add(1)
		for before := most.Load(); n > before && !most.CompareAndSwap(before, n); before = most.Load() {
		}
		if n == atOnce {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		select {
		case <-full:
		case <-ctx.Done():
		}
		return func() { now.Add(-1) }
	})
	reads, r := auditedWith(t, s)
	must.Equal(t, r.Unread, [...]int{0, nodes, atOnce}, [...]int{len(r.Unread), r.Nodes, int(most.Load())})
	for path, times := range s.asked {
		if strings.Contains(path, "/proxy/") {
			must.Equal(t, path, len(reads), times)
		}
	}
}

// With the nodes, Cilium's ConfigMap is read. If that is forbidden and Cilium runs, masquerading is not judged.
func TestNodesReadCiliumsConfig(t *testing.T) {
	for _, test := range []struct {
		name           string
		config, cilium bool
		lacks          string
	}{
		{"read", true, true, "the sockets of hosts outside"},
		{"not permitted", false, true, "ConfigMap kube-system/cilium-config, which says what Cilium is to hide (the Role of --rbac --upgrade permits it): no"},
		{"no Cilium", false, false, "the sockets of hosts outside"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := withNodes(0, func(s *snapshot.Snapshot) {
				if !test.config {
					s.ConfigMaps = snapshot.List[snapshot.ConfigMap]{Error: "no"}
				}
				if !test.cilium {
					s.CiliumNodes.Items = nil
				}
			})
			r := must.Get(Judge([]snapshot.Snapshot{s, s}))(t)
			must.Equal(t, r.Unread, test.cilium && !test.config, len(r.Unread) > 0)
			ran := slices.Contains(r.Ran, "snat")
			for _, n := range r.NotRun {
				if n.Detector == "snat" {
					must.Equal(t, n, [...]any{test.lacks, !ran}, [...]any{n.Lacks, n.Part == ""})
				}
			}
		})
	}
	s := incident(t, "10.5.112.0/24", "10.5.114.0/24")
	auditedWith(t, s)
	must.Equal(t, "the ConfigMap was asked for", true, s.asked["GET "+ConfigPath] > 0)
}

// Without any router's FIB, masquerading by nodes is not judged, and the audit is open.
func TestNodesWithoutFIB(t *testing.T) {
	for _, fib := range []bool{true, false} {
		s := withNodes(0, func(s *snapshot.Snapshot) {
			s.ConfigMaps.Items[0].Data = map[string]string{"enable-ipv4-masquerade": "false"}
			if tor := &s.Routers[0]; !fib {
				tor.Role, tor.RIBOnly, tor.Routes = snapshot.RoleRouteServer, true, snapshot.List[snapshot.Route]{}
			}
		})
		r := must.Get(Judge([]snapshot.Snapshot{s, s}))(t)
		open := slices.ContainsFunc(r.NotJudged, func(g detect.Gap) bool { return g.Open && strings.Contains(g.Says, "the FIB of no router was read") })
		must.Equal(t, r.NotJudged, [...]bool{fib, !fib}, [...]bool{slices.Contains(r.Ran, "snat"), open})
	}
}

// The timeout of a read of many nodes depends on the rate.
func TestNodesByRate(t *testing.T) {
	s := many(t, 4, func(context.Context) func() { return func() {} })
	by := installed(t)
	config := s.configOf(t, by)
	limit := &turns{RateLimiter: flowcontrol.NewFakeAlwaysRateLimiter()}
	config.RateLimiter = limit
	must.Get(Read(t.Context(), Access{Config: config, ByNode: by}, time.Millisecond, func(string) {}))(t)
	all := 0
	for _, times := range s.asked {
		all += times
	}
	must.Equal(t, "requests that waited for their turn", all, int(limit.waited.Load()))
	must.Equal(t, "there are some", true, all > 0)
	must.Equal(t, "5000 requests at 5 a second take", 1000*time.Second, durationOf(5000, 5))
}

// turns is a limiter of half a request a second: it counts the waiting requests, and lets them all pass at once.
type turns struct {
	flowcontrol.RateLimiter
	waited atomic.Int32
}

func (l *turns) QPS() float32 { return 0.5 }

func (l *turns) Wait(context.Context) error {
	l.waited.Add(1)
	return nil
}

// If listing the pods is forbidden, no node is read, and the result says so.
func TestNodesForbidden(t *testing.T) {
	s := incident(t, "10.5.112.0/24", "10.5.114.0/24")
	s.refused = []string{"/api/v1/namespaces/relapse-nodes/pods"}
	_, r := auditedWith(t, s)
	must.Equal(t, r.Unread, len(nodestate.Sources), len(r.Unread))
	must.Contain(t, r.Unread[0].Reason, "listing the pods that read nodes, in namespace relapse-nodes: ")
	must.Equal(t, "open", true, r.Open())
}

// The client asks only the pods of the manifest, for one path.
func TestOnlyThesePods(t *testing.T) {
	s := newServer(t)
	s.pods = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	client := must.Get(rest.HTTPClientFor(s.configOf(t, installed(t))))(t)
	const proxied = "/api/v1/namespaces/relapse-nodes/pods/https:a:19767/proxy/node"
	for _, test := range []struct {
		method, path string
		sent         bool
	}{
		{http.MethodGet, proxied, true},
		{http.MethodGet, "/api/v1/namespaces/relapse-nodes/pods?labelSelector=a", true},
		{http.MethodPost, proxied, false},
		{http.MethodDelete, "/api/v1/namespaces/relapse-nodes/pods", false},
		{http.MethodGet, proxied + "/", false},
		{http.MethodGet, proxied + "?a=b", false},
		{http.MethodGet, strings.Replace(proxied, "/node", "/../node", 1), false},
		{http.MethodGet, strings.Replace(proxied, "https:a:19767", "a", 1), false},
		{http.MethodGet, strings.Replace(proxied, "19767", "10250", 1), false},
		{http.MethodGet, strings.Replace(proxied, "https:a", "https:a%2f..%2fb", 1), false},
		{http.MethodGet, strings.Replace(proxied, "https:a", "https:", 1), false},
		{http.MethodGet, strings.Replace(proxied, "relapse-nodes", "kube-system", 1), false},
		{http.MethodGet, "/api/v1/namespaces/kube-system/pods", false},
		{http.MethodGet, "/api/v1/namespaces/relapse-nodes/pods/a/exec", false},
		{http.MethodGet, "/api/v1/namespaces/relapse-nodes/secrets", false},
	} {
		err := s.send(t, client, test.method, test.path)
		must.Equal(t, test.method+" "+test.path, test.sent, err == nil)
	}
}

func TestNodesManifest(t *testing.T) {
	for name, calico := range map[string]bool{"nodes": false, "nodes-calico": true} {
		text := must.Get(nodesManifest("registry.example/relapse/nodestate:dev", calico, "KEY", time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC)))(t)
		goldentest.Compare(t, name+".yaml", text)
	}
	one := must.Get(NodesManifest(NodeImage, false))(t)
	other, _ := NodesManifest(NodeImage, false)
	own := regexp.MustCompile(`\n  key: [A-Z2-7]{26,}\n`).MatchString(one)
	must.Equal(t, one, [...]bool{false, true}, [...]bool{one == other, own})
	must.Fail(t, must.Err(NodesManifest("a b", false)), "a b")
}

func TestParseNodes(t *testing.T) {
	text := must.Get(nodesManifest(NodeImage, true, "secret", time.Now()))(t)
	for name, test := range map[string]struct{ from, to, want string }{
		"as printed":           {"", "", ""},
		"in another namespace": {"namespace: relapse-nodes", "namespace: audit", ""},
		"without the key":      {"  key: secret", "  other: secret", "nodes.yaml: no Secret with stringData.key"},
		"without the pods":     {"kind: DaemonSet", "kind: Deployment", "nodes.yaml: no DaemonSet with a namespace"},
		"another path":         {"namespace: relapse-nodes", "namespace: a/b", "nodes.yaml: no DaemonSet with a namespace"},
		"no YAML":              {"kind: DaemonSet", "kind: [", "nodes.yaml: "},
	} {
		n, err := ParseNodes("nodes.yaml", []byte(strings.ReplaceAll(text, test.from, test.to)))
		if test.want != "" {
			must.Fail(t, err, test.want)
			continue
		}
		must.NoError(t, err)
		must.Equal(t, name, [...]string{"secret", "app.kubernetes.io/name=relapse-nodes"}, [...]string{n.key, n.selector})
		must.Equal(t, name, false, n.namespace == "")
	}
}

// withNodes is a read with nodes, some seconds after the first read.
func withNodes(seconds int, change func(*snapshot.Snapshot)) snapshot.Snapshot {
	s := cluster(false)
	s.Time = s.Time.Add(time.Duration(seconds) * time.Second)
	for _, source := range nodestate.Sources {
		s.Sources = append(s.Sources, snapshot.Asked{Name: source.String()})
	}
	s.ConfigMaps = read(snapshot.ConfigMap{Namespace: "kube-system", Name: "cilium-config", Data: map[string]string{"ipam": "cluster-pool"}})
	for _, n := range s.Nodes.Items {
		answer := nodeAnswer(n.Name)
		s.NodeNetworks = append(s.NodeNetworks, answer.NodeNetworks...)
		s.NodeTables = append(s.NodeTables, answer.NodeTables...)
		s.Firewalls = append(s.Firewalls, answer.Firewalls...)
		s.NAT = append(s.NAT, answer.NAT...)
		s.Proxies = append(s.Proxies, answer.Proxies...)
	}
	change(&s)
	return s
}

// Detectors of nodes judge by two reads what is open after one.
func TestOverTime(t *testing.T) {
	dns := func(s *snapshot.Snapshot) {
		s.Services.Items = []snapshot.Service{{Namespace: "default", Name: "dns", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []snapshot.ServicePort{{Protocol: "UDP", Port: 53}}}}
		s.EndpointSlices.Items = []snapshot.EndpointSlice{{Namespace: "default", Service: "dns", Ports: []snapshot.ServicePort{{Protocol: "UDP", Port: 53}}, Ready: []netip.Addr{netip.MustParseAddr("10.5.112.9")}}}
	}
	gone := func(expires time.Duration) func(*snapshot.Snapshot) {
		return func(s *snapshot.Snapshot) {
			dns(s)
			client := netip.MustParseAddrPort("10.5.112.2:40000")
			s.NAT[0].Flows = read(snapshot.Flow{
				Protocol: "udp", Source: client, SeenAs: client, Destination: netip.MustParseAddrPort("10.96.0.10:53"),
				Redirected: true, AnsweredBy: netip.MustParseAddrPort("10.5.112.8:53"), Expires: expires,
			})
		}
	}
	stopped := func(s *snapshot.Snapshot) {
		dns(s)
		p := &s.Proxies[0]
		p.Mode, p.Health.Status, p.Health.CurrentTime = "ipvs", http.StatusOK, s.Time
		p.Health.LastUpdated = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	}
	mesh := func(state string) func(*snapshot.Snapshot) {
		return func(s *snapshot.Snapshot) {
			for i := range s.Nodes.Items {
				s.Nodes.Items[i].Calico.Address = netip.PrefixFrom(s.Nodes.Items[i].InternalIPs[0], 24)
				s.NodeNetworks[i].BIRD = read(snapshot.BIRDProtocol{Name: "Mesh_1", Proto: "BGP", BGPState: state, Neighbor: s.Nodes.Items[1-i].InternalIPs[0]})
			}
		}
	}
	quiet := func(*snapshot.Snapshot) {}
	for _, test := range []struct {
		name  string
		reads []snapshot.Snapshot
		want  []string
		once  int
	}{
		{"nothing", []snapshot.Snapshot{withNodes(0, quiet), withNodes(10, quiet)}, []string{}, 0},
		{"packets go to what is no endpoint", []snapshot.Snapshot{withNodes(0, gone(110*time.Second)), withNodes(10, gone(115*time.Second))}, []string{"active gone-endpoint default/dns:53/UDP"}, 0},
		{"no packets any more", []snapshot.Snapshot{withNodes(0, gone(110*time.Second)), withNodes(10, gone(100*time.Second))}, []string{}, 1},
		{"and a third read", []snapshot.Snapshot{withNodes(0, gone(110*time.Second)), withNodes(10, gone(100*time.Second)), withNodes(20, gone(90*time.Second))}, []string{}, 0},
		{"it has just begun", []snapshot.Snapshot{withNodes(0, quiet), withNodes(10, gone(110*time.Second))}, []string{}, 1},
		{"kube-proxy has stopped", []snapshot.Snapshot{withNodes(0, stopped), withNodes(10, stopped)}, []string{"active missing-service master1"}, 0},
		{"kube-proxy may catch up", []snapshot.Snapshot{withNodes(0, stopped), withNodes(5, stopped)}, []string{"settling missing-service master1"}, 0},
		{"no session of the mesh", []snapshot.Snapshot{withNodes(0, mesh("Active")), withNodes(10, mesh("Active"))}, []string{"active session-down master1"}, 0},
		{"the mesh is up", []snapshot.Snapshot{withNodes(0, mesh(snapshot.Established)), withNodes(10, mesh(snapshot.Established))}, []string{}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := must.Get(Judge(test.reads))(t)
			must.Equal(t, found(r.Once), test.want, found(r.Findings))
			must.Equal(t, "seen once, and unread", [...]int{test.once, 0}, [...]int{len(r.Once), len(r.Unread)})
		})
	}
}

// A source that a read of nodes lacks without an error is named as well.
func TestNodesLacking(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*snapshot.Snapshot)
		want   []string
	}{
		"a new node":                       {func(s *snapshot.Snapshot) { s.Nodes.Items = append(s.Nodes.Items, snapshot.Node{Name: "new"}) }, []string{"all of new: the node was added after the nodes were listed"}},
		"a table that is not kube-proxy's": {func(s *snapshot.Snapshot) { s.Proxies[0].Table = []snapshot.VirtualServer{{Protocol: "TCP"}} }, []string{}},
		"a kube-proxy of unknown mode": {func(s *snapshot.Snapshot) {
			s.Proxies[0].Table = []snapshot.VirtualServer{{Protocol: "TCP"}}
			c := snapshot.RunningContainer{Container: snapshot.Container{Name: "kube-proxy"}}
			s.PodImages.Items = append(s.PodImages.Items, snapshot.PodImages{Node: "master1", Containers: []snapshot.RunningContainer{c}})
		}, []string{"mode of kube-proxy on master1: it does not answer on port 10249 of 127.0.0.1, and there is a table of Services"}},
		"a process with kube-proxy, whose mode is not known": {func(s *snapshot.Snapshot) {
			s.Proxies[0].Table, s.Proxies[0].Health.Status = []snapshot.VirtualServer{{Protocol: "TCP"}}, 200
		},
			[]string{"mode of kube-proxy on master1: it does not answer on port 10249 of 127.0.0.1, and there is a table of Services"}},
		"no kube-proxy": {func(*snapshot.Snapshot) {}, []string{}},
		"a kube-proxy without metrics": {func(s *snapshot.Snapshot) { s.Proxies[0].Mode, s.Proxies[0].Health.Status = snapshot.NFTables, 200 },
			[]string{"syncs of kube-proxy on master1: it does not report its metrics on port 10249 of 127.0.0.1"}},
	} {
		r := must.Get(Judge([]snapshot.Snapshot{withNodes(0, test.change), withNodes(10, test.change)}))(t)
		must.Equal(t, name, strings.Join(test.want, "; "), snapshot.Sentences(r.Unread))
	}
}
