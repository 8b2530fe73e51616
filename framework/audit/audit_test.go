package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/audit/bundle"
	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// server is an API server that answers lists, by path, and counts requests.
type server struct {
	*httptest.Server
	mu      sync.Mutex
	lists   map[string]string // items by path; other paths do not exist
	asked   map[string]int    // by method and path
	agents  map[string]bool
	refused []string
	// ahead is how far its clock is ahead of this machine's.
	ahead time.Duration
	// pods answers proxied requests to pods; nil: there are no pods.
	pods http.Handler
}

func newServer(t *testing.T) *server {
	s := &server{asked: map[string]int{}, agents: map[string]bool{}, lists: map[string]string{}}
	for _, r := range resources {
		if !strings.Contains(r.Group, ".io") || strings.HasSuffix(r.Group, "k8s.io") { // built in
			s.lists[bundle.Path(r)] = ""
		}
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked[r.Method+" "+r.URL.Path]++
	s.agents[r.UserAgent()] = true
	s.mu.Unlock()
	if s.pods != nil && strings.Contains(r.URL.Path, "/proxy/") {
		s.pods.ServeHTTP(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	items, there := s.lists[r.URL.Path]
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Date", time.Now().Add(s.ahead).UTC().Format(http.TimeFormat))
	switch {
	case s.pods != nil && r.URL.Path == "/api/v1/namespaces/relapse-nodes/pods":
		fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[%s]}`, items)
	case slices.Contains(s.refused, r.URL.Path):
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"forbidden: not for you","reason":"Forbidden","code":403}`)
	case !there:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","code":404}`)
	default:
		for _, resource := range resources {
			if bundle.Path(resource) == r.URL.Path {
				fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{},"items":[%s]}`, kinds[resource.Resource], strings.TrimPrefix(resource.Group+"/"+resource.Version, "/"), items)
			}
		}
	}
}

var kinds = map[string]string{
	"nodes": "NodeList", "pods": "PodList", "services": "ServiceList", "daemonsets": "DaemonSetList", "deployments": "DeploymentList",
	"statefulsets": "StatefulSetList", "ciliumnodes": "CiliumNodeList", "ipamblocks": "IPAMBlockList", "endpointslices": "EndpointSliceList",
	"ippools": "IPPoolList", "bgppeers": "BGPPeerList", "bgpconfigurations": "BGPConfigurationList", "ciliumpodippools": "CiliumPodIPPoolList",
	"ciliumbgppeeringpolicies": "CiliumBGPPeeringPolicyList", "ciliumbgppeerconfigs": "CiliumBGPPeerConfigList", "ciliumbgpadvertisements": "CiliumBGPAdvertisementList", "bgpadvertisements": "BGPAdvertisementList", "ciliumbgpclusterconfigs": "CiliumBGPClusterConfigList", "ipaddresspools": "IPAddressPoolList", "servicel2statuses": "ServiceL2StatusList", "leases": "LeaseList", "clusterrolebindings": "ClusterRoleBindingList", "bgppolicies": "BGPPolicyList", "frrconfigurations": "FRRConfigurationList",
	"clusterroles": "ClusterRoleList", "rolebindings": "RoleBindingList", "roles": "RoleList",
	"customresourcedefinitions": "CustomResourceDefinitionList",
}

func (s *server) add(path, item string) {
	if s.lists[path] != "" {
		item = s.lists[path] + "," + item
	}
	s.lists[path] = item
}

func (s *server) node(name, ip, podCIDR, ciliumCIDR string) {
	s.add("/api/v1/nodes", fmt.Sprintf(`{"metadata":{"name":%q,"uid":%q,"creationTimestamp":"2022-06-01T12:00:00Z"},"spec":{"podCIDRs":[%q]},"status":{"conditions":[{"type":"Ready","status":"True"}],"addresses":[{"type":"InternalIP","address":%q}]}}`, name, name, podCIDR, ip))
	s.add("/apis/cilium.io/v2/ciliumnodes", fmt.Sprintf(`{"apiVersion":"cilium.io/v2","kind":"CiliumNode","metadata":{"name":%q},"spec":{"addresses":[{"type":"InternalIP","ip":%q}],"ipam":{"podCIDRs":[%q]}}}`, name, ip, ciliumCIDR))
}

func incident(t *testing.T, ciliumFirst, ciliumSecond string) *server {
	s := newServer(t)
	s.node("master1", "10.4.94.32", "10.5.112.0/24", ciliumFirst)
	s.node("master2", "10.4.94.21", "10.5.114.0/24", ciliumSecond)
	return s
}

func (s *server) config(t *testing.T) *rest.Config { return s.configOf(t, nil) }

func (s *server) configOf(t *testing.T, nodes *Nodes) *rest.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
"clusters":[{"name":"a","cluster":{"server":"` + s.URL + `"}}],"users":[{"name":"a","user":{"token":"t"}}]}`
	must.Write(t, file, text)
	config, name, err := Client{Kubeconfig: file, Version: "v1.2.3", Nodes: nodes, Cilium: nodes != nil}.Config()
	must.NoError(t, err)
	must.Equal(t, "context", "a", name)
	must.Equal(t, "", RequestsPerSecond, config.RateLimiter.QPS())
	config.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter() // otherwise a read takes seconds
	return config
}

// frr is a router that has a session with each node, and paths by prefix.
func frr(t *testing.T, paths map[string]string) bgprouter.Declared {
	t.Helper()
	dir := t.TempDir()
	routes, neighbors := map[string]any{}, map[string]any{}
	for prefix, hop := range paths {
		routes[prefix] = []any{map[string]any{"bestpath": true, "pathFrom": "external", "peerId": hop, "path": "64513", "origin": "IGP", "nexthops": []any{map[string]any{"ip": hop}}}}
	}
	for _, ip := range []string{"10.4.94.32", "10.4.94.21"} {
		neighbors[ip] = map[string]any{"remoteAs": 64513, "remoteRouterId": ip, "bgpState": "Established", "bgpTimerUpEstablishedEpoch": 1654084800}
	}
	for name, value := range map[string]any{"rib": map[string]any{"routes": routes}, "neighbors": neighbors, "fib": []any{}} {
		must.Write(t, filepath.Join(dir, name), string(must.Get(json.Marshal(value))(t)))
	}
	script := "#!/bin/sh\ncd " + dir + "\ncase \"$*\" in *vrfs*) echo '{\"vrfs\":{}}';; *ipv6*) echo '{\"routes\":{}}';; *unicast*) cat rib;; *-6*) echo [];; *neighbors*) cat neighbors;; *route*) cat fib;; *) exit 1;; esac\n"
	run := filepath.Join(dir, "run")
	must.NoError(t, os.WriteFile(run, []byte(script), 0o755))
	return bgprouter.Declared{Name: "tor1", Kind: bgprouter.FRR, Command: []string{run}}
}

func audited(t *testing.T, s *server, routers ...bgprouter.Declared) ([]snapshot.Snapshot, Result, error) {
	t.Helper()
	readers := must.Get(bgprouter.Readers(routers, nil))(t)
	reads, err := Read(t.Context(), Access{Config: s.config(t), Routing: readers}, time.Millisecond, func(text string) { t.Log(text) })
	must.NoError(t, err)
	r, err := Judge(reads)
	return reads, r, err
}

func found(all []Finding) []string {
	names := []string{}
	for _, f := range all {
		names = append(names, fmt.Sprintf("%s %s %s", f.State, f.Kind, f.Object))
	}
	return names
}

// A whole audit only lists, and only the resources in the ClusterRole.
func TestAuditOnlyLists(t *testing.T) {
	s := incident(t, "10.5.112.0/24", "10.5.114.0/24")
	// Resources that advertisements refer to are listed only if there are advertisements.
	s.lists["/apis/metallb.io/v1beta1/bgpadvertisements"] = `{"apiVersion":"metallb.io/v1beta1","kind":"BGPAdvertisement","metadata":{"namespace":"a","name":"a"},"spec":{}}`
	s.lists["/apis/metallb.io/v1beta1/ipaddresspools"] = ""
	s.lists["/apis/cilium.io/v2alpha1/ciliumbgpclusterconfigs"] = `{"apiVersion":"cilium.io/v2alpha1","kind":"CiliumBGPClusterConfig","metadata":{"name":"a"},"spec":{}}`
	_, r, err := audited(t, s, frr(t, map[string]string{"10.5.112.0/24": "10.4.94.32", "10.5.114.0/24": "10.4.94.21"}))
	must.NoError(t, err)
	entries := len(r.Findings) + len(r.Unread) + len(r.NotJudged) + len(r.Once)
	must.Equal(t, "told, reads, nodes", [...]int{0, 2, 2}, [...]int{entries, r.Reads, r.Nodes})
	var role struct {
		Kind  string
		Rules []struct{ APIGroups, Resources, Verbs []string }
	}
	must.NoError(t, yaml.Unmarshal([]byte(Role()), &role))
	must.Equal(t, "kind", "ClusterRole", role.Kind)
	permitted := map[string]bool{}
	for _, rule := range role.Rules {
		must.Equal(t, "verbs", []string{"get", "list"}, rule.Verbs)
		for _, name := range rule.Resources {
			permitted[rule.APIGroups[0]+"/"+name] = true
		}
	}
	for asked := range s.asked {
		method, at, _ := strings.Cut(asked, " ")
		i := slices.IndexFunc(resources, func(r schema.GroupVersionResource) bool { return bundle.Path(r) == at })
		lists := method == http.MethodGet && i >= 0 && permitted[resources[i].Group+"/"+resources[i].Resource]
		must.Equal(t, "permitted: "+asked, true, lists)
	}
	must.Equal(t, "asked for", len(resources), len(s.asked))
	must.Equal(t, "user agents", map[string]bool{"relapse-audit/v1.2.3": true}, s.agents)
}

func (s *server) send(t *testing.T, client *http.Client, method, path string) error {
	t.Helper()
	response, err := client.Do(must.Get(http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader("{}")))(t))
	if err == nil {
		response.Body.Close()
	}
	return err
}

// The client refuses each request that could change something.
func TestReadOnly(t *testing.T) {
	s := newServer(t)
	client := must.Get(rest.HTTPClientFor(s.config(t)))(t)
	for _, test := range []struct{ method, path string }{
		{http.MethodPost, "/api/v1/nodes"}, {http.MethodPut, "/api/v1/nodes/a"}, {http.MethodPatch, "/api/v1/nodes"},
		{http.MethodDelete, "/api/v1/nodes"}, {http.MethodGet, "/api/v1/secrets"}, {http.MethodGet, "/api/v1/nodes?watch=true"}, {http.MethodGet, "/api/v1/namespaces/a/pods/b/exec"},
		{http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}, {http.MethodGet, "/api/v1/namespaces/a/services/b/proxy/api/v1/nodes"},
	} {
		must.Fail(t, s.send(t, client, test.method, test.path), "relapse audit only lists, and does not send")
	}
	must.Equal(t, s.asked, 0, len(s.asked))
}

// The state that node-drain leaves is found in the live cluster, and in the saved reads.
func TestFindingsAndSavedOnes(t *testing.T) {
	s := incident(t, "10.5.114.0/24", "10.5.115.0/24")
	reads, live, err := audited(t, s, frr(t, map[string]string{"10.5.112.0/24": "10.4.94.32", "10.5.114.0/24": "10.4.94.21"}))
	must.NoError(t, err)
	want := []string{"active unannounced 10.5.115.0/24", "latent absent-node 10.5.112.0/24", "latent wrong-announcer 10.5.114.0/24"}
	// Node.spec gives 10.5.112.0/24 to master1, which exists, and no CiliumNode has the range.
	must.Equal(t, "findings", want, found(live.Findings))
	dir := filepath.Join(t.TempDir(), "saved")
	must.NoError(t, Prepare(dir))
	must.NoError(t, Save(dir, reads))
	must.Equal(t, "a second audit may be saved to the folder", false, Prepare(dir) == nil)
	must.Equal(t, "others may not read it", 0o600, must.Get(os.Stat(filepath.Join(dir, nameOf(0))))(t).Mode().Perm())
	from := must.Get(json.Marshal(must.Get(Judge(must.Get(Saved(dir))(t)))(t)))(t)
	must.Equal(t, "the saved reads are judged otherwise", string(must.Get(json.Marshal(live))(t)), string(from))
	must.Equal(t, "Nodes were listed", 2, s.asked["GET /api/v1/nodes"])
}

// cluster is one read of two nodes that announce the ranges of their CiliumNodes; wrong: the second node does not.
func cluster(wrong bool) snapshot.Snapshot {
	s := snapshot.Snapshot{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for _, source := range sources(scope{routers: true}) {
		s.Sources = append(s.Sources, snapshot.Asked{Name: source.String()})
	}
	for _, read := range []*bool{
		&s.Nodes.Read, &s.CiliumNodes.Read, &s.CalicoBlocks.Read, &s.Pods.Read, &s.Services.Read, &s.EndpointSlices.Read,
		&s.BGPAdvertisements.Read, &s.AddressPools.Read, &s.L2Announcements.Read, &s.CalicoPools.Read, &s.CalicoPeers.Read, &s.NodeSelections.Read, &s.MetalLBPeers.Read, &s.Workloads.Read, &s.PodImages.Read, &s.Accounts.Read, &s.CalicoAgents.Read,
	} {
		*read = true
	}
	tor := snapshot.Router{Name: "tor1"}
	tor.Paths.Read, tor.Routes.Read, tor.Neighbors.Read = true, true, true
	for i, name := range []string{"master1", "master2"} {
		ip, announced := netip.AddrFrom4([4]byte{10, 4, 94, byte(31 + i)}), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(112 + i), 0}), 24)
		has := announced
		if wrong && i == 1 {
			has = netip.MustParsePrefix("10.5.115.0/24")
		}
		s.Nodes.Items = append(s.Nodes.Items, snapshot.Node{Name: name, Ready: true, InternalIPs: []netip.Addr{ip}, PodCIDRs: []netip.Prefix{announced}})
		s.CiliumNodes.Items = append(s.CiliumNodes.Items, snapshot.CiliumNode{Name: name, PodCIDRs: []netip.Prefix{has}, InternalIPs: []netip.Addr{ip}})
		tor.Neighbors.Items = append(tor.Neighbors.Items, snapshot.Neighbor{Address: ip, AS: 64513, State: snapshot.SessionEstablished})
		tor.Paths.Items = append(tor.Paths.Items, snapshot.Path{Prefix: announced, NextHop: ip, Neighbor: ip, Best: true})
	}
	s.Routers = []snapshot.Router{tor}
	return s
}

// If the first two reads disagree, there is a third one, and the findings are in both of the last two reads.
func TestDisagreement(t *testing.T) {
	const both = "active unannounced 10.5.115.0/24"
	for _, test := range []struct {
		name  string
		wrong []bool // in each read, whether master2 holds a range that it does not announce
		reads int
		holds []string
		once  int
	}{
		{"steady", []bool{true, true}, 2, []string{both, "latent absent-node 10.5.113.0/24"}, 0},
		{"half of a change", []bool{true, false, false}, 3, []string{}, 0},
		{"it has just begun", []bool{false, true, true}, 3, []string{both, "latent absent-node 10.5.113.0/24"}, 0},
		{"it comes and goes", []bool{true, false, true}, 3, []string{}, 2},
		{"the other way round", []bool{false, true, false}, 3, []string{}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			read := func(_ context.Context, number int) (snapshot.Snapshot, error) {
				return cluster(test.wrong[number-1]), nil
			}
			r := must.Get(Judge(must.Get(repeat(t.Context(), read, time.Millisecond, func(string) {}))(t)))(t)
			must.Equal(t, found(r.Once), test.holds, found(r.Findings))
			must.Equal(t, "reads, and seen once", [...]int{test.reads, test.once}, [...]int{r.Reads, len(r.Once)})
		})
	}
}

// A source that one of the last two reads lacks is unread, and a read without Nodes cannot be judged.
func TestUnread(t *testing.T) {
	without := func(change func(*snapshot.Snapshot)) snapshot.Snapshot {
		s := cluster(false)
		change(&s)
		return s
	}
	neighbours := func(s *snapshot.Snapshot) {
		s.Routers[0].Links = snapshot.List[snapshot.LinkNeighbor]{Error: "not allowed"}
	}
	announced := func(s *snapshot.Snapshot) {
		neighbours(s)
		s.L2Announcements.Items = []snapshot.L2Announcement{{Service: "default/web", Node: "master1"}}
	}
	fib := func(s *snapshot.Snapshot) { s.Routers[0].Routes = snapshot.List[snapshot.Route]{Error: "no ip(8)"} }
	for _, test := range []struct {
		name      string
		reads     []snapshot.Snapshot
		unread    []string
		notJudged string
	}{
		{"all read", []snapshot.Snapshot{cluster(false), cluster(false)}, []string{}, ""},
		{"no FIB", []snapshot.Snapshot{without(fib), without(fib)}, []string{"FIB of tor1: no ip(8)"}, "tor1 is not judged by the routes that it lacks"},
		{"no FIB once", []snapshot.Snapshot{cluster(false), without(fib), cluster(false)}, []string{"FIB of tor1: no ip(8) (in the read before the last)"}, ""},
		{"no FIB at first", []snapshot.Snapshot{without(fib), cluster(false), cluster(false)}, []string{}, ""},
		{"no neighbours, and nothing is announced by ARP", []snapshot.Snapshot{without(neighbours), without(neighbours)}, []string{}, ""},
		{"no neighbours", []snapshot.Snapshot{without(announced), without(announced)}, []string{"neighbour table of tor1: not allowed"}, ""},
		{"a source that was not asked for", []snapshot.Snapshot{cluster(false), without(func(s *snapshot.Snapshot) { s.Sources = s.Sources[1:] })}, []string{"Nodes: not asked for"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := must.Get(Judge(test.reads))(t)
			must.Equal(t, "unread", strings.Join(test.unread, "; "), snapshot.Sentences(r.Unread))
			must.Contain(t, fmt.Sprint(r.NotJudged), test.notJudged)
		})
	}
	s := incident(t, "10.5.112.0/24", "10.5.114.0/24")
	s.refused = []string{"/api/v1/nodes"}
	reads, _, err := audited(t, s)
	must.Fail(t, err, "not for you")
	must.Equal(t, err, [...]any{1, true}, [...]any{len(reads), errors.As(err, new(*UnreadableError))})
	s.refused = []string{"/apis/cilium.io/v2/ciliumnodes", "/apis/rbac.authorization.k8s.io/v1/roles"}
	_, r, err := audited(t, s)
	must.NoError(t, err)
	must.Equal(t, r.Unread, [...]int{2, 0}, [...]int{len(r.Unread), len(r.Findings)})
	s.Close()
	_, _, err = audited(t, s)
	must.Fail(t, err, "connection refused")
	must.Equal(t, err, true, errors.As(err, new(*UnreadableError)))
}

// A route that only an earlier read had leaves the result open, although no router is expected to have the route now.
func TestLostMeanwhile(t *testing.T) {
	lost := cluster(false)
	lost.Routers = []snapshot.Router{lost.Routers[0]}
	lost.Routers[0].Paths.Items, lost.Routers[0].Neighbors.Items = nil, nil
	for _, test := range []struct {
		name  string
		reads []snapshot.Snapshot
		open  bool
	}{
		{"lost in the second read", []snapshot.Snapshot{cluster(false), lost, lost}, true},
		{"never there", []snapshot.Snapshot{lost, lost}, false},
		{"all there", []snapshot.Snapshot{cluster(false), cluster(false)}, false},
	} {
		r := must.Get(Judge(test.reads))(t)
		must.Equal(t, test.name, test.open, r.Open())
		must.Equal(t, test.name, 0, len(r.Findings))
	}
	must.Equal(t, "the two reads agree", false, agree([]snapshot.Snapshot{cluster(false), lost}))
}

// A finding in two reads has the worse state, unless one is pending, and the routers that both reads name.
func TestHold(t *testing.T) {
	for _, test := range []struct {
		name   string
		now    detect.Finding
		before []detect.Finding
		want   string
	}{
		{"the same", twin(detect.Active, "tor1"), []detect.Finding{twin(detect.Active, "tor1")}, "active [tor1]"},
		{"one router more", twin(detect.Active, "tor1", "tor2"), []detect.Finding{twin(detect.Active, "tor2")}, "active [tor2]"},
		{"another router", twin(detect.Active, "tor1"), []detect.Finding{twin(detect.Active, "tor2")}, ""},
		{"it was pending", twin(detect.Active, "tor1"), []detect.Finding{twin(detect.Pending, "tor1")}, "settling [tor1]"},
		{"it is latent now", twin(detect.Latent), []detect.Finding{twin(detect.Active)}, "active []"},
		{"it was latent", twin(detect.Active, "tor1"), []detect.Finding{twin(detect.Latent, "tor1")}, "active [tor1]"},
		{"no router had it", twin(detect.Active, "tor1"), []detect.Finding{twin(detect.Latent)}, "active [tor1]"},
		{"no router has it any more", twin(detect.Latent), []detect.Finding{twin(detect.Active, "tor1")}, "active [tor1]"},
		{"latent and pending", twin(detect.Latent, "tor1"), []detect.Finding{twin(detect.Pending, "tor1")}, "settling [tor1]"},
		{"a hint before", twin(detect.Latent), []detect.Finding{twin(detect.Hint)}, "latent []"},
		{"one of two is the same", twin(detect.Pending, "tor2"), []detect.Finding{twin(detect.Active, "tor1"), twin(detect.Pending, "tor2")}, "settling [tor2]"},
		{"it was not there", twin(detect.Active), nil, ""},
	} {
		got := ""
		if common, found := inBoth(test.now, test.before); found {
			got = fmt.Sprint(common.State, " ", common.Routers)
		}
		must.Equal(t, test.name, test.want, got)
	}
}

func twin(state detect.State, routers ...string) detect.Finding {
	return detect.Finding{Detector: "route-ownership", Kind: detect.TwinRange, State: state, Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")), Owner: "a", Announcer: "b", Routers: routers}
}

// A suppression of a finding on one router does not hide the finding that another router has in only one of two reads.
func TestRoutersOfOneRead(t *testing.T) {
	for _, state := range []detect.State{detect.Active, detect.Latent} {
		for _, both := range [][2][]string{{{"tor1", "tor2"}, {"tor1"}}, {{"tor1"}, {"tor1", "tor2"}}} {
			var r Result
			r.add([]detect.Finding{twin(state, both[0]...)}, []detect.Finding{twin(state, both[1]...)})
			by := Suppression{ID: id(twin(state)), Routers: []string{"tor1"}, Active: true, Reason: "r", Expires: "2027-01-31"}
			r.Suppress([]Suppression{by}, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))
			must.Equal(t, state, false, r.Outcome() == Nothing)
		}
	}
}

// A finding that is active in one of the last two reads is active: a suppression of a latent finding does not hide it.
func TestActiveInOneRead(t *testing.T) {
	for _, test := range []struct {
		name           string
		found, earlier []detect.Finding
		want           []string
	}{
		{"active, then latent", []detect.Finding{twin(detect.Latent)}, []detect.Finding{twin(detect.Active, "tor1")}, []string{"active [tor1]"}},
		{"latent, then active", []detect.Finding{twin(detect.Active, "tor1")}, []detect.Finding{twin(detect.Latent)}, []string{"active [tor1]"}},
		{"active on one of two routers", []detect.Finding{twin(detect.Latent, "tor2"), twin(detect.Latent)}, []detect.Finding{twin(detect.Latent, "tor2"), twin(detect.Active, "tor1")}, []string{"active [tor1]"}},
		{"pending, then active", []detect.Finding{twin(detect.Active, "tor1")}, []detect.Finding{twin(detect.Pending, "tor1")}, []string{"settling [tor1]"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r Result
			r.add(test.found, test.earlier)
			r.Suppress([]Suppression{{ID: id(twin(detect.Latent)), Reason: "r", Expires: "2026-01-31"}}, time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
			must.Equal(t, "findings", test.want, each.Of(r.Findings, func(f Finding) string { return fmt.Sprint(f.State, " ", f.Routers) }))
			must.Equal(t, r.Once, 0, len(r.Once))
		})
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := repeat(ctx, func(context.Context, int) (snapshot.Snapshot, error) { return cluster(false), nil }, time.Hour, func(text string) {
		if strings.HasPrefix(text, "read 2 begins") {
			cancel()
		}
	})
	must.Equal(t, err, true, errors.Is(err, context.Canceled))
}

// The ID of a finding does not depend on its state and its routers.
func TestID(t *testing.T) {
	f, worse, other := twin(detect.Latent), twin(detect.Active, "tor1"), twin(detect.Latent)
	worse.Pods, worse.Says, other.Announcer = []string{"a/b"}, "Another sentence.", "c"
	must.Equal(t, "ID", id(f), id(worse))
	must.Equal(t, id(other), [...]any{12, false}, [...]any{len(id(f)), id(f) == id(other)})
}

// Each detector runs, or is listed with what it lacks.
func TestEveryDetectorIsNamed(t *testing.T) {
	named := map[string]bool{}
	for _, extra := range []scope{{}, {routers: true}, {nodes: true}, {routers: true, nodes: true}} {
		// A detector is listed if and only if it lacks a source.
		lacking := map[string]bool{configdrift.Detector{}.Name(): true}
		for _, d := range slices.Concat(detectors, overTime) {
			named[d.Name()] = true
			lacking[d.Name()] = slices.ContainsFunc(d.Reads(), func(s snapshot.Source) bool { return !extra.reads(s) })
		}
		lacking[detect.SessionReset{}.Name()] = true // it needs a history of more than a few seconds
		for _, n := range notRun(extra) {
			must.Equal(t, n, true, lacking[n.Detector] && n.Lacks != "")
			delete(lacking, n.Detector)
			named[n.Detector] = true
		}
		for name, lacks := range lacking {
			must.Equal(t, name+" lacks a source, and is not listed", false, lacks)
		}
	}
	for _, s := range scenarios.All {
		for _, v := range s.Variants {
			for _, d := range v.Script().Detectors {
				must.Equal(t, s.Incident.Name+" has "+d.Name()+", which is named", true, named[d.Name()])
			}
		}
	}
}

func TestSavedRefusals(t *testing.T) {
	for name, write := range map[string]func(dir string) error{
		"has 0 files":  func(string) error { return nil },
		"no snapshot":  func(dir string) error { return os.WriteFile(filepath.Join(dir, nameOf(0)), []byte("{"), 0o644) },
		"has no time":  func(dir string) error { return os.WriteFile(filepath.Join(dir, nameOf(0)), []byte("{}"), 0o644) },
		"is not read":  func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, nameOf(0))) },
		"no such file": func(dir string) error { return os.Remove(dir) },
		"has 4 files":  func(dir string) error { return Save(dir, make([]snapshot.Snapshot, 4)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must.NoError(t, write(dir))
			must.Fail(t, must.Err(Saved(dir)), name)
		})
	}
}

func TestKubeconfigs(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none")) // not HOME: client-go has read it already
	for _, test := range map[string]struct{ file, context, want string }{
		"none":               {"", "", "no cluster: expected a kubeconfig"},
		"not there":          {"/no/such/file", "", "no such file"},
		"an unknown context": {"", "b", `context "b" does not exist`},
	} {
		_, _, err := Client{Kubeconfig: test.file, Overrides: clientcmd.ConfigOverrides{CurrentContext: test.context}}.Config()
		must.Fail(t, err, test.want)
	}
}

// Judging saved reads never panics, whatever their content: they may be another person's.
func FuzzJudge(f *testing.F) {
	for _, wrong := range []bool{false, true} {
		f.Add(string(must.Get(json.Marshal(cluster(wrong)))(f)))
	}
	f.Fuzz(func(_ *testing.T, text string) {
		var s snapshot.Snapshot
		if json.Unmarshal([]byte(text), &s) == nil {
			r, err := Judge([]snapshot.Snapshot{s, s})
			if err != nil {
				return
			}
			r.Detail(s, Reached{})
			if x, err := Redact([]snapshot.Snapshot{s}, r, nil, nil); err == nil {
				x.Result(r)
			}
		}
	})
}

func TestCost(t *testing.T) {
	s := incident(t, "10.5.112.0/24", "10.5.114.0/24")
	config := s.config(t)
	m := Measure(config)
	must.Get(Read(t.Context(), Access{Config: config}, time.Millisecond, func(string) {}))(t)
	c := m.Cost()
	asked := 0
	for _, n := range s.asked {
		asked += n
	}
	must.Equal(t, "requests", asked, c.Requests)
	must.Equal(t, c, true, c.Bytes >= int64(2*len(s.lists["/api/v1/nodes"])) && c.PeakMemory >= 1<<20)
}
