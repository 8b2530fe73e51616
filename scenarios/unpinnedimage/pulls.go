package unpinnedimage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kuberouter"
	"github.com/relapse-dev/relapse/framework/component/workload"
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
// and were given an image. It also tells how long their pulls took.
func pulledAsLatest(image string, nodes ...string) func(context.Context, *framework.Run) (bool, string, error) {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		want, err := kuberouter.Digest(ctx, r.Lab, image)
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
		return !slices.ContainsFunc(pulls, func(p registry.Pull) bool {
			return p.Client == nodeOf(name).Address && p.Reference == "latest" && p.Digest == digest
		})
	})
}

// askedForDigest asserts that every node has asked for an image by its digest,
// and that none has asked for anything else.
func askedForDigest(image string) func(context.Context, *framework.Run) (bool, string, error) {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		want, err := kuberouter.Digest(ctx, r.Lab, image)
		if err != nil {
			return false, "", err
		}
		pulls, err := pullRecord(ctx, r)
		if err != nil {
			return false, "", err
		}
		return notByDigest(pulls, want)
	}
}

// notByDigest looks which nodes have asked for something else than a digest, or
// for nothing.
func notByDigest(pulls []registry.Pull, digest string) (bool, string, error) {
	var wrong framework.Mismatches
	for _, node := range nodes() {
		asked := false
		for _, p := range pulls {
			if p.Client != node.Address {
				continue
			}
			if asked = true; p.Reference != digest {
				wrong.Addf("%s has asked for %s", node.Name, p.Reference)
			}
		}
		if !asked {
			wrong.Addf("%s has asked for nothing", node.Name)
		}
	}
	return wrong.Result()
}

// tellPullTimes tells of each node's longest pull since the variant began, and
// keeps all of them.
func tellPullTimes(ctx context.Context, r *framework.Run) error {
	times, err := workload.PullTimes(ctx, r.Cluster, untagged, r.Began)
	if err != nil {
		return err
	}
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
