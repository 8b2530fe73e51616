package upgrade

import (
	"context"
	"regexp"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/kuberouter"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
)

// withKubeProxy is the service proxy of labs whose component is not one.
const withKubeProxy = "kube-proxy " + kubeadm.KubernetesVersion + " in mode iptables for Services"

// kubeRouterUpgrade upgrades kube-router's whole agent by the vendor's manifest of the
// version. As in the vendor's example without a service proxy, kube-proxy does Services.
func kubeRouterUpgrade() Upgrade {
	s := small{component: "kube-router", number: 60}
	at := func(version string) kuberouter.KubeRouter {
		return kuberouter.KubeRouter{
			Manifest: kuberouter.ManifestOf(version), Image: kuberouter.Image(version), PullPolicy: corev1.PullIfNotPresent,
			IBGP: true, OnDelete: true,
			RestartTime: 90 * time.Second, CacheSyncTimeout: time.Minute, // kube-router's defaults
		}
	}
	return Upgrade{
		Component: "kube-router", Form: framework.Whole, Topology: s.topology(), Besides: withKubeProxy,
		Images: func(version string) []string {
			return []string{kuberouter.Image(version), kubeadm.KubeProxyImage, workload.ProbeImage}
		},
		Install: func(ctx context.Context, r *framework.Run, version string) error {
			if err := workload.StopProbes(ctx, labaccess.Cluster(r)); err != nil {
				return err
			}
			if err := kuberouter.Clean(ctx, r); err != nil {
				return err
			}
			if err := kubeadm.ApplyKubeProxy(ctx, labaccess.Lab(r)); err != nil {
				return err
			}
			if err := at(version).Apply(ctx, r); err != nil {
				return err
			}
			// The kubelet retries a pod that comes too early only after a delay.
			if err := kuberouter.RangesWritten(ctx, r); err != nil {
				return err
			}
			return installed(ctx, r, services{kubeProxy: true, sessions: true})
		},
		Ends: s.ends(), Paths: s.paths(probe.DefaultInterval, probe.DefaultTCPInterval, true),
		Release: func(ctx context.Context, r *framework.Run, version string) error {
			return at(version).Declare(ctx, r)
		},
		Nodes:     allNodes,
		Pods:      []workload.Pods{kuberouter.Agent.Pods},
		Roll:      restart(kuberouter.Agent),
		Normalize: func(_, what string) string { return hashedChain.ReplaceAllString(what, "$1") },
	}.withAgents(all(kuberouter.Agent.Pods), kuberouter.Image, sessionsAndPods)
}

// hashedChain is a chain of kube-router whose name ends with a hash of the pod or policy
// and of the time of the sync (pkg/controllers/netpol: podFirewallChainName).
var hashedChain = regexp.MustCompile(`\b(KUBE-(?:POD-FW|NWPLCY)-)[A-Z2-7]{16}\b`)

// services are what runs beside the pods and the Service of an upgrade's lab.
type services struct {
	kubeProxy bool
	sessions  bool // of the routers with the nodes
}

// installed creates the pods and the Service, and waits until they and these services work.
func installed(ctx context.Context, r *framework.Run, with services) error {
	starts, ctx := errgroup.WithContext(ctx)
	starts.Go(func() error {
		if err := workload.StartProbes(ctx, labaccess.Cluster(r), pods); err != nil {
			return err
		}
		if !with.sessions {
			return nil
		}
		return labaccess.Lab(r).SessionsUp(ctx, allNodes, time.Time{}) // of any age
	})
	starts.Go(func() error { return applyService(ctx, r) })
	if with.kubeProxy {
		starts.Go(func() error { return kubeadm.KubeProxyReady(ctx, labaccess.Cluster(r)) })
	}
	return starts.Wait()
}
