package localeverywhere

import (
	"net/netip"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
)

const (
	affected = "1.19.5"
	fixed    = "1.18.6"

	affectedVariant = "cilium-" + affected
	fixedVariant    = "cilium-" + fixed
)

// setting is the value of the chart that serves the healthCheckNodePort at the address of a Service.
const setting = "nodePort.enableHealthCheckLoadBalancerIP"

// The endpoint is on worker1.
const master, worker1, worker2 = topology.Master, topology.Worker1, topology.Worker2

var (
	nodes     = []string{master, worker1, worker2}
	rack      = topology.NewRack(74)
	addresses = rack.Services
)

var lab = rack.Three("local-everywhere", rack.Services).Behind(topology.OneToR(rack.Nodes, rack.Uplink))

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record, Topology: lab, Owner: framework.Maintainers, Slow: true,
	Labels:     []framework.Label{framework.BGP, framework.Services},
	NeedsValue: setting,
	OnlyOwnLab: "whole Cilium leaves BPF programs and policy routes on nodes, which are not known to come back",
	SecondLab:  netip.MustParsePrefix("10.208.160.0/20"),
	Budget:     framework.Budget{Whole: 400 * time.Second, Lab: 60 * time.Second, Detect: time.Second},
	Variants: []framework.Variant{
		variant(affectedVariant, framework.Affected, affected),
		variant(fixedVariant, framework.Fixed, fixed),
	},
	Tested: []framework.Tested{{Name: "cilium", Default: affected, Since: "1.18.0", Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		v := versions["cilium"]
		return variant("cilium-"+v, framework.Unclassified, v)
	},
}

func variant(name string, role framework.Role, version string) framework.Variant {
	return framework.Variant{
		Name: name, Role: role, Form: framework.Whole,
		Components: map[string]string{"cilium": version},
		Images:     append(release.Images(version), workload.ProbeImage),
		Script:     func() framework.Script { return script(role, version) },
	}
}

// at is a release in place of kube-proxy, with the setting or without it.
func at(version string, on bool) release.Release {
	return release.Release{Version: version, Values: chart.With(release.NativeRouting(), []chart.Setting{
		{Path: "kubeProxyReplacement", Value: true}, {Path: setting, Value: on},
	})}
}

// The Service, with the policy of the incident and with the other one.
var local, cluster = service("Local"), service("Cluster")

func service(policy string) workload.LoadBalancer {
	return workload.LoadBalancer{
		Name: "local", Policy: policy, Pod: worker1, Via: []string{worker1}, Labels: release.AnnouncedLabels(),
		Address: netip.MustParseAddr("10.74.128.1"),
	}
}

var (
	outside = framework.HostEndpoint(lab.Hosts[0])
	// flows have a new source port for each packet or connection: routers choose a next hop for each.
	flows = []probe.Probe{outside.Over(probe.UDPFlow, local.Endpoint()), outside.Over(probe.TCP, local.Endpoint())}
)

const (
	within  = 3 * time.Minute  // bounds a remedy: several times what new agents, the slowest part, needed
	settles = 10 * time.Second // several times what agents need to announce what they are told to
)

func script(role framework.Role, version string) framework.Script {
	cilium, types := at(version, true), release.TypesOf(version)
	all := release.SelectsAll(types)
	s := framework.Script{
		Install: framework.InOrder(
			workload.ServiceRemoved(local.Name), release.Uninstalled(nodes, rack.Pods), cilium.Apply,
			labaccess.SessionsUp(nodes, framework.InOrder(release.Peering{LoadBalancers: addresses}.Apply(types), cilium.Ready(nodes...))),
			workload.ProbesOn(nodes...), local.Create, local.Routed,
		),
		Endpoints: append(framework.PodsOn(nodes...), outside, local.Endpoint()),
		Probes:    append(outside.Both(framework.PodsOn(nodes...)...), flows...),
		Detectors: []detect.Detector{detect.ServiceRoute{}},
		Baseline:  []framework.Check{sentTo("announced", worker1)},
		Fault:     all,
		Impacted:  flows, Partial: true,
		Observe: settles,
	}
	if role == framework.Fixed {
		s.Aftermath = []framework.Check{sentTo("one-node", worker1)}
		return s
	}
	everywhere := framework.Finding{
		Detector: detect.ServiceRoute{}.Name(), Kind: detect.NoLocalEndpoint, State: detect.Active,
		Object: detect.Prefix(netip.PrefixFrom(local.Address, 32)), Routers: []string{"tor"},
	}
	for _, node := range []string{master, worker2} { // whose agent is faster than the other's
		one := everywhere
		one.Words = []string{"to " + node + ", which"}
		s.Transient = append(s.Transient, one)
	}
	everywhere.Words = []string{master + " and " + worker2}
	s.Expected = []framework.Finding{everywhere}
	if role != framework.Affected {
		return s
	}
	s.Aftermath = []framework.Check{
		sentTo("everywhere", nodes...),
		{ID: "health-service", Name: "the agent on " + worker2 + " has a Service of its own at the address", Bound: settles,
			Holds: release.HasFrontend(worker2, local.Name+":healthserver")},
	}
	s.Remedies = []framework.Remedy{
		{ID: "restart-agent", Name: "restart the agent on " + worker2, Watch: 2 * settles,
			Apply: labaccess.SessionsUp([]string{worker2}, cilium.Restart(worker2))},
		{ID: "selector", Name: "a selector on the Service's label", Helps: true, Bound: within, Apply: all.Undo, Undo: all.Inject},
		{ID: "policy-cluster", Name: "externalTrafficPolicy Cluster", Helps: true, Bound: within, Apply: cluster.Create, Undo: local.Create},
		{ID: "setting-off", Name: setting + " off, and new agents", Helps: true, Bound: within,
			Apply: framework.InOrder(at(version, false).Apply, labaccess.SessionsUp(nodes, at(version, false).Restart(nodes...)))},
	}
	return s
}

func sentTo(id string, via ...string) framework.Check {
	return framework.Check{
		ID: id, Name: "the ToR sends the Service's address to " + strings.Join(via, ", ") + " alone", Reads: []snapshot.Source{snapshot.Routers},
		Bound: settles, Holds: check.Routes(addresses, rack.Nodes.Name, map[netip.Prefix][]string{netip.PrefixFrom(local.Address, 32): via}),
	}
}
