package framework

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// scenarioRun is one scenario of a run: its lab, and its variants one after
// the other on it.
type scenarioRun struct {
	scenario Scenario
	options  Options
	dir      string // of the run; empty until openFolder

	lab      *kindlab.Lab
	variants []*variantRun
	notRun   []report.NotRun // variants that this run cannot have
	began    time.Time
	over     bool // end has run
	report   report.Report
	// broken is why nothing could be judged at all.
	broken error
	// left is why the end did not go well: something of the lab may be left,
	// or no report was written.
	left error
}

// declare adds the scenario's specs to the Ginkgo suite. Every spec runs even
// if an earlier one failed: what may still run after a failure is for the
// variant to know, and the lab is put back in any case.
func (s *scenarioRun) declare() {
	ginkgo.Describe(s.scenario.Incident.Name, ginkgo.Ordered, ginkgo.ContinueOnFailure, func() {
		ginkgo.BeforeAll(s.begin)
		s.step("lab", "images are there", s.buildImages)
		s.step("lab", "lab is up", s.bringUp)
		for _, v := range s.scenario.Variants {
			if len(s.options.Variants) > 0 && !slices.Contains(s.options.Variants, v.Name) {
				continue
			}
			if runnable, why := v.Runnable(s.options.Upstreams); !runnable {
				s.notRun = append(s.notRun, report.NotRun{Name: v.Name, Reason: why})
				continue
			}
			for i := range max(1, s.options.Repeat) {
				r := newVariantRun(s, v)
				if s.options.Repeat > 1 {
					r.isRepeat(i+1, s.options.Repeat)
				}
				s.variants = append(s.variants, r)
				r.declare()
			}
		}
		s.step("lab", s.farewell(), s.finish)
		// An interrupted suite runs no further spec, but it runs this.
		ginkgo.AfterAll(func(ctx ginkgo.SpecContext) {
			if s.end(ctx); s.left != nil {
				ginkgo.Fail(s.left.Error())
			}
		})
	})
}

// step declares one spec of the lab's own, in a container named scope.
func (s *scenarioRun) step(scope, name string, do func(context.Context) error) {
	ginkgo.Context(scope, func() {
		ginkgo.It(name, func(ctx ginkgo.SpecContext) {
			if s.broken != nil {
				ginkgo.Skip("an earlier step failed")
			}
			done := s.options.Progress.Step(scope, name)
			err := do(ctx)
			done(err)
			if err != nil {
				s.broken = err
				ginkgo.Fail(err.Error())
			}
		})
	})
}

func (s *scenarioRun) begin() {
	s.began = time.Now()
	s.report = report.Report{
		Schema: report.Schema, Scenario: s.scenario.Incident.Name, Verdict: string(Inconclusive),
		Ablated: string(s.options.Ablate), Started: s.began, Machine: s.options.Machine,
		Variants: []report.Variant{}, NotRun: s.notRun,
	}
}

// openFolder makes the run's folder, unless it is there.
func (s *scenarioRun) openFolder() error {
	if s.dir != "" {
		return nil
	}
	dir, err := report.NewRun(s.options.Output, s.scenario.Incident.Name, s.began)
	if err != nil {
		return err
	}
	s.dir, s.report.Run = dir, filepath.Base(dir)
	for _, v := range s.variants {
		v.evidence.dir = filepath.Join(dir, v.result.EvidenceDir)
	}
	return nil
}

func (s *scenarioRun) buildImages(ctx context.Context) error {
	began := time.Now()
	var variants []Variant
	for _, v := range s.variants {
		variants = append(variants, v.variant)
	}
	var mu sync.Mutex
	building := map[string]func(error){}
	_, err := s.options.Images.Build(ctx, s.scenario.ImagesOf(s.options.Upstreams, variants...), func(e images.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case e.Step == images.Reused:
		case e.Step == images.Built:
			building[e.Ref](nil)
			delete(building, e.Ref)
		case building[e.Ref] == nil:
			building[e.Ref] = s.options.Progress.Step("images", e.Ref)
		}
	})
	for _, done := range building {
		done(errors.New("not built"))
	}
	s.report.Timings.Images = time.Since(began).Milliseconds()
	return err
}

func (s *scenarioRun) bringUp(ctx context.Context) error {
	began := time.Now()
	defer func() { s.report.Timings.Lab = time.Since(began).Milliseconds() }()
	var serve []string
	for _, v := range s.variants {
		serve = append(serve, v.variant.Images...)
	}
	slices.Sort(serve)
	options := kindlab.Options{
		Images: s.options.Images, Serve: slices.Compact(serve), Upstreams: s.options.Upstreams, Log: s.options.Log,
		Step: func(name string) func(error) { return s.options.Progress.Step("lab", name) },
		Note: func(text string) { s.options.Progress.Note("lab", text) },
	}
	name, docker := s.scenario.Topology.Name, s.options.Docker
	there, err := kindlab.Exists(ctx, docker, name)
	if err != nil {
		return err
	}
	if there && s.options.Reuse {
		s.lab, err = kindlab.Attach(ctx, docker, s.scenario.Topology, options)
	} else {
		// What is left of an interrupted run is in the way.
		if err := kindlab.Down(ctx, docker, name); err != nil {
			return err
		}
		s.lab, err = kindlab.Up(ctx, docker, s.scenario.Topology, options)
	}
	if s.lab == nil {
		return err
	}
	if err == nil {
		err = s.describeGuests(ctx)
	}
	// Not earlier: a run whose lab another process holds leaves nothing.
	if err = errors.Join(err, s.openFolder()); err != nil && ctx.Err() == nil {
		s.keepLogs(ctx)
	}
	return err
}

// describeGuests puts the nodes with a kernel of their own into the report.
func (s *scenarioRun) describeGuests(ctx context.Context) error {
	guests, err := s.lab.Guests(ctx)
	s.report.Guests = nil
	for _, g := range guests {
		s.report.Guests = append(s.report.Guests, report.Guest{
			Node: g.Node, Kernel: g.Kernel, Accelerator: string(g.Accelerator), NotKVM: g.NotKVM,
		})
	}
	return err
}

// keepLogs keeps what tells why a lab did not come up.
func (s *scenarioRun) keepLogs(ctx context.Context) {
	kept := evidence{dir: filepath.Join(s.dir, "evidence", "lab")}
	logs, err := s.lab.Logs(ctx)
	for name, text := range logs {
		err = errors.Join(err, kept.write("log-"+name, text))
	}
	if err != nil {
		s.options.Log.Warn("not all logs could be kept", "error", err)
	}
}

// farewell names the last step.
func (s *scenarioRun) farewell() string {
	if s.options.Keep {
		return "lab is left running"
	}
	return "lab is down"
}

// finish lets go of the lab: it is kept, or taken down.
func (s *scenarioRun) finish(ctx context.Context) error {
	lab := s.lab
	if lab == nil {
		return nil
	}
	s.lab = nil
	if s.options.Keep {
		lab.Release()
		return nil
	}
	return lab.Down(ctx)
}

// end writes the report; the lab is still there only if the run did not come
// to finish it.
//
// It does nothing for a scenario that has not begun, or whose lab another
// process holds: lab and report are that one's. It runs once, however often
// it is called.
func (s *scenarioRun) end(ctx context.Context) {
	if s.over || s.began.IsZero() || s.options.DryRun || isHeld(s.broken) {
		return
	}
	s.over = true
	errs := []error{s.openFolder()} // of a run that never had a lab
	for _, v := range s.variants {
		s.report.Variants = append(s.report.Variants, v.conclude(ctx))
	}
	if s.options.Repeat > 1 {
		s.report.Variants = mergeRepeats(s.variants, s.report.Variants)
	}
	switch {
	case s.lab != nil:
		errs = append(errs, s.lab.Down(ctx))
	case s.broken != nil:
		// The lab did not come up, or not whole.
		errs = append(errs, kindlab.Down(ctx, s.options.Docker, s.scenario.Topology.Name))
	}
	s.report.Verdict = string(s.verdict())
	s.report.Timings.Total = time.Since(s.began).Milliseconds()
	if s.dir != "" {
		errs = append(errs, s.report.Write(s.dir), report.SetLatest(s.dir))
	}
	s.left = errors.Join(errs...)
}

func isHeld(err error) bool {
	var held *kindlab.HeldError
	return errors.As(err, &held)
}

// verdict is the run's: a failure outweighs what could not be judged.
func (s *scenarioRun) verdict() RunVerdict {
	verdict := Pass
	if s.broken != nil {
		verdict = Inconclusive
	}
	for _, v := range s.variants {
		switch v.outcome() {
		case Fail:
			return Fail
		case Inconclusive:
			verdict = Inconclusive
		}
	}
	return verdict
}
