package cordonwithdraws

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

const (
	before   = "0.14.8"
	affected = "0.14.9"
	fixed    = "0.15.2"

	affectedNative = "metallb-" + affected
	affectedFRR    = "metallb-" + affected + "-frr"
)

const master, worker1, worker2 = topology.Master, topology.Worker1, topology.Worker2

var (
	nodes     = []string{master, worker1, worker2}
	announce  = []string{worker1, worker2} // and are cordoned
	tors      = []string{"tor1", "tor2"}
	rack      = topology.NewRack(66)
	addresses = rack.Services
)

var lab = rack.Three("cordon-withdraws", rack.Services).Behind(topology.TwoToRs(rack.Nodes, rack.Uplink))

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Topology: lab,
	Owner:    framework.Maintainers, Slow: true, Foreign: true,
	Labels:    []framework.Label{framework.BGP, framework.Services},
	SecondLab: netip.MustParsePrefix("10.208.48.0/20"),
	Budget:    framework.Budget{Whole: 240 * time.Second, Lab: 45 * time.Second, Detect: time.Second},
	Variants: []framework.Variant{
		variant(framework.Affected, affected, metallb.Native, before, fixed),
		variant(framework.Fixed, before, metallb.Native),
		variant(framework.Fixed, fixed, metallb.Native),
		variant(framework.Affected, affected, metallb.FRR),
		variant(framework.Fixed, fixed, metallb.FRR),
	},
	Parameters: []framework.Parameter{framework.Family},
	With: func(s framework.Scenario, values map[string]string) (framework.Scenario, error) {
		if values[framework.Family.Name] == framework.Dual {
			s.At = anyVersion(metallb.FRR) // the mode that announces IPv6
		}
		return framework.WithFamily(s, values)
	},
	Tested: []framework.Tested{{Name: "metallb", Default: affected, Varied: true}},
	At:     anyVersion(metallb.Native),
}

func anyVersion(mode string) func(map[string]string) framework.Variant {
	return func(versions map[string]string) framework.Variant {
		return variant(framework.Unclassified, versions["metallb"], mode)
	}
}

// variant runs a version in a mode. Others are the versions that remedies move to.
func variant(role framework.Role, version, mode string, others ...string) framework.Variant {
	v := framework.Variant{
		Name: "metallb-" + version, Role: role, Form: framework.Whole,
		Components: map[string]string{"metallb": version},
		Images:     append(at(version, mode).Images(), kubeadm.KubeProxyImage, workload.ProbeImage),
		Script:     func() framework.Script { return script(role, version, mode, others) },
	}
	if mode == metallb.FRR {
		v.Name += "-frr"
	} else {
		v.OnlyIPv4 = metallb.NativeIPv4
	}
	for _, other := range others {
		v.Images = append(v.Images, at(other, mode).Images()...)
	}
	return v
}

func at(version, mode string) metallb.Release {
	return metallb.Release{Version: version, Values: metallb.In(mode, nil)}
}

// The Services. Each has the pod of worker1 behind it, and later is created after the cordon.
var (
	cluster = service("cluster", "Cluster", "10.66.128.1", announce...)
	local   = service("local", "Local", "10.66.128.2", worker1)
	later   = service("later", "Cluster", "10.66.128.3", announce...)
)

func service(name, policy, address string, via ...string) workload.LoadBalancer {
	return workload.LoadBalancer{Name: name, Policy: policy, Address: netip.MustParseAddr(address), Pod: worker1, Via: via}
}

var (
	outside  = framework.HostEndpoint(lab.Hosts[0])
	cordoned = fault.Cordon(announce...)
	routes   = []snapshot.Source{snapshot.Routers}
)

// within bounds a remedy: three times what pods and sessions of new speakers need.
const within = 90 * time.Second

func script(role framework.Role, version, mode string, others []string) framework.Script {
	// settles bounds the wait for routes after a change of the nodes: several times what it took on
	// a busy machine with two processors. Native speakers took 0.6 s. With FRR it was 4.6 s, because
	// the speaker collects changes, and a script in Python then reloads FRR.
	settles := 10 * time.Second
	if mode == metallb.FRR {
		settles = 30 * time.Second
	}
	harmed := []probe.Probe{outside.To(cluster.Endpoint()), outside.To(local.Endpoint())}
	s := framework.Script{
		Install: framework.InOrder(
			cordoned.Undo, later.Remove, // of a run that was killed
			workload.WireNodes,
			framework.AtOnce(workload.ProbesOn(nodes...), kubeadm.InstallKubeProxy, at(version, mode).Announcing(addresses, announce...)),
			cluster.Create, local.Create, cluster.Announced, local.Announced,
		),
		Endpoints: append(framework.PodsOn(nodes...), outside, cluster.Endpoint(), local.Endpoint()),
		// Pods are reached as before: nothing but the Services' routes goes.
		Probes:    append(harmed, outside.Both(framework.PodsOn(announce...)...)...),
		Detectors: []detect.Detector{detect.ServiceRoute{}},
		Baseline: []framework.Check{
			{ID: "announced", Name: "both ToRs have both addresses, by the nodes that are to announce them", Reads: routes, Holds: announced},
		},
		Fault:    cordoned,
		Impacted: harmed,
		Observe:  settles,
	}
	if role == framework.Fixed {
		s.Aftermath = []framework.Check{{ID: "announces-more", Name: "cordoned nodes announce a new Service", Reads: routes,
			Holds: announcesMore}}
		return s
	}
	s.Expected = []framework.Finding{noRoute(cluster), noRoute(local)}
	if role == framework.Affected {
		s.Aftermath = []framework.Check{{ID: "sessions-up", Name: "the sessions of the cordoned nodes are up", Reads: routes,
			Holds: check.Sessions(rack.Nodes.Name, announce, announce)}}
		s.Remedies = []framework.Remedy{
			{ID: "uncordon", Name: "kubectl uncordon " + strings.Join(announce, " "), Helps: true, Bound: within, Apply: cordoned.Undo,
				Undo: cordoned.Inject},
		}
		for _, other := range others {
			s.Remedies = append(s.Remedies, framework.Remedy{
				ID: "metallb-" + strings.ReplaceAll(other, ".", "-"), Name: "MetalLB " + other, Helps: true, Bound: within,
				Apply: at(other, mode).MoveTo, Undo: at(version, mode).MoveTo,
			})
		}
		s.Remedies[len(s.Remedies)-1].Undo = nil // nothing comes after it
	}
	return s
}

// noRoute is the finding about a Service's address. It says why no node announces that.
func noRoute(s workload.LoadBalancer) framework.Finding {
	return framework.Finding{
		Detector: detect.ServiceRoute{}.Name(), Kind: detect.NoRoute, State: detect.Active,
		Object: detect.Prefix(netip.PrefixFrom(s.Address, 32)), Routers: tors,
		Words: each.Of(announce, func(node string) string { return node + " is unschedulable" }),
	}
}

var announced = check.Routes(addresses, rack.Nodes.Name, map[netip.Prefix][]string{
	netip.PrefixFrom(cluster.Address, 32): cluster.Via, netip.PrefixFrom(local.Address, 32): local.Via,
})

// announcesMore asserts that cordoned nodes announce a Service that is created now. No router may have
// a path to it before, which could be left over.
func announcesMore(ctx context.Context, r *framework.Run) (holds bool, saw string, err error) {
	for _, from := range r.Snapshot().Routers {
		if !from.Paths.Read {
			return false, "", fmt.Errorf("the paths of %s were not read", from.Name)
		}
		for _, f := range r.Topology.Families() {
			address := f.Addr(later.Address)
			if slices.ContainsFunc(from.Paths.Items, func(p snapshot.Path) bool { return p.Prefix.Addr() == address }) {
				return false, fmt.Sprintf("%s has %s before Service %s is created", from.Name, address, later.Name), nil
			}
		}
	}
	defer func() { err = errors.Join(err, later.Remove(context.WithoutCancel(ctx), r)) }()
	if err := later.Create(ctx, r); err != nil {
		return false, "", err
	}
	if err := later.Announced(ctx, r); err != nil {
		return false, err.Error(), nil
	}
	return true, "", nil
}
