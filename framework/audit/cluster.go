package audit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// resources are the lists that an audit reads: Role permits them, and the client refuses the rest.
var resources = snapshot.Resources(sources(scope{routers: true, nodes: true})...)

// path is where the API server has a list.
func path(r schema.GroupVersionResource) string {
	if r.Group == "" {
		return "/api/" + r.Version + "/" + r.Resource
	}
	return "/apis/" + r.Group + "/" + r.Version + "/" + r.Resource
}

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
		if !slices.Contains(role.Rules[i].Resources, r.Resource) { // of another version
			role.Rules[i].Resources = append(role.Rules[i].Resources, r.Resource)
		}
	}
	text, err := yaml.Marshal(role)
	if err != nil {
		panic(err) // of a value that is written above
	}
	return string(text)
}

// requestsPerSecond and burst limit the requests to an API server, those of all clients
// together. A read takes 16 of a small cluster, and up to 21 where addresses of Services are
// announced; each 500 objects more are one more.
const (
	requestsPerSecond = 5
	burst             = 10
)

// Cluster is the configuration of a client of the cluster of a kubeconfig, by default that of
// KUBECONFIG or the user's own, and of a context, by default the current one. The client can
// only read what Role permits, and the pods of nodes, which may be nil. The name is that of the
// context. version is of this program.
func Cluster(kubeconfig, context, version string, nodes *Nodes) (config *rest.Config, name string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context})
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
	if context != "" {
		name = context
	}
	config.UserAgent = "relapse-audit/" + strings.Trim(version, "()")
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(requestsPerSecond, burst)
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.Wrap(func(to http.RoundTripper) http.RoundTripper {
		return readOnly{to, strings.TrimSuffix(base.Path, "/"), nodes}
	})
	return config, name, nil
}

// readOnly passes requests on that list resources or read nodes, and refuses all others, whatever
// the credentials permit.
type readOnly struct {
	to http.RoundTripper
	// base is the path of a server that is below one of a proxy, such as /k8s/clusters/c-1.
	base string
	// nodes are the pods that read nodes; nil: none may be asked.
	nodes *Nodes
}

// RoundTrip implements http.RoundTripper.
func (t readOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	listed := slices.ContainsFunc(resources, func(is schema.GroupVersionResource) bool { return r.URL.Path == t.base+path(is) })
	below, of := strings.CutPrefix(r.URL.Path, t.base)
	if r.Method != http.MethodGet || !listed && !(of && t.nodes.permits(below, r.URL.RawQuery)) {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, fmt.Errorf("relapse audit only lists, and does not send %s %s", r.Method, r.URL.Path)
	}
	return t.to.RoundTrip(r)
}

// Access reaches a cluster, routers, and nodes by the pods on them.
type Access struct {
	Config *rest.Config
	// Routing are the routers by name.
	Routing map[string]snapshot.RouterReader
	// ByNode are the pods that read the nodes; nil: nodes are not read.
	ByNode *Nodes
}

// Kubernetes implements snapshot.Access.
func (a Access) Kubernetes(context.Context) (*rest.Config, error) { return a.Config, nil }

// Routers implements snapshot.Access.
func (a Access) Routers(context.Context) (map[string]snapshot.RouterReader, error) {
	return a.Routing, nil
}

var errNotReached = errors.New("an audit does not reach it")

// oneRead is the access of one read, with the nodes as they are then.
type oneRead struct {
	Access
	nodes       map[string]snapshot.Machine
	unreachable error
}

// Nodes implements snapshot.Access.
func (r oneRead) Nodes(context.Context) (map[string]snapshot.Machine, error) {
	return r.nodes, r.unreachable
}

// Outside implements snapshot.Access.
func (Access) Outside(context.Context) (map[string]snapshot.Machine, error) {
	return nil, errNotReached
}

// Registry implements snapshot.Access.
func (Access) Registry(context.Context) (snapshot.Registry, error) { return nil, errNotReached }
