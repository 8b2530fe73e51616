package snapshot

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// cluster reads a Kubernetes API server.
//
// The clients are client-go's own. klient lists through a RESTMapper, which asks the server for its
// API groups again at each list of a resource that is not there, as CiliumNodes are not in most
// clusters; and a snapshot is taken several times a second.
type cluster struct {
	core     typedcorev1.CoreV1Interface
	typed    map[schema.GroupVersion]rest.Interface // of builtIn
	dynamic  dynamic.Interface
	metadata metadata.Interface
	ahead    atomic.Int64 // how far the server's clock is ahead of this machine's, in ns, by its newest answer
	// absentees are the resources that the cluster does not have, though it might: see absent.
	absentees sync.Map
	// pageWithin bounds each page of a list; 0: only the list's own time does.
	pageWithin time.Duration

	mu sync.Mutex
	// ctx is the snapshot's. A list goes on when the source that asked for it first has no more time:
	// others that need it may have.
	ctx   context.Context
	lists map[*resource]*reading
}

// reading is a list that is being read; done is closed when it has been.
type reading struct {
	done  chan struct{}
	items []any
	err   error
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
	cluster := &cluster{typed: map[schema.GroupVersion]rest.Interface{}, ctx: context.Background(), lists: map[*resource]*reading{}}
	c.Wrap(func(to http.RoundTripper) http.RoundTripper { return timed{to, cluster} })
	for _, group := range builtIn {
		typed := rest.CopyConfig(c)
		typed.ContentType, typed.NegotiatedSerializer = runtime.ContentTypeProtobuf, scheme.Codecs.WithoutConversion()
		typed.GroupVersion, typed.APIPath = &group, "/apis"
		if group.Group == "" {
			typed.APIPath = "/api"
		}
		client, err := rest.RESTClientFor(typed)
		if err != nil {
			return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
		}
		cluster.typed[group] = client
	}
	cluster.core = typedcorev1.New(cluster.typed[builtIn[0]])
	var err error
	if cluster.dynamic, err = dynamic.NewForConfig(c); err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
	}
	if cluster.metadata, err = metadata.NewForConfig(c); err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
	}
	return cluster, nil
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

// clockless is a difference of clocks that is none: answers tell the time to the second, and take
// a while.
const clockless = 2 * time.Second

// clockAhead is how far the server's clock is ahead of this machine's; zero if it is less than clockless.
func (c *cluster) clockAhead() time.Duration {
	ahead := time.Duration(c.ahead.Load())
	if ahead.Abs() < clockless {
		return 0
	}
	return ahead
}

// timed notes the time that each answer tells.
type timed struct {
	to      http.RoundTripper
	cluster *cluster
}

func (t timed) RoundTrip(r *http.Request) (*http.Response, error) {
	asked := time.Now()
	response, err := t.to.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	took := time.Since(asked)
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		// The server has cut off what was beyond the second.
		t.cluster.ahead.Store(int64(date.Add(time.Second / 2).Sub(asked.Add(took / 2).Round(0))))
	}
	return response, nil
}

// Age is for how long an object of Kubernetes has existed at the moment of the snapshot, by the
// clock of the API server, which also says when it was created.
func (s Snapshot) Age(created time.Time) time.Duration { return s.Time.Add(s.ServerAhead).Sub(created) }
