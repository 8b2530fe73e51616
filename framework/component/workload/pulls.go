package workload

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// PullTime is how long one node took to pull an image, as its kubelet says.
type PullTime struct {
	Node   string `json:"node"`
	TookMS int64  `json:"took_ms"`
	Says   string `json:"says"`
}

// PullTimes reads how long pods of kube-system waited for an image since a moment, to the second,
// in order of nodes. The image is named without tag or digest; pulls under any of them count.
func PullTimes(ctx context.Context, c *kindlab.Cluster, image string, since time.Time) ([]PullTime, error) {
	var events corev1.EventList
	if err := kube(c).List(ctx, &events, client.InNamespace(metav1.NamespaceSystem)); err != nil {
		return nil, fmt.Errorf("listing the nodes' events: %w", err)
	}
	return pullTimes(events.Items, image, since), nil
}

// pullTimes picks the events of the image's pulls.
func pullTimes(events []corev1.Event, image string, since time.Time) []PullTime {
	// k8s.io/kubernetes/pkg/kubelet/images/image_manager.go, of 1.34
	pulled := regexp.MustCompile(`^Successfully pulled image "` + regexp.QuoteMeta(image) + `\S*" in (\S+) `)
	times := []PullTime{}
	for _, e := range events {
		m := pulled.FindStringSubmatch(e.Message)
		if m == nil || e.FirstTimestamp.Time.Before(since.Truncate(time.Second)) {
			continue
		}
		took, err := time.ParseDuration(m[1])
		if err != nil {
			continue // the message has another form
		}
		times = append(times, PullTime{e.Source.Host, took.Milliseconds(), e.Message})
	}
	slices.SortFunc(times, func(a, b PullTime) int { return strings.Compare(a.Node, b.Node) })
	return times
}
