package render

import (
	"io"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/detect"
)

// object is an object of SARIF 2.1.0, under the names of the standard (OASIS, sarif-v2.1.0-errata01, section 3).
type object = map[string]any

func message(text string) object { return object{"text": text} }

// The subjects of notifications, in the order of their descriptors.
const (
	notRead = iota
	notRun
	notJudged
	unusedSuppression
)

var notices = []object{
	notRead:           {"id": "not-read", "shortDescription": message("A source that could not be read.")},
	notRun:            {"id": "not-run", "shortDescription": message("A detector that did not run, or not with all that it reads.")},
	notJudged:         {"id": "not-judged", "shortDescription": message("What a router lacks without being expected to have it.")},
	unusedSuppression: {"id": "unused-suppression", "shortDescription": message("A suppression that matches nothing.")},
}

// SARIF writes a result as SARIF 2.1.0. The ID of a finding is its partial fingerprint. An unread source is a
// notification with the level error, and makes the run unsuccessful. An open gap is a warning; other gaps, and
// detectors that did not run, are notes.
func SARIF(to io.Writer, r audit.Result) error {
	r, err := shown(r)
	if err != nil {
		return err
	}
	said := []object{}
	notify := func(descriptor int, level, text string) {
		about := object{"id": notices[descriptor]["id"], "index": descriptor}
		said = append(said, object{"descriptor": about, "level": level, "message": message(text)})
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
	results, rules := []object{}, []string{}
	for _, f := range all(r) {
		results = append(results, result(f, &rules, []object{}))
	}
	for _, s := range r.Suppressed {
		results = append(results, result(stated{s.Finding, string(s.State)}, &rules, []object{{
			"kind": "external", "status": "accepted", "justification": s.By.Reason,
			"properties": object{"expires": s.By.Expires, "owner": s.By.Owner, "line": s.By.Line},
		}}))
	}
	described := []object{}
	for _, rule := range rules {
		about := message("Detector and kind: " + rule + ".")
		described = append(described, object{
			"id": rule, "name": rule, "shortDescription": about, "fullDescription": about,
			"help":    message("What finds it, and the incidents behind it: " + home + guide),
			"helpUri": home + guide, "properties": object{"tags": []string{"security", "network"}, "security-severity": severity(rule, results)},
		})
	}
	properties := object{
		"schema": r.Schema, "reads": r.Reads, "nodes": r.Nodes, "routers": r.Routers, "ran": r.Ran, "outcome": r.Outcome(),
	}
	if r.Planned != nil {
		properties["upgrade"] = r.Planned
	}
	return encode(to, object{
		"$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json", "version": "2.1.0",
		"runs": []object{{
			"tool": object{"driver": object{
				"name": "relapse audit", "version": r.Relapse, "informationUri": home, "rules": described, "notifications": notices,
			}},
			"invocations": []object{{
				"executionSuccessful": len(r.Unread) == 0, "startTimeUtc": utc(r.Began), "endTimeUtc": utc(r.Ended), "toolExecutionNotifications": said,
			}},
			"results": results, "properties": properties,
		}},
	})
}

func result(f stated, rules *[]string, suppressed []object) object {
	rule := f.Detector + "/" + f.Kind
	if !slices.Contains(*rules, rule) {
		*rules = append(*rules, rule)
	}
	level := "warning"
	switch f.State {
	case string(detect.Active):
		level = "error"
	case string(detect.Hint):
		level = "note"
	}
	logical := []object{{"fullyQualifiedName": f.Object.String(), "kind": "resource"}}
	for _, name := range f.Routers {
		logical = append(logical, object{"fullyQualifiedName": name, "kind": "router"})
	}
	return object{
		"ruleId": rule, "ruleIndex": slices.Index(*rules, rule), "level": level, "message": message(f.Says),
		"locations": []object{{
			"physicalLocation": object{"artifactLocation": object{"uri": file(f.Object)}, "region": object{"startLine": 1}},
			"logicalLocations": logical,
		}},
		"partialFingerprints": object{"relapseFinding/v1": f.ID}, "suppressions": suppressed,
		"properties": object{
			"state": f.State, "owner": f.Owner, "announcer": f.Announcer, "routers": orNone(f.Routers), "pods": orNone(f.Pods),
			"layers": orNone(f.Layers), "more_layers": f.MoreLayers, "again": orNone(f.Again), "incidents": orNone(f.Incidents),
		},
	}
}

// home is the site of relapse, and guide the page below it that explains findings.
const (
	home  = "https://github.com/relapse-dev/relapse"
	guide = "/blob/main/framework/audit/README.md#incidents"
)

// file names an object as a file, although there is no file: GitHub refuses a result without a path.
func file(o detect.Object) string {
	parts := strings.Split(strings.Trim(path.Clean("/"+strings.ReplaceAll(o.String(), " ", "/")), "/"), "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "cluster/" + strings.Join(parts, "/") + ".yaml"
}

// severity is the severity of a rule's worst result, on GitHub's scale of 0 to 10.
func severity(rule string, results []object) string {
	worst := "1.0"
	for _, r := range results {
		if r["ruleId"] == rule {
			worst = max(worst, map[any]string{"error": "8.0", "warning": "5.0"}[r["level"]])
		}
	}
	return worst
}

func orNone[T any](items []T) []T { return append([]T{}, items...) }

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
