package unpinnedimage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/kuberouter"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// rollout are the sources that show the rollout of kube-router, node by node.
var rollout = []snapshot.Source{snapshot.RunningImages, snapshot.Routers}

// runs asserts that each node's kube-router is of an image.
func runs(id, image string) framework.Check {
	return framework.Check{
		ID: id, Name: "every node runs " + kuberouter.Version(image), Reads: rollout, Bound: seenWithin,
		Holds: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			want, err := kuberouter.Digest(ctx, labaccess.Lab(r), image)
			if err != nil {
				return false, "", err
			}
			return nodesRun(r.Snapshot(), all, want)
		},
	}
}

func nodesRun(s snapshot.Snapshot, nodes []string, digest string) (bool, string, error) {
	var wrong framework.Mismatches
	for _, name := range nodes {
		if got := kuberouter.StateOf(s, kuberouter.Node{Name: name}).Digest; got != digest {
			wrong.Addf("%s runs %q, not %s", name, got, digest)
		}
	}
	return wrong.Result()
}

var sessionsUp = framework.Check{
	ID: "sessions-up", Name: "the ToR has a session with every node", Reads: rollout, Holds: check.Sessions(nodeNet.Name, all, all), Bound: seenWithin,
}

// othersWork asserts that the old version runs on the other nodes, and that the ToR has
// a session with each.
func othersWork(ctx context.Context, r *framework.Run) (bool, string, error) {
	at := r.Snapshot()
	if len(at.Routers) == 0 || !at.Routers[0].Neighbors.Read {
		return false, "", errors.New("the ToR's sessions were not read")
	}
	want, err := kuberouter.Digest(ctx, labaccess.Lab(r), older)
	if err != nil {
		return false, "", err
	}
	var wrong framework.Mismatches
	for _, node := range nodes(r) {
		if got := kuberouter.StateOf(at, node); node.Name != newcomer && (got.Digest != want || got.Trouble != "" || !got.Session) {
			wrong.Addf("%s: %+v", node.Name, got)
		}
	}
	return wrong.Result()
}

// crashes asserts that kube-router has ended on nodes, and that its log has the reason.
func crashes(names ...string) framework.Condition {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		var wrong framework.Mismatches
		for _, name := range names {
			if kuberouter.StateOf(r.Snapshot(), nodeOf(r, name)).Trouble == "" {
				wrong.Addf("on %s it runs", name)
				continue
			}
			log, err := kuberouter.Log(ctx, labaccess.Lab(r).Node(name))
			if err != nil {
				return false, "", err
			}
			for _, says := range []string{"failed to synchronize cache", `cannot list resource "endpointslices"`} {
				if !strings.Contains(log, says) {
					wrong.Addf("on %s it has ended, and its log does not say %q", name, says)
				}
			}
		}
		return wrong.Result()
	}
}

// unpinned are the latent findings before the incident: the image has no tag. moved
// are those after latest has become another version, and drifted those of nodes that run
// another image and whose ranges the ToR has lost.
func unpinned() []framework.Finding { return ofBoth(detect.ImagePin{}, detect.Untagged, detect.Latent) }
func moved() []framework.Finding    { return ofBoth(detect.ImagePin{}, detect.MovedTag, detect.Latent) }

func drifted(kind string) []framework.Finding {
	return ofBoth(detect.ImageDrift{}, kind, detect.Active, tor)
}

// lostRanges are findings that the ToR has lost a node's range. The detector waits some
// seconds for the node's session, and the script may have gone on by then. A node that
// was replaced has another range than at first.
func lostRanges() []framework.Finding {
	var lost []framework.Finding
	for _, node := range all {
		lost = append(lost, framework.Finding{
			Detector: detect.RouteOwnership{}.Name(), Kind: detect.Unannounced, State: detect.Active,
			AnyObject: true, Owner: node, Routers: []string{tor},
		})
	}
	return lost
}

// ofBoth is a finding about each of kube-router's containers.
func ofBoth(d detect.Detector, kind string, state detect.State, routers ...string) []framework.Finding {
	var both []framework.Finding
	for _, container := range []string{agent, installer} {
		both = append(both, framework.Finding{
			Detector: d.Name(), Kind: kind, State: state, Object: detect.Named(container), Routers: routers,
		})
	}
	return both
}

// pullRecord is what the nodes requested from the registry under kube-router's name since
// the variant began, and the digest of an image there. The record is evidence.
func pullRecord(ctx context.Context, r *framework.Run, image string) (pulls []registry.Pull, digest string, err error) {
	if digest, err = kuberouter.Digest(ctx, labaccess.Lab(r), image); err != nil {
		return nil, "", err
	}
	log, err := labaccess.Lab(r).Registry().Logs(ctx)
	if err != nil {
		return nil, "", err
	}
	began := r.Began.Truncate(time.Second) // as exact as the log is
	pulls = slices.DeleteFunc(registry.ParseLog(log), func(p registry.Pull) bool {
		return p.Image != untagged || p.Time.Before(began)
	})
	r.Evidence("pulls", pulls)
	return pulls, digest, nil
}

// pulledAsLatest asserts that these nodes and no others have requested latest and got an
// image. It also notes how long their pulls took.
func pulledAsLatest(image string, nodes ...string) framework.Condition {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		pulls, want, err := pullRecord(ctx, r, image)
		if err != nil {
			return false, "", err
		}
		if err := notePullTimes(ctx, r); err != nil {
			return false, "", err
		}
		got := given(r, pulls, want)
		return slices.Equal(got, nodes), "by " + strings.Join(got, ", "), nil
	}
}

// given names the nodes that got a digest for latest.
func given(r *framework.Run, pulls []registry.Pull, digest string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool {
		return !slices.ContainsFunc(pulls, func(p registry.Pull) bool {
			return p.Client == nodeOf(r, name).Address && p.Reference == "latest" && p.Digest == digest
		})
	})
}

// askedForDigest asserts that every node has requested an image by its digest, and that
// none has requested anything else.
func askedForDigest(image string) framework.Condition {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		pulls, want, err := pullRecord(ctx, r, image)
		if err != nil {
			return false, "", err
		}
		return notByDigest(r, pulls, want)
	}
}

// notByDigest says which nodes requested something else than a digest, or nothing.
func notByDigest(r *framework.Run, pulls []registry.Pull, digest string) (bool, string, error) {
	var wrong framework.Mismatches
	for _, node := range nodes(r) {
		asked := false
		for _, p := range pulls {
			if p.Client != node.Address {
				continue
			}
			if asked = true; p.Reference != digest {
				wrong.Addf("%s has requested %s", node.Name, p.Reference)
			}
		}
		if !asked {
			wrong.Addf("%s has requested nothing", node.Name)
		}
	}
	return wrong.Result()
}

// notePullTimes notes each node's longest pull since the variant began. All of them are evidence.
func notePullTimes(ctx context.Context, r *framework.Run) error {
	times, err := workload.PullTimes(ctx, labaccess.Cluster(r), untagged, r.Began)
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
