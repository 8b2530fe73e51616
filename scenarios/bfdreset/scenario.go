package bfdreset

import (
	"context"
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
)

const (
	first    = "0.13.12"
	affected = "0.14.5"
	fixed    = "0.14.8"

	firstVariant    = "metallb-" + first + "-bfd"
	affectedVariant = "metallb-" + affected + "-bfd"
	fixedVariant    = "metallb-" + fixed + "-bfd"
	withoutVariant  = "metallb-" + affected + "-no-bfd"
)

const master, worker1, worker2 = topology.Master, topology.Worker1, topology.Worker2

var (
	nodes     = []string{master, worker1, worker2}
	announce  = []string{worker1, worker2}
	rack      = topology.NewRack(76)
	addresses = rack.Services
)

// bfd is slower than FRR's default of 300 ms: on a busy machine daemons may wait for a processor for that long.
var bfd = topology.BFD{Receive: time.Second, Transmit: time.Second, Multiplier: 3}

var lab = rack.Three("bfd-reset", rack.Services).Behind(topology.WithBFD(topology.OneToR(rack.Nodes, rack.Uplink), bfd))

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Topology: lab,
	Owner:    framework.Maintainers, Slow: true, Foreign: true,
	Labels:    []framework.Label{framework.BGP, framework.Services},
	SecondLab: netip.MustParsePrefix("10.208.192.0/20"),
	Budget:    framework.Budget{Whole: 300 * time.Second, Lab: 45 * time.Second, Detect: time.Second},
	Variants: []framework.Variant{
		variant(affectedVariant, framework.Affected, affected, true),
		variant(fixedVariant, framework.Fixed, fixed, true),
		variant(firstVariant, framework.Affected, first, true),
		variant(withoutVariant, framework.Workaround, affected, false),
	},
	Tested: []framework.Tested{{Name: "metallb", Default: affected, Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		return variant("metallb-"+versions["metallb"]+"-bfd", framework.Unclassified, versions["metallb"], true)
	},
}

func variant(name string, role framework.Role, version string, profile bool) framework.Variant {
	images := append(at(version).Images(), kubeadm.KubeProxyImage, workload.ProbeImage)
	if name == affectedVariant {
		images = append(images, at(fixed).Images()...)
	}
	return framework.Variant{
		Name: name, Role: role, Form: framework.Whole, Components: map[string]string{"metallb": version}, Images: images,
		Script: func() framework.Script { return script(role, version, profile) },
	}
}

func at(version string) metallb.Release {
	return metallb.Release{Version: version, Values: metallb.In(metallb.FRR, nil)}
}

// The Services. Nobody touches the first two, and preview comes and goes.
var (
	web     = service("web", "Local", "10.76.128.1", worker1, worker1)
	api     = service("api", "Local", "10.76.128.2", worker2, worker2)
	preview = service("preview", "Cluster", "10.76.128.3", worker1, announce...)
)

func service(name, policy, address, pod string, via ...string) workload.LoadBalancer {
	return workload.LoadBalancer{Name: name, Policy: policy, Address: netip.MustParseAddr(address), Pod: pod, Via: via}
}

var outside = framework.HostEndpoint(lab.Hosts[0])

// every is the time between two changes of preview. A speaker collects changes for 3 s before it reloads FRR.
const every = 5 * time.Second

func script(role framework.Role, version string, profile bool) framework.Script {
	redeploy := fault.Redeploy(preview, every)
	release, without := at(version), at(version)
	release.NoBFD, without.NoBFD = !profile, true
	harmed := []probe.Probe{outside.To(web.Endpoint()), outside.To(api.Endpoint())}
	s := framework.Script{
		Install: framework.InOrder(
			preview.Remove, // of a run that was killed
			workload.WireNodes,
			framework.AtOnce(workload.ProbesOn(nodes...), kubeadm.InstallKubeProxy, release.Announcing(addresses, announce...)),
			web.Create, api.Create, web.Announced, api.Announced,
		),
		Endpoints: append(framework.PodsOn(nodes...), outside, web.Endpoint(), api.Endpoint()),
		// Pods are reached as before, by static routes.
		Probes:    append(harmed, outside.Both(framework.PodsOn(announce...)...)...),
		Detectors: []detect.Detector{detect.SessionReset{}},
		Baseline: []framework.Check{{
			ID: "sessions", Name: "both workers have sessions", Reads: []snapshot.Source{snapshot.Routers},
			Holds: check.Sessions(rack.Nodes.Name, nodes, nodes),
		}},
		Fault:    redeploy,
		Impacted: harmed, Partial: true, Lull: 2 * every,
		Observe:   4 * every,
		Aftermath: []framework.Check{{ID: "announced", Name: "the Service that comes and goes is announced by both workers", Holds: announced}},
	}
	if role == framework.Fixed || role == framework.Workaround {
		return s
	}
	finding := framework.Finding{Detector: detect.SessionReset{}.Name(), Object: detect.Named("MetalLB " + version)}
	ahead, reset := finding, finding
	ahead.Kind, ahead.State = detect.ResetsAhead, detect.Latent
	reset.Kind, reset.State, reset.Routers = detect.SessionsReset, detect.Active, []string{"tor"}
	s.Latent, s.Expected = []framework.Finding{ahead}, []framework.Finding{reset}
	if role == framework.Affected && version == affected {
		s.Remedies = []framework.Remedy{
			{ID: "restart-speakers", Name: "restart the speakers", Watch: 4 * every, Apply: labaccess.Connected(announce, metallb.RestartSpeakers)},
			{ID: "no-bfd", Name: "no BFD profile, and new speakers", Helps: true, Bound: within,
				Apply: framework.InOrder(without.Configured(addresses, announce...), metallb.RestartSpeakers),
				Undo:  release.Configured(addresses, announce...)},
			{ID: "metallb-0-14-8", Name: "MetalLB " + fixed, Helps: true, Bound: within, Apply: at(fixed).MoveTo},
		}
	}
	return s
}

// within bounds a remedy: three times what pods and sessions of new speakers need. Speakers that go on wait for minutes
// after many resets before they open a session again (FRR's idle hold and connect retry).
const within = 90 * time.Second

func announced(ctx context.Context, r *framework.Run) (bool, string, error) {
	for _, node := range preview.Via {
		if err := labaccess.Lab(r).Announced(ctx, node, preview.Address); err != nil {
			return false, err.Error(), nil
		}
	}
	return true, "", nil
}
