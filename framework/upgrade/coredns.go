package upgrade

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
)

const (
	// forwardedName is a name that only the DNS server outside of the cluster knows. It has the outside host's address.
	forwardedName = "outside.relapse.test"
	// upstreamPort is where that server listens on master: port 53 of nodes is left to others.
	upstreamPort = 5300
	// dnsRollWithin bounds the replacement of both pods. By kubeadm's Corefile each pod still serves for 5 s when it ends.
	dnsRollWithin = 2 * time.Minute
)

func coreDNSUpgrade(_, _ string, given Settings) (Upgrade, error) {
	if given.Mode != "" || given.Manifests != "" {
		return Upgrade{}, errors.New("CoreDNS has neither modes nor objects of its own: expected a Corefile at most")
	}
	s := small{component: "coredns", number: 64}
	lab := s.on(given.Subnets)
	config, err := kubeadm.NewCorefile(given.Config, netip.AddrPortFrom(addressOn(lab, master), upstreamPort))
	if err != nil {
		return Upgrade{}, fmt.Errorf("the Corefile: %w", err)
	}
	at := func(version string) kubeadm.DNS { return kubeadm.DNS{Version: version, Config: config} }
	paths := s.dnsPaths(lab, config.Zone)
	if config.Reverse {
		paths = append(paths, reverseLookups())
	}
	return Upgrade{
		Component: "coredns", Form: framework.Whole, Topology: lab, Replaced: config.Replaced,
		Besides: withKubeProxy + ", " + podsWired,
		Images: func(version string) []string {
			return []string{kubeadm.DNSImage(version), kubeadm.DNSImage(kubeadm.CoreDNSVersion), kubeadm.KubeProxyImage, workload.ProbeImage}
		},
		Install: func(version string) framework.Action {
			ready := func(ctx context.Context, r *framework.Run) error {
				return upstreamDNS.Ready(ctx, labaccess.Cluster(r), dnsRollWithin)
			}
			return framework.InOrder(workload.WireNodes, kubeadm.ApplyKubeProxy, workload.Applied(upstreamServer(lab)),
				framework.AtOnce(installed(services{kubeProxy: true}), workload.Headless("directory", worker2), ready,
					at(version).Apply(dnsRollWithin)))
		},
		Ends: s.ends(), Paths: paths,
		Nodes: allNodes,
		Parts: []string{"Deployment coredns"},
		Roll: func(ctx context.Context, r *framework.Run, _, version string) error {
			return at(version).Apply(dnsRollWithin)(ctx, r)
		},
		Half: func(ctx context.Context, r *framework.Run, _, version string) error {
			return at(version).ApplyHalf(ctx, labaccess.Lab(r), dnsRollWithin)
		},
		Crash: func(ctx context.Context, r *framework.Run, _, version string) (func(context.Context) error, error) {
			again, err := kubeadm.CoreDNS.Pods.Replace(ctx, labaccess.Cluster(r), kubeadm.DNSImage(version))
			return func(ctx context.Context) error { return again(ctx, dnsRollWithin) }, err
		},
		RollWithin: 2 * dnsRollWithin,
		Pods:       []workload.Pods{kubeadm.CoreDNS.Pods},
		Normalize:  withoutPods("kube-system/kube-dns", ":53", fmt.Sprintf(":%d", upstreamPort)),
	}, nil
}

// upstreamDNS is the DNS server to which CoreDNS forwards. It is not upgraded.
var upstreamDNS = workload.Deployment{
	Name: "upstream-dns",
	Pods: workload.Pods{Namespace: "kube-system", Labels: map[string]string{"k8s-app": "upstream-dns"}},
}

// upstreamServer is the manifest of upstreamDNS. Its answers have the shortest TTL: CoreDNS' minimum of 5 s applies.
func upstreamServer(lab topology.Topology) string {
	return fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: upstream-dns, namespace: kube-system}
data:
  Corefile: |
    .:%d {
        errors
        hosts {
            %s %s
            ttl 1
        }
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: upstream-dns, namespace: kube-system}
spec:
  replicas: 1
  strategy: {type: Recreate}
  selector: {matchLabels: {k8s-app: upstream-dns}}
  template:
    metadata: {labels: {k8s-app: upstream-dns}}
    spec:
      nodeName: %s
      hostNetwork: true
      dnsPolicy: Default
      tolerations: [{operator: Exists}]
      containers:
      - name: coredns
        image: %s
        args: [-conf, /etc/coredns/Corefile]
        volumeMounts: [{name: config, mountPath: /etc/coredns}]
      volumes: [{name: config, configMap: {name: upstream-dns}}]
`, upstreamPort, lab.Hosts[0].Links[0].Address, forwardedName, master, kubeadm.DNSImage(kubeadm.CoreDNSVersion))
}

func serviceLookups(zone string) PathKind {
	return lookups("a Service's name", "web.default.svc."+zone, "cluster IP", clusterIP)
}

func lookups(kind, name, to string, address netip.Addr) PathKind {
	k := PathKind{Name: "DNS through CoreDNS, " + kind}
	for _, from := range allNodes {
		k.Probes = append(k.Probes, probe.Probe{
			Name: fmt.Sprintf("%s->%s/dns", from, kind), From: from, To: to, Protocol: probe.DNS,
			Lookup: &probe.Lookup{Name: name, Server: kubeadm.DNSAddress, Address: address},
		}.WithDefaults())
	}
	return k
}

// reverseLookups look up the name of the address of a pod behind a headless Service, as in the incident lost-ptr.
func reverseLookups() PathKind {
	k := PathKind{Name: "DNS through CoreDNS, the name of a pod's address"}
	for _, from := range []string{master, worker1} {
		k.Probes = append(k.Probes, probe.Probe{
			Name: from + "->the name of a pod's address/dns", From: from, To: worker2, Protocol: probe.DNS,
			Lookup: &probe.Lookup{Reverse: true, Server: kubeadm.DNSAddress},
		}.WithDefaults())
	}
	return k
}

// dnsPaths are the paths through CoreDNS, and the paths that the lookups need: if these lose packets too, CoreDNS is
// not the reason. Every packet is a lookup from a new port, and a connection to the address.
func (s small) dnsPaths(lab topology.Topology, zone string) []PathKind {
	paths := []PathKind{
		serviceLookups(zone),
		lookups("a forwarded name, mostly from the cache", forwardedName, outside, lab.Hosts[0].Links[0].Address),
	}
	for _, k := range s.paths(probe.DefaultInterval, probe.DefaultTCPInterval, true) {
		switch k.Name {
		case "pod to pod, other node", "cluster IP", "new connections, pod to outside":
			paths = append(paths, k)
		}
	}
	return paths
}
