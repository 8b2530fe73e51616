package render

import (
	"fmt"
	"io"
	"strings"

	"github.com/onsi/ginkgo/v2/reporters"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report/junit"
)

// JUnit writes a result for CIs, as one suite. Active and latent findings have failed. What is
// not known is an error: a source that was not read, what has not settled, what was seen in one
// read alone, and what is left open. Skipped are detectors that did not run, or not with all that they
// read, and what is suppressed. A detector has passed if it found nothing, and all was read.
func JUnit(to io.Writer, r audit.Result) error {
	r, err := shown(r)
	if err != nil {
		return err
	}
	s := reporters.JUnitTestSuite{
		Name: "relapse audit", Timestamp: r.Began.UTC().Format("2006-01-02T15:04:05"), Time: r.Ended.Sub(r.Began).Seconds(),
		Properties: reporters.JUnitProperties{Properties: []reporters.JUnitProperty{
			{Name: "schema", Value: r.Schema}, {Name: "outcome", Value: string(r.Outcome())}, {Name: "reads", Value: fmt.Sprint(r.Reads)},
			{Name: "nodes", Value: fmt.Sprint(r.Nodes)}, {Name: "routers", Value: strings.Join(r.Routers, ", ")},
		}},
	}
	if r.Planned != nil {
		s.Properties.Properties = append(s.Properties.Properties, reporters.JUnitProperty{Name: "upgrade", Value: r.Planned.String()})
	}
	add := func(became junit.Outcome, name, why, detail string) {
		junit.Add(&s, junit.Case{Name: name, Became: became, Why: why, Detail: detail})
	}
	for _, text := range r.Unread {
		what, why, _ := strings.Cut(text, ": ")
		add(junit.Broke, "read: "+what, "not read: "+why, "")
	}
	found := map[string]bool{}
	for _, f := range all(r) {
		found[f.Detector] = true
		became := junit.Failed
		switch f.State {
		case string(detect.Pending), once:
			became = junit.Broke
		case string(detect.Hint):
			became = junit.Skipped
		}
		var detail strings.Builder
		finding(func(format string, args ...any) { fmt.Fprintf(&detail, format+"\n", args...) }, f.Finding)
		add(became, caseOf(f.Finding), f.State+": "+f.Says, detail.String())
	}
	for _, f := range r.Suppressed {
		add(junit.Skipped, caseOf(f.Finding), why(f.By)+": "+f.Says, "")
	}
	for i, g := range r.NotJudged {
		became := junit.Skipped
		if g.Open {
			became = junit.Broke
		}
		add(became, fmt.Sprintf("judge: gap %d", i+1), "not judged: "+g.Says, "")
	}
	for _, s := range r.Unused {
		add(junit.Skipped, "suppression of "+s.Of(), "it matches nothing", "")
	}
	for _, n := range r.NotRun {
		name := n.Detector
		if n.Part != "" {
			name += ": " + n.Part
		}
		add(junit.Skipped, name, "not run: "+n.String(), "")
	}
	for _, name := range r.Ran {
		switch {
		case found[name]:
		case len(r.Unread) > 0:
			add(junit.Skipped, name, "found nothing, but not all was read", "")
		default:
			add(junit.Passed, name, "", "")
		}
	}
	text, err := junit.Encode(s)
	if err != nil {
		return err
	}
	_, err = to.Write(text)
	return err
}

// caseOf is the name of a finding's case, by which CIs know it again. It has the ID, because an object
// may have two findings of one kind.
func caseOf(f audit.Finding) string {
	return fmt.Sprintf("%s: %s of %s (%s)", f.Detector, f.Kind, f.Object, f.ID)
}
