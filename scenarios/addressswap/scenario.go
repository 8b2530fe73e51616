package addressswap

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

const (
	affected = "0.13.12"
	reported = "0.13.9"
	fixed    = "0.14.5"

	affectedVariant = "metallb-" + affected
	reportedVariant = "metallb-" + reported
	roomVariant     = affectedVariant + "-more-addresses"
)

const master, worker1, worker2 = topology.Master, topology.Worker1, topology.Worker2

var (
	nodes     = []string{master, worker1, worker2}
	announce  = []string{worker1, worker2}
	rack      = topology.NewRack(75)
	addresses = rack.Services // enough for all Services
	pool      = netip.MustParsePrefix("10.75.128.2/31")
)

var lab = rack.Three("address-swap", rack.Services).Behind(topology.TwoToRs(rack.Nodes, rack.Uplink))

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record, Topology: lab,
	Owner: framework.Maintainers, Slow: true, OnlyOwnLab: "it makes Services that wait for addresses",
	Labels:    []framework.Label{framework.BGP, framework.Services},
	SecondLab: netip.MustParsePrefix("10.208.176.0/20"),
	Budget:    framework.Budget{Whole: 300 * time.Second, Lab: 45 * time.Second, Detect: 5 * time.Second},
	Variants: []framework.Variant{
		variant(framework.Affected, affected, pool),
		variant(framework.Fixed, fixed, pool),
		variant(framework.Workaround, affected, addresses),
		variant(framework.Affected, reported, pool),
	},
	Tested: []framework.Tested{{Name: "metallb", Default: affected, Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		return variant(framework.Unclassified, versions["metallb"], pool)
	},
}

func variant(role framework.Role, version string, from netip.Prefix) framework.Variant {
	v := framework.Variant{
		Name: "metallb-" + version, Role: role, Form: framework.Whole,
		Components: map[string]string{"metallb": version},
		Images:     append(at(version).Images(), kubeadm.KubeProxyImage, workload.ProbeImage),
		Script:     func() framework.Script { return (&incident{role: role, version: version, from: from}).script() },
	}
	switch {
	case from == addresses:
		v.Name = roomVariant
	case v.Name == affectedVariant:
		v.Images = append(v.Images, at(fixed).Images()...)
	}
	return v
}

func at(version string) metallb.Release {
	return metallb.Release{Version: version, Values: metallb.In(metallb.Native, nil)}
}

// The Services that have the addresses of the pool, and the Services that wait for one. So many wait that a restart
// after which shop or bank keeps its address, because none of them came before it, is rare: one in 14.
var (
	shop     = workload.LoadBalancer{Name: "shop", Pod: worker1, Address: pool.Addr(), Via: announce}
	bank     = workload.LoadBalancer{Name: "bank", Pod: worker2, Address: pool.Addr().Next(), Via: announce}
	outside  = framework.HostEndpoint(lab.Hosts[0])
	served   = workload.LoadBalancers{shop, bank}
	waiting  = make(workload.LoadBalancers, 40)
	impacted = each.Of(served, func(s workload.LoadBalancer) probe.Probe { return outside.Over(probe.UDPFlow, s.Endpoint()) })
)

func init() {
	for i := range waiting {
		waiting[i] = workload.LoadBalancer{Name: fmt.Sprintf("waiting-%02d", i+1), Pod: master}
	}
}

type incident struct {
	role     framework.Role
	version  string
	from     netip.Prefix // the pool
	restarts int
	occurred bool
}

func (i *incident) script() framework.Script {
	s := framework.Script{
		Install: framework.InOrder(
			metallb.Uninstall, // so that no Service gets the address of a Service that is removed earlier
			served.Remove, waiting.Remove, workload.WireNodes,
			framework.AtOnce(workload.ProbesOn(nodes...), kubeadm.InstallKubeProxy, at(i.version).Announcing(i.from, announce...)),
			served.Create, served.Announced, waiting.Create,
		),
		Endpoints: append(framework.PodsOn(nodes...), outside, shop.Endpoint(), bank.Endpoint()),
		Probes:    append(slices.Clone(impacted), outside.Both(framework.PodsOn(nodes...)...)...),
		Detectors: []detect.Detector{detect.ServiceAddress{}},
		Fault: framework.Fault{
			Name: "restart MetalLB's controller", Inject: i.restart, TookEffect: metallb.ControllerRestarted, Replaced: true,
			Undo: framework.InOrder(waiting.Remove, served.Announced, waiting.Create),
		},
		Trials: &framework.Trials{
			Unit: "restart of the controller", Load: fmt.Sprintf("%d Services that wait", len(waiting)),
			Result: func() (int, bool) { return i.restarts, i.occurred },
		},
		Impacted: impacted, MinOutage: time.Second,
		Observe: 10 * time.Second,
	}
	if i.role != framework.Workaround {
		s.Baseline = []framework.Check{{ID: "wait", Name: "the other Services wait for an address", Reads: []snapshot.Source{snapshot.Services},
			Holds: check.Waiting(len(waiting))}}
	}
	if i.role != framework.Affected && i.role != framework.Unclassified {
		return s
	}
	s.Latent = []framework.Finding{{Detector: detect.ServiceAddress{}.Name(), Kind: detect.FullPool, State: detect.Latent,
		Object: detect.Named("IPAddressPool services"), Words: []string{"40 wait", i.version}}}
	kind := detect.TakenAddress
	if semver.Compare("v"+i.version, "v0.13.8") < 0 { // the owner keeps the address in its status, beside the others
		kind = detect.SharedAddress
	}
	for _, service := range served {
		s.Expected = append(s.Expected, framework.Finding{Detector: detect.ServiceAddress{}.Name(), Kind: kind, State: detect.Active,
			Object: detect.Prefix(netip.PrefixFrom(service.Address, 32)), Words: []string{"default/" + service.Name}})
	}
	s.Aftermath = []framework.Check{{ID: "answered", Name: "clients of both Services are answered by another application",
		Holds: check.AnsweredByOthers(impacted...)}}
	if i.version == affected {
		s.Remedies = remedies
	}
	return s
}

// restart replaces the controller until both Services have lost their addresses, at most as often as trials are due.
// Before 0.13.8 they keep them in their status: all restarts are made, and each may add a Service that shares one.
func (i *incident) restart(ctx context.Context, r *framework.Run) error {
	for i.restarts, i.occurred = 0, false; i.restarts < max(1, r.TrialsDue()) && !i.occurred; i.restarts++ {
		if err := at(i.version).RestartController(ctx, r); err != nil {
			return err
		}
		i.occurred = true
		for _, s := range served {
			has, err := s.Has(ctx, r)
			if err != nil {
				return err
			}
			i.occurred = i.occurred && len(has) == 0
		}
	}
	return nil
}

// remedies build on each other: a remedy that does not help is not undone.
var remedies = []framework.Remedy{
	{ID: "recreate", Name: "Service bank made anew, with its spec.loadBalancerIP", Watch: 5 * time.Second,
		Apply: framework.InOrder(bank.Remove, bank.Create)},
	{ID: "upgrade", Name: "MetalLB " + fixed, Watch: 5 * time.Second, Apply: at(fixed).MoveTo},
	{ID: "more-addresses", Name: "enough addresses in the pool", Watch: 5 * time.Second,
		Apply: framework.InOrder(at(fixed).Configured(addresses, announce...), waiting.Announced)},
	{ID: "give-back", Name: "the Services that have the two addresses made anew", Helps: true, Bound: time.Minute, Apply: giveBack},
}

func giveBack(ctx context.Context, r *framework.Run) error {
	var with workload.LoadBalancers
	for _, s := range waiting {
		if has, err := s.Has(ctx, r); err != nil {
			return err
		} else if slices.ContainsFunc(has, pool.Contains) {
			with = append(with, s)
		}
	}
	return framework.InOrder(with.Remove, served.Announced, with.Create)(ctx, r)
}
