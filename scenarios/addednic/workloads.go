package addednic

import (
	"context"
	_ "embed"
	"net/netip"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// workloads are the pods of the story, by their roles.
var workloads = []workload.ProbePod{
	{Name: "redis", Node: "master"},
	// It looks redis up by the name of its Service.
	{Name: "repo-server", Node: "worker2"},
	// It knows redis by its addresses alone.
	{Name: "ips-only", Node: "worker2"},
	// CoreDNS's neighbours.
	{Name: "beside-dns", Node: coreDNSNode},
	{Name: "cache", Node: coreDNSNode},
	{Name: "host-master", Node: "master", HostNetwork: true},
	{Name: "host-worker1", Node: "worker1", HostNetwork: true},
	{Name: "host-worker2", Node: "worker2", HostNetwork: true},
}

// redisVIP is redis's ClusterIP, as services.yaml asks for it.
var redisVIP = netip.MustParseAddr("10.96.70.1")

//go:embed services.yaml
var servicesYAML string

// dnsServer is what kubelet writes into pods' resolv.conf: kubeadm gives
// CoreDNS's Service the tenth address of the range.
var dnsServer = netip.MustParseAddrPort("10.96.0.10:53")

// byName is a probe that looks a Service up and talks to what it finds.
func byName(from, to, service string) probe.Probe {
	return probe.Probe{
		From: from, To: to, Protocol: probe.DNS,
		Lookup: &probe.Lookup{Name: service + ".default.svc.cluster.local.", Server: dnsServer},
	}
}

// byVIP is the name of an end that is redis's ClusterIP.
const byVIP = "redis-vip"

// fact is one line of what was noted in production.
type fact struct {
	name string
	// lost are the probes of which nothing gets through, fine those of which
	// all does.
	lost, fine []probe.Probe
}

// facts are in the order in which they were noted.
var facts = []fact{
	{
		name: "what needs DNS times out",
		lost: []probe.Probe{byName("repo-server", "redis", "argocd-redis"), byName("host-worker2", "redis", "argocd-redis")},
	},
	{
		name: "what needs no DNS works",
		fine: []probe.Probe{
			{From: "ips-only", To: "redis"}, {From: "redis", To: "ips-only"},
			{From: "ips-only", To: byVIP, Protocol: probe.TCP},
		},
	},
	{
		name: "pods on CoreDNS's own node are fine",
		fine: []probe.Probe{byName("beside-dns", "cache", "cache"), {From: "beside-dns", To: "cache"}},
	},
	{
		name: "nodes reach each other",
		fine: append(probe.Both("host-worker1", "host-master", "host-worker2"), probe.Both("host-master", "host-worker2")...),
	},
	{
		name: "pods on that node reach no pod elsewhere, unless it uses hostNetwork",
		lost: append(probe.Both("beside-dns", "redis", "repo-server"), probe.Probe{From: "host-worker1", To: "redis"}),
		fine: []probe.Probe{{From: "beside-dns", To: "host-worker2"}},
	},
}

// probes are those of all facts.
func probes() []probe.Probe {
	var all []probe.Probe
	for _, f := range facts {
		all = append(append(all, f.lost...), f.fine...)
	}
	return all
}

// hurt names the probes of which nothing gets through.
func hurt() []string {
	var names []string
	for _, f := range facts {
		for _, p := range f.lost {
			names = append(names, nameOf(p))
		}
	}
	return names
}

// nameOf is the name that a probe gets where it declares none.
func nameOf(p probe.Probe) string {
	name := p.From + "->" + p.To
	if p.Protocol != "" && p.Protocol != probe.UDP {
		name += "/" + string(p.Protocol)
	}
	return name
}

func ends(ctx context.Context, r *framework.Run, _ ...string) ([]probe.End, error) {
	all, err := framework.PodEnds(ctx, r, workloads, nil)
	return append(all, probe.End{Name: byVIP, Address: netip.AddrPortFrom(redisVIP, wire.DefaultPort)}), err
}
