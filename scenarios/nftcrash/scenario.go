package nftcrash

import (
	"context"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

const (
	affectedVersion = kubeadm.KubernetesVersion
	listingVersion  = "1.35.4" // lists the sets of its own table alone
	fixedVersion    = "1.36.3"

	affectedVariant = "nftables-set-" + affectedVersion
	listingVariant  = "nftables-set-" + listingVersion
	fixedVariant    = "nftables-set-" + fixedVersion
	iptablesVariant = "iptables-set-" + affectedVersion
)

const master, worker = topology.Master, "worker"

var (
	nodes = []string{master, worker}
	rack  = topology.NewRack(73)
)

var lab = rack.Two("nft-crash")

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record, Topology: lab,
	Owner: framework.Maintainers, Slow: true, Foreign: true,
	Labels:    []framework.Label{framework.Services},
	SecondLab: netip.MustParsePrefix("10.208.144.0/20"),
	Budget:    framework.Budget{Whole: 250 * time.Second, Lab: 45 * time.Second, Detect: 5 * time.Second}, // 100 s a pair
	Variants: []framework.Variant{
		variant(framework.Affected, affectedVersion, kubeadm.NFTables),
		variant(framework.Affected, listingVersion, kubeadm.NFTables),
		variant(framework.Fixed, fixedVersion, kubeadm.NFTables),
		variant(framework.Workaround, affectedVersion, kubeadm.IPTables),
	},
	Tested: []framework.Tested{{Name: "kube-proxy", Default: affectedVersion, Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		return variant(framework.Unclassified, versions["kube-proxy"], kubeadm.NFTables)
	},
}

func variant(role framework.Role, version, mode string) framework.Variant {
	v := framework.Variant{
		Name: mode + "-set-" + version, Role: role, Form: framework.Whole,
		Components: map[string]string{"kube-proxy": version},
		Images:     []string{image(version), fault.NFTImage, workload.ProbeImage},
		Script: func() framework.Script {
			return (&incident{role: role, version: version, mode: mode, serving: one, next: two}).script()
		},
	}
	if v.Name == affectedVariant {
		v.Images = append(v.Images, image(fixedVersion))
	}
	return v
}

// image has the nft that the vendor's image of the version has, as far as it can read sets of a later one.
func image(version string) string {
	if detect.CrashesAtSets(version) {
		return kubeadm.ProxyImage(version)
	}
	return kubeadm.PatchedNFTImage(version)
}

var (
	web      = netip.MustParseAddrPort("10.96.0.90:80")
	one, two = framework.ProbePod{Name: "one", Node: worker}, framework.ProbePod{Name: "two", Node: worker}
	clients  = framework.PodsOn(nodes...)
	service  = framework.Server("web", func(*framework.Run) netip.AddrPort { return web })
	firewall = fault.ForeignSet(nodes...)
)

const (
	// within bounds the start of kube-proxy and its first sync on a node, and its next attempt after a failed sync (30 s).
	within = time.Minute
)

type incident struct {
	role          framework.Role
	version, mode string
	serving, next framework.ProbePod
}

func (i *incident) proxy(version string) kubeadm.Proxy {
	p := kubeadm.NewProxy(version, i.mode, rack.Pods, nodes...)
	p.Image = image(version)
	return p
}

func (i *incident) script() framework.Script {
	toService := []probe.Probe{clients[0].Over(probe.UDPFlow, service), clients[1].Over(probe.UDPFlow, service)}
	s := framework.Script{
		Install: framework.InOrder(workload.TablesRemoved(fault.ForeignTable, nodes...), i.proxy(i.version).Installed(within,
			workload.Probes(append(workload.OnEach(nodes...), one)...), webTo(one))),
		Endpoints: append(clients, service),
		Probes:    append(clients[0].Both(clients[1]), toService...),
		Detectors: []detect.Detector{detect.ProxyConvergence{}},
		Fault: framework.Fault{
			Name:   "another pod takes the place of the Service's, beside " + firewall.Name,
			Inject: framework.InOrder(firewall.Inject, i.move), TookEffect: firewall.TookEffect, Undo: firewall.Undo,
		},
		// kube-proxy writes once a second at most.
		Impacted: toService, MinOutage: 2 * time.Second,
		Observe: 8 * time.Second,
	}
	if i.role != framework.Affected && i.role != framework.Unclassified {
		return s
	}
	var latent []framework.Finding
	for _, n := range nodes {
		latent = append(latent, framework.Finding{
			Detector: detect.ProxyConvergence{}.Name(), Kind: detect.UnreadableSet, State: detect.Latent, Object: detect.Named("kube-proxy"),
			Announcer: n, Words: []string{"inet " + fault.ForeignTable + " interfaces"},
		})
		for _, kind := range []string{detect.MissingEndpoint, detect.StaleEndpoint} {
			s.Expected = append(s.Expected, framework.Finding{
				Detector: detect.ProxyConvergence{}.Name(), Kind: kind, State: detect.Active, Object: detect.Named(n), Announcer: n,
				Words: []string{"of default/web:80/UDP"},
			})
		}
		s.Transient = append(s.Transient, framework.Finding{
			Detector: detect.ProxyConvergence{}.Name(), Kind: detect.FrozenSync, State: detect.Active,
			Object: detect.Named("kube-proxy"), Announcer: n,
		})
	}
	s.Precursors = []framework.Precursor{{ID: "set", Name: firewall.Name, Fault: firewall, Expected: latent, Within: 2 * time.Second}}
	if i.version == affectedVersion {
		s.Remedies = i.remedies()
	}
	return s
}

func (i *incident) remedies() []framework.Remedy {
	restart := labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		return kubeadm.KubeProxy.Restart(ctx, c, nodes, within)
	})
	return []framework.Remedy{
		{
			ID: "set-away", Name: "the firewall away, with its set", Helps: true, Bound: within, Apply: firewall.Undo,
			Undo: framework.InOrder(firewall.Inject, i.move),
		},
		{ID: "restart", Name: "restart kube-proxy on every node", Apply: restart, Watch: 10 * time.Second},
		{ID: "fixed-version", Name: "kube-proxy " + fixedVersion, Helps: true, Bound: 2 * within, Apply: i.proxy(fixedVersion).Rolled(within)},
	}
}

func webTo(pod framework.ProbePod) framework.Action {
	return workload.ClusterIP("web", corev1.ProtocolUDP, web, pod.Name)
}

// move starts another pod, puts it behind the Service in place of the one that serves, and ends that.
func (i *incident) move(ctx context.Context, r *framework.Run) error {
	err := framework.InOrder(workload.Added(i.next), webTo(i.next),
		labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
			return workload.ProbePods(i.serving).Delete(ctx, c)
		}))(ctx, r)
	i.serving, i.next = i.next, i.serving
	return err
}
