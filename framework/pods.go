package framework

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// ProbeEnds dials the agents of the probe pods on nodes and of hosts. Each
// end is named after its node or host.
func ProbeEnds(ctx context.Context, r *Run, nodes, hosts []string) ([]probe.End, error) {
	return PodEnds(ctx, r, workload.OnEach(nodes...), hosts)
}

// PodEnds dials the agents of probe pods and of hosts. Each end bears the name
// of its pod or host.
func PodEnds(ctx context.Context, r *Run, pods []workload.ProbePod, hosts []string) ([]probe.End, error) {
	var ends []probe.End
	dial := func(name, path string, addr netip.Addr) error {
		var agent *probe.Agent
		// The pod runs, but its agent may not listen yet.
		err := await.Until(ctx, "the probe agent of "+name, 50*time.Millisecond, 10*time.Second,
			func(ctx context.Context) (_ bool, _ string, err error) {
				agent, err = probe.Dial(ctx, name, path)
				return err == nil, "", err
			})
		if err != nil {
			return err
		}
		ends = append(ends, probe.End{Name: name, Address: netip.AddrPortFrom(addr, wire.DefaultPort), Agent: agent})
		return nil
	}
	for _, p := range pods {
		var pod corev1.Pod
		if err := r.Cluster.Client.Resources().GetControllerRuntimeClient().Get(ctx, p.Key(), &pod); err != nil {
			return ends, fmt.Errorf("looking for the probe pod of %s: %w", p.Name, err)
		}
		addr, err := netip.ParseAddr(pod.Status.PodIP)
		if err != nil {
			return ends, fmt.Errorf("the probe pod of %s has no address: %w", p.Name, err)
		}
		path, err := r.Lab.Node(p.Node).Path(ctx, p.Socket())
		if err != nil {
			return ends, err
		}
		if err := dial(p.Name, path, addr); err != nil {
			return ends, err
		}
	}
	for _, host := range hosts {
		declared, ok := r.Lab.Topology.Member(host)
		if !ok {
			return ends, fmt.Errorf("no host %q in the lab", host)
		}
		path, err := r.Lab.Host(host).Path(ctx, kindlab.AgentSocket)
		if err != nil {
			return ends, err
		}
		if err := dial(host, path, declared.Links[0].Address); err != nil {
			return ends, err
		}
	}
	return ends, nil
}
