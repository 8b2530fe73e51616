package example

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kuberouter"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
)

// The versions: what the cluster runs, and what it is upgraded to.
const (
	before = "1.5.1"
	after  = "2.1.0"
)

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Labels:   []framework.Label{framework.Upgrade},
	Owner:    framework.Maintainers,
	Topology: lab,
	Variants: []framework.Variant{
		{
			Name: "image-alone", Role: framework.Affected, Form: framework.Whole,
			Components: components, Images: images, Script: affected,
		},
		{
			Name: "image-and-manifest", Role: framework.Fixed, Form: framework.Whole,
			Components: components, Images: images, Script: fixed,
		},
	},
}

var (
	components = map[string]string{"kube-router": after, "kube-router before the upgrade": before}
	images     = []string{kuberouter.Image(before), kuberouter.Image(after), workload.ProbeImage}
)

// Ends of the probes: a pod on each node, and the host outside.
var (
	nodes   = []string{"master", "worker"}
	master  = framework.PodOn("master")
	worker  = framework.PodOn("worker")
	visitor = framework.HostEndpoint(outside)
)

// ranges are the first /24s of the cluster's range: nodes get theirs in the
// order of the topology.
var ranges = map[string]netip.Prefix{
	"master": netip.MustParsePrefix("10.40.64.0/24"), "worker": netip.MustParsePrefix("10.40.65.0/24"),
}

const (
	// restartTime outlasts the restart of a kube-router that comes back: its pod
	// runs after 3 s, and its BGP session is up after another 5 to 9 s.
	restartTime = 18 * time.Second
	// cacheSyncTimeout is shorter: kube-router is to end while the ToR waits.
	cacheSyncTimeout = 12 * time.Second
	// within bounds a remedy. It is three times what the pods, their BGP sessions
	// and their routes need.
	within = 40 * time.Second
)

// kubeRouter is kube-router at a version, with the manifest of one. The ToR's address is
// that of the run: the lab may be on other subnets than the documented ones (--subnets).
func kubeRouter(r *framework.Run, manifest kuberouter.Manifest, version string) kuberouter.KubeRouter {
	router, _ := r.Topology.AddressOn(tor.Name, nodeNet.Name)
	return kuberouter.KubeRouter{
		Manifest: manifest, Image: kuberouter.Image(version),
		Router: router, RouterASN: torASN, ClusterASN: clusterASN,
		RestartTime: restartTime, CacheSyncTimeout: cacheSyncTimeout,
	}
}

// common is what both variants do. They differ in the manifest of the upgrade
// and in nothing else.
func common(manifest kuberouter.Manifest) framework.Script {
	return framework.Script{
		Install:   install,
		Endpoints: []framework.Endpoint{visitor, master, worker},
		Probes:    append(visitor.Both(master, worker), master.Both(worker)...),
		Detectors: []detect.Detector{detect.RouteOwnership{}},
		Fault:     func(r *framework.Run) framework.Fault { return upgrade(r, manifest) },
		// From a pod to the outside packets bear the node's address, so that the
		// answers find their way without the pods' routes.
		Impacted: []probe.Probe{visitor.To(master), visitor.To(worker), master.To(worker), worker.To(master)},
		// upgrade returns when the ToR has dropped the routes that it will drop.
		Observe: 5 * time.Second,
	}
}

func affected() framework.Script {
	s := common(kuberouter.V1)
	// Complete except for pods and text: any other active finding is an error.
	for _, node := range nodes {
		s.Expected = append(s.Expected, framework.Finding{
			Detector: detect.RouteOwnership{}.Name(), Kind: detect.Unannounced, State: detect.Active,
			Object: detect.Prefix(ranges[node]), Owner: node, Routers: []string{lab.Routers[0].Name},
		})
	}
	s.Aftermath = []framework.Check{
		{ID: "list-forbidden", Name: "kube-router may not list EndpointSlices, and says so", Holds: isForbidden, Bound: cacheSyncTimeout},
	}
	s.Remedies = []framework.Remedy{
		{
			ID: "restart", Name: "restart kube-router",
			Apply: func(ctx context.Context, r *framework.Run) error {
				return kuberouter.Agent.Restart(ctx, labaccess.Cluster(r), nodes, within)
			},
		},
		{
			ID: "new-manifest", Name: "the manifest of version 2", Helps: true, Bound: within,
			Apply: func(ctx context.Context, r *framework.Run) error {
				return kubeRouter(r, kuberouter.V2, after).Apply(ctx, labaccess.Cluster(r))
			},
		},
	}
	return s
}

func fixed() framework.Script { return common(kuberouter.V2) }

// install installs kube-router and the probe pods, in place of those of an earlier variant
// or run.
func install(ctx context.Context, r *framework.Run) error {
	if err := workload.StopProbes(ctx, labaccess.Cluster(r)); err != nil {
		return err
	}
	if err := kuberouter.Clean(ctx, labaccess.Lab(r)); err != nil {
		return err
	}
	if err := kubeRouter(r, kuberouter.V1, before).Apply(ctx, labaccess.Cluster(r)); err != nil {
		return err
	}
	if err := kuberouter.RangesWritten(ctx, labaccess.Lab(r)); err != nil {
		return err
	}
	if err := workload.StartProbes(ctx, labaccess.Cluster(r), workload.OnEach(nodes...)); err != nil {
		return err
	}
	return labaccess.Lab(r).SessionsUp(ctx, nodes, time.Time{})
}

// upgrade is what the operator does. It is over when the ToR has, for each node,
// either a session again or no route any more.
func upgrade(r *framework.Run, manifest kuberouter.Manifest) framework.Fault {
	return framework.Fault{
		Name: "kube-router is upgraded to " + after,
		Inject: func(ctx context.Context) error {
			if err := kubeRouter(r, manifest, after).Apply(ctx, labaccess.Cluster(r)); err != nil {
				return err
			}
			return labaccess.Lab(r).SessionsDecided(ctx, nodes, restartTime+30*time.Second)
		},
		TookEffect: func(ctx context.Context) (bool, string, error) {
			pods, err := kuberouter.Agent.Pods.List(ctx, labaccess.Cluster(r))
			if err != nil {
				return false, "", err
			}
			var wrong framework.Mismatches
			if len(pods) != len(nodes) { // without pods none runs another image
				wrong.Addf("%d pods on %d nodes", len(pods), len(nodes))
			}
			for _, pod := range pods {
				if image := pod.Spec.Containers[0].Image; image != kuberouter.Image(after) {
					wrong.Addf("pod %s runs %s", pod.Name, image)
				}
			}
			return wrong.Result()
		},
		// The next variant installs kube-router in any state.
		Undo: func(context.Context) error { return nil },
	}
}

// isForbidden asserts that kube-router's log says on each node what it may not
// list.
func isForbidden(ctx context.Context, r *framework.Run) (bool, string, error) {
	var wrong framework.Mismatches
	for _, name := range nodes {
		log, err := kuberouter.Log(ctx, labaccess.Lab(r).Node(name))
		if err != nil {
			return false, "", err
		}
		if !strings.Contains(log, `cannot list resource "endpointslices"`) {
			wrong.Addf("the log on %s does not say so", name)
		}
	}
	return wrong.Result()
}
