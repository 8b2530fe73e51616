package unpinnedimage

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kuberouter"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// The versions under test: what the cluster runs, and what latest becomes.
const (
	oldVersion = "1.5.1"
	newVersion = "2.1.0"
)

// Names of the vendor's image.
const untagged = kuberouter.Untagged

var (
	older = kuberouter.Image(oldVersion)
	newer = kuberouter.Image(newVersion)
)

// pair are two versions of an image, by tag: what latest is at first, and what
// it becomes.
type pair struct{ before, after string }

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Labels:   []string{"images", framework.SlowLabel, "upgrade"},
	Owner:    "@relapse-dev",
	Topology: lab,
	Variants: []framework.Variant{
		{
			Name: "untagged", Role: framework.Affected, Form: framework.Whole,
			Components: components, Images: images, Script: untaggedScript,
		},
		{
			Name: "pinned-by-digest", Role: framework.Fixed, Form: framework.Whole,
			Components: components, Images: images, Script: pinnedScript,
		},
		{
			Name: "untagged-if-not-present", Role: framework.Workaround, Form: framework.Whole,
			Components: components, Images: images, Script: ifNotPresentScript,
		},
		published,
	},
	Tested: []framework.Tested{
		{Name: "kube-router.old", Default: oldVersion},
		{Name: "kube-router.new", Default: newVersion, Varied: true},
	},
	At: func(versions map[string]string) framework.Variant {
		latest := pair{kuberouter.Image(versions["kube-router.old"]), kuberouter.Image(versions["kube-router.new"])}
		return framework.Variant{
			Name: "kube-router-" + versions["kube-router.old"] + "-to-" + versions["kube-router.new"], Form: framework.Whole,
			Components: map[string]string{"kube-router": versions["kube-router.old"], "latest": versions["kube-router.new"]},
			Images:     []string{latest.before, latest.after, workload.ProbeImage},
			Script: func() framework.Script {
				vendors := kuberouter.ManifestOf(versions["kube-router.old"])
				s := common(latest, asTheVendorHasIt(vendors, corev1.PullAlways))
				s.Observe = untaggedFor
				s.Named, s.Passing = drifted(detect.ChangedImage), lostRanges()
				return s
			},
		}
	},
}

var (
	components = map[string]string{"kube-router": oldVersion, "latest": newVersion}
	images     = []string{older, newer, workload.ProbeImage}

	all = []string{master, worker1, worker2}
)

// newcomer is the node whose machine is replaced by a new one.
const newcomer = worker2

// The ends of the probes.
var (
	onMaster, onWorker1, onWorker2 = framework.PodOn(master), framework.PodOn(worker1), framework.PodOn(worker2)
	onOutside                      = framework.HostEnd(outside)
)

// The objects that the detectors name.
const (
	agent     = "DaemonSet kube-system/kube-router, container kube-router"
	installer = "DaemonSet kube-system/kube-router, init container install-cni"
)

// seenWithin bounds checks that may need a second snapshot, because a source
// of the first was not read.
const seenWithin = 5 * time.Second

// recoversWithin is many times what a recovery takes on two CPUs (8 to 16 s): the
// pods are replaced, their GoBGPs dial the ToR.
const recoversWithin = 2 * time.Minute

// Times that kube-router is given; see the record. As with its defaults, a
// kube-router that waits for its caches in vain ends before its routes go.
const (
	// restartTime outlasts the restart of a kube-router that comes back: some
	// 3 s for the pod, and 5 to 9 s until its GoBGP dials the ToR.
	restartTime      = 18 * time.Second
	cacheSyncTimeout = 12 * time.Second
)

// manifest is the vendor's, with an image and this lab's BGP.
func manifest(vendors kuberouter.Manifest, image string, policy corev1.PullPolicy) kuberouter.KubeRouter {
	return kuberouter.KubeRouter{
		Manifest: vendors, Image: image, PullPolicy: policy,
		Router: torAddress, RouterASN: torASN, ClusterASN: clusterASN,
		RestartTime: restartTime, CacheSyncTimeout: cacheSyncTimeout,
	}
}

// configure makes a configuration of kube-router: the digest that an image is
// pinned by is the registry's to tell.
type configure func(context.Context, *framework.Run) (kuberouter.KubeRouter, error)

// common is what all variants do: kube-router is installed at the old version,
// latest becomes the new one, the operator changes an argument.
func common(latest pair, config configure) framework.Script {
	ring := []probe.Probe{onMaster.To(onWorker1), onWorker1.To(onWorker2), onWorker2.To(onMaster)}
	moved := false // latest, by the lesser form
	return framework.Script{
		Install: func(ctx context.Context, r *framework.Run) error {
			moved = false
			return install(ctx, r, latest, config)
		},
		Ends: []framework.End{onMaster, onWorker1, onWorker2, onOutside},
		// Every node's pod from and to the outside, and a ring inside the
		// cluster, which passes through the ToR.
		Probes:    append(onOutside.Both(onMaster, onWorker1, onWorker2), ring...),
		Detectors: []detect.Detector{detect.ImagePin{}, detect.ImageDrift{}, detect.RouteOwnership{}},
		Baseline: []framework.Check{
			{Name: "every node runs " + kuberouter.Version(latest.before), Reads: rollout, Holds: everyNodeRuns(latest.before), Bound: seenWithin},
		},
		// That latest has moved in the registry is asked of the fault.
		Forms: []framework.LesserForm{{
			Name: "latest becomes " + kuberouter.Version(latest.after) + ", and nothing happens",
			Fault: func(r *framework.Run) fault.Fault {
				f := latestMoves(r, latest)
				move := f.Inject
				f.Inject = func(ctx context.Context) error {
					err := move(ctx)
					moved = err == nil
					return err
				}
				return f
			},
			Aftermath: []framework.Check{
				{Name: "every node runs " + kuberouter.Version(latest.before) + " still", Reads: rollout, Holds: everyNodeRuns(latest.before), Bound: seenWithin},
			},
		}},
		Fault: func(r *framework.Run) fault.Fault {
			f := changeArgument(r, config)
			roll := f.Inject
			f.Inject = func(ctx context.Context) error {
				if !moved { // where the lesser form is left out
					if err := kuberouter.MoveLatest(ctx, r.Lab, latest.after); err != nil {
						return err
					}
				}
				return roll(ctx)
			}
			return f
		},
		// Pods' packets to the outside bear their node's address, so that
		// replies find the way back without kube-router.
		Hurt: append([]probe.Probe{onOutside.To(onMaster), onOutside.To(onWorker1), onOutside.To(onWorker2)}, ring...),
		// The fault is injected only when the ToR has, for every node, a session
		// again or no routes any more: no further probe is hurt after that.
		Observe: 2 * time.Second,
	}
}

// asTheVendorHasIt is the vendor's manifest: no tag.
func asTheVendorHasIt(vendors kuberouter.Manifest, policy corev1.PullPolicy) configure {
	return func(context.Context, *framework.Run) (kuberouter.KubeRouter, error) {
		return manifest(vendors, untagged, policy), nil
	}
}

// pinnedTo is a manifest with an image by its digest.
func pinnedTo(vendors kuberouter.Manifest, image string) configure {
	return func(ctx context.Context, r *framework.Run) (kuberouter.KubeRouter, error) {
		pinned, err := kuberouter.Pinned(ctx, r.Lab, image)
		return manifest(vendors, pinned, corev1.PullAlways), err
	}
}

// apply brings kube-router to a configuration, and tells node by node what
// becomes of it. The story is kept under a name.
func (config configure) apply(ctx context.Context, r *framework.Run, name string, change func(*kuberouter.KubeRouter)) error {
	k, err := config(ctx, r)
	if err != nil {
		return err
	}
	change(&k)
	return tell(r, name, func() error { return k.Apply(ctx, r.Cluster) })
}

// unchanged is a configuration as it is, atOnce one that replaces all pods at
// once.
func unchanged(*kuberouter.KubeRouter) {}
func atOnce(k *kuberouter.KubeRouter)  { k.AtOnce = true }

// tell does something to kube-router, and keeps what became of each node.
func tell(r *framework.Run, name string, do func() error) error {
	events, err := kuberouter.Tell(nodes(), r.Snapshot, r.Note, do)
	r.Evidence("story-"+name, events)
	return err
}

// nodes are the lab's, as the ToR knows them.
func nodes() []kuberouter.Node {
	var known []kuberouter.Node
	for _, name := range all {
		known = append(known, nodeOf(name))
	}
	return known
}

func nodeOf(name string) kuberouter.Node {
	address, _ := lab.AddressOn(name, "nodes")
	return kuberouter.Node{Name: name, Address: address}
}

// untaggedFor is how long is watched what a restart under another version does.
const untaggedFor = 5 * time.Second

func untaggedScript() framework.Script {
	vendors := asTheVendorHasIt(kuberouter.V1, corev1.PullAlways)
	s := common(pair{older, newer}, vendors)
	s.Latent = unpinned()
	s.Observe = untaggedFor
	s.Forms[0].Named = moved()
	s.Named = drifted(detect.ChangedImage)
	s.Passing = lostRanges()
	s.Aftermath = []framework.Check{
		{Name: "every node runs " + newVersion, Reads: rollout, Holds: everyNodeRuns(newer), Bound: seenWithin},
		{Name: "every node has pulled " + newVersion + ", and asked for no version", Holds: pulledAsLatest(newer, all...)},
		{Name: "the ToR has no session with any node", Reads: rollout, Holds: sessions(false), Bound: seenWithin},
		{Name: "the ToR has lost every pod range", Reads: rollout, Holds: noPodRange, Bound: seenWithin},
		{Name: "kube-router ends for want of RBAC", Reads: rollout, Holds: crashes(all...), Bound: cacheSyncTimeout},
	}
	s.Remedies = []framework.Remedy{
		{
			Name: "take the argument back",
			Apply: func(ctx context.Context, r *framework.Run) error {
				return vendors.apply(ctx, r, "argument-taken-back", unchanged)
			},
		},
		{
			Name: "pin " + oldVersion + " by digest", Helps: true, Bound: recoversWithin,
			Apply: func(ctx context.Context, r *framework.Run) error {
				return pinnedTo(kuberouter.V1, older).apply(ctx, r, "pinned", atOnce)
			},
			Undo: func(ctx context.Context, r *framework.Run) error {
				if err := vendors.apply(ctx, r, "unpinned", atOnce); err != nil {
					return err
				}
				// That the routes go when the time for a restart is over has been
				// seen; it need not be waited for again.
				return r.Lab.ClearSessions(ctx, all)
			},
		},
		{
			Name: "complete the upgrade to " + newVersion, Helps: true, Bound: recoversWithin,
			Apply: func(ctx context.Context, r *framework.Run) error {
				// Without those that are there: one that gets its permissions and is told to
				// end a moment later may be writing the CNI configuration, which it does in
				// place. It leaves an empty file, and its successor does not start with that.
				if err := kuberouter.Agent.Delete(ctx, r.Cluster); err != nil {
					return err
				}
				return pinnedTo(kuberouter.V2, newer).apply(ctx, r, "upgraded", atOnce)
			},
		},
	}
	return s
}

func pinnedScript() framework.Script {
	s := common(pair{older, newer}, pinnedTo(kuberouter.V1, older))
	s.Aftermath = []framework.Check{
		{Name: "every node runs " + oldVersion, Reads: rollout, Holds: everyNodeRuns(older), Bound: seenWithin},
		{Name: "every node has asked for that digest, and for nothing else", Holds: askedForDigest(older)},
		{Name: "the ToR has a session with every node", Reads: rollout, Holds: sessions(true), Bound: seenWithin},
	}
	return s
}

// ifNotPresentScript is a workaround that only seems to be one: the restart
// does no harm, for every node has an image of that name; a node that does
// not have it gets another one.
func ifNotPresentScript() framework.Script {
	s := common(pair{older, newer}, asTheVendorHasIt(kuberouter.V1, corev1.PullIfNotPresent))
	s.Latent = unpinned()
	s.Gone = []framework.End{onWorker2}
	s.Hurt = slices.DeleteFunc(s.Hurt, func(p probe.Probe) bool { return p.From == newcomer || p.To == newcomer })
	s.Forms[0].Named = moved()
	s.Forms = append(s.Forms, framework.LesserForm{
		Name:  "a new node joins, and gets " + newVersion,
		Fault: newNode,
		Named: drifted(detect.MixedImages),
		// The ToR keeps the removed node's route for a restart, and the new machine may
		// be there long before.
		Within:  restartTime + seenWithin,
		Passing: lostRanges(),
		Aftermath: []framework.Check{
			{Name: "kube-router ends on " + newcomer + " for want of RBAC", Reads: rollout, Holds: crashes(newcomer), Bound: cacheSyncTimeout + seenWithin},
			{Name: oldVersion + " works on the other nodes, with sessions", Reads: rollout, Holds: othersWork},
		},
		TakenBack: true,
	})
	s.Aftermath = []framework.Check{
		{Name: "every node runs " + oldVersion, Reads: rollout, Holds: everyNodeRuns(older), Bound: seenWithin},
		{Name: "only " + newcomer + " has pulled " + newVersion, Holds: pulledAsLatest(newer, newcomer)},
		{Name: "the ToR has a session with every node", Reads: rollout, Holds: sessions(true), Bound: seenWithin},
	}
	return s
}

// install puts kube-router and the probe pods into the lab, from whatever
// state an earlier variant or run has left.
func install(ctx context.Context, r *framework.Run, latest pair, config configure) error {
	if err := uninstall(ctx, r); err != nil {
		return err
	}
	if err := kuberouter.MoveLatest(ctx, r.Lab, latest.before); err != nil {
		return err
	}
	k, err := config(ctx, r)
	if err != nil {
		return err
	}
	if err := k.Apply(ctx, r.Cluster); err != nil {
		return err
	}
	// A pod that comes too early is tried again only after a while.
	if err := kuberouter.RangesWritten(ctx, r.Lab); err != nil {
		return err
	}
	starts, ctx := errgroup.WithContext(ctx)
	starts.Go(func() error { return workload.StartProbes(ctx, r.Cluster, workload.OnEach(all...)) })
	// Sessions of any age will do: no kube-router of an earlier run is left.
	starts.Go(func() error { return r.Lab.SessionsUp(ctx, all, time.Time{}) })
	return starts.Wait()
}

// uninstall removes the probe pods, what the variant with policies has made, and
// then kube-router and all that it has left on the nodes.
func uninstall(ctx context.Context, r *framework.Run) error {
	if err := workload.StopProbes(ctx, r.Cluster); err != nil {
		return err
	}
	if err := unguard(ctx, r); err != nil {
		return err
	}
	return kuberouter.Clean(ctx, r.Lab)
}

// latestMoves is what the vendor does on any day, and nobody notices.
func latestMoves(r *framework.Run, latest pair) fault.Fault {
	return fault.Fault{
		Name:   "latest becomes " + kuberouter.Version(latest.after),
		Inject: func(ctx context.Context) error { return kuberouter.MoveLatest(ctx, r.Lab, latest.after) },
		Held: func(ctx context.Context) (bool, string, error) {
			got, err := kuberouter.Digest(ctx, r.Lab, untagged)
			if err != nil {
				return false, "", err
			}
			want, err := kuberouter.Digest(ctx, r.Lab, latest.after)
			return got == want, "latest is " + got, err
		},
		Undo: func(ctx context.Context) error { return kuberouter.MoveLatest(ctx, r.Lab, latest.before) },
	}
}

// changeArgument is what the operator does: --enable-ibgp=false becomes true,
// and the DaemonSet is rolled, node by node. It is over when the ToR either
// has a session with a node again or has given its routes up.
func changeArgument(r *framework.Run, config configure) fault.Fault {
	return fault.Fault{
		Name: "--enable-ibgp=false becomes true",
		Inject: func(ctx context.Context) error {
			k, err := config(ctx, r)
			if err != nil {
				return err
			}
			k.IBGP = true
			return tell(r, "argument-changed", func() error {
				if err := k.Apply(ctx, r.Cluster); err != nil {
					return err
				}
				return r.Lab.SessionsDecided(ctx, all, restartTime+30*time.Second)
			})
		},
		Held: func(ctx context.Context) (bool, string, error) {
			pods, err := kuberouter.Agent.Pods.List(ctx, r.Cluster)
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
		// The next variant installs kube-router anew, whatever is there.
		Undo: func(context.Context) error { return nil },
	}
}

// newNode replaces the machine of a node by a new one, which has no images
// yet. Its undo is the operator's: the version of the others is put onto it.
func newNode(r *framework.Run) fault.Fault {
	return fault.Fault{
		Name: "a new machine joins as " + newcomer,
		Inject: func(ctx context.Context) error {
			removed := fault.RemoveNode(r.Lab, r.Cluster, newcomer)
			if err := removed.Inject(ctx); err != nil {
				return err
			}
			// Kubernetes takes a minute to collect the removed node's pod, and until
			// then the new machine would take that pod for its own.
			if err := kuberouter.DeletePod(ctx, r.Cluster, newcomer); err != nil {
				return err
			}
			if err := r.Cluster.ReplaceNodes(ctx, newcomer); err != nil {
				return err
			}
			return kuberouter.RolledOut(ctx, r.Cluster)
		},
		Held: func(ctx context.Context) (bool, string, error) {
			want, err := kuberouter.Digest(ctx, r.Lab, newer)
			if err != nil {
				return false, "", err
			}
			return nodesRun(r.Snapshot(), []string{newcomer}, want)
		},
		Undo: func(ctx context.Context) error {
			image, err := kuberouter.Pinned(ctx, r.Lab, older)
			if err != nil {
				return err
			}
			if err := kuberouter.TagLatest(ctx, r.Lab.Node(newcomer), image); err != nil {
				return err
			}
			if err := kuberouter.DeletePod(ctx, r.Cluster, newcomer); err != nil {
				return err
			}
			if err := kuberouter.RolledOut(ctx, r.Cluster); err != nil {
				return err
			}
			// Its GoBGP takes a while to dial. Only then is the newcomer a node like
			// the others, with a session for the fault to break.
			return r.Lab.SessionsUp(ctx, all, time.Time{})
		},
	}
}

// rollout is what tells how far kube-router has come, node by node.
var rollout = []snapshot.Source{snapshot.RunningImages, snapshot.Routers}

// everyNodeRuns asserts that each node's kube-router is of an image.
func everyNodeRuns(image string) func(context.Context, *framework.Run) (bool, string, error) {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		want, err := kuberouter.Digest(ctx, r.Lab, image)
		if err != nil {
			return false, "", err
		}
		return nodesRun(r.Snapshot(), all, want)
	}
}

func nodesRun(s snapshot.Snapshot, nodes []string, digest string) (bool, string, error) {
	var wrong framework.Mismatches
	for _, name := range nodes {
		if got := kuberouter.StateOf(s, nodeOf(name)).Digest; got != digest {
			wrong.Addf("%s runs %q, not %s", name, got, digest)
		}
	}
	return wrong.Result()
}

// noPodRange asserts that the ToR reaches no node's pods.
func noPodRange(_ context.Context, r *framework.Run) (bool, string, error) {
	var left []netip.Prefix
	routers := r.Snapshot().Routers
	if len(routers) == 0 || !routers[0].Routes.Read {
		return false, "", errors.New("the ToR's routes were not read")
	}
	for _, t := range routers {
		for _, route := range t.Routes.Items {
			if route.Prefix.Bits() > 0 && route.Prefix.Overlaps(podCIDR) {
				left = append(left, route.Prefix)
			}
		}
	}
	return len(left) == 0, fmt.Sprintf("it has %v", left), nil
}

// sessions asserts that the ToR has a session with each node, or with none.
func sessions(up bool) func(context.Context, *framework.Run) (bool, string, error) {
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		at := r.Snapshot()
		if len(at.Routers) == 0 || !at.Routers[0].Neighbors.Read {
			return false, "", errors.New("the ToR's sessions were not read")
		}
		var wrong framework.Mismatches
		for _, node := range nodes() {
			if got := kuberouter.StateOf(at, node).Session; got != up {
				wrong.Addf("the session with %s is up: %v", node.Name, got)
			}
		}
		return wrong.Result()
	}
}

// othersWork asserts that where nobody is new the old version runs, and the ToR has
// a session with it.
func othersWork(ctx context.Context, r *framework.Run) (bool, string, error) {
	at := r.Snapshot()
	if len(at.Routers) == 0 || !at.Routers[0].Neighbors.Read {
		return false, "", errors.New("the ToR's sessions were not read")
	}
	want, err := kuberouter.Digest(ctx, r.Lab, older)
	if err != nil {
		return false, "", err
	}
	var wrong framework.Mismatches
	for _, node := range nodes() {
		if got := kuberouter.StateOf(at, node); node.Name != newcomer && (got.Digest != want || got.Trouble != "" || !got.Session) {
			wrong.Addf("%s: %+v", node.Name, got)
		}
	}
	return wrong.Result()
}

// crashes asserts that kube-router has ended on nodes, and that its log says why.
func crashes(names ...string) func(context.Context, *framework.Run) (bool, string, error) {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		var wrong framework.Mismatches
		for _, name := range names {
			if kuberouter.StateOf(r.Snapshot(), nodeOf(name)).Trouble == "" {
				wrong.Addf("on %s it runs", name)
				continue
			}
			log, err := kuberouter.Log(ctx, r.Lab.Node(name))
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

// unpinned are the findings in which the incident shows before it happens: the
// image has no tag. moved says that latest has become another version since, and
// drifted that the ToR has lost ranges of nodes that run another image.
func unpinned() []framework.Finding { return ofBoth(detect.ImagePin{}, detect.Untagged, detect.Latent) }
func moved() []framework.Finding    { return ofBoth(detect.ImagePin{}, detect.MovedTag, detect.Latent) }

func drifted(kind string) []framework.Finding {
	return ofBoth(detect.ImageDrift{}, kind, detect.Active, lab.Routers[0].Name)
}

// lostRanges say of each node that the ToR has lost its range. The detector gives
// a node some seconds to have its session again, and by then the script may be
// further on. A node that was replaced has another range than at first.
func lostRanges() []framework.Finding {
	var lost []framework.Finding
	for _, node := range all {
		lost = append(lost, framework.Finding{
			Detector: detect.RouteOwnership{}.Name(), Kind: detect.Unannounced, State: detect.Active,
			AnyObject: true, Owner: node, Routers: []string{lab.Routers[0].Name},
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
