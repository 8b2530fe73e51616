// Package metallb runs MetalLB on a lab's cluster by the vendor's own chart of its version,
// with the BGP implementation that the values choose, and the lab's router for a BGP peer.
package metallb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/chart/install"
	"github.com/relapse-dev/relapse/framework/component/chart/published"
	"github.com/relapse-dev/relapse/framework/component/objects"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// name is the name of the release and of the chart, and namespace the namespace in the vendor's documentation.
const (
	name      = "metallb"
	namespace = "metallb-system"
)

var installed = install.Release{Name: name, Namespace: namespace}

// Speaker announces addresses on each node, and Controller allocates them.
var (
	Speaker    = workload.DaemonSet{Name: "metallb-speaker", Pods: podsOf("speaker")}
	Controller = workload.Deployment{Name: "metallb-controller", Pods: podsOf("controller")}
)

func podsOf(component string) workload.Pods {
	return workload.Pods{Namespace: namespace, Labels: client.MatchingLabels{
		"app.kubernetes.io/name": name, "app.kubernetes.io/component": component,
	}}
}

// Release is a version of MetalLB with values for its chart.
type Release struct {
	Version string
	// Values are the user's, adapted to a lab (Adapt), or none. Settings take precedence over them.
	Values map[string]any
	// NoBFD is set for peers without a BFD profile although the routers of the lab have BFD.
	NoBFD bool
}

// frr is the image that runs beside the speaker in mode FRR: Debian's, see images/metallb/image.yaml.
const (
	frrRepository = "quay.io/frrouting/frr"
	frrVersion    = "10.3"
)

// SpeakerImage is the image of the speaker of a version, under the vendor's name.
func SpeakerImage(version string) string { return "quay.io/metallb/speaker:v" + version }

func controllerImage(version string) string { return "quay.io/metallb/controller:v" + version }

// Images are the images of the release's pods, under the vendor's names.
func (r Release) Images() []string {
	images := []string{controllerImage(r.Version), SpeakerImage(r.Version)}
	if r.Mode() == FRR {
		images = append(images, frrRepository+":"+frrVersion)
	}
	return images
}

const (
	// startsWithin bounds the start of a pod, with the pull of its images.
	startsWithin = 2 * time.Minute
	// webhookWithin bounds the wait for MetalLB's webhook: the controller makes its
	// certificate, and kubelet brings a changed Secret to a pod within a minute or so.
	webhookWithin = 3 * time.Minute
)

// Apply is the action that brings the cluster to this release as helm upgrade --install does, and waits until the
// controller of that version is ready. It replaces no speaker: Roll does that.
func (r Release) Apply(ctx context.Context, run *framework.Run) error {
	c := labaccess.Cluster(run)
	objects, err := r.render(ctx)
	if err != nil {
		return err
	}
	// The speakers mount a Secret that the controller makes: kubelet retries a missing one only after a delay.
	isSet := func(o unstructured.Unstructured) bool { return o.GetKind() == "DaemonSet" }
	sets := each.Where(objects, isSet)
	objects = append(slices.DeleteFunc(objects, isSet), sets...)
	if err := workload.Apply(ctx, c, ownNamespace); err != nil {
		return err
	}
	return installed.Apply(ctx, c, r.Version, objects, func(o *unstructured.Unstructured) error {
		if isSet(*o) {
			return Controller.Ready(ctx, c, startsWithin)
		}
		return nil
	})
}

// ownNamespace is the release's namespace, with the labels that the vendor's documentation asks for under pod security.
const ownNamespace = `apiVersion: v1
kind: Namespace
metadata:
  name: ` + namespace + `
  labels:
    pod-security.kubernetes.io/enforce: privileged
    pod-security.kubernetes.io/audit: privileged
    pod-security.kubernetes.io/warn: privileged
`

func (r Release) render(ctx context.Context) ([]unstructured.Unstructured, error) {
	c, err := published.Of(ctx, name, r.Version)
	if err != nil {
		return nil, err
	}
	return installed.Render(c, chart.With(r.Values, r.Settings()))
}

// Create is the action that creates the resources for a version once the webhook answers. A refusal ends it at once.
func (r Resources) Create(version string) framework.Action {
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		return workload.ApplyWhenTaken(ctx, c, "MetalLB's webhook to answer", webhookWithin, r.forVersion(version)...)
	})
}

// Uninstall is the action that removes the speakers and the controller. Everything else of the release stays, as
// do MetalLB's types and resources, until another release is applied.
var Uninstall = labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
	return errors.Join(Speaker.Delete(ctx, c), Controller.Delete(ctx, c))
})

// NativeIPv4 is why a dual lab needs FRR: internal/bgp/native/native.go of MetalLB refuses all announcements of a
// Service with an address of IPv6, by IPv4 as well.
const NativeIPv4 = "MetalLB's own BGP announces no IPv6 (\"cannot advertise non-v4 prefix\"), its mode frr does"

const bfdProfile = "fast"

// announce returns resources with which nodes announce a pool by BGP to each router of a lab, with BFD if it has that.
func (r Release) announce(t topology.Topology, pool netip.Prefix, nodes ...string) (Resources, error) {
	text := fmt.Sprintf(`apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: services, namespace: metallb-system}
spec: {addresses: ["%s"]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: services, namespace: metallb-system}
spec:
  ipAddressPools: [services]
  nodeSelectors: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}]
`, strings.ReplaceAll(t.Prefixes(pool), ",", `", "`), strings.Join(nodes, ", "))
	for _, p := range t.BGPPeers() {
		profile := ""
		if b := p.BFD; b.Multiplier > 0 && !r.NoBFD {
			profile = ", bfdProfile: " + bfdProfile
			text += fmt.Sprintf(`---
apiVersion: metallb.io/v1beta1
kind: BFDProfile
metadata: {name: %s, namespace: metallb-system}
spec: {receiveInterval: %d, transmitInterval: %d, detectMultiplier: %d}
`, bfdProfile, b.Receive.Milliseconds(), b.Transmit.Milliseconds(), b.Multiplier)
		}
		text += fmt.Sprintf(`---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: %s, namespace: metallb-system}
spec: {myASN: %d, peerASN: %d, peerAddress: %s%s}
`, p.Router, p.ClusterASN, p.ASN, p.Address, profile)
	}
	all, err := workload.Objects(text)
	return Resources{Adapted: objects.Adapted{Objects: all}, CarriesBoth: t.Dual}, err
}

// forVersion returns the objects for a version: from 0.15 on a session carries only its own family by default.
func (r Resources) forVersion(version string) []*unstructured.Unstructured {
	if !r.CarriesBoth || semver.Compare("v"+version, "v0.15.0") < 0 {
		return r.Objects
	}
	return each.Of(r.Objects, func(o *unstructured.Unstructured) *unstructured.Unstructured {
		if o.GetKind() == kindPeer {
			o = o.DeepCopy()
			chart.Set(o.Object, "spec.dualStackAddressFamily", true)
		}
		return o
	})
}

// Announcing is the action that installs the release, has nodes announce a pool, and ends when all speakers are ready.
func (r Release) Announcing(pool netip.Prefix, nodes ...string) framework.Action {
	// A lab that is reused may have speakers: with OnDelete they are not replaced.
	return framework.InOrder(Uninstall, r.Apply, r.Configured(pool, nodes...), Speaker.Everywhere(startsWithin))
}

// Configured is the action that has these nodes announce a pool, in place of the one before.
func (r Release) Configured(pool netip.Prefix, nodes ...string) framework.Action {
	return func(ctx context.Context, run *framework.Run) error {
		resources, err := r.announce(run.Topology, pool, nodes...)
		if err != nil {
			return err
		}
		return resources.Create(r.Version)(ctx, run)
	}
}

// MoveTo is the action that brings controller and speakers of every node to the release, as helm upgrade does.
func (r Release) MoveTo(ctx context.Context, run *framework.Run) error {
	return framework.InOrder(r.Apply, RestartSpeakers)(ctx, run)
}

// RestartController is the action that replaces the controller, and returns when the new one has processed all Services.
func (r Release) RestartController(ctx context.Context, run *framework.Run) error {
	c := labaccess.Cluster(run)
	again, err := Controller.Pods.Replace(ctx, c, controllerImage(r.Version))
	if err == nil {
		err = again(ctx, startsWithin)
	}
	if err != nil {
		return err
	}
	return await.Until(ctx, "MetalLB's new controller to process all Services", 200*time.Millisecond, startsWithin,
		func(ctx context.Context) (bool, string, error) {
			pods, err := Controller.Pods.List(ctx, c)
			pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
			if err != nil || len(pods) != 1 {
				return false, fmt.Sprintf("%d pods", len(pods)), err
			}
			log, err := workload.Log(ctx, c, pods[0])
			// reprocessAll of internal/k8s/controllers, 0.13 to 0.15
			return strings.Contains(log, `"end reconcile":"metallbreload/reload"`), "its log does not say that it has", err
		})
}

// ControllerRestarted reports whether the controller is newer than all Services that ask for an address. It reads
// Services and RunningImages.
func ControllerRestarted(_ context.Context, run *framework.Run) (bool, string, error) {
	now := run.Snapshot()
	for _, p := range now.PodImages.Items {
		for _, s := range now.Services.Items {
			if p.OwnerName == Controller.Name && s.Requests != "" && !p.Created.After(s.Created) {
				return false, fmt.Sprintf("pod %s is older than Service %s", p, s), nil
			}
		}
	}
	return now.PodImages.Read && now.Services.Read, "pods and Services were not read", nil
}

// RestartSpeakers is the action that replaces all speakers. It does not wait for routes: there may be none.
func RestartSpeakers(ctx context.Context, run *framework.Run) error {
	c := labaccess.Cluster(run)
	return Speaker.Replace(ctx, c, c.Nodes(), startsWithin)
}
