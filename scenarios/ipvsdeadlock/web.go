package ipvsdeadlock

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/await"
)

// The application whose users are hurt: a Service with one pod on master,
// which is replaced as a rollout does it.
const (
	appNamespace = metav1.NamespaceDefault
	web          = "web"
	// late is a Service for the same pods that is created after the load.
	late = "late"
)

var (
	webVIP  = netip.MustParseAddr("10.96.0.101")
	lateVIP = netip.MustParseAddr("10.96.0.102")

	webLabel  = client.MatchingLabels{"app": web}
	poolLabel = client.MatchingLabels{"relapse.dev/pool": web}
)

func webService(name string, vip netip.Addr) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: appNamespace},
		Spec: corev1.ServiceSpec{
			ClusterIP: vip.String(), Selector: webLabel,
			Ports: []corev1.ServicePort{{Port: wire.DefaultPort, TargetPort: intstr.FromInt32(wire.DefaultPort)}},
		},
	}
}

// application is what runs behind the Services.
type application struct {
	made int
	// serving is the pod that the Service leads to; standby is up, but not
	// yet behind the Service.
	serving, standby webPod
}

type webPod struct {
	name string
	ip   netip.Addr
}

// install runs the application anew.
func (a *application) install(ctx context.Context, r *framework.Run) error {
	if err := a.uninstall(ctx, r); err != nil {
		return err
	}
	kube := r.Cluster.Client.Resources().GetControllerRuntimeClient()
	if err := kube.Create(ctx, webService(web, webVIP)); err != nil {
		return fmt.Errorf("creating Service %s: %w", web, err)
	}
	var err error
	if a.serving, err = a.start(ctx, r); err != nil {
		return err
	}
	if err := a.serve(ctx, r, a.serving); err != nil {
		return err
	}
	a.standby, err = a.start(ctx, r)
	return err
}

func (a *application) uninstall(ctx context.Context, r *framework.Run) error {
	kube := r.Cluster.Client.Resources().GetControllerRuntimeClient()
	for _, name := range []string{web, late} {
		if err := a.removeService(ctx, r, name); err != nil {
			return err
		}
	}
	namespace := client.InNamespace(appNamespace)
	err := kube.DeleteAllOf(ctx, &corev1.Pod{}, namespace, poolLabel, client.GracePeriodSeconds(0))
	if err != nil {
		return fmt.Errorf("deleting the pods of %s: %w", web, err)
	}
	return await.Until(ctx, "the pods of "+web+" to go", 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var left corev1.PodList
			err := kube.List(ctx, &left, namespace, poolLabel)
			return err == nil && len(left.Items) == 0, fmt.Sprintf("%d of them are there", len(left.Items)), err
		})
}

func (a *application) removeService(ctx context.Context, r *framework.Run, name string) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: appNamespace}}
	if err := r.Cluster.Client.Resources().GetControllerRuntimeClient().Delete(ctx, service); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Service %s: %w", name, err)
	}
	return nil
}

// start runs a pod that is not yet behind the Service.
func (a *application) start(ctx context.Context, r *framework.Run) (webPod, error) {
	a.made++
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", web, a.made), Namespace: appNamespace, Labels: poolLabel},
		Spec: corev1.PodSpec{
			NodeName:                      master,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken:  new(bool),
			EnableServiceLinks:            new(bool),
			Containers: []corev1.Container{{
				Name: web, Image: workload.ProbeImage, Args: []string{"agent", "--socket", "/run/agent.sock"},
				VolumeMounts: []corev1.VolumeMount{{Name: "run", MountPath: "/run"}},
			}},
			Volumes: []corev1.Volume{{Name: "run", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	kube := r.Cluster.Client.Resources().GetControllerRuntimeClient()
	if err := kube.Create(ctx, pod); err != nil {
		return webPod{}, fmt.Errorf("creating pod %s: %w", pod.Name, err)
	}
	started := webPod{name: pod.Name}
	err := await.Until(ctx, "pod "+pod.Name+" to be ready", 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			if err := kube.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
				return false, "", err
			}
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					ip, err := netip.ParseAddr(pod.Status.PodIP)
					started.ip = ip
					return err == nil, "", err
				}
			}
			return false, workload.DescribePod(*pod), nil
		})
	return started, err
}

// serve puts a pod behind the Service.
func (a *application) serve(ctx context.Context, r *framework.Run, p webPod) error {
	return label(ctx, r, p, `"`+web+`"`)
}

// retire takes a pod from behind the Service. It goes on serving those who come.
func (a *application) retire(ctx context.Context, r *framework.Run, p webPod) error {
	return label(ctx, r, p, "null")
}

func label(ctx context.Context, r *framework.Run, p webPod, app string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: appNamespace}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"app":`+app+`}}}`))
	if err := r.Cluster.Client.Resources().GetControllerRuntimeClient().Patch(ctx, pod, patch); err != nil {
		return fmt.Errorf("labelling pod %s with app %s: %w", p.name, app, err)
	}
	return nil
}

// roll replaces the pod behind the Service as a rollout does: the new one
// comes in, the old one goes out, and goes on serving until proxies have had
// time. It returns when the old one is gone.
func (a *application) roll(ctx context.Context, r *framework.Run, proxiesHadTime func(context.Context) error) error {
	if err := a.serve(ctx, r, a.standby); err != nil {
		return err
	}
	if err := a.retire(ctx, r, a.serving); err != nil {
		return err
	}
	for _, service := range []string{web, late} {
		if err := leadsTo(ctx, r, service, a.standby.ip); err != nil {
			return err
		}
	}
	var next webPod
	side, both := errgroup.WithContext(ctx)
	side.Go(func() error { return proxiesHadTime(both) })
	side.Go(func() (err error) {
		next, err = a.start(both, r)
		return err
	})
	if err := side.Wait(); err != nil {
		return err
	}
	kube := r.Cluster.Client.Resources().GetControllerRuntimeClient()
	old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: a.serving.name, Namespace: appNamespace}}
	if err := kube.Delete(ctx, old); err != nil {
		return fmt.Errorf("deleting pod %s: %w", old.Name, err)
	}
	err := await.Until(ctx, "pod "+old.Name+" to go", 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			err := kube.Get(ctx, client.ObjectKeyFromObject(old), old)
			if apierrors.IsNotFound(err) {
				return true, "", nil
			}
			return false, strings.TrimSpace(workload.DescribePod(*old)), err
		})
	if err != nil {
		return err
	}
	a.serving, a.standby = a.standby, next
	return nil
}

// createLate creates the Service that comes after the load.
func (a *application) createLate(ctx context.Context, r *framework.Run) error {
	if err := a.removeService(ctx, r, late); err != nil {
		return err
	}
	if err := r.Cluster.Client.Resources().GetControllerRuntimeClient().Create(ctx, webService(late, lateVIP)); err != nil {
		return fmt.Errorf("creating Service %s: %w", late, err)
	}
	return nil
}
