package workload

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// App is an application behind Services in the namespace default: one pod, which answers
// probes at wire.DefaultPort and is replaced as in a rollout.
type App struct {
	// Name is the application's name, and the prefix of its pods' names.
	Name string
	// Node runs the pods.
	Node string
	// Serving is the pod that the Services select. Standby is ready, but not yet selected.
	Serving, Standby AppPod

	made     int
	services []string
}

// AppPod is a pod of an App.
type AppPod struct {
	Name string
	IP   netip.Addr
}

// poolLabel marks all objects of an App. The pods that its Services select also have the label app.
const poolLabel = "relapse.dev/pool"

func (a *App) pool() Pods {
	return Pods{metav1.NamespaceDefault, client.MatchingLabels{poolLabel: a.Name}}
}

// Install runs the application with a standby pod, behind a Service of that name and
// cluster IP. Objects of an earlier App of the same name are removed first.
func (a *App) Install(ctx context.Context, c *kindlab.Cluster, service string, vip netip.Addr) error {
	if err := a.uninstall(ctx, c); err != nil {
		return err
	}
	if err := a.Expose(ctx, c, service, vip); err != nil {
		return err
	}
	var err error
	if a.Serving, err = a.start(ctx, c); err != nil {
		return err
	}
	if err := a.label(ctx, c, a.Serving, `"`+a.Name+`"`); err != nil {
		return err
	}
	a.Standby, err = a.start(ctx, c)
	return err
}

func (a *App) uninstall(ctx context.Context, c *kindlab.Cluster) error {
	pool := a.pool()
	var services corev1.ServiceList
	if err := c.Kube().List(ctx, &services, client.InNamespace(pool.Namespace), pool.Labels); err != nil {
		return fmt.Errorf("listing the Services of %s: %w", a.Name, err)
	}
	for _, s := range services.Items {
		if err := RemoveService(ctx, c, s.Name); err != nil {
			return err
		}
	}
	a.services = nil
	return pool.Delete(ctx, c, client.GracePeriodSeconds(0))
}

func RemoveService(ctx context.Context, c *kindlab.Cluster, name string) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}
	if err := c.Kube().Delete(ctx, service); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Service %s: %w", name, err)
	}
	return nil
}

// Expose creates a Service for the application, in place of one of that name.
func (a *App) Expose(ctx context.Context, c *kindlab.Cluster, service string, vip netip.Addr) error {
	if err := a.createService(ctx, c, service, vip, a.Name); err != nil {
		return err
	}
	a.leads(service)
	return nil
}

// Reserve creates a Service that selects no pod until Serve, in place of one of that name.
func (a *App) Reserve(ctx context.Context, c *kindlab.Cluster, service string, vip netip.Addr) error {
	return a.createService(ctx, c, service, vip, a.Name+"-none")
}

// Serve puts the application behind a Service that was reserved.
func (a *App) Serve(ctx context.Context, c *kindlab.Cluster, service string) error {
	object := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: service, Namespace: metav1.NamespaceDefault}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"selector":{"app":"`+a.Name+`"}}}`))
	if err := c.Kube().Patch(ctx, object, patch); err != nil {
		return fmt.Errorf("having Service %s select the pods of %s: %w", service, a.Name, err)
	}
	a.leads(service)
	return nil
}

func (a *App) leads(service string) {
	if !slices.Contains(a.services, service) {
		a.services = append(a.services, service)
	}
}

// createService creates a Service, in place of one of that name, for pods with this label app.
func (a *App) createService(ctx context.Context, c *kindlab.Cluster, service string, vip netip.Addr, app string) error {
	if err := RemoveService(ctx, c, service); err != nil {
		return err
	}
	object := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service, Namespace: metav1.NamespaceDefault, Labels: a.pool().Labels},
		Spec: corev1.ServiceSpec{
			ClusterIP: vip.String(), Selector: map[string]string{"app": app},
			Ports: []corev1.ServicePort{{Port: wire.DefaultPort, TargetPort: intstr.FromInt32(wire.DefaultPort)}},
		},
	}
	if err := c.Kube().Create(ctx, object); err != nil {
		return fmt.Errorf("creating Service %s: %w", service, err)
	}
	return nil
}

func (a *App) start(ctx context.Context, c *kindlab.Cluster) (AppPod, error) {
	a.made++
	pod := agentPod(a.Name, a.Node, "/run/agent.sock", "/run", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	pod.Name, pod.Namespace, pod.Labels = fmt.Sprintf("%s-%d", a.Name, a.made), metav1.NamespaceDefault, a.pool().Labels
	if err := c.Kube().Create(ctx, pod); err != nil {
		return AppPod{}, fmt.Errorf("creating pod %s: %w", pod.Name, err)
	}
	started := AppPod{Name: pod.Name}
	err := await.Until(ctx, "pod "+pod.Name+" to be ready", 100*time.Millisecond, podsWithin,
		func(ctx context.Context) (bool, string, error) {
			if err := c.Kube().Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
				return false, "", err
			}
			if !Ready(*pod) {
				return false, DescribePod(*pod), nil
			}
			var err error
			started.IP, err = netip.ParseAddr(pod.Status.PodIP)
			return err == nil, "", err
		})
	return started, err
}

// label adds a pod to the Services or, if app is null, removes it from them. A pod that was
// removed still answers connections.
func (a *App) label(ctx context.Context, c *kindlab.Cluster, p AppPod, app string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: metav1.NamespaceDefault}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"app":`+app+`}}}`))
	if err := c.Kube().Patch(ctx, pod, patch); err != nil {
		return fmt.Errorf("labelling pod %s with app %s: %w", p.Name, app, err)
	}
	return nil
}

// Roll replaces the pod behind the Services as in a rollout: the standby pod is added, the
// old pod is removed, and it still answers until proxiesHadTime returns. Roll returns when
// the old pod is deleted and a new standby pod is ready.
func (a *App) Roll(ctx context.Context, c *kindlab.Cluster, proxiesHadTime func(context.Context) error) error {
	if err := a.label(ctx, c, a.Standby, `"`+a.Name+`"`); err != nil {
		return err
	}
	if err := a.label(ctx, c, a.Serving, "null"); err != nil {
		return err
	}
	for _, service := range a.services {
		if err := leadsTo(ctx, c, service, a.Standby.IP); err != nil {
			return err
		}
	}
	var next AppPod
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return proxiesHadTime(groupCtx) })
	group.Go(func() (err error) {
		next, err = a.start(groupCtx, c)
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := remove(ctx, c, a.Serving); err != nil {
		return err
	}
	a.Serving, a.Standby = a.Standby, next
	return nil
}

func remove(ctx context.Context, c *kindlab.Cluster, p AppPod) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: metav1.NamespaceDefault}}
	if err := c.Kube().Delete(ctx, pod); err != nil {
		return fmt.Errorf("deleting pod %s: %w", pod.Name, err)
	}
	return await.Until(ctx, "pod "+pod.Name+" to go", 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			err := c.Kube().Get(ctx, client.ObjectKeyFromObject(pod), pod)
			if apierrors.IsNotFound(err) {
				return true, "", nil
			}
			return false, DescribePod(*pod), err
		})
}

// leadsTo waits until a Service has one address as its only endpoint.
func leadsTo(ctx context.Context, c *kindlab.Cluster, service string, address netip.Addr) error {
	return await.Until(ctx, fmt.Sprintf("Service %s to lead to %s", service, address), 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			//lint:ignore SA1019 kube-proxy 1.13 reads v1 Endpoints and nothing else.
			var e corev1.Endpoints
			key := client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: service}
			if err := c.Kube().Get(ctx, key, &e); err != nil {
				return false, "", err
			}
			var to []string
			for _, subset := range e.Subsets {
				for _, a := range subset.Addresses {
					to = append(to, a.IP)
				}
			}
			return len(to) == 1 && to[0] == address.String(), fmt.Sprintf("it leads to %q", to), nil
		})
}
