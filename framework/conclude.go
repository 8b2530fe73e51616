package framework

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onsi/ginkgo/v2"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// verdict judges the variant.
func (v *variantRun) verdict(context.Context) {
	if v.scenario.broken != nil {
		ginkgo.Skip("there is no lab")
	}
	v.judge()
	text := fmt.Sprintf("%s: expected %s", v.result.Verdict, v.result.Expected)
	v.scenario.options.Progress.Note(v.label, "verdict "+text)
	if v.result.Verdict != v.result.Expected {
		ginkgo.Fail(text)
	}
}

func (v *variantRun) judge() {
	if v.result.Verdict != "" {
		return
	}
	verdict, why := judge(v.seen)
	v.result.Verdict = string(verdict)
	if verdict != v.variant.Expected() && !slices.Contains(v.result.Reasons, why) {
		v.result.Reasons = append(v.result.Reasons, why)
	}
	if !v.began.IsZero() {
		v.result.ElapsedMS = time.Since(v.began).Milliseconds()
	}
}

// restore undoes the faults, if anybody is to use the lab again.
func (v *variantRun) restore(ctx context.Context) {
	if v.scenario.lab == nil || v.scenario.broken != nil {
		ginkgo.Skip("there is no lab")
	}
	err := v.close(ctx)
	last := v == v.scenario.variants[len(v.scenario.variants)-1]
	if !last || v.scenario.options.Keep {
		done := v.scenario.options.Progress.Step(v.label, "lab is put back")
		for _, f := range slices.Backward(v.injected) {
			if undoErr := f.Undo(ctx); undoErr != nil {
				err = errors.Join(err, fmt.Errorf("undoing %q: %w", f.Name, undoErr))
			}
		}
		done(err)
	}
	if err != nil {
		v.scenario.broken = err // nothing that comes after would prove anything
		ginkgo.Fail(err.Error())
	}
}

// close ends the watching and the probes, and keeps what is worth keeping.
// It can be called more than once.
func (v *variantRun) close(ctx context.Context) error {
	if v.watch != nil {
		v.watch.Stop()
		v.watch = nil
	}
	// Also of components that did not come up: nothing else tells why.
	if v.run != nil && !v.logged {
		v.logged = true
		v.keepLogs(ctx)
	}
	err := v.stopProbes(ctx)
	for _, c := range v.closers {
		err = errors.Join(err, c())
	}
	v.closers = nil
	return err
}

// conclude returns the report, whatever the variant came to.
func (v *variantRun) conclude(ctx context.Context) report.Variant {
	if err := v.close(ctx); err != nil {
		v.result.Reasons = append(v.result.Reasons, err.Error())
	}
	// A signal between two steps breaks neither: what was seen until then says
	// nothing.
	if v.result.Verdict == "" && v.seen.broken == nil {
		v.seen.broken = errors.New("the run ended before the variant was judged")
	}
	v.judge()
	return v.result
}

// outcome is what the variant means for the run.
func (v *variantRun) outcome() RunVerdict {
	switch {
	case v.result.Verdict == string(Unknown) || v.result.Verdict == string(Vacuous):
		return Inconclusive
	case v.result.Verdict != v.result.Expected || len(v.result.Reasons) > 0:
		return Fail
	}
	return Pass
}

// keepLogs keeps the logs of all that runs in the lab.
func (v *variantRun) keepLogs(ctx context.Context) {
	logs, err := v.run.Lab.Logs(ctx)
	for name, text := range logs {
		v.keep("log-"+name, text)
	}
	if err != nil {
		v.scenario.options.Log.Warn("not all logs could be kept", "error", err)
	}
}

// keepFailure keeps what tells why a step failed.
func (v *variantRun) keepFailure(ctx context.Context) {
	if v.run == nil {
		return
	}
	if v.probes != nil {
		v.keep("probes-at-failure", v.probes.Timelines())
	}
	if v.watch != nil {
		findings, at := v.watch.now()
		v.keep("snapshot-at-failure", at)
		v.keep("findings-at-failure", findings)
	}
}

// birdSocket is BIRD's control socket on a node: calico-node's pod has the
// node's /var/run/calico for its own. It is named without the symbolic link
// /var/run, which would lead out of the node.
const birdSocket = "/run/calico/bird.ctl"

// proxyTimeout bounds a look that asks guests. One whose processors are busy
// may take several seconds to run a command, and is no worse for it.
const proxyTimeout = 15 * time.Second

// collectorOf makes a collector that reads the layers of a lab that a script
// asks for. The closers are to be called even after an error.
func collectorOf(lab *kindlab.Lab, script Script) (snapshot.Collector, []func() error, error) {
	c := snapshot.Collector{
		Routers: map[string]snapshot.RouterReader{},
		Nodes:   map[string]snapshot.RouteReader{},
	}
	var closers []func() error
	cluster, err := snapshot.NewCluster(lab.Clusters[0].Client.RESTConfig())
	if err != nil {
		return c, closers, err
	}
	c.Kubernetes = cluster
	if script.Images {
		names := registry.New(lab.Registry().Addr.String())
		closers = append(closers, names.Close)
		c.Images, c.Registry = cluster, names
	}
	if script.Proxies {
		c.Services, c.Proxies, c.Timeout = cluster, map[string]snapshot.ProxyReader{}, proxyTimeout
	}
	for _, node := range lab.Topology.Clusters[0].Nodes {
		handle := lab.Node(node.Name)
		switch {
		case node.Kernel == "":
			c.Nodes[node.Name] = snapshot.NetnsRoutes(handle.Netns)
		case script.Proxies:
			c.Proxies[node.Name] = snapshot.NodeProxy(handle.Exec)
		}
	}
	if script.Firewalls {
		c.Firewalls = map[string]snapshot.FirewallReader{}
		for _, node := range lab.Clusters[0].Nodes() {
			c.Firewalls[node] = snapshot.ContainerFirewall(lab.Node(node).PID)
		}
	}
	if script.NodeAddresses {
		c.Calico, c.Networks = cluster, map[string]snapshot.NetworkReader{}
		for _, node := range lab.Clusters[0].Nodes() {
			machine := lab.Node(node)
			c.Networks[node] = snapshot.NetworkReader{
				Interfaces: snapshot.NetnsInterfaces(machine.Netns),
				BIRD: snapshot.BIRDSocket(func(ctx context.Context) (string, error) {
					return machine.Path(ctx, birdSocket)
				}),
			}
		}
	}
	if script.NAT {
		c.NAT, c.Outside = map[string]snapshot.NATReader{}, map[string]snapshot.SocketReader{}
		for _, node := range lab.Clusters[0].Nodes() {
			c.NAT[node] = snapshot.ContainerNAT{PID: lab.Node(node).PID}
		}
		for _, host := range lab.Topology.Hosts {
			c.Outside[host.Name] = snapshot.NetnsSockets(lab.Host(host.Name).Netns)
		}
	}
	if len(script.ConfigMaps) > 0 {
		c.ConfigMaps = cluster.ConfigMaps(script.ConfigMaps...)
	}
	for _, r := range lab.Topology.Routers {
		handle, err := lab.Router(r.Name)
		if err != nil {
			return c, closers, err
		}
		closers = append(closers, handle.Close)
		c.Routers[r.Name] = handle
	}
	return c, closers, nil
}
