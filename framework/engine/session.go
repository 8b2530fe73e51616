package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
)

// Session is how one script, or one Plan, uses a running lab: with probes and polls, history, and evidence.
type Session struct {
	h        *history.History
	evidence Evidence
	secrets  []string // of a Plan
	// unstored is called with the reason if evidence cannot be stored.
	unstored func(error)

	lab    Lab            // nil until attach
	run    *framework.Run // nil until attach
	probes Probes         // nil while none run
	live   atomic.Pointer[Probes]
	watch  *Watch
	reader Reader
}

func (s *Session) attach(lab Lab, t topology.Topology, note func(text string)) {
	s.lab = lab
	s.run = &framework.Run{
		Topology: t, Began: s.h.Now(), Evidence: s.keep, Note: note, Timelines: s.Timelines,
		Snapshot:  func() snapshot.Snapshot { return snapshot.Snapshot{} },
		Findings:  func() []detect.Finding { return nil },
		TrialsDue: func() int { return 0 },
		Meet:      func(context.Context) error { return nil },
	}
	lab.Attach(s.run)
}

// Run is what scripts work with.
func (s *Session) Run() *framework.Run { return s.run }

// Probes are the running probes; nil if none run.
func (s *Session) Probes() Probes { return s.probes }

func (s *Session) Timelines() []probe.Timeline {
	if s.probes == nil {
		return nil
	}
	return s.probes.Timelines()
}

// step carries out a step of the history. A panic is the step's error.
func (s *Session) step(ctx context.Context, id framework.StepID, do func(context.Context) error) error {
	s.h.BeginStep(id)
	err := s.recovered(func() error { return do(ctx) })
	s.recordPackets()
	s.h.EndStep(id, err, ctx.Err() != nil)
	return err
}

// recovered returns a panic as a *history.PanicError.
func (s *Session) recovered(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.keep("panic", debug.Stack())
			err = &history.PanicError{Value: p}
		}
	}()
	return do()
}

// StartProbes connects to endpoints, and starts probes among them.
func (s *Session) StartProbes(ctx context.Context, ends []framework.Endpoint, probes []probe.Probe) error {
	return s.h.Do(history.StartProbes, "", func(a *history.Act) {
		var set Probes
		if set, a.Err = s.lab.Probes(ctx, s.run, ends, probes); a.Err == nil {
			s.probes = set
			s.live.Store(&set)
			a.Err = set.Start(ctx)
		}
	}).Err
}

func (s *Session) stopProbes(ctx context.Context) error {
	if s.probes == nil { // an endpoint could not be reached
		return nil
	}
	err := s.probes.Stop(ctx)
	s.recordPackets()
	err = errors.Join(err, s.probes.Close())
	s.probes = nil
	s.live.Store(nil)
	return err
}

// StartWatch polls sources, without other variants' nodes. News gets each poll, and may be nil.
func (s *Session) StartWatch(
	ctx context.Context, sources []snapshot.Source, others []string, d *history.Detection, news func(history.Poll),
) error {
	var opened Reader
	done := s.h.Do(history.OpenSources, "", func(a *history.Act) {
		if opened, a.Err = s.lab.Open(ctx, sources, others); a.Err == nil {
			a.Timeout = opened.Timeout()
		}
	})
	if done.Err != nil {
		return done.Err
	}
	s.reader = opened
	watch := StartWatch(opened.Collect, d, s.h, news)
	s.watch = watch
	// An undo may read the last snapshot after the watch has ended.
	s.run.Snapshot, s.run.Findings = watch.last, func() []history.Finding { return s.h.View().Findings() }
	return nil
}

func (s *Session) closeReader() error {
	if s.reader == nil {
		return nil
	}
	err := s.reader.Close()
	s.reader = nil
	return err
}

// UntilKnown waits until the outcome of every packet up to a moment, which may be in the future, is known.
func (s *Session) UntilKnown(ctx context.Context, until time.Time) error {
	bound := max(0, until.Sub(s.h.Now())) + outcomeWithin
	return await.Until(ctx, "the outcome of the last packets", 50*time.Millisecond, bound, func(context.Context) (bool, string, error) {
		// Earlier polls would see nothing, and in a wait of an hour each copy of the timelines takes some MiB.
		if left := until.Sub(s.h.Now()); left > 0 {
			return false, fmt.Sprintf("packets are watched for %s more", left.Round(time.Second)), nil
		}
		for _, t := range s.probes.Timelines() {
			if !t.Known(s.h.Monotonic(until)) {
				return false, t.String(), nil
			}
		}
		return true, "", nil
	})
}

// MarkPackets adds a moment to the history, with the outcomes of packets that are known then.
func (s *Session) MarkPackets(m history.Mark) {
	s.h.AddPackets(s.probes.Timelines())
	s.h.Mark(m)
}

func (s *Session) recordPackets() {
	if s.probes != nil {
		s.h.AddPackets(s.probes.Timelines())
	}
}

func (s *Session) keep(name string, data any) {
	if err := s.evidence.Write(name, data); err != nil {
		s.unstored(err)
	}
}

// shortestSecret is in bytes. Shorter texts are also words such as info, which logs need.
const shortestSecret = 8

func (s *Session) keepLogs(ctx context.Context, since time.Time, others []string) error {
	logs, err := s.lab.Logs(ctx, since, others)
	for name, text := range logs {
		for _, secret := range s.secrets {
			if len(secret) >= shortestSecret {
				text = strings.ReplaceAll(text, secret, "***")
			}
		}
		s.keep("log-"+name, text)
	}
	return err
}

// Evidence is the folder where a run stores its observations, in numbered files.
type Evidence struct {
	// Dir is made with the first file; if it is empty nothing is stored.
	Dir    string
	number atomic.Int32
}

// Write stores v: a string or bytes unchanged (.txt), anything else as JSON.
func (e *Evidence) Write(name string, v any) error {
	if e.Dir == "" {
		return nil
	}
	var text []byte
	switch v := v.(type) {
	case string:
		name, text = name+".txt", []byte(v)
	case []byte:
		name, text = name+".txt", v
	default:
		encoded, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			return fmt.Errorf("encoding evidence %q: %w", name, err)
		}
		name, text = name+".json", encoded
	}
	if err := os.MkdirAll(e.Dir, 0o755); err != nil {
		return fmt.Errorf("creating the folder of the evidence: %w", err)
	}
	path := filepath.Join(e.Dir, fmt.Sprintf("%02d-%s", e.number.Add(1), name))
	if err := os.WriteFile(path, text, 0o644); err != nil {
		_ = os.Remove(path) // makes room on a full disk for the report
		return fmt.Errorf("writing evidence %q: %w", name, err)
	}
	return nil
}
