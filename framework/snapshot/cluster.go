package snapshot

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typeddiscoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	typedrbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
)

// cluster reads a Kubernetes API server. Every call is a list, answered from
// the server's own cache of the newest state: no watch, nothing to wait for.
//
// The clients are client-go's own. klient lists through a RESTMapper, which
// asks the server for its API groups again at each list of a resource that is
// not there, as CiliumNodes are not in most clusters; and a snapshot is taken
// several times a second.
type cluster struct {
	core      typedcorev1.CoreV1Interface
	apps      typedappsv1.AppsV1Interface
	discovery typeddiscoveryv1.DiscoveryV1Interface
	rbac      typedrbacv1.RbacV1Interface
	dynamic   dynamic.Interface
}

// newCluster makes a cluster that reads with c's credentials. Each source
// needs list on the resources that it is named after.
func newCluster(c *rest.Config) (*cluster, error) {
	c = rest.CopyConfig(c)
	// A snapshot is several requests, several times a second: client-go's own
	// limit of five a second would be what detection waits for. A configuration with a
	// limit of its own keeps it, one for all of these clients.
	if c.RateLimiter == nil {
		c.QPS = -1
	}
	typed := rest.CopyConfig(c)
	typed.ContentType = runtime.ContentTypeProtobuf
	core, err := typedcorev1.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
	}
	apps, err := typedappsv1.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
	}
	discovery, err := typeddiscoveryv1.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
	}
	rbac, err := typedrbacv1.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
	}
	dyn, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
	}
	return &cluster{core: core, apps: apps, discovery: discovery, rbac: rbac, dynamic: dyn}, nil
}

// notEnded selects pods that have not ended. An ended pod keeps its address
// and images in its status, and no longer has them.
const notEnded = "status.phase!=Succeeded,status.phase!=Failed"

func parsePrefixes(texts []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, t := range texts {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			return nil, err
		}
		prefixes = append(prefixes, p.Masked())
	}
	return prefixes, nil
}
