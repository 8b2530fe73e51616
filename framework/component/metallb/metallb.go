// Package metallb runs MetalLB on a lab's cluster by the vendor's own chart of its version,
// with the BGP implementation that the values choose, and the lab's router for a BGP peer.
package metallb

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/chart/install"
	"github.com/relapse-dev/relapse/framework/component/chart/published"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// name is the name of the release and of the chart, and namespace the namespace in the vendor's
// documentation.
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
	// NoBFD is set for peers without a BFD profile where the routers of the lab have BFD.
	NoBFD bool
}

// frr is the image that runs beside the speaker in mode FRR: Debian's, see
// images/metallb/image.yaml.
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
	// The speakers mount a Secret that the controller makes: kubelet retries one that is
	// not there only after a delay.
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

// ownNamespace is the release's namespace, with the labels that the vendor's documentation
// asks for where pod security is enforced.
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
	of, err := published.Of(ctx, name, r.Version)
	if err != nil {
		return nil, err
	}
	return installed.Render(of, chart.With(r.Values, r.Settings()))
}

// Create is the action that creates the resources for a version. It waits until MetalLB's webhook answers, and ends at
// once if that refuses one.
func (r Resources) Create(version string) framework.Action {
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		return workload.ApplyWhenTaken(ctx, c, "MetalLB's webhook to answer", webhookWithin, r.of(version)...)
	})
}

// Uninstall is the action that removes the speakers and the controller. Everything else of the release stays, as
// do MetalLB's types and resources, until another release is applied.
var Uninstall = labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
	return errors.Join(Speaker.Delete(ctx, c), Controller.Delete(ctx, c))
})
