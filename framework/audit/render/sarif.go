package render

import (
	"io"
	"time"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/detect"
)

// The parts of SARIF 2.1.0 that an audit writes, under the names of the standard (OASIS,
// sarif-v2.1.0-errata01, section 3).
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool        sarifTool         `json:"tool"`
		Invocations []sarifInvocation `json:"invocations"`
		Results     []sarifResult     `json:"results"`
		Properties  map[string]any    `json:"properties"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name          string            `json:"name"`
		Rules         []sarifDescriptor `json:"rules"`
		Notifications []sarifDescriptor `json:"notifications"`
	}
	sarifDescriptor struct {
		ID    string       `json:"id"`
		Short sarifMessage `json:"shortDescription"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifInvocation struct {
		Successful    bool                `json:"executionSuccessful"`
		Start         string              `json:"startTimeUtc"`
		End           string              `json:"endTimeUtc"`
		Notifications []sarifNotification `json:"toolExecutionNotifications"`
	}
	sarifNotification struct {
		Descriptor sarifReference `json:"descriptor"`
		Level      string         `json:"level"`
		Message    sarifMessage   `json:"message"`
	}
	sarifReference struct {
		ID    string `json:"id"`
		Index int    `json:"index"`
	}
	sarifResult struct {
		RuleID       string             `json:"ruleId"`
		RuleIndex    int                `json:"ruleIndex"`
		Level        string             `json:"level"`
		Message      sarifMessage       `json:"message"`
		Locations    []sarifLocation    `json:"locations"`
		Fingerprints map[string]string  `json:"partialFingerprints"`
		Suppressions []sarifSuppression `json:"suppressions"`
		Properties   map[string]any     `json:"properties"`
	}
	sarifLocation struct {
		Logical []sarifLogical `json:"logicalLocations"`
	}
	sarifLogical struct {
		FullyQualifiedName string `json:"fullyQualifiedName"`
		Kind               string `json:"kind"`
	}
	sarifSuppression struct {
		Kind          string         `json:"kind"`
		Status        string         `json:"status"`
		Justification string         `json:"justification"`
		Properties    map[string]any `json:"properties"`
	}
)

// What notifications are of, in the order of their descriptors.
const (
	notRead = iota
	notRun
	notJudged
	unusedSuppression
)

var notices = []sarifDescriptor{
	notRead:           {"not-read", sarifMessage{"A source that could not be read."}},
	notRun:            {"not-run", sarifMessage{"A detector that did not run, or not with all that it reads."}},
	notJudged:         {"not-judged", sarifMessage{"What a router lacks without being expected to have it."}},
	unusedSuppression: {"unused-suppression", sarifMessage{"A suppression that matches nothing."}},
}

// SARIF writes a result for the trackers of findings that read SARIF 2.1.0. The ID of a finding is
// its partial fingerprint. What was not read is a notification with the level error, and the run is
// then no success; what is open is a warning, and what was not run or not judged besides a note.
func SARIF(to io.Writer, r audit.Result) error {
	r, err := shown(r)
	if err != nil {
		return err
	}
	run := sarifRun{
		Tool:    sarifTool{sarifDriver{Name: "relapse audit", Rules: []sarifDescriptor{}, Notifications: notices}},
		Results: []sarifResult{},
		Properties: map[string]any{
			"schema": r.Schema, "reads": r.Reads, "nodes": r.Nodes, "routers": r.Routers, "ran": r.Ran, "outcome": r.Outcome(),
		},
	}
	if r.Planned != nil {
		run.Properties["upgrade"] = r.Planned
	}
	said := []sarifNotification{}
	notify := func(of int, level, text string) {
		said = append(said, sarifNotification{sarifReference{notices[of].ID, of}, level, sarifMessage{text}})
	}
	for _, m := range r.Unread {
		notify(notRead, "error", m.String())
	}
	for _, n := range r.NotRun {
		notify(notRun, "note", n.String())
	}
	for _, g := range r.NotJudged {
		level := "note"
		if g.Open {
			level = "warning"
		}
		notify(notJudged, level, g.Says)
	}
	for _, s := range r.Unused {
		notify(unusedSuppression, "note", unused(s))
	}
	run.Invocations = []sarifInvocation{{len(r.Unread) == 0, utc(r.Began), utc(r.Ended), said}}
	for _, f := range all(r) {
		run.add(f, []sarifSuppression{})
	}
	for _, s := range r.Suppressed {
		run.add(stated{s.Finding, string(s.State)}, []sarifSuppression{{
			Kind: "external", Status: "accepted", Justification: s.By.Reason,
			Properties: map[string]any{"expires": s.By.Expires, "owner": s.By.Owner, "line": s.By.Line},
		}})
	}
	return encode(to, sarifLog{
		Schema: "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run},
	})
}

func (run *sarifRun) add(f stated, suppressed []sarifSuppression) {
	rule := sarifDescriptor{f.Detector + "/" + f.Kind, sarifMessage{"Detector " + f.Detector + ": " + f.Kind + "."}}
	driver := &run.Tool.Driver
	at := 0
	for at < len(driver.Rules) && driver.Rules[at].ID != rule.ID {
		at++
	}
	if at == len(driver.Rules) {
		driver.Rules = append(driver.Rules, rule)
	}
	level := "warning"
	switch f.State {
	case string(detect.Active):
		level = "error"
	case string(detect.Hint):
		level = "note"
	}
	locations := []sarifLocation{{[]sarifLogical{{f.Object.String(), "resource"}}}}
	for _, name := range f.Routers {
		locations[0].Logical = append(locations[0].Logical, sarifLogical{name, "router"})
	}
	run.Results = append(run.Results, sarifResult{
		RuleID: rule.ID, RuleIndex: at, Level: level, Message: sarifMessage{f.Says}, Locations: locations,
		Fingerprints: map[string]string{"relapseFinding/v1": f.ID}, Suppressions: suppressed,
		Properties: map[string]any{
			"state": f.State, "owner": f.Owner, "announcer": f.Announcer, "routers": orNone(f.Routers), "pods": orNone(f.Pods),
			"layers": orNone(f.Layers), "more_layers": f.MoreLayers, "again": orNone(f.Again), "incidents": orNone(f.Incidents),
		},
	})
}

func orNone[T any](items []T) []T { return append([]T{}, items...) }

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
