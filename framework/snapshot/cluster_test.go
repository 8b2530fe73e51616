package snapshot

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var created = time.Date(2022, 6, 1, 12, 0, 0, 0, time.UTC)

var (
	nodeList = corev1.NodeList{Items: []corev1.Node{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "master2", UID: "u2", CreationTimestamp: metav1.NewTime(created)},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.5.114.0/24"}},
			Status: corev1.NodeStatus{
				Addresses: []corev1.NodeAddress{
					{Type: corev1.NodeHostName, Address: "master2"},
					{Type: corev1.NodeInternalIP, Address: "10.4.94.21"},
				},
				Conditions: []corev1.NodeCondition{
					{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
					{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
				},
			},
		},
		{ObjectMeta: metav1.ObjectMeta{Name: "master1", UID: "u1"}},
	}}
	podList = corev1.PodList{Items: []corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{NodeName: "master2"},
			Status: corev1.PodStatus{PodIP: "10.5.115.7"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "on-the-host"},
			Spec: corev1.PodSpec{NodeName: "master2", HostNetwork: true}, Status: corev1.PodStatus{PodIP: "10.4.94.21"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "starting"}, Spec: corev1.PodSpec{NodeName: "master2"}},
	}}
)

const ciliumNodeList = `{"apiVersion":"cilium.io/v2","kind":"CiliumNodeList","metadata":{},"items":[
 {"apiVersion":"cilium.io/v2","kind":"CiliumNode","metadata":{"name":"master2","creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{
   "addresses":[{"type":"InternalIP","ip":"10.4.94.21"},{"type":"CiliumInternalIP","ip":"10.5.115.1"}],
   "ipam":{"podCIDRs":["10.5.115.0/24"]}}},
 {"apiVersion":"cilium.io/v2","kind":"CiliumNode","metadata":{"name":"master1"},"spec":{}}]}`

// serve is an API server with one answer for each path.
func serve(t testing.TB, answers map[string]http.HandlerFunc) *rest.Config {
	mux := http.NewServeMux()
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	if answers[definitions] == nil {
		mux.HandleFunc("GET "+definitions, answer(http.StatusOK, definitionsOf()))
	}
	for path, answer := range answers {
		mux.HandleFunc("GET "+path, answer)
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

func racked(nodes ...string) *corev1.NodeList {
	list := &corev1.NodeList{}
	for n := range slices.Chunk(nodes, 2) {
		list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n[0], Labels: map[string]string{"rack": n[1]}}})
	}
	return list
}

func clusterOf(t testing.TB, answers map[string]http.HandlerFunc) *cluster {
	t.Helper()
	return must.Get(newCluster(serve(t, answers)))(t)
}

// fails fails the test unless there is an error with these words, and none if there are none.
func fails(t testing.TB, err error, words string) {
	t.Helper()
	if words != "" {
		must.Fail(t, err, words)
	} else {
		must.NoError(t, err)
	}
}

// protobuf answers with a list of the core group, protobufOf of another one.
func protobuf(t testing.TB, list runtime.Object) http.HandlerFunc {
	return protobufOf(t, corev1.SchemeGroupVersion, list)
}

func protobufOf(t testing.TB, group schema.GroupVersion, list runtime.Object) http.HandlerFunc {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	data := must.Get(runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, group), list))(t)
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
			http.Error(w, "want protobuf", http.StatusNotAcceptable)
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		w.Write(data)
	}
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

const (
	nodesPath  = "/api/v1/nodes"
	podsPath   = "/api/v1/pods"
	ciliumPath = "/apis/cilium.io/v2/ciliumnodes"
)

// newAPIServer serves the lists above, with so many pods more.
func newAPIServer(t testing.TB, pods int) *rest.Config {
	list := podList.DeepCopy()
	for i := range pods {
		p := podList.Items[0].DeepCopy()
		p.Name = fmt.Sprintf("web-%d", i)
		list.Items = append(list.Items, *p)
	}
	return serve(t, map[string]http.HandlerFunc{
		nodesPath:  protobuf(t, &nodeList),
		podsPath:   protobuf(t, list),
		ciliumPath: answer(http.StatusOK, ciliumNodeList),
	})
}

func TestCluster(t *testing.T) {
	c := must.Get(newCluster(newAPIServer(t, 0)))(t)
	internal := []netip.Addr{netip.MustParseAddr("10.4.94.21")}
	must.Equal(t, "Nodes", []Node{
		{Name: "master1", UID: "u1"},
		{Name: "master2", UID: "u2", Created: created, InternalIPs: internal, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.5.114.0/24")}, Ready: true},
	}, must.Get(listedNodes.items(t.Context(), c))(t), byValue)
	must.Equal(t, "CiliumNodes", []CiliumNode{
		{Name: "master1"},
		{Name: "master2", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.5.115.0/24")}, InternalIPs: internal,
			Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
	}, must.Get(listedCiliumNodes.items(t.Context(), c))(t), byValue)
	pods := []Pod{{Namespace: "default", Name: "web", Node: "master2", IP: netip.MustParseAddr("10.5.115.7")}}
	must.Equal(t, "Pods", pods, must.Get(c.pods(t.Context()))(t), byValue)
}

func definitionsOf(names ...string) string {
	items := each.Of(names, func(name string) string { return `{"metadata":{"name":"` + name + `"}}` })
	return `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[` + strings.Join(items, ",") + `]}`
}

// A server that answers 404 has no such resource only if there is no CustomResourceDefinition of it:
// one that has started a moment ago does not know all of them.
func TestAbsentResources(t *testing.T) {
	unknown := answer(http.StatusNotFound, "404 page not found\n")
	for _, test := range []struct {
		name        string
		definitions http.HandlerFunc
		v2alpha1    http.HandlerFunc
		cilium, bgp string // what the errors contain
	}{
		{"no definition", answer(http.StatusOK, definitionsOf("ippools.crd.projectcalico.org")), unknown, "", ""},
		{"defined, and not served", answer(http.StatusOK, definitionsOf("ciliumnodes.cilium.io", "ciliumbgpclusterconfigs.cilium.io")), unknown,
			"listing CiliumNodes: the server does not know ciliumnodes.cilium.io v2, though there is a CustomResourceDefinition",
			"the server does not know ciliumbgpclusterconfigs.cilium.io v2 or v2alpha1, though"},
		{"served in one version", answer(http.StatusOK, definitionsOf("ciliumbgpclusterconfigs.cilium.io")), answer(http.StatusOK, `{"kind":"AList","apiVersion":"cilium.io/v2alpha1","items":[]}`), "", ""},
		{"definitions are forbidden", answer(http.StatusForbidden, forbidden), unknown,
			"whether there is a CustomResourceDefinition ciliumnodes.cilium.io is not known: listing CustomResourceDefinitions: list on customresourcedefinitions in apiextensions.k8s.io is not permitted: not allowed", "is not permitted"},
		{"definitions are not known either", unknown, unknown, "whether there is a CustomResourceDefinition ciliumnodes.cilium.io is not known", "is not known"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := clusterOf(t, map[string]http.HandlerFunc{
				"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": test.definitions,
				ciliumPath: unknown, "/apis/cilium.io/v2/ciliumbgpclusterconfigs": unknown, "/apis/cilium.io/v2alpha1/ciliumbgpclusterconfigs": test.v2alpha1,
			})
			fails(t, must.Err(listedCiliumNodes.items(t.Context(), c)), test.cilium)
			fails(t, must.Err(ciliumBGP(t.Context(), c, ciliumClusterConfigs)), test.bgp)
		})
	}
}

// What was found to be absent is not looked for in each snapshot, until it was there.
func TestAbsentOnce(t *testing.T) {
	var asked, there atomic.Int32
	c := open(t, fakeAccess{api: serve(t, map[string]http.HandlerFunc{
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			answer(http.StatusOK, definitionsOf([]string{"ciliumnodes.cilium.io"}[:min(1, int(there.Load()))]...))(w, r)
		},
		ciliumPath: func(w http.ResponseWriter, r *http.Request) {
			if there.Load() == 1 {
				answer(http.StatusOK, ciliumNodeList)(w, r)
				return
			}
			answer(http.StatusNotFound, "404 page not found\n")(w, r)
		},
	})}, CiliumNodes)
	for i, test := range []struct {
		there int32
		read  bool
		asked int32
	}{{0, true, 1}, {0, true, 1}, {1, true, 1}, {2, false, 2}, {2, false, 3}} {
		there.Store(test.there)
		if s := c.Collect(t.Context()); s.CiliumNodes.Read != test.read || asked.Load() != test.asked {
			t.Errorf("snapshot %d: %+v; definitions were listed %d times, want %d", i+1, s.CiliumNodes, asked.Load(), test.asked)
		}
	}
}

func TestClusterErrors(t *testing.T) {
	node := nodeList.DeepCopy()
	node.Items[0].Spec.PodCIDRs = []string{"10.5.114.0/240"}
	address := nodeList.DeepCopy()
	address.Items[0].Status.Addresses[1].Address = "here"
	pod := podList.DeepCopy()
	pod.Items[0].Status.PodIP = "there"
	for _, tt := range []struct {
		name, path string
		answer     http.HandlerFunc
		want       string
	}{
		{"nodes forbidden", nodesPath, answer(http.StatusForbidden, forbidden), "listing Nodes: list on nodes in the core group is not permitted: not allowed"},
		{"pods forbidden", podsPath, answer(http.StatusForbidden, forbidden), "listing Pods: list on pods in the core group is not permitted: not allowed"},
		{"CiliumNodes forbidden", ciliumPath, answer(http.StatusForbidden, forbidden), "listing CiliumNodes: list on ciliumnodes in cilium.io is not permitted: not allowed"},
		{"a node's range", nodesPath, protobuf(t, node), `node "master2": spec.podCIDRs: netip.ParsePrefix("10.5.114.0/240"): prefix length out of range`},
		{"a node's address", nodesPath, protobuf(t, address), `node "master2": status.addresses: ParseAddr("here"): unable to parse IP`},
		{"a pod's address", podsPath, protobuf(t, pod), `pod default/web: status.podIP: ParseAddr("there"): unable to parse IP`},
		{"a CiliumNode's range", ciliumPath, answer(http.StatusOK, strings.Replace(ciliumNodeList, "10.5.115.0/24", "10.5.115.0", 1)),
			`CiliumNode "master2": spec.ipam.podCIDRs: netip.ParsePrefix("10.5.115.0"): no '/'`},
		{"a CiliumNode of another shape", ciliumPath, answer(http.StatusOK, strings.Replace(ciliumNodeList, `"spec":{}`, `"spec":{"ipam":7}`, 1)),
			`CiliumNode "master1": `},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := map[string]func(*cluster) error{
				nodesPath:  func(c *cluster) error { return must.Err(listedNodes.items(t.Context(), c)) },
				podsPath:   func(c *cluster) error { return must.Err(c.pods(t.Context())) },
				ciliumPath: func(c *cluster) error { return must.Err(listedCiliumNodes.items(t.Context(), c)) },
			}[tt.path](clusterOf(t, map[string]http.HandlerFunc{tt.path: tt.answer}))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

func TestConfigMaps(t *testing.T) {
	const path = "/api/v1/namespaces/kube-system/configmaps/"
	data := map[string]string{"masquerade": "false"}
	access := fakeAccess{api: serve(t, map[string]http.HandlerFunc{
		path + "cilium-config": protobuf(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cilium-config"}, Data: data}),
		path + "kube-proxy":    protobuf(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"}}),
	})}
	ours, proxies, none := ConfigMaps("kube-system/cilium-config"), ConfigMaps("kube-system/kube-proxy"), ConfigMaps("kube-system/other")
	want := []ConfigMap{{Namespace: "kube-system", Name: "cilium-config", Data: data}, {Namespace: "kube-system", Name: "kube-proxy"}}
	// Two detectors may read two ConfigMaps, or the same one.
	if got := open(t, access, proxies, ours, proxies).Collect(t.Context()).ConfigMaps; !got.Read || !cmp.Equal(got.Items, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	unavailable := open(t, access, ours, none).Collect(t.Context()).Unavailable()
	if len(unavailable) != 1 || !strings.HasPrefix(unavailable[0].String(), "ConfigMaps: reading ConfigMap kube-system/other: ") {
		t.Errorf("unavailable %q, want the ConfigMap that is not there", unavailable)
	}
}

func TestPodIPs(t *testing.T) {
	text := func(a netip.Addr) string { return strings.TrimPrefix(a.String(), netip.Addr{}.String()) } // "" for none
	for _, test := range []struct {
		name, first string
		all         []string
		ip, ipv6    string
	}{
		{"IPv4", "10.0.0.1", []string{"10.0.0.1"}, "10.0.0.1", ""},
		{"IPv6", "fd00::1", []string{"fd00::1"}, "fd00::1", ""},
		{"both", "10.0.0.1", []string{"10.0.0.1", "fd00::1"}, "10.0.0.1", "fd00::1"},
		{"both, IPv6 first", "fd00::1", []string{"fd00::1", "10.0.0.1"}, "10.0.0.1", "fd00::1"},
		{"none yet", "", nil, "", ""},
	} {
		o := &corev1.Pod{Status: corev1.PodStatus{PodIP: test.first}}
		for _, ip := range test.all {
			o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		ip, ipv6, err := podIPs(o)
		must.NoError(t, err)
		must.Equal(t, test.name, [2]string{test.ip, test.ipv6}, [2]string{text(ip), text(ipv6)})
	}
}

// A cluster without Cilium gets it while one collector goes on, with v2alpha1 alone; then its server
// starts anew, and does not know the lists for a moment.
func TestListOfAnotherVersion(t *testing.T) {
	var phase atomic.Int32
	const group = "/apis/cilium.io/"
	list := answer(http.StatusOK, `{"kind":"CiliumBGPClusterConfigList","apiVersion":"cilium.io/v2alpha1","metadata":{"resourceVersion":"1"},"items":[]}`)
	not := answer(http.StatusNotFound, "404 page not found\n")
	c := clusterOf(t, map[string]http.HandlerFunc{
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": func(w http.ResponseWriter, r *http.Request) {
			names := []string{"ciliumbgpclusterconfigs.cilium.io"}
			answer(http.StatusOK, definitionsOf(names[:min(1, phase.Load())]...))(w, r)
		},
		group + "v2/ciliumbgpclusterconfigs": not,
		group + "v2alpha1/ciliumbgpclusterconfigs": func(w http.ResponseWriter, r *http.Request) {
			map[bool]http.HandlerFunc{true: list, false: not}[phase.Load() == 1](w, r)
		},
	})
	for i := range 3 {
		phase.Store(int32(i))
		c.begin(t.Context())
		// In the end the definition is there, and the list is 404.
		must.Equal(t, i, i == 2, must.Err(ciliumBGP(t.Context(), c, ciliumClusterConfigs)) != nil)
	}
}

// A snapshot tells how far the API server's clock is ahead, and ages of objects are by it.
func TestServerAhead(t *testing.T) {
	for _, test := range []struct {
		name   string
		ahead  time.Duration
		date   string // in place of the time
		within [2]time.Duration
	}{
		{"the same clock", 0, "", [2]time.Duration{0, 0}},
		{"an hour ahead", time.Hour, "", [2]time.Duration{time.Hour - 5*time.Second, time.Hour + time.Second}},
		{"a day behind", -24 * time.Hour, "", [2]time.Duration{-24*time.Hour - 5*time.Second, -24*time.Hour + time.Second}},
		{"no time that can be read", time.Hour, "soon", [2]time.Duration{0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			nodes := protobuf(t, &corev1.NodeList{})
			api := serve(t, map[string]http.HandlerFunc{nodesPath: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", time.Now().Add(test.ahead).UTC().Format(http.TimeFormat))
				if test.date != "" {
					w.Header().Set("Date", test.date)
				}
				nodes(w, r)
			}})
			s := open(t, fakeAccess{api: api}, Nodes).Collect(t.Context())
			if s.ServerAhead < test.within[0] || s.ServerAhead > test.within[1] || !s.Nodes.Read {
				t.Errorf("%s ahead, want %s", s.ServerAhead, test.within)
			}
			must.Equal(t, "what was created at this machine's time", s.ServerAhead, s.Age(s.Time))
		})
	}
}
