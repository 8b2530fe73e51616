package addednic

import (
	_ "embed"
	"net/netip"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// The pods of the incident, by their roles.
var (
	redis = on("redis", master)
	// repoServer finds redis by the name of its Service.
	repoServer = on("repo-server", worker2)
	// ipsOnly uses redis's addresses and no name.
	ipsOnly = on("ips-only", worker2)
	// CoreDNS's neighbours.
	besideDNS = on("beside-dns", coreDNSNode)
	cache     = on("cache", coreDNSNode)

	hostMaster  = inHostNetwork(master)
	hostWorker1 = inHostNetwork(worker1)
	hostWorker2 = inHostNetwork(worker2)

	workloads = []framework.ProbePod{
		*redis.Pod, *repoServer.Pod, *ipsOnly.Pod, *besideDNS.Pod, *cache.Pod, *hostMaster.Pod, *hostWorker1.Pod, *hostWorker2.Pod,
	}
)

func on(name, node string) framework.Endpoint {
	return framework.PodEndpoint(framework.ProbePod{Name: name, Node: node})
}

func inHostNetwork(node string) framework.Endpoint {
	return framework.PodEndpoint(framework.ProbePod{Name: "host-" + node, Node: node, HostNetwork: true})
}

// byVIP is redis by its ClusterIP.
var byVIP = framework.Server("redis-vip", func(*framework.Run) netip.AddrPort {
	return netip.AddrPortFrom(redisVIP, wire.DefaultPort)
})

// redisVIP is redis's ClusterIP, as services.yaml asks for it.
var redisVIP = netip.MustParseAddr("10.96.70.1")

//go:embed services.yaml
var servicesYAML string

// dnsServer is what kubelet writes into pods' resolv.conf: kubeadm gives
// CoreDNS's Service the tenth address of the range.
var dnsServer = netip.MustParseAddrPort("10.96.0.10:53")

// byName is a probe that resolves a Service's name and connects to its address.
func byName(from, to framework.Endpoint, service string) probe.Probe {
	return probe.Probe{
		From: from.Name, To: to.Name, Protocol: probe.DNS,
		Lookup: &probe.Lookup{Name: service + ".default.svc.cluster.local.", Server: dnsServer},
	}.WithDefaults()
}

func byTCP(from, to framework.Endpoint) probe.Probe {
	return probe.Probe{From: from.Name, To: to.Name, Protocol: probe.TCP}.WithDefaults()
}

// fact is one line of what was noted in production.
type fact struct {
	id, name string
	// The probes in lost lose all packets, and the probes in fine lose none.
	lost, fine []probe.Probe
}

// facts are in the order of the notes.
var facts = []fact{
	{
		id: "dns-times-out", name: "what needs DNS times out",
		lost: []probe.Probe{byName(repoServer, redis, "argocd-redis"), byName(hostWorker2, redis, "argocd-redis")},
	},
	{
		id: "no-dns-works", name: "what needs no DNS works",
		fine: []probe.Probe{
			ipsOnly.To(redis), redis.To(ipsOnly),
			byTCP(ipsOnly, byVIP),
		},
	},
	{
		id: "same-node-works", name: "pods on CoreDNS's own node are fine",
		fine: []probe.Probe{byName(besideDNS, cache, "cache"), besideDNS.To(cache)},
	},
	{
		id: "nodes-reach-each-other", name: "nodes reach each other",
		fine: append(hostWorker1.Both(hostMaster, hostWorker2), hostMaster.Both(hostWorker2)...),
	},
	{
		id: "pods-cut-off", name: "pods on that node reach no pod elsewhere, unless it uses hostNetwork",
		lost: append(besideDNS.Both(redis, repoServer), hostWorker1.To(redis)),
		fine: []probe.Probe{besideDNS.To(hostWorker2)},
	},
}

// probes are all probes of the facts, and those that lose packets.
func probes() (all, lost []probe.Probe) {
	for _, f := range facts {
		all, lost = append(append(all, f.lost...), f.fine...), append(lost, f.lost...)
	}
	return all, lost
}

func ends() []framework.Endpoint {
	all := []framework.Endpoint{byVIP}
	for _, w := range workloads {
		all = append(all, framework.PodEndpoint(w))
	}
	return all
}
