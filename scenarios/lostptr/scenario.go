package lostptr

import (
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
)

// The versions, and the variants that run the affected ones. Each is an upgrade from before.
const (
	before   = "1.11.3"
	affected = "1.12.0"
	first    = "1.11.4"
	fixed    = "1.12.1"

	affectedVariant = "coredns-" + affected
	firstVariant    = "coredns-" + first
	namedVariant    = "coredns-" + affected + "-hostname"
)

const (
	master = topology.Master
	worker = "worker"
	// directory is the headless Service.
	directory = "directory"
)

var rack = topology.NewRack(70)

// lab is the cluster that Record draws. The ToR has static routes to the pods of both nodes.
var lab = rack.Two("lost-ptr")

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record, Topology: lab,
	Owner: framework.Maintainers, Slow: true, OnlyOwnLab: "it replaces the cluster's CoreDNS",
	Labels:    []framework.Label{framework.Services, framework.Upgrade},
	SecondLab: netip.MustParsePrefix("10.208.112.0/20"),
	Budget:    framework.Budget{Whole: 240 * time.Second, Lab: 45 * time.Second, Detect: time.Second},
	Variants: []framework.Variant{
		variant(framework.Affected, affected, ""),
		variant(framework.Fixed, fixed, ""),
		variant(framework.Affected, first, ""),
		variant(framework.Fixed, affected, "server"),
	},
	Tested: []framework.Tested{{Name: "coredns", Default: affected, Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		return variant(framework.Unclassified, versions["coredns"], "")
	},
}

// variant upgrades to a version. A hostname is the server's, in its pod template.
func variant(role framework.Role, version, hostname string) framework.Variant {
	v := framework.Variant{
		Name: "coredns-" + version, Role: role, Form: framework.Whole,
		Components: map[string]string{"coredns": version},
		Images:     []string{kubeadm.DNSImage(before), kubeadm.DNSImage(version), kubeadm.KubeProxyImage, workload.ProbeImage},
		Script:     func() framework.Script { return script(role, version, hostname) },
	}
	if hostname != "" {
		v.Name += "-hostname"
	}
	if role == framework.Affected {
		v.Images = append(v.Images, kubeadm.DNSImage(fixed))
	}
	return v
}

// at is CoreDNS of a version. Nothing is above it: the reverse zones do not fall through. A pod serves for
// 10 s after its end was asked for: a kube-proxy on a busy machine took more than kubeadm's 5 s to hear of it.
func at(version string) kubeadm.DNS {
	return kubeadm.DNS{Version: version, Config: kubeadm.Corefile{Zone: "cluster.local", Text: `.:53 {
    errors
    health {
       lameduck 10s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       ttl 30
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    reload
    loadbalance
}
`}}
}

const within = 90 * time.Second

func rolled(version string) framework.Action { return at(version).Apply(within) }

func script(role framework.Role, version, hostname string) framework.Script {
	server := framework.ProbePod{Name: "server", Node: worker, Hostname: hostname, Subdomain: directory}
	client := framework.ProbePod{Name: "client", Node: master}
	lookup := func(name string, query probe.Lookup) probe.Probe {
		query.Server = kubeadm.DNSAddress
		return probe.Probe{Name: "client->server/" + name, From: client.Name, To: server.Name, Protocol: probe.DNS, Lookup: &query}
	}
	reverse := lookup("reverse name", probe.Lookup{Reverse: true})
	s := framework.Script{
		Install: framework.InOrder(
			workload.WireNodes,
			framework.AtOnce(workload.Probes(server, client), kubeadm.InstallKubeProxy, rolled(before)),
			workload.Headless(directory, server.Name),
		),
		Endpoints: []framework.Endpoint{framework.PodEndpoint(server), framework.PodEndpoint(client)},
		Probes: []probe.Probe{
			reverse, lookup("name", probe.Lookup{Name: directory + ".default.svc.cluster.local"}), {From: client.Name, To: server.Name},
		},
		Detectors: []detect.Detector{detect.ReverseName{}},
		Fault: framework.Fault{
			Name: "upgrade of CoreDNS to " + version, Inject: rolled(version), Undo: rolled(before), Replaced: true,
			TookEffect: kubeadm.CoreDNS.Pods.Run(kubeadm.DNSImage(version)),
		},
		Impacted: []probe.Probe{reverse},
		// A pod's cache keeps an answer for 30 s, and a new pod has none.
		Observe: 10 * time.Second,
	}
	if role == framework.Fixed {
		return s
	}
	s.Expected = []framework.Finding{{
		Detector: detect.ReverseName{}.Name(), Kind: detect.NoReverseName, State: detect.Active, Object: detect.Named("CoreDNS " + version),
		Words: []string{"1 of default/" + directory},
	}}
	if role == framework.Affected {
		s.Remedies = []framework.Remedy{
			{ID: "restart", Name: "kubectl rollout restart of CoreDNS", Watch: 10 * time.Second, Apply: at(version).Restart(within)},
			{ID: "coredns-1-12-1", Name: "CoreDNS " + fixed, Helps: true, Bound: 30 * time.Second, Apply: rolled(fixed)},
		}
	}
	return s
}
