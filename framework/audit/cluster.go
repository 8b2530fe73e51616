package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/audit/bundle"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// resources are the lists that an audit reads: Role permits them, and the client refuses the rest.
var resources = snapshot.Resources(sources(scope{routers: true, nodes: true})...)

// Role is a manifest of the ClusterRole that permits what an audit reads, and nothing else.
func Role() string {
	role := rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: "relapse-audit"},
	}
	for _, r := range resources {
		i := slices.IndexFunc(role.Rules, func(p rbacv1.PolicyRule) bool { return p.APIGroups[0] == r.Group })
		if i < 0 {
			i = len(role.Rules)
			role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{r.Group}, Verbs: []string{"get", "list"}})
		}
		if !slices.Contains(role.Rules[i].Resources, r.Resource) { // it may be there by another version of the API
			role.Rules[i].Resources = append(role.Rules[i].Resources, r.Resource)
		}
	}
	return manifestOf(role)
}

func manifestOf(value any) string {
	text, err := yaml.Marshal(value)
	if err != nil {
		panic(err) // only values of this package are marshalled
	}
	return string(text)
}

// RoleHint says how to get what RBAC does not permit.
const RoleHint = "relapse audit --rbac prints the ClusterRole that permits all of it"

// RequestsPerSecond is the default limit of the requests of all clients to an API server; bursts may be twice as large.
// A read of a small cluster takes 23 requests, up to 30 where addresses of Services are announced, and one more for
// each 500 objects.
const RequestsPerSecond = 5

// Client says which cluster is read, and with what permissions.
type Client struct {
	// Kubeconfig is a file, by default KUBECONFIG or the user's own. Overrides override it, as kubectl's flags do.
	Kubeconfig string
	Overrides  clientcmd.ConfigOverrides
	// Version is the version of this program.
	Version string
	// Rate is the number of requests per second; 0: RequestsPerSecond.
	Rate int
	// Cilium is set if the ConfigMap at ConfigPath may be read as well.
	Cilium bool
	// Nodes are the pods that may be asked; nil: none.
	Nodes *Nodes
}

// Config returns the configuration of a client that can only read what Role permits, the ConfigMap, and the pods of
// Nodes. It also returns the name of the context.
func (c Client) Config() (config *rest.Config, name string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &c.Overrides)
	config, err = loaded.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, "", errors.New("no cluster: expected a kubeconfig in --kubeconfig, in KUBECONFIG, or in ~/.kube/config")
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	if raw, err := loaded.RawConfig(); err == nil {
		name = raw.CurrentContext
	}
	name = cmp.Or(c.Overrides.CurrentContext, name)
	config.UserAgent = "relapse-audit/" + strings.Trim(c.Version, "()")
	rate := cmp.Or(c.Rate, RequestsPerSecond)
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(float32(rate), 2*rate)
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.Wrap(func(to http.RoundTripper) http.RoundTripper {
		return readOnly{to, strings.TrimSuffix(base.Path, "/"), c.Cilium, c.Nodes}
	})
	return config, name, nil
}

// readOnly passes requests that list resources or read nodes, and refuses all others, whatever the credentials permit.
type readOnly struct {
	to http.RoundTripper
	// base is the path of an API server behind a proxy, such as /k8s/clusters/c-1.
	base string
	// cilium permits the ConfigMap at ConfigPath.
	cilium bool
	// nodes are the pods that read nodes; nil: none may be asked.
	nodes *Nodes
}

func (t readOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	below, ok := strings.CutPrefix(r.URL.Path, t.base)
	listed := t.cilium && below == ConfigPath ||
		slices.ContainsFunc(resources, func(resource schema.GroupVersionResource) bool { return below == bundle.Path(resource) })
	listed = listed && !r.URL.Query().Has("watch") || t.nodes.permits(below, r.URL.RawQuery)
	if r.Method != http.MethodGet || !ok || !listed {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, fmt.Errorf("relapse audit only lists, and does not send %s %s", r.Method, r.URL.RequestURI())
	}
	return t.to.RoundTrip(r)
}

// Access reaches a cluster, routers, and nodes by the pods on them.
type Access struct {
	Config *rest.Config
	// Routing are the routers by name.
	Routing map[string]snapshot.RouterReader
	// Upgrade is set if the configuration of Cilium is read as well. Cluster must permit it.
	Upgrade bool
	// ByNode are the pods that read the nodes; nil: nodes are not read.
	ByNode *Nodes

	// nodes are the nodes of one read, and unreachable is why there are none.
	nodes       map[string]snapshot.Machine
	unreachable error
}

func (a Access) rate() float32 {
	if a.Config.RateLimiter == nil {
		return RequestsPerSecond
	}
	return a.Config.RateLimiter.QPS()
}

func (a Access) Kubernetes(context.Context) (*rest.Config, error) { return a.Config, nil }

func (a Access) Routers(context.Context) (map[string]snapshot.RouterReader, error) {
	return a.Routing, nil
}

var errNotReached = errors.New("an audit does not reach it")

// Nodes returns the nodes as they were at the beginning of the read.
func (a Access) Nodes(context.Context) (map[string]snapshot.Machine, error) {
	return a.nodes, a.unreachable
}

func (Access) Outside(context.Context) (map[string]snapshot.Machine, error) {
	return nil, errNotReached
}

func (Access) Registry(context.Context) (snapshot.Registry, error) { return nil, errNotReached }

// Cost is what reading an API server took.
type Cost struct {
	Requests int `json:"requests"`
	// Bytes are the size of all answers before compression.
	Bytes int64 `json:"bytes"`
	// PeakMemory is the most memory that this process has had, in bytes; 0 if it is not known.
	PeakMemory int64 `json:"peak_memory_bytes"`
}

// Meter counts what the clients of a configuration ask for and get.
type Meter struct{ requests, bytes atomic.Int64 }

// Measure counts for all clients that are made of a configuration from now on.
func Measure(config *rest.Config) *Meter {
	m := &Meter{}
	config.Wrap(func(to http.RoundTripper) http.RoundTripper { return metered{to, m} })
	return m
}

// Cost is what was counted so far.
func (m *Meter) Cost() Cost {
	return Cost{Requests: int(m.requests.Load()), Bytes: m.bytes.Load(), PeakMemory: peakMemory()}
}

type metered struct {
	to http.RoundTripper
	*Meter
}

func (t metered) RoundTrip(r *http.Request) (*http.Response, error) {
	t.requests.Add(1)
	response, err := t.to.RoundTrip(r)
	if err == nil {
		response.Body = counted{response.Body, &t.bytes}
	}
	return response, err
}

type counted struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// peakMemory is VmHWM of proc(5).
func peakMemory() int64 {
	text, _ := os.ReadFile("/proc/self/status") // Linux alone has it
	_, line, _ := strings.Cut(string(text), "VmHWM:")
	var kb int64
	fmt.Sscanf(line, "%d kB", &kb)
	return kb * 1024
}
