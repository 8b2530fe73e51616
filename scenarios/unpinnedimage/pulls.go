package unpinnedimage

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// pullRecord is what the nodes asked the registry for under kube-router's name
// since the variant began. It is kept.
func pullRecord(ctx context.Context, r *framework.Run) ([]registry.Pull, error) {
	log, err := r.Lab.Registry().Logs(ctx)
	if err != nil {
		return nil, err
	}
	began := r.Began.Truncate(time.Second) // as exact as the log is
	pulls := slices.DeleteFunc(registry.ParseLog(log), func(p registry.Pull) bool {
		return p.Image != untagged || p.Time.Before(began)
	})
	r.Evidence("pulls", pulls)
	return pulls, nil
}

// pulledAsLatest asserts that these nodes and no others have asked for latest
// and were given a version. It also tells how long their pulls took.
func pulledAsLatest(version string, nodes ...string) func(context.Context, *framework.Run) (bool, string, error) {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		want, err := resolve(ctx, r, version)
		if err != nil {
			return false, "", err
		}
		pulls, err := pullRecord(ctx, r)
		if err != nil {
			return false, "", err
		}
		if err := tellPullTimes(ctx, r); err != nil {
			return false, "", err
		}
		got := given(pulls, want)
		return slices.Equal(got, nodes), "by " + strings.Join(got, ", "), nil
	}
}

// given names the nodes that were given a digest for latest.
func given(pulls []registry.Pull, digest string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool {
		addr, _ := lab.AddressOn(name, "nodes")
		return !slices.ContainsFunc(pulls, func(p registry.Pull) bool {
			return p.Client == addr && p.Reference == "latest" && p.Digest == digest
		})
	})
}

// askedForDigest asserts that every node has asked for a version by its digest,
// and that none has asked for anything else.
func askedForDigest(version string) func(context.Context, *framework.Run) (bool, string, error) {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		want, err := resolve(ctx, r, version)
		if err != nil {
			return false, "", err
		}
		pulls, err := pullRecord(ctx, r)
		if err != nil {
			return false, "", err
		}
		wrong := notByDigest(pulls, want)
		return len(wrong) == 0, strings.Join(wrong, "; "), nil
	}
}

// notByDigest says which nodes have asked for something else than a digest, or
// for nothing.
func notByDigest(pulls []registry.Pull, digest string) []string {
	var wrong []string
	for _, name := range all {
		addr, _ := lab.AddressOn(name, "nodes")
		asked := false
		for _, p := range pulls {
			if p.Client != addr {
				continue
			}
			if asked = true; p.Reference != digest {
				wrong = append(wrong, fmt.Sprintf("%s has asked for %s", name, p.Reference))
			}
		}
		if !asked {
			wrong = append(wrong, name+" has asked for nothing")
		}
	}
	return wrong
}

// pullTime is how long one node took to pull kube-router, as its kubelet says.
type pullTime struct {
	Node   string `json:"node"`
	TookMS int64  `json:"took_ms"`
	Says   string `json:"says"`
}

// tellPullTimes tells of each node's longest pull since the variant began, and
// keeps all of them.
func tellPullTimes(ctx context.Context, r *framework.Run) error {
	var events corev1.EventList
	if err := r.Cluster.Client.Resources(metav1.NamespaceSystem).List(ctx, &events); err != nil {
		return fmt.Errorf("listing the nodes' events: %w", err)
	}
	times := pullTimes(events.Items, r.Began)
	r.Evidence("pull-times", times)
	for _, name := range all {
		longest := time.Duration(-1)
		for _, p := range times {
			if p.Node == name {
				longest = max(longest, time.Duration(p.TookMS)*time.Millisecond)
			}
		}
		if longest >= 0 {
			r.Note(fmt.Sprintf("%s: its longest pull of kube-router took %s", name, longest))
		}
	}
	return nil
}

// pulled is the kubelet's message for an image that it has pulled
// (k8s.io/kubernetes/pkg/kubelet/images/image_manager.go).
var pulled = regexp.MustCompile(`^Successfully pulled image "` + regexp.QuoteMeta(untagged) + `\S*" in (\S+) `)

// pullTimes reads the events that tell of kube-router's pulls. Those from
// before a moment, to the second, and those of another form are none.
func pullTimes(events []corev1.Event, since time.Time) []pullTime {
	times := []pullTime{}
	for _, e := range events {
		m := pulled.FindStringSubmatch(e.Message)
		if m == nil || e.FirstTimestamp.Time.Before(since.Truncate(time.Second)) {
			continue
		}
		took, err := time.ParseDuration(m[1])
		if err != nil {
			continue
		}
		times = append(times, pullTime{e.Source.Host, took.Milliseconds(), e.Message})
	}
	slices.SortFunc(times, func(a, b pullTime) int { return strings.Compare(a.Node, b.Node) })
	return times
}
