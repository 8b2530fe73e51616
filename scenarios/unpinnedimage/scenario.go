package unpinnedimage

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
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
)

// The versions under test: what the cluster runs, and what latest becomes.
const (
	oldVersion = "1.5.1"
	newVersion = "2.1.0"
)

// The variants.
const (
	untaggedVariant  = "untagged"
	pinnedVariant    = "pinned-by-digest"
	ifNotPresent     = "untagged-if-not-present"
	publishedVariant = "kube-router-v0.4.0-to-v1.0.0-rc5"
)

// Names of the vendor's image.
const untagged = kuberouter.Untagged

var (
	older = kuberouter.Image(oldVersion)
	newer = kuberouter.Image(newVersion)
)

// pair are two versions of an image, by tag: what latest is at first, and what it becomes.
type pair struct{ before, after string }

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
		variant(untaggedVariant, framework.Affected, untaggedScript),
		variant(pinnedVariant, framework.Fixed, pinnedScript),
		variant(ifNotPresent, framework.Workaround, ifNotPresentScript),
		published,
	},
	Tested: []framework.Tested{
		{Name: "kube-router.old", Default: oldVersion},
		{Name: "kube-router.new", Default: newVersion, Varied: true},
	},
	At: func(versions map[string]string) framework.Variant {
		before, after := versions["kube-router.old"], versions["kube-router.new"]
		latest := pair{kuberouter.Image(before), kuberouter.Image(after)}
		return framework.Variant{
			Name: "kube-router-" + before + "-to-" + after, Form: framework.Whole,
			Components: map[string]string{"kube-router": before, "latest": after},
			Images:     []string{latest.before, latest.after, workload.ProbeImage},
			Script: func() framework.Script {
				s := common(latest, asTheVendorHasIt(kuberouter.ManifestOf(before), corev1.PullAlways))
				s.Observe = untaggedFor
				s.Expected, s.Transient = drifted(detect.ChangedImage), lostRanges()
				return s
			},
		}
	},
}

func variant(name string, role framework.Role, script func() framework.Script) framework.Variant {
	return framework.Variant{
		Name: name, Role: role, Form: framework.Whole, Script: script,
		Components: map[string]string{"kube-router": oldVersion, "latest": newVersion},
		Images:     []string{older, newer, workload.ProbeImage},
	}
}

var all = []string{master, worker1, worker2}

// newcomer is the node whose machine is replaced by a new one.
const newcomer = worker2

// The endpoints of the probes.
var (
	onMaster, onWorker1, onWorker2 = framework.PodOn(master), framework.PodOn(worker1), framework.PodOn(worker2)
	onOutside                      = framework.HostEndpoint(lab.Hosts[0])
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

// Settings of kube-router; see the record. As with its defaults, a kube-router whose
// caches do not fill ends before its routes are dropped.
const (
	// restartTime is longer than the restart of a kube-router that works: some 3 s for
	// the pod, and 5 to 9 s until its GoBGP dials the ToR.
	restartTime      = 18 * time.Second
	cacheSyncTimeout = 12 * time.Second
)

// manifest is the vendor's, with an image and the lab's BGP.
func manifest(r *framework.Run, vendors kuberouter.Manifest, image string, policy corev1.PullPolicy) kuberouter.KubeRouter {
	router := r.Topology.BGPPeers()[0]
	return kuberouter.KubeRouter{
		Manifest: vendors, Image: image, PullPolicy: policy,
		Router: router.Address, RouterASN: router.ASN, ClusterASN: router.ClusterASN,
		RestartTime: restartTime, CacheSyncTimeout: cacheSyncTimeout,
	}
}

// configure makes a configuration of kube-router: the digest of a pinned image is read
// from the registry.
type configure func(context.Context, *framework.Run) (kuberouter.KubeRouter, error)

// common is what all variants do: kube-router is installed at the old version,
// latest becomes the new one, the operator changes an argument.
func common(latest pair, config configure) framework.Script {
	ring := []probe.Probe{onMaster.To(onWorker1), onWorker1.To(onWorker2), onWorker2.To(onMaster)}
	precursor, change := latestMoves(latest), changeArgument(config)
	// Without the precursor the fault moves latest, too: it is no change a second time.
	change.Inject = framework.InOrder(precursor.Inject, change.Inject)
	return framework.Script{
		Install:   func(ctx context.Context, r *framework.Run) error { return install(ctx, r, latest, config) },
		Endpoints: []framework.Endpoint{onMaster, onWorker1, onWorker2, onOutside},
		// Every node's pod from and to the outside, and a ring inside the
		// cluster, which passes through the ToR.
		Probes:    append(onOutside.Both(onMaster, onWorker1, onWorker2), ring...),
		Detectors: []detect.Detector{detect.ImagePin{}, detect.ImageDrift{}, detect.RouteOwnership{}},
		Baseline: []framework.Check{
			runs("old-version-runs", latest.before),
		},
		// The fault itself asserts that latest has moved in the registry.
		Precursors: []framework.Precursor{{
			ID: "latest-moved", Name: "latest becomes " + kuberouter.Version(latest.after) + ", and nothing happens",
			Fault:     precursor,
			Aftermath: []framework.Check{runs("old-version-runs", latest.before)},
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

// asTheVendorHasIt is the vendor's manifest: no tag.
func asTheVendorHasIt(vendors kuberouter.Manifest, policy corev1.PullPolicy) configure {
	return func(_ context.Context, r *framework.Run) (kuberouter.KubeRouter, error) {
		return manifest(r, vendors, untagged, policy), nil
	}
}

// pinnedTo is a manifest with an image by its digest.
func pinnedTo(vendors kuberouter.Manifest, image string) configure {
	return func(ctx context.Context, r *framework.Run) (kuberouter.KubeRouter, error) {
		pinned, err := kuberouter.Pinned(ctx, labaccess.Lab(r), image)
		return manifest(r, vendors, pinned, corev1.PullAlways), err
	}
}

// apply is the action that applies a configuration of kube-router, to all nodes at once or node by
// node, and keeps what happens on each node as evidence of that name.
func (config configure) apply(name string, atOnce bool) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		k, err := config(ctx, r)
		if err != nil {
			return err
		}
		k.AtOnce = atOnce
		return watch(r, name, func() error { return k.Apply(ctx, labaccess.Cluster(r)) })
	}
}

// watch calls do, which changes kube-router, and keeps what happens on each node.
func watch(r *framework.Run, name string, do func() error) error {
	events, err := kuberouter.Watch(nodes(r), r.Snapshot, r.Note, do)
	r.Evidence("story-"+name, events)
	return err
}

func nodes(r *framework.Run) []kuberouter.Node {
	var known []kuberouter.Node
	for _, name := range all {
		known = append(known, nodeOf(r, name))
	}
	return known
}

func nodeOf(r *framework.Run, name string) kuberouter.Node {
	address, _ := r.Topology.AddressOn(name, nodeNet.Name)
	return kuberouter.Node{Name: name, Address: address}
}

// untaggedFor is how long the effects of a restart under another version are watched.
const untaggedFor = 5 * time.Second

func untaggedScript() framework.Script {
	vendors := asTheVendorHasIt(kuberouter.V1, corev1.PullAlways)
	s := common(pair{older, newer}, vendors)
	s.Latent = unpinned()
	s.Observe = untaggedFor
	s.Precursors[0].Expected = moved()
	s.Expected = drifted(detect.ChangedImage)
	s.Transient = lostRanges()
	s.Aftermath = []framework.Check{
		runs("new-version-runs", newer),
		{ID: "new-version-pulled", Name: "every node has pulled " + newVersion + " as latest", Holds: pulledAsLatest(newer, all...)},
		{ID: "sessions-down", Name: "the ToR has no session with any node", Reads: rollout, Holds: check.Sessions(nodeNet.Name, all, nil), Bound: seenWithin},
		{ID: "ranges-lost", Name: "the ToR has lost every pod range", Reads: rollout, Holds: check.Routes(podCIDR, nodeNet.Name, nil), Bound: seenWithin},
		{ID: "rbac-missing", Name: "kube-router ends because its ClusterRole lacks permissions", Reads: rollout, Holds: crashes(all...), Bound: cacheSyncTimeout},
	}
	s.Remedies = []framework.Remedy{
		{ID: "argument-reverted", Name: "revert the argument", Apply: vendors.apply("argument-reverted", false)},
		{
			ID: "pin-old-version", Name: "pin " + oldVersion + " by digest", Helps: true, Bound: recoversWithin,
			Apply: pinnedTo(kuberouter.V1, older).apply("pinned", true),
			// The fault has shown that routes are dropped when the time for a restart is over.
			// Here they are dropped at once.
			Undo: framework.InOrder(vendors.apply("unpinned", true), clearSessions),
		},
		{
			ID: "complete-upgrade", Name: "complete the upgrade to " + newVersion, Helps: true, Bound: recoversWithin,
			// The running ones first: one that gets its permissions and is stopped a moment later
			// may be writing the CNI configuration, in place. It leaves an empty file, with which
			// its successor does not start.
			Apply: framework.InOrder(deleteAgents, pinnedTo(kuberouter.V2, newer).apply("upgraded", true)),
		},
	}
	return s
}

func clearSessions(ctx context.Context, r *framework.Run) error {
	return labaccess.Lab(r).ClearSessions(ctx, all)
}

func deleteAgents(ctx context.Context, r *framework.Run) error {
	return kuberouter.Agent.Delete(ctx, labaccess.Cluster(r))
}

func pinnedScript() framework.Script {
	s := common(pair{older, newer}, pinnedTo(kuberouter.V1, older))
	s.Aftermath = []framework.Check{
		runs("old-version-runs", older),
		{ID: "digest-asked-for", Name: "every node has requested that digest, and nothing else", Holds: askedForDigest(older)},
		sessionsUp,
	}
	return s
}

// ifNotPresentScript is a workaround that only seems to be one: the restart does no harm, because
// every node has an image of that name; a node without it gets another one.
func ifNotPresentScript() framework.Script {
	s := common(pair{older, newer}, asTheVendorHasIt(kuberouter.V1, corev1.PullIfNotPresent))
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
		Aftermath: []framework.Check{
			{ID: "rbac-missing", Name: "kube-router ends on " + newcomer + " because its ClusterRole lacks permissions", Reads: rollout, Holds: crashes(newcomer), Bound: cacheSyncTimeout + seenWithin},
			{ID: "others-work", Name: oldVersion + " works on the other nodes, with sessions", Reads: rollout, Holds: othersWork},
		},
		Undone: true,
	})
	s.Aftermath = []framework.Check{
		runs("old-version-runs", older),
		{ID: "newcomer-pulled", Name: "only " + newcomer + " has pulled " + newVersion, Holds: pulledAsLatest(newer, newcomer)},
		sessionsUp,
	}
	return s
}

// install installs kube-router and the probe pods, in any state that an earlier variant or
// run left.
func install(ctx context.Context, r *framework.Run, latest pair, config configure) error {
	if err := uninstall(ctx, r); err != nil {
		return err
	}
	if err := kuberouter.MoveLatest(ctx, labaccess.Lab(r), latest.before); err != nil {
		return err
	}
	k, err := config(ctx, r)
	if err != nil {
		return err
	}
	if err := k.Apply(ctx, labaccess.Cluster(r)); err != nil {
		return err
	}
	// Only now: a pod without a CNI configuration is retried only after a while.
	if err := kuberouter.RangesWritten(ctx, labaccess.Lab(r)); err != nil {
		return err
	}
	return framework.AtOnce(workload.ProbesOn(all...), sessionsOfAnyAge)(ctx, r)
}

// sessionsOfAnyAge waits for sessions with every node: no kube-router of an earlier run is left.
func sessionsOfAnyAge(ctx context.Context, r *framework.Run) error {
	return labaccess.Lab(r).SessionsUp(ctx, all, time.Time{})
}

// uninstall removes the probe pods, what the variant with policies created, and then
// kube-router and all that it left on the nodes.
func uninstall(ctx context.Context, r *framework.Run) error {
	if err := workload.StopProbes(ctx, labaccess.Cluster(r)); err != nil {
		return err
	}
	if err := unguard(ctx, r); err != nil {
		return err
	}
	return kuberouter.Clean(ctx, labaccess.Lab(r))
}

// latestMoves is what the vendor does with a release.
func latestMoves(latest pair) framework.Fault {
	moveTo := func(image string) framework.Action {
		return func(ctx context.Context, r *framework.Run) error {
			return kuberouter.MoveLatest(ctx, labaccess.Lab(r), image)
		}
	}
	return framework.Fault{
		Name:   "latest becomes " + kuberouter.Version(latest.after),
		Inject: moveTo(latest.after),
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			got, err := kuberouter.Digest(ctx, labaccess.Lab(r), untagged)
			if err != nil {
				return false, "", err
			}
			want, err := kuberouter.Digest(ctx, labaccess.Lab(r), latest.after)
			return got == want, "latest is " + got, err
		},
		Undo: moveTo(latest.before),
	}
}

// changeArgument is what the operator does: --enable-ibgp=false becomes true,
// and the DaemonSet is rolled, node by node. It is over when the ToR either
// has a session with a node again or has given its routes up.
func changeArgument(config configure) framework.Fault {
	return framework.Fault{
		Name: "--enable-ibgp=false becomes true",
		Inject: func(ctx context.Context, r *framework.Run) error {
			k, err := config(ctx, r)
			if err != nil {
				return err
			}
			k.IBGP = true
			return watch(r, "argument-changed", func() error {
				if err := k.Apply(ctx, labaccess.Cluster(r)); err != nil {
					return err
				}
				return labaccess.Lab(r).SessionsDecided(ctx, all, restartTime+30*time.Second)
			})
		},
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
	Inject: func(ctx context.Context, r *framework.Run) error {
		if err := fault.RemoveNode(newcomer).Inject(ctx, r); err != nil {
			return err
		}
		// Kubernetes takes a minute to delete the removed node's pod, and until then
		// the new machine would run that pod.
		if err := kuberouter.DeletePod(ctx, labaccess.Cluster(r), newcomer); err != nil {
			return err
		}
		if err := labaccess.Cluster(r).ReplaceNodes(ctx, newcomer); err != nil {
			return err
		}
		return kuberouter.RolledOut(ctx, labaccess.Cluster(r))
	},
	TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
		want, err := kuberouter.Digest(ctx, labaccess.Lab(r), newer)
		if err != nil {
			return false, "", err
		}
		return nodesRun(r.Snapshot(), []string{newcomer}, want)
	},
	Undo: func(ctx context.Context, r *framework.Run) error {
		image, err := kuberouter.Pinned(ctx, labaccess.Lab(r), older)
		if err != nil {
			return err
		}
		if err := kuberouter.TagLatest(ctx, labaccess.Lab(r).Node(newcomer), image); err != nil {
			return err
		}
		if err := kuberouter.DeletePod(ctx, labaccess.Cluster(r), newcomer); err != nil {
			return err
		}
		if err := kuberouter.RolledOut(ctx, labaccess.Cluster(r)); err != nil {
			return err
		}
		// Its GoBGP takes a while to dial. Only then does the newcomer have a session
		// that the fault can break.
		return labaccess.Lab(r).SessionsUp(ctx, all, time.Time{})
	},
}
