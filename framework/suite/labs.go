package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

type labs struct {
	Options
}

// Labs makes kind labs on this machine, for an execution without Ginkgo.
func Labs(o Options) engine.Labs {
	o.Progress, o.Log = cmp.Or(o.Progress, engine.Silent), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &labs{o}
}

// Prepare builds what is not in the cache, or what an adopted lab does not have.
func (l *labs) Prepare(ctx context.Context, s framework.Scenario, variants []framework.Variant) (engine.Prepared, error) {
	if l.Adopted != nil {
		return l.prepare(ctx, ServedTo(variants, kindlab.AdoptedImages(s.Topology)...))
	}
	if l.isSecond(s) {
		ctx = images.BesideLab(ctx)
	}
	upstream := len(l.Upstreams) > 0
	prepared, err := l.prepare(ctx, ImagesOf(s, upstream, variants...))
	if err == nil && upstream {
		for _, ref := range ImagesOf(s, false, variants...) {
			if host, err := registry.HostOf(ref); err == nil && !kindlab.Ours(ref) {
				prepared.Origins[ref] = l.Upstreams[host]
			}
		}
	}
	return prepared, err
}

func (l *labs) prepare(ctx context.Context, refs []string) (engine.Prepared, error) {
	if _, err := Build(ctx, l.Images, refs, l.Progress); err != nil {
		return engine.Prepared{}, err
	}
	digests, err := l.Images.Digests(ctx, refs)
	if err != nil {
		return engine.Prepared{}, err
	}
	p := engine.Prepared{Digests: map[string]string{}, Origins: map[string]string{}}
	for ref, digest := range digests {
		p.Digests[ref], p.Origins[ref] = digest.String(), report.Built
	}
	tested, err := l.Images.TestedModules(ctx, refs)
	for _, m := range tested {
		p.Modules = append(p.Modules, report.Module{Image: m.Ref, Path: m.Path, Version: m.Version.Version, Sum: m.Sum, With: m.With})
	}
	return p, err
}

func (l *labs) kindOptions(s framework.Scenario, variants []framework.Variant) kindlab.Options {
	scope := report.LabScope
	if l.isSecond(s) {
		scope = report.SecondLabScope
	}
	return kindlab.Options{
		Images: l.Images, Serve: ServedTo(variants), Upstreams: l.Upstreams, Log: l.Log,
		Step: func(name string) func(error) { return l.Progress.Step(scope, name) },
		Note: func(text string) { l.Progress.Note(scope, text) },
	}
}

func (l *labs) Up(ctx context.Context, s framework.Scenario, variants []framework.Variant, reuse bool) (engine.Lab, error) {
	options := l.kindOptions(s, variants)
	t := s.TopologyFor(variants)
	if l.Adopted != nil {
		made, err := kindlab.Adopt(ctx, l.Docker, t, *l.Adopted, options)
		return labOf(made, l.Log), err
	}
	there, err := kindlab.Exists(ctx, l.Docker, t.Name)
	if err != nil {
		return nil, err
	}
	var made *kindlab.Lab
	if there && reuse {
		if err := l.downSecond(ctx, s); err != nil {
			return nil, err
		}
		made, err = kindlab.Attach(ctx, l.Docker, t, options)
	} else {
		// An interrupted run may have left parts.
		if err := l.Down(ctx, s); err != nil {
			return nil, err
		}
		made, err = kindlab.Up(ctx, l.Docker, t, options)
	}
	return labOf(made, l.Log), err
}

func labOf(l *kindlab.Lab, log *slog.Logger) engine.Lab {
	if l == nil { // an engine.Lab with a nil pointer is not nil
		return nil
	}
	return lab{l, log}
}

// Down also removes the second lab of an interrupted run. It removes no lab of other tools: an
// adopted one restores itself, any other stays as it is.
func (l *labs) Down(ctx context.Context, s framework.Scenario) error {
	if l.Adopted != nil {
		return nil
	}
	return errors.Join(kindlab.Down(ctx, l.Docker, s.Topology.Name), l.downSecond(ctx, s))
}

func (l *labs) downSecond(ctx context.Context, s framework.Scenario) error {
	if l.isSecond(s) {
		return nil
	}
	return kindlab.Down(ctx, l.Docker, framework.SecondLabOf(s.Topology.Name))
}

func (l *labs) isSecond(s framework.Scenario) bool {
	return l.Second != nil && l.Second.Topology.Name == s.Topology.Name
}

type lab struct {
	*kindlab.Lab
	log *slog.Logger
}

func (l lab) Attach(r *framework.Run) { r.Lab = l.Lab }

func (l lab) Open(ctx context.Context, sources []snapshot.Source, others []string) (engine.Reader, error) {
	collector, err := snapshot.Open(ctx, labaccess.Of(l.Lab, others...), sources...)
	if err != nil { // an engine.Reader with a nil pointer is not nil
		return nil, err
	}
	return watched{collector, l.Isolated}, nil
}

// watched is a reader that also asks whether the lab is isolated. If not, a source of the snapshot is unavailable.
type watched struct {
	engine.Reader
	isolated func() error
}

func (w watched) Collect(ctx context.Context) snapshot.Snapshot {
	s := w.Reader.Collect(ctx)
	if err := w.isolated(); err != nil {
		// The collector's own list is in every snapshot.
		s.Sources = append(slices.Clone(s.Sources), snapshot.Asked{Name: snapshot.Isolation, Unreachable: err.Error()})
	}
	return s
}

func (l lab) CPUTime(ctx context.Context) (engine.CPUTime, error) {
	machine, err := host.CPUs()
	if err != nil {
		return engine.CPUTime{}, err
	}
	used, err := l.Lab.CPUTime(ctx)
	return engine.CPUTime{Lab: used, Machine: machine.Busy, All: machine.All}, err
}

func (l lab) Logs(ctx context.Context, since time.Time, others []string) (map[string]string, error) {
	return l.Lab.Logs(ctx, since, others...)
}

func (l lab) Guests(ctx context.Context) ([]report.Guest, error) {
	found, err := l.Lab.Guests(ctx)
	return each.Of(found, func(g kindlab.GuestFacts) report.Guest { return report.Guest(g) }), err
}

// agentWithin bounds the wait for an endpoint's agent on a busy machine. attemptWithin bounds one attempt: an agent
// whose host is ending may accept a connection and never answer, and the next agent has another socket.
const (
	agentWithin   = time.Minute
	attemptWithin = 10 * time.Second
)

func (l lab) Probes(ctx context.Context, r *framework.Run, declared []framework.Endpoint, probes []probe.Probe) (engine.Probes, error) {
	ends, err := l.dial(ctx, r, declared)
	if err == nil {
		var set *probe.Set
		if set, err = probe.New(ends, probes); err == nil {
			return set, nil
		}
	}
	for _, e := range ends {
		if e.Agent != nil { // otherwise the endpoint only answers
			err = errors.Join(err, e.Agent.Close())
		}
	}
	return nil, err
}

// dial finds the addresses of endpoints, and connects to their agents, which it also returns with an error.
func (l lab) dial(ctx context.Context, r *framework.Run, declared []framework.Endpoint) ([]probe.End, error) {
	var ends []probe.End
	agents := map[string]*probe.Agent{} // by socket: an agent may answer at several addresses
	for _, d := range declared {
		if d.Address != nil && d.Pod == nil {
			ends = append(ends, probe.End{Name: d.Name, Address: d.Address(r), V6: v6Of(d, r)})
			continue
		}
		var addr, v6 netip.Addr
		var socket string
		var agent *probe.Agent
		var notFound error // another attempt would not help
		err := await.Until(ctx, "the probe agent of "+d.Name, 50*time.Millisecond, agentWithin,
			func(ctx context.Context) (_ bool, _ string, err error) {
				ctx, cancel := context.WithTimeout(ctx, attemptWithin)
				defer cancel()
				if addr, v6, socket, notFound = l.find(ctx, d); notFound != nil {
					return ctx.Err() == nil, "", ctx.Err()
				}
				if agent = agents[socket]; agent == nil {
					agent, err = probe.Dial(ctx, d.Name, socket)
				}
				return err == nil, "", err
			})
		if err := cmp.Or(err, notFound); err != nil {
			return ends, err
		}
		at, at6 := netip.AddrPortFrom(addr, wire.DefaultPort), netip.AddrPortFrom(v6, wire.DefaultPort)
		if d.Address != nil {
			at, at6 = d.Address(r), v6Of(d, r)
		}
		if err := agent.RunFirst(); err != nil {
			l.log.Info("probe agents have no priority over other processes", "reason", err)
		}
		agents[socket] = agent
		ends = append(ends, probe.End{Name: d.Name, Address: at, V6: at6, Agent: agent})
	}
	return ends, nil
}

// v6Of is the IPv6 address and port of an endpoint with an Address, in a dual-stack lab.
func v6Of(d framework.Endpoint, r *framework.Run) netip.AddrPort {
	if d.V6 != nil {
		return d.V6(r)
	}
	at := d.Address(r)
	return netip.AddrPortFrom(topology.IPv6.Addr(at.Addr()), at.Port())
}

// find returns the addresses of an endpoint's agent, and the path of its socket on this machine.
func (l lab) find(ctx context.Context, d framework.Endpoint) (addr, v6 netip.Addr, path string, err error) {
	if d.Pod == nil {
		declared, ok := l.Topology.Member(d.Host)
		if !ok {
			return addr, v6, "", fmt.Errorf("no host %q in the lab", d.Host)
		}
		addr = declared.Links[0].Address
		path, err = l.Host(d.Host).Path(ctx, kindlab.AgentSocket)
		return addr, topology.IPv6.Addr(addr), path, err
	}
	if addr, v6, err = workload.ProbeIPs(ctx, l.Clusters[0], *d.Pod); err == nil {
		path, err = l.Node(d.Pod.Node).Path(ctx, workload.ProbeSocket(*d.Pod))
	}
	return addr, v6, path, err
}
