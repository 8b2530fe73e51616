package cordonwithdraws

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// The versions, and the variants that run the affected one.
const (
	before   = "0.14.8"
	affected = "0.14.9"
	fixed    = "0.15.2"

	affectedNative = "metallb-" + affected
	affectedFRR    = "metallb-" + affected + "-frr"
)

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Topology: lab,
	Owner:    framework.Maintainers, Slow: true, Foreign: true,
	Labels:    []framework.Label{framework.BGP, framework.Services},
	SecondLab: netip.MustParsePrefix("10.208.48.0/20"),
	Budget: framework.Budget{
		Whole: 240 * time.Second, Lab: 45 * time.Second, Detect: time.Second,
	},
	Variants: []framework.Variant{
		variant(framework.Affected, affected, metallb.Native, before, fixed),
		variant(framework.Fixed, before, metallb.Native),
		variant(framework.Fixed, fixed, metallb.Native),
		variant(framework.Affected, affected, metallb.FRR),
		variant(framework.Fixed, fixed, metallb.FRR),
	},
	Tested: []framework.Tested{{Name: "metallb", Default: affected, Varied: true}},
	At: func(versions map[string]string) framework.Variant {
		return variant(framework.Unclassified, versions["metallb"], metallb.Native)
	},
}

// variant runs a version in a mode. Others are versions that remedies move to.
func variant(role framework.Role, version, mode string, others ...string) framework.Variant {
	v := framework.Variant{
		Name: "metallb-" + version, Role: role, Form: framework.Whole,
		Components: map[string]string{"metallb": version},
		Images:     append(at(version, mode).Images(), kubeadm.KubeProxyImage, workload.ProbeImage),
	}
	if mode == metallb.FRR {
		v.Name += "-frr"
	}
	for _, other := range others {
		v.Images = append(v.Images, at(other, mode).Images()...)
	}
	v.Script = func() framework.Script {
		s := common(version, mode)
		if role != framework.Fixed {
			s.Expected = []framework.Finding{noRoute(cluster), noRoute(local)}
		}
		if role == framework.Fixed {
			s.Aftermath = []framework.Check{{ID: "announces-more", Name: "cordoned nodes announce a new Service", Reads: routes, Holds: announcesMore}}
		}
		if role == framework.Affected {
			s.Aftermath = []framework.Check{{ID: "sessions-up", Name: "the sessions of the cordoned nodes are up", Reads: routes, Holds: check.Sessions(nodeNet.Name, announce, announce)}}
			s.Remedies = remedies(version, mode, others)
		}
		return s
	}
	return v
}

func at(version, mode string) metallb.Release {
	return metallb.Release{Version: version, Values: metallb.In(mode, nil)}
}

// service is a Service with the pod of worker1 behind it.
type service struct {
	name    string
	policy  string // externalTrafficPolicy
	address netip.Addr
	via     []string // the nodes that announce it
}

var (
	cluster = service{"cluster", "Cluster", netip.MustParseAddr("10.66.128.1"), announce}
	local   = service{"local", "Local", netip.MustParseAddr("10.66.128.2"), []string{worker1}}
	// later is created after the cordon.
	later = service{"later", "Cluster", netip.MustParseAddr("10.66.128.3"), announce}
)

// end is the endpoint at the Service's address.
func (s service) end() framework.Endpoint {
	e := framework.PodOn(worker1)
	e.Name = "Service " + s.name
	e.Address = func(*framework.Run) netip.AddrPort { return netip.AddrPortFrom(s.address, wire.DefaultPort) }
	return e
}

func (s service) manifest() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  type: LoadBalancer
  loadBalancerIP: %s
  externalTrafficPolicy: %s
  selector: {%s: %s}
  ports: [{name: udp, protocol: UDP, port: %d}]
---
`, s.name, s.address, s.policy, workload.ProbeLabel, worker1, wire.DefaultPort)
}

var outside = framework.HostEndpoint(lab.Hosts[0])

// common is what all variants do. They differ in version and mode, and in nothing else.
func common(version, mode string) framework.Script {
	harmed := []probe.Probe{outside.To(cluster.end()), outside.To(local.end())}
	return framework.Script{
		Install:   func(ctx context.Context, r *framework.Run) error { return install(ctx, r, at(version, mode)) },
		Endpoints: append(framework.PodsOn(nodes...), outside, cluster.end(), local.end()),
		// Pods are reached as before: nothing but the Services' routes goes.
		Probes:    append(harmed, outside.Both(framework.PodsOn(announce...)...)...),
		Detectors: []detect.Detector{detect.ServiceRoute{}},
		Baseline: []framework.Check{
			{ID: "announced", Name: "both ToRs have both addresses, by the nodes that are to announce them", Reads: routes, Holds: announced},
		},
		Fault:    func(r *framework.Run) framework.Fault { return fault.Cordon(labaccess.Cluster(r), announce...) },
		Impacted: harmed,
		Observe:  settles(mode),
	}
}

// noRoute is the finding about a Service's address. It says why no node announces that.
func noRoute(s service) framework.Finding {
	f := framework.Finding{
		Detector: detect.ServiceRoute{}.Name(), Kind: detect.NoRoute, State: detect.Active,
		Object: detect.Prefix(netip.PrefixFrom(s.address, 32)), Routers: tors,
	}
	for _, node := range announce {
		f.Words = append(f.Words, node+" is unschedulable")
	}
	return f
}

// within bounds a remedy: three times what pods and sessions of new speakers need.
const within = 90 * time.Second

// settles is how long routes are awaited that a change of the nodes brings or takes away:
// several times what that took on a busy machine with two processors. Native speakers took
// 0.6 s. With FRR it was 4.6 s, because the speaker collects changes, and a script in Python
// then reloads FRR.
func settles(mode string) time.Duration {
	if mode == metallb.FRR {
		return 30 * time.Second
	}
	return 10 * time.Second
}

// remedies are those of an affected variant. Others are the versions that it moves to.
func remedies(version, mode string, others []string) []framework.Remedy {
	all := []framework.Remedy{
		{
			ID: "restart-speakers", Name: "restart the speakers", Watch: settles(mode),
			Apply: func(ctx context.Context, r *framework.Run) error {
				began := time.Now()
				if err := restart(ctx, labaccess.Cluster(r)); err != nil {
					return err
				}
				return labaccess.Lab(r).Connected(ctx, announce, began)
			},
		},
		{
			ID: "uncordon", Name: "kubectl uncordon " + strings.Join(announce, " "), Helps: true, Bound: within,
			Apply: func(ctx context.Context, r *framework.Run) error {
				return fault.Cordon(labaccess.Cluster(r), announce...).Undo(ctx)
			},
			Undo: func(ctx context.Context, r *framework.Run) error {
				return fault.Cordon(labaccess.Cluster(r), announce...).Inject(ctx)
			},
		},
	}
	for _, other := range others {
		all = append(all, framework.Remedy{
			ID: "metallb-" + strings.ReplaceAll(other, ".", "-"), Name: "MetalLB " + other, Helps: true, Bound: within,
			Apply: moveTo(at(other, mode)), Undo: moveTo(at(version, mode)),
		})
	}
	all[len(all)-1].Undo = nil // nothing comes after it
	return all
}

// moveTo brings controller and speakers to a release.
func moveTo(release metallb.Release) func(context.Context, *framework.Run) error {
	return func(ctx context.Context, r *framework.Run) error {
		if err := release.Apply(ctx, labaccess.Lab(r)); err != nil {
			return err
		}
		return restart(ctx, labaccess.Cluster(r))
	}
}

// restart replaces the speakers. It does not wait for routes: they may announce none.
func restart(ctx context.Context, c *kindlab.Cluster) error {
	if err := metallb.Speaker.Restart(ctx, c, nodes, within); err != nil {
		return err
	}
	return metallb.Speaker.Ready(ctx, c, nodes, within)
}

// install installs MetalLB, kube-proxy, the Services and the probe pods, in place of those of
// an earlier variant or run.
func install(ctx context.Context, r *framework.Run, release metallb.Release) error {
	l, c := labaccess.Lab(r), labaccess.Cluster(r)
	if err := fault.Cordon(c, announce...).Undo(ctx); err != nil { // of a run that was killed
		return err
	}
	if err := workload.RemoveService(ctx, c, later.name); err != nil { // of such a run, too
		return err
	}
	err := l.EachNode(ctx, nodes, func(ctx context.Context, n *kindlab.Node) error { return workload.Wire(ctx, l, n.Name()) })
	if err != nil {
		return err
	}
	if err := kubeadm.ApplyKubeProxy(ctx, l); err != nil {
		return err
	}
	objects, err := workload.Objects(resources(r))
	if err != nil {
		return err
	}
	starts, startsCtx := errgroup.WithContext(ctx)
	starts.Go(func() error { return workload.StartProbes(startsCtx, c, workload.OnEach(nodes...)) })
	starts.Go(func() error { return kubeadm.KubeProxyReady(startsCtx, c) })
	starts.Go(func() error {
		// A lab that is reused may have speakers: with OnDelete they are not replaced.
		if err := metallb.Uninstall(startsCtx, c); err != nil {
			return err
		}
		if err := release.Apply(startsCtx, l); err != nil {
			return err
		}
		if err := metallb.Configure(startsCtx, c, metallb.Resources{Objects: objects}); err != nil {
			return err
		}
		return metallb.Speaker.Ready(startsCtx, c, nodes, within)
	})
	if err := starts.Wait(); err != nil {
		return err
	}
	if err := workload.Apply(ctx, c, cluster.manifest()+local.manifest()); err != nil {
		return err
	}
	for _, s := range []service{cluster, local} {
		if _, err := workload.BalancerAddress(ctx, c, s.name); err != nil {
			return err
		}
		for _, node := range s.via {
			if err := l.Announced(ctx, node, s.address); err != nil {
				return err
			}
		}
	}
	return nil
}

// resources are MetalLB's pool, both ToRs, and the advertisement by the announcing nodes.
func resources(r *framework.Run) string {
	text := fmt.Sprintf(`apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: services, namespace: metallb-system}
spec: {addresses: ["%s"]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: services, namespace: metallb-system}
spec:
  ipAddressPools: [services]
  nodeSelectors: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}]
`, addresses, strings.Join(announce, ", "))
	for _, name := range tors {
		address, _ := r.Topology.AddressOn(name, nodeNet.Name)
		text += fmt.Sprintf(`---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: %s, namespace: metallb-system}
spec: {myASN: %d, peerASN: %d, peerAddress: %s}
`, name, topology.ClusterASN, topology.TorASN, address)
	}
	return text
}

// routes is what the checks read of snapshots.
var routes = []snapshot.Source{snapshot.Routers}
