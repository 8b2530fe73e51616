package upgrade

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// engineLab is a lab of package engine.
type engineLab struct {
	engine.Lab
	upgrade  Upgrade
	run      *framework.Run
	evidence engine.Evidence
	unkept   []error // why evidence could not be stored
	agents   []*probe.Agent
	reader   engine.Reader
}

func openLab(up engine.Lab, u Upgrade, o engine.Options) *engineLab {
	l := &engineLab{Lab: up, upgrade: u, evidence: engine.Evidence{Dir: o.Output}}
	began := time.Now()
	l.run = &framework.Run{
		Topology: u.Topology, Began: began, Evidence: l.keep,
		Note: func(text string) { o.Progress.Note("upgrade", text) },
		// There is no probabilistic fault, no detector and no parallel variant.
		TrialsDue: func() int { return 0 },
		Meet:      func(context.Context) error { return nil },
		Snapshot:  func() snapshot.Snapshot { return snapshot.Snapshot{} },
		Findings:  func() []detect.Finding { return nil },
		Timelines: func() []probe.Timeline { return nil },
	}
	up.Attach(l.run)
	return l
}

// make makes a trip on the lab, and stores its measures.
func (l *engineLab) make(ctx context.Context, t *trip) error {
	t.lab, t.run = l, l.run
	err := t.make(ctx)
	if t.probes != nil {
		l.keep("probes", t.probes.Timelines())
	}
	l.keep("measures", t.measures())
	return err
}

func (l *engineLab) keep(name string, v any) {
	if err := l.evidence.Write(name, v); err != nil {
		l.unkept = append(l.unkept, err)
	}
}

// keepLogs stores the logs, which have the reason why something did not come up.
func (l *engineLab) keepLogs(ctx context.Context) {
	logs, err := l.Logs(ctx, time.Time{}, nil)
	for name, text := range logs {
		l.keep("log-"+name, text)
	}
	if err != nil {
		l.run.Note("not all logs could be stored: " + err.Error())
	}
}

func (l *engineLab) start(ctx context.Context) (probes, error) {
	ends, err := l.Dial(ctx, l.run, l.upgrade.Ends)
	for _, e := range ends {
		if e.Agent != nil { // otherwise the endpoint only answers
			l.agents = append(l.agents, e.Agent)
		}
	}
	if err != nil {
		return nil, err
	}
	if l.reader, err = l.Open(ctx, []snapshot.Source{snapshot.Routers}, nil); err != nil {
		return nil, err
	}
	set, err := probe.New(ends, l.upgrade.probes())
	if err != nil {
		return nil, err
	}
	return set, set.Start(ctx)
}

func (l *engineLab) poll(ctx context.Context) snapshot.Snapshot { return l.reader.Collect(ctx) }

func (l *engineLab) kernel(ctx context.Context, node string) (string, error) {
	text, err := labaccess.Lab(l.run).Node(node).Exec(ctx, "sh", "-ec", kernelScript)
	if err == nil {
		l.keep("kernel-"+node, text)
	}
	return text, err
}

func (l *engineLab) ends(ctx context.Context) (string, error) {
	for _, pods := range l.upgrade.Pods {
		how, err := workload.Ends(ctx, labaccess.Cluster(l.run), pods)
		if how != "" || err != nil {
			return how, err
		}
	}
	return "", nil
}

// close closes all but the lab itself. The error includes evidence that was not stored.
func (l *engineLab) close() error {
	errs := l.unkept
	for _, a := range l.agents {
		errs = append(errs, a.Close())
	}
	if l.reader != nil {
		errs = append(errs, l.reader.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the agents and readers of the upgrade's lab: %w", err)
	}
	return nil
}
