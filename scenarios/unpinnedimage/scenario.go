package unpinnedimage

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
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

// pair are two versions of an image, by tag: what latest is at first, and what
// it becomes.
type pair struct{ before, after string }

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Topology: lab,
	Variants: []framework.Variant{
		{
			Name: "untagged", Role: framework.Affected, Form: framework.Whole,
			Components: components, Images: images, Script: untaggedScript(),
		},
		{
			Name: "pinned-by-digest", Role: framework.Fixed, Form: framework.Whole,
			Components: components, Images: images, Script: pinnedScript(),
		},
		{
			Name: "untagged-if-not-present", Role: framework.Workaround, Form: framework.Whole,
			Components: components, Images: images, Script: ifNotPresentScript(),
		},
		published,
	},
}

var (
	components = map[string]string{"kube-router": oldVersion, "latest": newVersion}
	images     = []string{older, newer, workload.ProbeImage}

	all = []string{"master", "worker1", "worker2"}
)

// newcomer is the node whose machine is replaced by a new one.
const newcomer = "worker2"

// The objects that the detectors name.
const (
	agent     = "DaemonSet kube-system/kube-router, container kube-router"
	installer = "DaemonSet kube-system/kube-router, init container install-cni"
)

// seenWithin is for facts of which one snapshot may have missed a source.
const seenWithin = 5 * time.Second

// recoversWithin is three times what a recovery takes: the pods are replaced,
// their GoBGPs dial the ToR.
const recoversWithin = 40 * time.Second

// common is what all variants do: kube-router is installed at the old version,
// latest becomes the new one, the operator changes an argument.
func common(latest pair, config func(context.Context, *framework.Run) (kubeRouter, error)) framework.Script {
	return framework.Script{
		Install: func(ctx context.Context, r *framework.Run) error { return install(ctx, r, latest, config) },
		Ends: func(ctx context.Context, r *framework.Run, gone ...string) ([]probe.End, error) {
			nodes := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return slices.Contains(gone, n) })
			return framework.ProbeEnds(ctx, r, nodes, []string{"outside"})
		},
		// Every node's pod from and to the outside, and a ring inside the
		// cluster, which passes through the ToR.
		Probes: append(probe.Both("outside", all...),
			probe.Probe{From: "master", To: "worker1"}, probe.Probe{From: "worker1", To: "worker2"},
			probe.Probe{From: "worker2", To: "master"}),
		Detectors: []detect.Detector{detect.ImagePin{}, detect.ImageDrift{}, detect.RouteOwnership{}},
		Baseline: []framework.Check{
			{Name: "every node runs " + version(latest.before), Reads: rollout, Holds: everyNodeRuns(latest.before), Bound: seenWithin},
		},
		Forms: []framework.LesserForm{{
			Name:  "latest becomes " + version(latest.after) + ", and nothing happens",
			Fault: func(r *framework.Run) fault.Fault { return latestMoves(r, latest) },
		}},
		Fault: func(r *framework.Run) fault.Fault { return changeArgument(r, config) },
		// Pods' packets to the outside bear their node's address, so that
		// replies find the way back without kube-router.
		Hurt: []string{
			"outside->master", "outside->worker1", "outside->worker2",
			"master->worker1", "worker1->worker2", "worker2->master",
		},
		// The fault is over when the ToR has made up its mind about every node:
		// who is hurt by then is hurt, and nobody else will be.
		Observe: 2 * time.Second,
	}
}

// version is the version that a tag stands for.
func version(tag string) string { return strings.TrimPrefix(tag, untagged+":v") }

// asTheVendorHasIt is the vendor's manifest: no tag.
func asTheVendorHasIt(policy corev1.PullPolicy) func(context.Context, *framework.Run) (kubeRouter, error) {
	return func(context.Context, *framework.Run) (kubeRouter, error) {
		return kubeRouter{Image: untagged, PullPolicy: policy}, nil
	}
}

// pinnedTo is the manifest of v1.5.1 with the image of a version by digest.
func pinnedTo(version string) func(context.Context, *framework.Run) (kubeRouter, error) {
	return func(ctx context.Context, r *framework.Run) (kubeRouter, error) {
		image, err := pinned(ctx, r, version)
		return kubeRouter{Image: image, PullPolicy: corev1.PullAlways}, err
	}
}

func untaggedScript() framework.Script {
	vendors := asTheVendorHasIt(corev1.PullAlways)
	s := common(pair{older, newer}, vendors)
	s.Latent = []string{detect.Untagged}
	s.Observe = 5 * time.Second // it ends when all are hurt
	s.Baseline = append(s.Baseline, framework.Check{
		Name: "the detectors say that nobody has pinned the image", Holds: unpinnedIsReported, AsksDetectors: true,
	})
	s.Forms[0].Named = []framework.Finding{
		{Kind: detect.MovedTag, Object: detect.Named(agent)}, {Kind: detect.MovedTag, Object: detect.Named(installer)},
	}
	s.Named = []framework.Finding{
		{Kind: detect.ChangedImage, Object: detect.Named(agent)}, {Kind: detect.ChangedImage, Object: detect.Named(installer)},
	}
	s.Aftermath = []framework.Check{
		{Name: "every node runs " + newVersion, Reads: rollout, Holds: everyNodeRuns(newer), Bound: seenWithin},
		{Name: "every node has pulled " + newVersion + ", and asked for no version", Holds: pulledAsLatest(newer, all...)},
		{Name: "the ToR has lost every pod range", Reads: rollout, Holds: noPodRange, Bound: seenWithin},
		{Name: "kube-router ends for want of RBAC", Reads: rollout, Holds: crashes, Bound: cacheSyncTimeout},
	}
	s.Remedies = []framework.Remedy{
		{
			Name: "take the argument back",
			Apply: func(ctx context.Context, r *framework.Run) error {
				k, err := vendors(ctx, r)
				if err != nil {
					return err
				}
				return tell(r, "argument-taken-back", func() error { return k.apply(ctx, r) })
			},
		},
		{
			Name: "pin " + oldVersion + " by digest", Helps: true, Bound: recoversWithin,
			Apply: func(ctx context.Context, r *framework.Run) error {
				k, err := pinnedTo(older)(ctx, r)
				if err != nil {
					return err
				}
				k.AtOnce = true
				return tell(r, "pinned", func() error { return k.apply(ctx, r) })
			},
			Undo: func(ctx context.Context, r *framework.Run) error {
				k, err := vendors(ctx, r)
				if err != nil {
					return err
				}
				k.AtOnce = true
				if err := k.apply(ctx, r); err != nil {
					return err
				}
				// That the routes go when the time for a restart is over has been
				// seen; it need not be waited for again.
				return clearNodes(ctx, r)
			},
		},
		{
			Name: "complete the upgrade to " + newVersion, Helps: true, Bound: recoversWithin,
			Apply: func(ctx context.Context, r *framework.Run) error {
				k, err := pinnedTo(newer)(ctx, r)
				if err != nil {
					return err
				}
				k.V2, k.AtOnce = true, true
				return tell(r, "upgraded", func() error { return k.apply(ctx, r) })
			},
		},
	}
	return s
}

func pinnedScript() framework.Script {
	s := common(pair{older, newer}, pinnedTo(older))
	s.Aftermath = []framework.Check{
		{Name: "every node runs " + oldVersion, Reads: rollout, Holds: everyNodeRuns(older), Bound: seenWithin},
		{Name: "every node has asked for that digest, and for nothing else", Holds: askedForDigest(older)},
		{Name: "the ToR has a session with every node", Reads: rollout, Holds: everySession, Bound: seenWithin},
	}
	return s
}

// ifNotPresentScript is a workaround that only seems to be one: the restart
// does no harm, for every node has an image of that name; a node that does
// not have it gets another one.
func ifNotPresentScript() framework.Script {
	s := common(pair{older, newer}, asTheVendorHasIt(corev1.PullIfNotPresent))
	s.Latent = []string{detect.Untagged}
	s.Gone = []string{newcomer}
	s.Hurt = slices.DeleteFunc(s.Hurt, func(name string) bool { return strings.Contains(name, newcomer) })
	s.Forms[0].Named = []framework.Finding{{Kind: detect.MovedTag, Object: detect.Named(agent)}}
	s.Forms = append(s.Forms, framework.LesserForm{
		Name:      "a new node joins, and gets " + newVersion,
		Fault:     newNode,
		Named:     []framework.Finding{{Kind: detect.MixedImages, Object: detect.Named(agent)}},
		TakenBack: true,
	})
	s.Aftermath = []framework.Check{
		{Name: "every node runs " + oldVersion, Reads: rollout, Holds: everyNodeRuns(older), Bound: seenWithin},
		{Name: "only " + newcomer + " has pulled " + newVersion, Holds: pulledAsLatest(newer, newcomer)},
		{Name: "the ToR has a session with every node", Reads: rollout, Holds: everySession, Bound: seenWithin},
	}
	return s
}

// install puts kube-router and the probe pods into the lab, from whatever
// state an earlier variant or run has left.
func install(ctx context.Context, r *framework.Run, latest pair, config func(context.Context, *framework.Run) (kubeRouter, error)) error {
	if err := uninstall(ctx, r); err != nil {
		return err
	}
	if err := moveLatest(ctx, r, latest.before); err != nil {
		return err
	}
	k, err := config(ctx, r)
	if err != nil {
		return err
	}
	if err := k.apply(ctx, r); err != nil {
		return err
	}
	// A pod that comes too early is tried again only after a while.
	if err := rangesWritten(ctx, r); err != nil {
		return err
	}
	side, ctx := errgroup.WithContext(ctx)
	side.Go(func() error { return workload.StartProbes(ctx, r.Cluster, workload.OnEach(all...)) })
	side.Go(func() error { return announced(ctx, r) })
	return side.Wait()
}

// latestMoves is what the vendor does on any day, and nobody notices.
func latestMoves(r *framework.Run, latest pair) fault.Fault {
	return fault.Fault{
		Name:   "latest becomes " + version(latest.after),
		Inject: func(ctx context.Context) error { return moveLatest(ctx, r, latest.after) },
		Held: func(ctx context.Context) (bool, string, error) {
			is, err := resolve(ctx, r, untagged)
			if err != nil {
				return false, "", err
			}
			want, err := resolve(ctx, r, latest.after)
			return is == want, "latest is " + is, err
		},
		Undo: func(ctx context.Context) error { return moveLatest(ctx, r, latest.before) },
	}
}

// changeArgument is what the operator does: --enable-ibgp=false becomes true,
// and the DaemonSet is rolled, node by node. It is over when the ToR either
// has a session with a node again or has given its routes up.
func changeArgument(r *framework.Run, config func(context.Context, *framework.Run) (kubeRouter, error)) fault.Fault {
	return fault.Fault{
		Name: "--enable-ibgp=false becomes true",
		Inject: func(ctx context.Context) error {
			k, err := config(ctx, r)
			if err != nil {
				return err
			}
			k.IBGP = true
			return tell(r, "argument-changed", func() error {
				if err := k.apply(ctx, r); err != nil {
					return err
				}
				return decided(ctx, r)
			})
		},
		Held: func(ctx context.Context) (bool, string, error) {
			pods, err := routerPods(ctx, r)
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
			// Kubernetes takes a minute to collect it, and until then the new
			// machine would take it for its own.
			if err := deleteRouterPod(ctx, r, newcomer); err != nil {
				return err
			}
			if err := r.Cluster.ReplaceNode(ctx, newcomer); err != nil {
				return err
			}
			return rolledOut(ctx, r)
		},
		Held: func(ctx context.Context) (bool, string, error) {
			want, err := resolve(ctx, r, newer)
			if err != nil {
				return false, "", err
			}
			return nodesRun(r.Snapshot(), []string{newcomer}, want)
		},
		Undo: func(ctx context.Context) error {
			image, err := pinned(ctx, r, older)
			if err != nil {
				return err
			}
			if _, err := r.Lab.Node(newcomer).Exec(ctx, "sh", "-c", fmt.Sprintf(
				"ctr -n k8s.io images pull --hosts-dir /etc/containerd/certs.d %[1]s >/dev/null && ctr -n k8s.io images tag --force %[1]s %[2]s:latest",
				image, untagged)); err != nil {
				return fmt.Errorf("putting %s onto %s: %w", older, newcomer, err)
			}
			if err := deleteRouterPod(ctx, r, newcomer); err != nil {
				return err
			}
			if err := rolledOut(ctx, r); err != nil {
				return err
			}
			// Its GoBGP takes a while to dial. Not before is the newcomer a node like
			// the others, with a session for the fault to break.
			return announced(ctx, r)
		},
	}
}

// rollout is what tells how far kube-router has come, node by node.
var rollout = []snapshot.Source{snapshot.RunningImages, snapshot.Routers}

// everyNodeRuns asserts that each node's kube-router is of a version.
func everyNodeRuns(version string) func(context.Context, *framework.Run) (bool, string, error) {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		want, err := resolve(ctx, r, version)
		if err != nil {
			return false, "", err
		}
		return nodesRun(r.Snapshot(), all, want)
	}
}

func nodesRun(s snapshot.Snapshot, nodes []string, want string) (bool, string, error) {
	var wrong []string
	for _, name := range nodes {
		if got := stateOf(s, name).digest; got != want {
			wrong = append(wrong, fmt.Sprintf("%s runs %q", name, got))
		}
	}
	return len(wrong) == 0, fmt.Sprintf("%s; not %s", strings.Join(wrong, ", "), want), nil
}

// noPodRange asserts that the ToR reaches no node's pods.
func noPodRange(_ context.Context, r *framework.Run) (bool, string, error) {
	var left []netip.Prefix
	routers := r.Snapshot().Routers
	if len(routers) == 0 || !routers[0].Routes.Read {
		return false, "it was not read", nil
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

// everySession asserts that the ToR has a session with each node.
func everySession(_ context.Context, r *framework.Run) (bool, string, error) {
	var missing []string
	for _, name := range all {
		if !stateOf(r.Snapshot(), name).session {
			missing = append(missing, name)
		}
	}
	return len(missing) == 0, "none with " + strings.Join(missing, ", "), nil
}

// crashes asserts that every node's kube-router has ended, and that its log
// says why.
func crashes(ctx context.Context, r *framework.Run) (bool, string, error) {
	for _, name := range all {
		if stateOf(r.Snapshot(), name).trouble == "" {
			return false, "on " + name + " it runs", nil
		}
		log, err := r.Lab.Node(name).Exec(ctx, "sh", "-c", "cat /var/log/pods/kube-system_kube-router-*/kube-router/*.log")
		if err != nil {
			return false, "", err
		}
		for _, says := range []string{"failed to synchronize cache", `cannot list resource "endpointslices"`} {
			if !strings.Contains(log, says) {
				return false, fmt.Sprintf("on %s it has ended, and its log does not say %q", name, says), nil
			}
		}
	}
	return true, "", nil
}

// unpinnedIsReported asserts that the incident shows before it happens.
func unpinnedIsReported(_ context.Context, r *framework.Run) (bool, string, error) {
	var missing []string
	for _, object := range []string{agent, installer} {
		if !slices.ContainsFunc(r.Findings(), func(f detect.Finding) bool {
			return f.Kind == detect.Untagged && f.State == detect.Latent && f.Object == detect.Named(object)
		}) {
			missing = append(missing, object)
		}
	}
	return len(missing) == 0, "no finding about " + strings.Join(missing, "; "), nil
}
