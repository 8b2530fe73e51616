package fault

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/kube"
	"github.com/relapse-dev/relapse/topology/must"
)

// apiServer holds nodes and pods, and as much of the API as a drain needs.
type apiServer struct {
	mu      sync.Mutex
	nodes   []string
	pods    []corev1.Pod
	deleted []string // in order
	refuse  string   // the path of deletions that fail
}

// run makes a run on a lab whose cluster has the server.
func (s *apiServer) run(t *testing.T) *framework.Run {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	api := must.Get(kube.New(&rest.Config{Host: server.URL}))(t)
	return &framework.Run{Lab: &kindlab.Lab{Clusters: []*kindlab.Cluster{{Name: "k8s", Client: api}}}}
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := func(status int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // a client that has gone sees nothing
	}
	notFound := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
	}
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	switch {
	case r.URL.Path == "/api":
		reply(http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case r.URL.Path == "/apis":
		reply(http.StatusOK, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}})
	case r.URL.Path == "/api/v1":
		reply(http.StatusOK, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1",
			APIResources: []metav1.APIResource{
				{Name: "nodes", Kind: "Node", Verbs: metav1.Verbs{"get", "delete"}},
				{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: metav1.Verbs{"list", "delete"}},
			},
		})
	case r.Method == http.MethodDelete && r.URL.Path == s.refuse:
		http.Error(w, "the disk is full", http.StatusInternalServerError)
	case r.URL.Path == "/api/v1/pods":
		node := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		for _, p := range s.pods {
			if p.Spec.NodeName == node {
				list.Items = append(list.Items, p)
			}
		}
		reply(http.StatusOK, list)
	case r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/pods/"):
		s.deleted = append(s.deleted, "pod "+name)
		s.pods = slices.DeleteFunc(s.pods, func(p corev1.Pod) bool { return p.Name == name })
		reply(http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
	case !slices.Contains(s.nodes, name):
		reply(http.StatusNotFound, notFound)
	case r.Method == http.MethodDelete:
		s.deleted = append(s.deleted, "node "+name)
		s.nodes = slices.DeleteFunc(s.nodes, func(n string) bool { return n == name })
		reply(http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
	default:
		reply(http.StatusOK, corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// pod is a pod on a node; kind is the kind of its owner, empty for none.
func pod(name, node, kind string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{NodeName: node}}
	if kind != "" {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", Controller: new(true)}}
	}
	return p
}

func TestDeleteNodeObject(t *testing.T) {
	api := &apiServer{
		nodes: []string{"node1", "master1"},
		pods: []corev1.Pod{
			pod("agent", "node1", "DaemonSet"), pod("web", "node1", "ReplicaSet"), pod("probe", "node1", ""),
			pod("other", "master1", ""),
		},
	}
	f, r := DeleteNodeObject("node1"), api.run(t)
	if effect, saw, err := f.TookEffect(t.Context(), r); effect || err != nil || saw != "the Node object node1 is there" {
		t.Errorf("before: %v, %q, %v", effect, saw, err)
	}
	for range 2 { // the second time there is nothing to do
		must.NoError(t, f.Inject(t.Context(), r))
	}
	// A DaemonSet's pods would come back. The node is deleted when it is empty.
	if want := []string{"pod web", "pod probe", "node node1"}; !slices.Equal(api.deleted, want) {
		t.Errorf("deleted %q, want %q", api.deleted, want)
	}
	if effect, _, err := f.TookEffect(t.Context(), r); !effect || err != nil {
		t.Errorf("after: %v, %v", effect, err)
	}
}

// A node is not deleted before it is drained. The error of a fault names the step that failed.
func TestDeleteNodeObjectThatFails(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/namespaces/default/pods/web": `draining node "node1" of pod default/web`,
		"/api/v1/nodes/node1":                 `deleting node "node1"`,
	} {
		api := &apiServer{nodes: []string{"node1"}, pods: []corev1.Pod{pod("web", "node1", "")}, refuse: path}
		err := DeleteNodeObject("node1").Inject(t.Context(), api.run(t))
		if err == nil || !strings.Contains(err.Error(), want) || slices.Contains(api.deleted, "node node1") {
			t.Errorf("%s fails: %v, deleted %q; want %q", path, err, api.deleted, want)
		}
	}
}
