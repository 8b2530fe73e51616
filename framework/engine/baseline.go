package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
)

// baseline asserts that all is well before the fault: for the same time probes
// lose nothing, every source is read, and the detectors come to the findings
// that the script names and no others.
func (v *variantRun) baseline(ctx context.Context) error {
	if err := v.startProbes(ctx); err != nil {
		return err
	}
	if err := v.startWatch(ctx); err != nil {
		return err
	}
	v.result.Baseline.Probes = len(v.script.Probes)
	since, clean := v.probes.WaitClean(ctx, nil, baselineFor, baselineWithin)
	if ctx.Err() != nil {
		return clean
	}
	var quiet error
	if clean == nil { // it looks back: the quiet time is the clean one, unless the detectors were not quiet
		_, quiet = v.watch.untilQuiet(ctx, v.began, baselineWithin+v.lookWithin())
	}
	var blind *blindError
	if ctx.Err() != nil || errors.As(quiet, &blind) {
		return quiet
	}
	findings, at := v.watch.now()
	v.keep("snapshot-baseline", at)
	for _, f := range findings {
		v.addFinding(f, "baseline", nil, nil, nil)
	}
	switch {
	case clean != nil:
		for _, t := range v.probes.Timelines() {
			until := v.clock.Now().Add(-t.Probe.Timeout) // what was sent later is not judged yet
			if v.seen.traffic = tooFew(t, until.Add(-baselineFor), until); v.seen.traffic != "" {
				v.ended = true
				return fmt.Errorf("%w: %s", errNotAsExpected, v.seen.traffic)
			}
		}
		return v.badBaseline(clean.Error())
	case quiet != nil:
		return v.badBaseline(quiet.Error())
	}
	now := v.clock.Now()
	v.cleanSince = since
	v.result.Baseline.Seconds = now.Sub(since).Seconds()
	for _, t := range v.probes.Timelines() {
		v.result.Baseline.Lost += t.Between(since, now).Lost
	}
	if v.ablate == AblateDetector || !v.classified() {
		return nil
	}
	var wrong []string
	for _, f := range framework.Unnamed(findings, v.script.Latent...) {
		wrong = append(wrong, "nobody named "+framework.DescribeFindings([]detect.Finding{f}))
	}
	for _, f := range framework.Missing(v.script.Latent, findings) {
		wrong = append(wrong, "no detector says "+f.String())
	}
	if len(wrong) > 0 {
		return v.badBaseline("the findings are not those of the incident: " + strings.Join(wrong, "; "))
	}
	return nil
}

// lookWithin bounds the wait for what the next look of the detectors will show:
// that look may begin late and end late.
func (v *variantRun) lookWithin() time.Duration {
	return namedWithin + 2*(v.every()+v.reader.Timeout())
}

// every is the time from one look of the detectors to the next.
func (v *variantRun) every() time.Duration { return cmp.Or(v.script.LookEvery, lookEvery) }

// badBaseline ends the script: what comes after a bad baseline proves
// nothing.
func (v *variantRun) badBaseline(why string) error {
	v.seen.baseline = why
	v.ended = true
	return fmt.Errorf("%w: %s", errNotAsExpected, why)
}
