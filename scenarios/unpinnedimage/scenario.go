package unpinnedimage

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/kuberouter"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// The versions under test: what the cluster runs, and what latest becomes; and the variants.
const (
	oldVersion = "1.5.1"
	newVersion = "2.1.0"

	untaggedVariant = "untagged"
	pinnedVariant   = "pinned-by-digest"
	ifNotPresent    = "untagged-if-not-present"
)

const (
	tor     = "tor"
	master  = topology.Master
	worker1 = topology.Worker1
	worker2 = topology.Worker2
	// newcomer is the node whose machine is replaced by a new one. It is the last, so that it
	// gets its pod range back.
	newcomer = worker2
)

var (
	all  = []string{master, worker1, worker2}
	rack = topology.NewRack(20)
)

// lab is the cluster that Record draws. One ToR and not two: nothing of the incident
// depends on ECMP. Three nodes are enough to watch a rollout from node to node.
//
// The nodes peer with the ToR because that shows all of the damage: its RIB says which node is
// lost, and pods of different nodes as well as the outside depend on it. With iBGP off, as at the
// start of the incident, the nodes have no routes to each other's ranges.
var lab = rack.Three("unpinned-image").Behind(topology.GracefulRestart(topology.OneToR(rack.Nodes, rack.Uplink)))

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Owner:    framework.Maintainers, Slow: true,
	Labels:     []framework.Label{framework.Images, framework.Upgrade},
	SecondLab:  netip.MustParsePrefix("10.208.16.0/20"),
	Budget:     framework.Budget{Whole: 150 * time.Second, Lab: 45 * time.Second, Detect: time.Second},
	OnlyOwnLab: "kube-router leaves ipsets, tunnels and policy routes on nodes, which are not known to come back",
	Topology:   lab,
	Variants: []framework.Variant{
		variant(untaggedVariant, framework.Affected, oldVersion, newVersion, untaggedScript),
		variant(pinnedVariant, framework.Fixed, oldVersion, newVersion, pinnedScript),
		variant(ifNotPresent, framework.Workaround, oldVersion, newVersion, ifNotPresentScript),
	},
	Tested: []framework.Tested{
		{Name: "kube-router.old", Default: oldVersion},
		{Name: "kube-router.new", Default: newVersion, Varied: true},
	},
	At: func(versions map[string]string) framework.Variant {
		previous, next := versions["kube-router.old"], versions["kube-router.new"]
		return variant("kube-router-"+previous+"-to-"+next, framework.Unclassified, previous, next, func() framework.Script {
			s := common(kuberouter.Image(previous), kuberouter.Image(next), untagged(kuberouter.ManifestOf(previous), corev1.PullAlways))
			s.Observe, s.Expected, s.Transient = untaggedFor, drifted(detect.ChangedImage), lostRanges()
			return s
		})
	},
}

func variant(name string, role framework.Role, previous, next string, script func() framework.Script) framework.Variant {
	return framework.Variant{
		Name: name, Role: role, Form: framework.Whole, Script: script,
		Components: map[string]string{"kube-router": previous, "latest": next},
		Images:     []string{kuberouter.Image(previous), kuberouter.Image(next), workload.ProbeImage},
	}
}

var (
	older = kuberouter.Image(oldVersion)
	newer = kuberouter.Image(newVersion)

	onMaster, onWorker1, onWorker2 = framework.PodOn(master), framework.PodOn(worker1), framework.PodOn(worker2)
	onOutside                      = framework.HostEndpoint(lab.Hosts[0])
)

const (
	// seenWithin bounds checks that may need a second snapshot, because a source
	// of the first was not read.
	seenWithin = 5 * time.Second
	// untaggedFor is how long the effects of a restart under another version are watched.
	untaggedFor = 5 * time.Second
	// recoversWithin is many times what a recovery takes on two CPUs (8 to 16 s): the
	// pods are replaced, their GoBGPs dial the ToR.
	recoversWithin = 2 * time.Minute
	// restartTime is longer than the restart of a kube-router that works: some 3 s for
	// the pod, and 5 to 9 s until its GoBGP dials the ToR. As with its defaults, a kube-router
	// whose caches do not fill ends before its routes are dropped.
	restartTime      = 18 * time.Second
	cacheSyncTimeout = 12 * time.Second
)

// untagged is the vendor's manifest as it is: its image has no tag.
func untagged(manifest kuberouter.Manifest, policy corev1.PullPolicy) kuberouter.KubeRouter {
	return kuberouter.KubeRouter{
		Manifest: manifest, Image: kuberouter.Untagged, PullPolicy: policy, RestartTime: restartTime, CacheSyncTimeout: cacheSyncTimeout,
	}
}

func pinned(manifest kuberouter.Manifest, image string) kuberouter.KubeRouter {
	k := untagged(manifest, corev1.PullAlways)
	k.Image, k.Pin = image, true
	return k
}

func atOnce(k kuberouter.KubeRouter) framework.Action {
	k.AtOnce = true
	return k.Apply
}

// common is what all variants do: kube-router is installed at the old version,
// latest becomes the new one, the operator changes an argument.
func common(oldImage, newImage string, k kuberouter.KubeRouter) framework.Script {
	ring := []probe.Probe{onMaster.To(onWorker1), onWorker1.To(onWorker2), onWorker2.To(onMaster)}
	precursor, change := latestMoves(oldImage, newImage), changeArgument(k)
	// Without the precursor the fault moves latest, too: it is no change a second time.
	change.Inject = framework.InOrder(precursor.Inject, change.Inject)
	return framework.Script{
		Install: framework.InOrder(
			workload.StopProbes, kuberouter.Clean, kuberouter.LatestMoved(oldImage), k.Apply,
			// Only now: a pod without a CNI configuration is retried only after a while.
			kuberouter.RangesWritten, framework.AtOnce(workload.ProbesOn(all...), sessionsOfAnyAge),
		),
		Endpoints: []framework.Endpoint{onMaster, onWorker1, onWorker2, onOutside},
		// Every node's pod from and to the outside, and a ring inside the
		// cluster, which passes through the ToR.
		Probes:    append(onOutside.Both(onMaster, onWorker1, onWorker2), ring...),
		Detectors: []detect.Detector{detect.ImagePin{}, detect.ImageDrift{}, detect.RouteOwnership{}},
		Baseline:  []framework.Check{runs("old-version-runs", oldImage)},
		Precursors: []framework.Precursor{{
			ID: "latest-moved", Name: "latest becomes " + kuberouter.Version(newImage) + ", and nothing happens",
			Fault:     precursor,
			Aftermath: []framework.Check{runs("old-version-runs", oldImage)},
		}},
		Fault: change,
		// Pods' packets to the outside bear their node's address, so that
		// replies find the way back without kube-router.
		Impacted: append([]probe.Probe{onOutside.To(onMaster), onOutside.To(onWorker1), onOutside.To(onWorker2)}, ring...),
		// The fault is injected only when the ToR has, for every node, a session
		// again or no routes any more: no further probe loses packets after that.
		Observe: 2 * time.Second,
	}
}

// rollout are the sources that show the rollout of kube-router, node by node.
var rollout = []snapshot.Source{snapshot.RunningImages, snapshot.Routers}

func untaggedScript() framework.Script {
	vendors := untagged(kuberouter.V1, corev1.PullAlways)
	s := common(older, newer, vendors)
	s.Latent = unpinned()
	s.Precursors[0].Expected = moved()
	s.Observe, s.Expected, s.Transient = untaggedFor, drifted(detect.ChangedImage), lostRanges()
	s.Aftermath = []framework.Check{
		runs("new-version-runs", newer),
		{ID: "sessions-down", Name: "the ToR has no session with any node", Reads: rollout, Holds: check.Sessions(rack.Nodes.Name, all, nil),
			Bound: seenWithin},
		{ID: "ranges-lost", Name: "the ToR has lost every pod range", Reads: rollout, Holds: check.Routes(rack.Pods, rack.Nodes.Name, nil),
			Bound: seenWithin},
		lacksPermissions(all...),
	}
	s.Remedies = []framework.Remedy{
		{ID: "argument-reverted", Name: "revert the argument", Apply: vendors.Apply},
		{
			ID: "pin-old-version", Name: "pin " + oldVersion + " by digest", Helps: true, Bound: recoversWithin,
			Apply: atOnce(pinned(kuberouter.V1, older)),
			// The fault has shown that routes are dropped when the time for a restart is over.
			// Here they are dropped at once.
			Undo: framework.InOrder(atOnce(vendors), labaccess.SessionsCleared(all...)),
		},
		{
			ID: "complete-upgrade", Name: "complete the upgrade to " + newVersion, Helps: true, Bound: recoversWithin,
			// The running ones first: one that gets its permissions and is stopped a moment later
			// may be writing the CNI configuration, in place. It leaves an empty file, with which
			// its successor does not start.
			Apply: framework.InOrder(kuberouter.Deleted, atOnce(pinned(kuberouter.V2, newer))),
		},
	}
	return s
}

func pinnedScript() framework.Script {
	s := common(older, newer, pinned(kuberouter.V1, older))
	s.Aftermath = []framework.Check{runs("old-version-runs", older), sessionsUp}
	return s
}

// ifNotPresentScript is a workaround that only seems to be one: the restart does no harm, because
// every node has an image of that name; a node without it gets another one.
func ifNotPresentScript() framework.Script {
	s := common(older, newer, untagged(kuberouter.V1, corev1.PullIfNotPresent))
	s.Latent = unpinned()
	s.Gone = []framework.Endpoint{onWorker2}
	s.Impacted = slices.DeleteFunc(s.Impacted, func(p probe.Probe) bool { return p.From == newcomer || p.To == newcomer })
	s.Precursors[0].Expected = moved()
	s.Precursors = append(s.Precursors, framework.Precursor{
		ID: "new-node", Name: "a new node joins, and gets " + newVersion,
		Fault:    newNode,
		Expected: drifted(detect.MixedImages),
		// The ToR keeps the removed node's route for the time of a restart, and the new
		// machine may have joined long before.
		Within:    restartTime + seenWithin,
		Transient: lostRanges(),
		Aftermath: []framework.Check{lacksPermissions(newcomer), runs("others-work", older, master, worker1)},
		Undone:    true,
	})
	s.Aftermath = []framework.Check{runs("old-version-runs", older), sessionsUp}
	return s
}

// sessionsOfAnyAge waits for sessions with every node: no kube-router of an earlier run is left.
func sessionsOfAnyAge(ctx context.Context, r *framework.Run) error {
	return labaccess.Lab(r).SessionsUp(ctx, all, time.Time{})
}

func latestMoves(oldImage, newImage string) framework.Fault {
	return framework.Fault{
		Name:   "latest becomes " + kuberouter.Version(newImage),
		Inject: kuberouter.LatestMoved(newImage),
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			got, err := kuberouter.Digest(ctx, r, kuberouter.Untagged)
			if err != nil {
				return false, "", err
			}
			want, err := kuberouter.Digest(ctx, r, newImage)
			return got == want, "latest is " + got, err
		},
		Undo: kuberouter.LatestMoved(oldImage),
	}
}

// changeArgument is what the operator does: --enable-ibgp=false becomes true,
// and the DaemonSet is rolled, node by node. It is over when the ToR either
// has a session with a node again or has given its routes up.
func changeArgument(k kuberouter.KubeRouter) framework.Fault {
	k.IBGP = true
	return framework.Fault{
		Name: "--enable-ibgp=false becomes true",
		Inject: framework.InOrder(k.Apply, func(ctx context.Context, r *framework.Run) error {
			return labaccess.Lab(r).SessionsDecided(ctx, all, restartTime+30*time.Second)
		}),
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			pods, err := kuberouter.Agent.Pods.List(ctx, labaccess.Cluster(r))
			if err != nil {
				return false, "", err
			}
			for _, p := range pods {
				if !slices.Contains(p.Spec.Containers[0].Args, "--enable-ibgp=true") {
					return false, "pod " + p.Name + " still has --enable-ibgp=false", nil
				}
			}
			return len(pods) == len(all), fmt.Sprintf("%d pods", len(pods)), nil
		},
		// No Undo: the next variant installs kube-router in any state.
	}
}

// newNode replaces the machine of a node by a new one, which has no images yet. Its undo
// is what an operator does: the version of the others is installed on it.
var newNode = framework.Fault{
	Name: "a new machine joins as " + newcomer,
	Inject: framework.InOrder(
		fault.RemoveNode(newcomer).Inject,
		// Kubernetes takes a minute to delete the removed node's pod, and until then
		// the new machine would run that pod.
		kuberouter.PodDeleted(newcomer),
		labaccess.NodesReplaced(newcomer),
		kuberouter.RolledOut,
	),
	TookEffect: runs("", newer, newcomer).Holds,
	Undo: framework.InOrder(func(ctx context.Context, r *framework.Run) error {
		digest, err := kuberouter.Digest(ctx, r, older)
		if err != nil {
			return err
		}
		return kuberouter.LatestPulled(newcomer, kuberouter.Untagged+"@"+digest)(ctx, r)
	}, kuberouter.PodDeleted(newcomer), kuberouter.RolledOut,
		// Its GoBGP takes a while to dial. Only then does the newcomer have a session
		// that the fault can break.
		sessionsOfAnyAge),
}

// runs asserts that the kube-router of each of these nodes is of an image; none: of all nodes.
func runs(id, image string, nodes ...string) framework.Check {
	name := strings.Join(nodes, " and ") + " run "
	if len(nodes) == 0 {
		nodes, name = all, "every node runs "
	}
	return framework.Check{
		ID: id, Name: name + kuberouter.Version(image), Reads: rollout, Bound: seenWithin,
		Holds: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			want, err := kuberouter.Digest(ctx, r, image)
			if err != nil {
				return false, "", err
			}
			var wrong framework.Mismatches
			for _, name := range nodes {
				if got, _ := kuberouter.Running(r.Snapshot(), name); got != want {
					wrong.Addf("%s runs %q, not %s", name, got, want)
				}
			}
			return wrong.Result()
		},
	}
}

var sessionsUp = framework.Check{
	ID: "sessions-up", Name: "the ToR has a session with every node", Reads: rollout, Holds: check.Sessions(rack.Nodes.Name, all,
		all), Bound: seenWithin,
}

func lacksPermissions(nodes ...string) framework.Check {
	return framework.Check{
		ID: "rbac-missing", Name: "kube-router ends on " + strings.Join(nodes, ", ") + " because its ClusterRole lacks permissions",
		Reads: rollout, Bound: cacheSyncTimeout + seenWithin,
		Holds: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			var wrong framework.Mismatches
			for _, name := range nodes {
				if _, trouble := kuberouter.Running(r.Snapshot(), name); trouble == "" {
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
		},
	}
}

// unpinned are the latent findings before the incident: the image has no tag. moved are the findings after
// latest has become another version. drifted are the findings about nodes that run another image and whose
// ranges the ToR has lost.
func unpinned() []framework.Finding { return ofBoth(detect.ImagePin{}, detect.Untagged, detect.Latent) }
func moved() []framework.Finding    { return ofBoth(detect.ImagePin{}, detect.MovedTag, detect.Latent) }

func drifted(kind string) []framework.Finding {
	return ofBoth(detect.ImageDrift{}, kind, detect.Active, tor)
}

// lostRanges are findings that the ToR has lost a node's range. The detector waits some
// seconds for the node's session, and the script may have gone on by then. A node that
// was replaced has another range than at first.
func lostRanges() []framework.Finding {
	return each.Of(all, func(node string) framework.Finding {
		return framework.Finding{
			Detector: detect.RouteOwnership{}.Name(), Kind: detect.Unannounced, State: detect.Active,
			AnyObject: true, Owner: node, Routers: []string{tor},
		}
	})
}

func ofBoth(d detect.Detector, kind string, state detect.State, routers ...string) []framework.Finding {
	return each.Of([]string{"container kube-router", "init container install-cni"}, func(container string) framework.Finding {
		return framework.Finding{
			Detector: d.Name(), Kind: kind, State: state, Object: detect.Named("DaemonSet kube-system/kube-router, " + container), Routers: routers,
		}
	})
}
