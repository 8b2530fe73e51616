package snapshot

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/await"
)

// watchable is an API server with a list of Nodes, which can be watched.
type watchable struct {
	mu    sync.Mutex
	nodes []corev1.Node
	lists int
	// refuse answers lists and watches, if it is not 0; refuseWatch watches alone.
	refuse, refuseWatch int
	events              chan string   // lines of the watch
	cut                 chan struct{} // closed: the watch ends
}

func newWatchable(names ...string) *watchable {
	w := &watchable{events: make(chan string), cut: make(chan struct{})}
	for _, name := range names {
		w.nodes = append(w.nodes, nodeAt(name, "10.0.0.1", "1"))
	}
	return w
}

func nodeAt(name, ip, version string) corev1.Node {
	return corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}},
	}
}

func (w *watchable) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	watch := r.URL.Query().Get("watch") == "true"
	w.mu.Lock()
	nodes, status, cut := w.nodes, w.refuse, w.cut
	if status == 0 && watch {
		status = w.refuseWatch
	}
	if !watch {
		w.lists++
	}
	w.mu.Unlock()
	to.Header().Set("Content-Type", "application/json")
	switch {
	case status == http.StatusForbidden:
		says(to, status, forbidden, "")
	case status == http.StatusNotFound:
		says(to, status, "404 page not found\n", "")
	case status != 0:
		says(to, status, "no", "")
	case !watch:
		_ = json.NewEncoder(to).Encode(corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: nodes})
	default:
		to.WriteHeader(http.StatusOK)
		for {
			_ = http.NewResponseController(to).Flush()
			select {
			case line := <-w.events:
				fmt.Fprintln(to, line)
			case <-cut:
				return
			case <-r.Context().Done():
				return
			}
		}
	}
}

// send has the watch say that a node is new, has changed, or is gone.
func (w *watchable) send(t *testing.T, kind string, n corev1.Node) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"type": kind, "object": n})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case w.events <- string(text):
	case <-time.After(10 * time.Second):
		t.Fatal("nobody watches")
	}
}

func (w *watchable) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// following follows the Nodes of a server, of which a watch may be down for a time.
func following(t *testing.T, w *watchable, within time.Duration) *Collector {
	t.Helper()
	c, err := Follow(t.Context(), fakeAccess{api: serve(t, map[string]http.HandlerFunc{nodesPath: w.ServeHTTP})}, within, Nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// until waits for a snapshot.
func until(t *testing.T, c *Collector, what string, is func(List[Node]) bool) Snapshot {
	t.Helper()
	var s Snapshot
	if err := await.Until(t.Context(), what, 10*time.Millisecond, 20*time.Second, func(ctx context.Context) (bool, string, error) {
		s = c.Collect(ctx)
		return is(s.Nodes), fmt.Sprintf("%+v", s.Nodes), nil
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFollow(t *testing.T) {
	t.Parallel()
	server := newWatchable("a", "b")
	c := following(t, server, time.Minute)
	has := func(ips ...string) func(List[Node]) bool {
		return func(l List[Node]) bool {
			var all []string
			for _, n := range l.Items {
				all = append(all, n.Name+" "+join(n.InternalIPs))
			}
			return l.Read && strings.Join(all, ", ") == strings.Join(ips, ", ")
		}
	}
	first := until(t, c, "the list", has("a 10.0.0.1", "b 10.0.0.1"))
	<-c.Changed()
	// What is not kept changes nothing.
	heartbeat := nodeAt("a", "10.0.0.1", "2")
	heartbeat.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, LastHeartbeatTime: metav1.Now()}}
	server.send(t, "MODIFIED", heartbeat)
	server.send(t, "BOOKMARK", corev1.Node{TypeMeta: heartbeat.TypeMeta, ObjectMeta: metav1.ObjectMeta{ResourceVersion: "3"}})
	if again := c.Collect(t.Context()); !again.Same(first) || !first.Same(again) {
		t.Error("a heartbeat has changed the snapshot")
	}
	server.send(t, "MODIFIED", nodeAt("a", "10.0.0.2", "4"))
	second := until(t, c, "the change", has("a 10.0.0.2", "b 10.0.0.1"))
	if second.Same(first) {
		t.Error("another address is the same")
	}
	<-c.Changed()
	server.send(t, "ADDED", nodeAt("c", "10.0.0.3", "5"))
	server.send(t, "DELETED", nodeAt("b", "10.0.0.1", "6"))
	until(t, c, "the new node alone", has("a 10.0.0.2", "c 10.0.0.3"))
	if server.lists != 1 {
		t.Errorf("listed %d times", server.lists)
	}
	// The watch goes on where it was.
	server.set(func() { close(server.cut); server.cut = make(chan struct{}) })
	server.send(t, "DELETED", nodeAt("c", "10.0.0.3", "7"))
	until(t, c, "the node to be gone", has("a 10.0.0.2"))
	// What the server has forgotten is listed anew.
	server.set(func() { server.nodes = []corev1.Node{nodeAt("z", "10.0.0.9", "9")} })
	server.events <- `{"type":"ERROR","object":` + gone + `}`
	until(t, c, "a new list", has("z 10.0.0.9"))
	// A source that is asked for an object that it cannot read is not read, and is again later.
	server.send(t, "MODIFIED", nodeAt("z", "here", "10"))
	until(t, c, "an error", func(l List[Node]) bool { return strings.HasPrefix(l.Error, `node "z": status.addresses`) })
	server.send(t, "MODIFIED", nodeAt("z", "10.0.0.8", "11"))
	until(t, c, "the address", has("z 10.0.0.8"))
}

// A list whose watch is down for too long is not read, until the watch is up again.
func TestFollowDown(t *testing.T) {
	const within = 300 * time.Millisecond
	for _, test := range []struct {
		name string
		down func(*watchable)
		why  string
	}{
		{"the server fails", func(w *watchable) { w.refuse = http.StatusInternalServerError }, "an error on the server"},
		{"it may not watch any more", func(w *watchable) { w.refuseWatch = http.StatusForbidden }, "watch on nodes in the core group is not permitted: not allowed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := newWatchable("a")
			c := following(t, server, within)
			until(t, c, "the list", func(l List[Node]) bool { return l.Read })
			server.send(t, "ADDED", nodeAt("b", "10.0.0.2", "2")) // the watch is up
			server.set(func() { test.down(server); close(server.cut); server.cut = make(chan struct{}) })
			s := until(t, c, "it to be unread", func(l List[Node]) bool { return !l.Read })
			if !strings.HasPrefix(s.Nodes.Error, "listing Nodes: no watch since ") || !strings.Contains(s.Nodes.Error, test.why) {
				t.Errorf("error %q", s.Nodes.Error)
			}
			server.set(func() { server.refuse, server.refuseWatch = 0, 0 })
			until(t, c, "it to be read again", func(l List[Node]) bool { return l.Read })
		})
	}
}

// What is not there, or may not be read, at first is read as soon as it may.
func TestFollowLater(t *testing.T) {
	for status, want := range map[int]string{
		http.StatusNotFound:  "listing Nodes: the server could not find the requested resource",
		http.StatusForbidden: "listing Nodes: list on nodes in the core group is not permitted: not allowed",
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			server := newWatchable("a")
			server.refuse = status
			c := following(t, server, time.Minute)
			if s := c.Collect(t.Context()); s.Nodes.Read || !strings.HasPrefix(s.Nodes.Error, want) {
				t.Errorf("%+v", s.Nodes)
			}
			server.set(func() { server.refuse = 0 })
			until(t, c, "the list", func(l List[Node]) bool { return l.Read && len(l.Items) == 1 })
			// And it goes as it came.
			if status == http.StatusNotFound {
				server.set(func() { server.refuse = status; close(server.cut); server.cut = make(chan struct{}) })
				server.set(func() {})
				until(t, c, "the resource to be gone", func(l List[Node]) bool { return !l.Read })
			}
		})
	}
}

// A source gets no list that it does not declare.
func TestFollowUndeclared(t *testing.T) {
	f := &followed{}
	if _, _, err := f.list(t.Context(), listedNodes.resource); err == nil || err.Error() != "listing Nodes: the source does not declare it" {
		t.Errorf("error %v", err)
	}
}
