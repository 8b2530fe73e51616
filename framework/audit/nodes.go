package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"text/template"
	"time"

	"github.com/distribution/reference"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/nodestate"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// NodeImage is the name of the image of cmd/nodestate.
const NodeImage = "relapse.dev/nodestate:dev"

//go:embed nodes.yaml.tmpl
var manifest string

// NodesManifest returns a manifest of the pods that read the nodes, with a new key. With calico the pods also read the
// BIRD of Calico. An error is about the reference of the image.
func NodesManifest(image string, calico bool) (string, error) {
	if _, err := reference.ParseNormalizedNamed(image); err != nil {
		return "", fmt.Errorf("%q is no reference of an image: %w", image, err)
	}
	return nodesManifest(image, calico, rand.Text(), time.Now().Add(keyLasts))
}

const keyLasts = 90 * 24 * time.Hour

func nodesManifest(image string, calico bool, key string, until time.Time) (string, error) {
	var text strings.Builder
	err := template.Must(template.New("").Parse(manifest)).Execute(&text, struct {
		Image, Key, Until string
		Calico            bool
		Port              int
	}{image, key, until.UTC().Format(time.RFC3339), calico, nodestate.Port})
	return text.String(), err
}

// Nodes are the pods that read the nodes, as a manifest declares them.
type Nodes struct {
	namespace, selector, key string
	file                     string
}

// ParseNodes reads a manifest of NodesManifest. The names in it may have been changed.
func ParseNodes(file string, text []byte) (*Nodes, error) {
	n := Nodes{file: file}
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var kind metav1.TypeMeta
		if err == nil {
			err = yaml.Unmarshal(document, &kind)
		}
		switch {
		case err != nil:
		case kind.Kind == "DaemonSet":
			var set appsv1.DaemonSet
			if err = yaml.Unmarshal(document, &set); err == nil {
				n.namespace, n.selector = set.Namespace, metav1.FormatLabelSelector(set.Spec.Selector)
			}
		case kind.Kind == "Secret":
			var secret corev1.Secret
			if err = yaml.Unmarshal(document, &secret); err == nil {
				n.key = secret.StringData["key"]
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	switch {
	case n.key == "":
		return nil, fmt.Errorf("%s: no Secret with stringData.key: expected what relapse audit --nodes-manifest prints", file)
	case len(validation.IsDNS1123Label(n.namespace)) > 0:
		return nil, fmt.Errorf("%s: no DaemonSet with a namespace: expected what relapse audit --nodes-manifest prints", file)
	}
	return &n, nil
}

func (n *Nodes) pods() string { return "/api/v1/namespaces/" + n.namespace + "/pods" }

func (n *Nodes) permits(path, query string) bool {
	if n == nil {
		return false
	}
	_, asks := nodestate.Pod(path, n.namespace)
	return path == n.pods() || asks && query == ""
}

const (
	// atOnce is the number of pods that are asked at the same time.
	atOnce = 20
	// mostOfNodes bounds the answers of all nodes in a read, in bytes of JSON.
	mostOfNodes = 512 << 20
)

// machines returns all nodes of a cluster for one read, by one request to each node's pod, whether or not it answers.
func (a Access) machines(ctx context.Context) (map[string]snapshot.Machine, error) {
	if a.ByNode == nil {
		return nil, errNotReached
	}
	ctx, cancel := context.WithTimeoutCause(ctx, snapshot.ListWithin, fmt.Errorf("no answer within %s", snapshot.ListWithin))
	defer cancel()
	client, err := typedcorev1.NewForConfig(a.Config)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", a.Config.Host, err)
	}
	var nodes []string
	list := func(o metav1.ListOptions) (runtime.Object, error) { return client.Nodes().List(ctx, o) }
	if err := pager.New(pager.SimplePageFunc(list)).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		nodes = append(nodes, o.(*corev1.Node).Name)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	pods := map[string]corev1.Pod{}
	list = func(o metav1.ListOptions) (runtime.Object, error) {
		return client.Pods(a.ByNode.namespace).List(ctx, o)
	}
	ofPods := metav1.ListOptions{LabelSelector: a.ByNode.selector}
	if err := pager.New(pager.SimplePageFunc(list)).EachListItem(ctx, ofPods, func(o runtime.Object) error {
		p := *o.(*corev1.Pod)
		if _, there := pods[p.Spec.NodeName]; !there || notReady(p) == "" {
			pods[p.Spec.NodeName] = p
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("listing the pods that read nodes, in namespace %s: %w", a.ByNode.namespace, err)
	}
	// Requests to nodes use limit and turn of reading.
	unlimited := rest.CopyConfig(a.Config)
	unlimited.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter()
	asks, err := typedcorev1.NewForConfig(unlimited)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", a.Config.Host, err)
	}
	r := reading{declaration: a.ByNode, client: asks, limit: a.Config.RateLimiter, free: make(chan bool, atOnce), began: time.Now()}
	machines := map[string]snapshot.Machine{}
	for _, node := range nodes {
		pod, there := pods[node]
		why := notReady(pod)
		switch {
		case !there:
			why = "none of the pods that read nodes is on it"
		case why != "":
			why = fmt.Sprintf("pod %s/%s on it is not ready: %s", pod.Namespace, pod.Name, why)
		}
		var once sync.Once
		var s snapshot.Snapshot
		var err error
		machines[node] = snapshot.Remote{Read: func(ctx context.Context) (snapshot.Snapshot, error) {
			if why != "" {
				return snapshot.Snapshot{}, errors.New(why)
			}
			once.Do(func() { s, err = r.ask(ctx, node, pod.Name) })
			return s, err
		}}
	}
	return machines, nil
}

func notReady(p corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
			return ""
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting != nil {
			return c.State.Waiting.Reason
		}
	}
	return "phase " + string(p.Status.Phase)
}

type reading struct {
	declaration *Nodes
	client      *typedcorev1.CoreV1Client
	// limit is the limit of all requests. Only one node at a time waits for it, with turn held. So pages of lists
	// need not wait for all nodes: a page may expire.
	limit flowcontrol.RateLimiter
	turn  sync.Mutex
	free  chan bool // full while atOnce pods are asked
	began time.Time
	size  atomic.Int64 // of all answers
}

func (r *reading) wait(ctx context.Context) error {
	if r.limit == nil {
		return nil
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	if err := r.limit.Wait(ctx); err != nil {
		return fmt.Errorf("waiting to be asked, at %g requests a second: %w", r.limit.QPS(), cmp.Or(context.Cause(ctx), err))
	}
	return nil
}

func (r *reading) ask(ctx context.Context, node, pod string) (snapshot.Snapshot, error) {
	select {
	case r.free <- true:
		defer func() { <-r.free }()
	case <-ctx.Done():
		return snapshot.Snapshot{}, context.Cause(ctx)
	}
	if err := r.wait(ctx); err != nil {
		return snapshot.Snapshot{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer within %s", within))
	defer cancel()
	left := min(nodestate.MaxAnswer, mostOfNodes-r.size.Load())
	if left <= 0 {
		return snapshot.Snapshot{}, fmt.Errorf("the nodes that were read before it have answered with %d bytes, more than all may", r.size.Load())
	}
	// Stream returns an error for a status other than 2xx.
	answer, err := r.client.RESTClient().Get().AbsPath(nodestate.Proxied(r.declaration.namespace, pod)).
		SetHeader(nodestate.KeyHeader, nodestate.Key(r.declaration.key, node)).SetHeader("Accept", "application/gzip").Stream(ctx)
	switch {
	case apierrors.IsUnauthorized(err):
		return snapshot.Snapshot{}, fmt.Errorf("pod %s does not take the key of %s: expected the file that was applied", pod, r.declaration.file)
	case apierrors.IsGone(err):
		return snapshot.Snapshot{}, fmt.Errorf("the key of %s has ended: expected a new manifest, of relapse audit --nodes-manifest",
			r.declaration.file)
	case err != nil && ctx.Err() != nil: // client-go's error says what it waited for
		return snapshot.Snapshot{}, fmt.Errorf("asking pod %s: %w", pod, context.Cause(ctx))
	case err != nil:
		return snapshot.Snapshot{}, fmt.Errorf("asking pod %s: %w", pod, err)
	}
	defer answer.Close()
	took := time.Since(r.began)
	s, size, err := nodestate.Read(answer, left)
	r.size.Add(size)
	if err != nil {
		return snapshot.Snapshot{}, fmt.Errorf("asking pod %s: %w", pod, err)
	}
	// Detectors compare these times with the time of the snapshot, but nodes are read one after another.
	for _, n := range s.NAT {
		for i := range n.Flows.Items {
			n.Flows.Items[i].Expires += took
		}
	}
	return s, nil
}
