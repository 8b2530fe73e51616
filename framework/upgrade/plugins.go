package upgrade

import (
	"context"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/calico"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/kuberouter"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
)

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
		Install: func(version string) framework.Action {
			return framework.InOrder(
				workload.StopProbes, kuberouter.Clean, kubeadm.ApplyKubeProxy, at(version).Apply,
				// If a pod starts before its node has a range, kubelet retries only after a delay.
				kuberouter.RangesWritten, installed(services{kubeProxy: true, sessions: true}),
			)
		},
		Ends: s.ends(), Paths: s.paths(probe.DefaultInterval, probe.DefaultTCPInterval, true),
		Release:   func(version string) framework.Action { return at(version).Declare },
		Nodes:     allNodes,
		Pods:      []workload.Pods{kuberouter.Agent.Pods},
		Roll:      restart(kuberouter.Agent),
		Normalize: func(_, what string) string { return hashedChain.ReplaceAllString(what, "$1") },
	}.withAgents(kuberouter.Agent.Pods, kuberouter.Image, sessionsAndPods)
}

// hashedChain ends with a hash of pod or policy and time of a sync (pkg/controllers/netpol: podFirewallChainName).
var hashedChain = regexp.MustCompile(`\b(KUBE-(?:POD-FW|NWPLCY)-)[A-Z2-7]{16}\b`)

// services must work before an installation is complete.
type services struct {
	kubeProxy bool
	sessions  bool // of the routers with the nodes
}

// installed creates the pods and the Service, and waits until they and the services work.
func installed(with services) framework.Action {
	starts := []framework.Action{workload.Probes(pods...), applyService}
	if with.sessions {
		starts[0] = framework.InOrder(starts[0], sessionsOfAnyAge)
	}
	if with.kubeProxy {
		starts = append(starts, kubeadm.KubeProxyReady)
	}
	return framework.AtOnce(starts...)
}

func sessionsOfAnyAge(ctx context.Context, r *framework.Run) error {
	return labaccess.Lab(r).SessionsUp(ctx, allNodes, time.Time{})
}

const calicoASN = 64512

// calicoUpgrade upgrades Calico by the vendor's manifest. Nodes peer with each other (Calico's mesh) and with the ToR.
func calicoUpgrade() Upgrade {
	s := small{component: "calico", number: 61}
	t := s.topology()
	t.Clusters[0].ASN = calicoASN
	t.Routers[0].Peers = []topology.Peers{{Network: "nodes", ASN: calicoASN, GracefulRestart: true}}
	apply := func(version string) framework.Action {
		return calico.Calico{Version: version, PodCIDR: s.podCIDR(), Method: calico.InternalIP, Poll: calico.DefaultPoll, OnDelete: true}.Apply
	}
	return Upgrade{
		Component: "calico", Form: framework.Whole, Topology: t, Besides: withKubeProxy,
		Images: func(version string) []string {
			return append(calico.Images(version), kubeadm.KubeProxyImage, workload.ProbeImage)
		},
		Install: func(version string) framework.Action {
			return framework.InOrder(
				// A reused lab may have agents. With OnDelete they would not be replaced.
				workload.StopProbes, labaccess.OnCluster(calico.Agent.Delete),
				apply(version), calico.Peered(tor, topology.TorASN),
				kubeadm.ApplyKubeProxy, calico.PodsCanStart, calico.Agent.Everywhere(2*time.Minute),
				installed(services{kubeProxy: true, sessions: true}),
			)
		},
		Ends: s.ends(), Paths: s.paths(probe.DefaultInterval, probe.DefaultTCPInterval, true),
		Release: apply,
		Nodes:   allNodes,
		Pods:    []workload.Pods{calico.Agent.Pods},
		Roll:    restart(calico.Agent),
	}.withAgents(calico.Agent.Pods, func(version string) string { return calico.Images(version)[0] }, sessionsAndPods)
}
