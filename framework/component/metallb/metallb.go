// Package metallb runs MetalLB on a lab's cluster with the vendor's manifest of its version
// (native BGP), and the lab's router for a BGP peer.
package metallb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// namespace is that of the vendor's manifest.
const namespace = "metallb-system"

// Speaker announces addresses on each node, and Controller allocates them.
var (
	Speaker    = workload.DaemonSet{Name: "speaker", Pods: podsOf("speaker")}
	Controller = workload.Deployment{Name: "controller", Pods: podsOf("controller")}
)

func podsOf(component string) workload.Pods {
	return workload.Pods{Namespace: namespace, Labels: client.MatchingLabels{"app": "metallb", "component": component}}
}

// Images are those of a version: of the controller, of the speaker, and the one with the
// vendor's manifest.
func Images(version string) []string {
	return []string{"quay.io/metallb/controller:v" + version, "quay.io/metallb/speaker:v" + version, manifestImage(version)}
}

func manifestImage(version string) string { return "relapse.dev/metallb-manifest:v" + version }

const (
	// startsWithin bounds the start of a pod, with the pull of its image.
	startsWithin = 2 * time.Minute
	// webhookWithin bounds the wait for MetalLB's webhook: the controller makes its
	// certificate, and kubelet brings a changed Secret to a pod within a minute or so.
	webhookWithin = 3 * time.Minute
)

// Declare brings the vendor's objects of a version to the cluster, and waits until the
// controller of that version is ready. It replaces no speaker.
func Declare(ctx context.Context, lab *kindlab.Lab, version string) error {
	images := registry.New(lab.Registry().Addr.String())
	manifest, err := images.File(ctx, manifestImage(version), "/metallb-native.yaml")
	if err = errors.Join(err, images.Close()); err != nil {
		return err
	}
	objects, err := objects(string(manifest))
	if err != nil {
		return err
	}
	// The speakers mount a Secret that the controller makes: kubelet retries one that is
	// not there only after a delay.
	speakers := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "DaemonSet" })
	if speakers < 0 {
		return fmt.Errorf("MetalLB's manifest of %s has no DaemonSet", version)
	}
	set := objects[speakers]
	cluster := lab.Clusters[0]
	if err := workload.ApplyObjects(ctx, cluster, slices.Delete(objects, speakers, speakers+1)...); err != nil {
		return err
	}
	if err := Controller.Ready(ctx, cluster, startsWithin); err != nil {
		return err
	}
	return workload.ApplyObjects(ctx, cluster, set)
}

// objects are the vendor's manifest, adapted to a lab.
func objects(manifest string) ([]*unstructured.Unstructured, error) {
	objects, err := workload.Objects(manifest)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		switch o.GetKind() {
		case "DaemonSet":
			err = workload.Change(o, func(set *appsv1.DaemonSet) error {
				set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
				askOften(&set.Spec.Template.Spec)
				return nil
			})
		case "Deployment":
			err = workload.Change(o, func(set *appsv1.Deployment) error {
				askOften(&set.Spec.Template.Spec)
				return nil
			})
		}
		if err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// askOften has kubelet ask for readiness each second from the start, instead of every ten:
// the lab waits for it.
func askOften(spec *corev1.PodSpec) {
	for i := range spec.Containers {
		if probe := spec.Containers[i].ReadinessProbe; probe != nil {
			probe.InitialDelaySeconds, probe.PeriodSeconds = 0, 1
		}
	}
}

// Configure creates MetalLB's resources. It waits until the webhook answers, and ends at once
// if that refuses one.
func Configure(ctx context.Context, c *kindlab.Cluster, r Resources) error {
	var refused error
	err := await.Until(ctx, "MetalLB's webhook to answer", 500*time.Millisecond, webhookWithin,
		func(ctx context.Context) (bool, string, error) {
			err := workload.ApplyObjects(ctx, c, r.Objects...)
			if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) { // one that is not up is an internal error
				refused = err
			}
			return err == nil || refused != nil, "", err
		})
	return cmp.Or(refused, err)
}

// Roll replaces the speaker of a node by one of what was declared, and waits until that is
// ready and has a new session with every router.
func Roll(ctx context.Context, lab *kindlab.Lab, node string) error {
	began, nodes := time.Now(), []string{node}
	if err := Speaker.Restart(ctx, lab.Clusters[0], nodes, startsWithin); err != nil {
		return err
	}
	if err := Speaker.Ready(ctx, lab.Clusters[0], nodes, startsWithin); err != nil {
		return err
	}
	return lab.SessionsUp(ctx, nodes, began)
}

// Address waits until a Service of type LoadBalancer in the namespace default has an
// address, and returns it.
func Address(ctx context.Context, c *kindlab.Cluster, service string) (netip.Addr, error) {
	var address netip.Addr
	key := client.ObjectKey{Namespace: "default", Name: service}
	err := await.Until(ctx, "the Service "+service+" to have an address", 200*time.Millisecond, startsWithin,
		func(ctx context.Context) (bool, string, error) {
			var s corev1.Service
			if err := c.Client.Resources().Get(ctx, key.Name, key.Namespace, &s); err != nil {
				return false, "", err
			}
			for _, ingress := range s.Status.LoadBalancer.Ingress {
				var err error
				if address, err = netip.ParseAddr(ingress.IP); err == nil && address.Is4() {
					return true, "", nil
				}
			}
			return false, fmt.Sprintf("its status has %v", s.Status.LoadBalancer.Ingress), nil
		})
	return address, err
}

// Uninstall removes the speakers and the controller. Types and resources stay.
func Uninstall(ctx context.Context, c *kindlab.Cluster) error {
	return errors.Join(Speaker.Delete(ctx, c), Controller.Delete(ctx, c))
}
