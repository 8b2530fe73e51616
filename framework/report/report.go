// Package report has the results of a run as they are stored (relapse.report/v2), reads
// them and writes them. Package page renders them.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report/rundir"
)

// Schema names the format of report.json.
const Schema = "relapse.report/v2"

// Built is the origin, in Report.Origins, of an image that relapse has built.
const Built = "built"

// Report is one run of one scenario.
type Report struct {
	Schema   string `json:"schema"`
	Scenario string `json:"scenario"`
	Run      string `json:"run"`               // the name of its folder
	Verdict  string `json:"verdict"`           // pass, fail, inconclusive or observed
	Ablated  string `json:"ablated,omitempty"` // the part that was switched off
	// Half says what the run does not prove because only one half of a pair ran;
	// empty where an affected and a fixed variant did.
	Half string `json:"half,omitempty"`
	// Unfinished is present until the run has ended, and remains if it is killed. The
	// verdict is inconclusive until then.
	Unfinished *Unfinished `json:"unfinished,omitempty"`
	Incident   *Incident   `json:"incident,omitempty"`
	// Owner is notified when the verdict has changed: a GitHub user or team.
	Owner string `json:"owner,omitempty"`
	// Command repeats the run.
	Command  string    `json:"command,omitempty"`
	Started  time.Time `json:"started"`
	Topology *Topology `json:"topology,omitempty"`
	// Steps are the steps that have begun, in order.
	Steps    []Step    `json:"steps,omitempty"`
	Variants []Variant `json:"variants"`
	// NotRun are variants that cannot run here. The verdict says nothing about them.
	NotRun  []NotRun `json:"not_run,omitempty"`
	Timings Timings  `json:"timings_ms"`
	Machine any      `json:"machine"`
	// Relapse is the version of the program that ran it. Images are the digests of the
	// manifests of the images that were built for it, by their names.
	Relapse string            `json:"relapse,omitempty"`
	Images  map[string]string `json:"images,omitempty"`
	// Origins say where each image is from, by its name: built, or, with --images=upstream, the
	// URL of the vendor's registry. Reports of older versions have none: what they name in
	// Images was built.
	Origins map[string]string `json:"origins,omitempty"`
	// Modules are the vendors' modules that these images were built from.
	Modules []Module `json:"modules,omitempty"`
	// Merged is present if the report was merged from several.
	Merged *Merged `json:"merged,omitempty"`
	// CPU is absent where it could not be measured.
	CPU *CPU `json:"cpu,omitempty"`
	// Guests are the lab's nodes with a kernel of their own.
	Guests []Guest `json:"guests,omitempty"`
}

// Module is a vendor's module that an image was built from.
type Module struct {
	Image   string `json:"image"`
	Path    string `json:"path"`
	Version string `json:"version"`
	// Sum is its checksum in go.sum: "h1:" and a SHA-256.
	Sum string `json:"sum"`
	// With are modules with which the image was built in place of the vendor's choice,
	// as in "github.com/osrg/gobgp/v4 v4.8.0 for v4.6.1".
	With string `json:"with,omitempty"`
}

// Merged says which runs a report was made of.
type Merged struct {
	Runs []string `json:"runs"` // their folders
	// Conflicts are contradictions between these runs.
	Conflicts []string `json:"conflicts,omitempty"`
}

// Unfinished is the progress of a run that has not ended.
type Unfinished struct {
	// At is when the report was written. Steps were running then, as "scope: name".
	At    time.Time `json:"at"`
	Steps []string  `json:"steps"`
}

// Incident is the part of the incident's record that a reader of one run needs.
type Incident struct {
	Title    string   `json:"title"`
	Source   string   `json:"source"`
	Symptom  string   `json:"symptom"`
	Cause    string   `json:"cause"`
	Affected string   `json:"affected"`
	Fixed    string   `json:"fixed"`
	Remedies []string `json:"remedies,omitempty"`
	// Reproduction says how the lab differs from the incident's cluster, and what a
	// pass does not prove.
	Reproduction string `json:"reproduction"`
	// NotAsserted are facts of the incident that no step asserts, or only in part,
	// each with the reason.
	NotAsserted []string `json:"not_asserted,omitempty"`
}

// Result is the verdict in one word. For a version without an expectation it is the variant's verdict.
func (r Report) Result() string {
	if r.Verdict == "observed" && len(r.Variants) == 1 {
		return r.Variants[0].Verdict
	}
	return r.Verdict
}

// ScopeOf is the scope of a variant's steps. With --ablate=all a variant has one for each
// part that was switched off.
func (r Report) ScopeOf(v Variant) string {
	if r.Ablated == "all" {
		return v.Title()
	}
	return v.Name
}

// Title is the variant's name, with the part that was switched off.
func (v Variant) Title() string {
	if v.Ablated != "" {
		return v.Name + " without " + v.Ablated
	}
	return v.Name
}

// LabScope is the scope of steps that belong to no variant.
const LabScope = "lab"

// SecondLabScope is the scope of the steps of a second lab, on which a part of the variants runs.
const SecondLabScope = "second lab"

// Accelerator is the accelerator of the lab's guests; empty without guests.
func Accelerator(r Report) string {
	if len(r.Guests) == 0 {
		return ""
	}
	return r.Guests[0].Accelerator
}

// Step is a part of the run.
type Step struct {
	Scope string `json:"scope"` // a variant, with the number of a repeat, or "lab"
	Name  string `json:"name"`
	// ID identifies the step within its scope. Kind is its purpose. Reports of older
	// versions have neither.
	ID    string    `json:"id,omitempty"`
	Kind  string    `json:"kind,omitempty"`
	Began time.Time `json:"began"`
	// Ended is absent for a running step.
	Ended *time.Time `json:"ended,omitempty"`
	// Failed is why the step failed; empty if it succeeded.
	Failed string `json:"failed,omitempty"`
	// Broke is set if the step failed because it could not be judged.
	Broke bool `json:"broke,omitempty"`
}

// NotRun is a variant that cannot run here.
type NotRun struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Guest is what a node with a kernel of its own ran on.
type Guest struct {
	Node        string `json:"node"`
	Kernel      string `json:"kernel"`      // its release, as uname -r prints it
	Accelerator string `json:"accelerator"` // kvm; uml: User Mode Linux; or tcg: QEMU translates
	// NotKVM and NotUML are why it was neither.
	NotKVM string `json:"not_kvm,omitempty"`
	NotUML string `json:"not_uml,omitempty"`
}

// RunningImage is an image that containers of pods ran.
type RunningImage struct {
	// Image is the reference as the pods have it. Digest is the one under which the node
	// pulled it; empty if the node does not report it.
	Image  string `json:"image"`
	Digest string `json:"digest,omitempty"`
	// Containers is the number of containers.
	Containers int `json:"containers"`
	// Built is set if relapse built this image for the variant, under this digest.
	Built bool `json:"built,omitempty"`
}

// Variant is the result of one variant.
type Variant struct {
	Name       string            `json:"name"`
	Role       string            `json:"role"`
	Components map[string]string `json:"components"`
	// Form is how much of the vendor's program ran: whole, or a slice (partial build).
	Form string `json:"form"`
	// Labels are the labels that select it.
	Labels []string `json:"labels,omitempty"`
	// Topology is the topology of its lab if it ran on the second of two labs; absent if it is the
	// report's.
	Topology *Topology `json:"topology,omitempty"`
	// Ablated is the part that was switched off. With --ablate=all, Expected is the
	// verdict without that part.
	Ablated string `json:"ablated,omitempty"`
	// Expected is empty for a version without an expectation.
	Expected string `json:"expected"`
	Verdict  string `json:"verdict"`
	// Reasons are why the verdict is not the expected one, and what else was not as
	// expected. Empty if everything was.
	Reasons []string `json:"reasons,omitempty"`
	// Began is when its installation began; absent if it did not.
	Began    *time.Time `json:"began,omitempty"`
	Baseline Baseline   `json:"baseline"`
	// Fault is when the fault was injected; absent if it was not.
	Fault *Fault `json:"fault,omitempty"`
	// Onset is when the first packet was lost after the fault; absent if none was lost.
	// ProbesHurt are the impacted probes.
	Onset      *time.Time `json:"onset,omitempty"`
	ProbesHurt []string   `json:"probes_hurt"`
	// ToBeHurt are the probes that the incident impacts if it is reproduced. Ends are the
	// endpoints of probes.
	ToBeHurt []string `json:"probes_to_be_hurt,omitempty"`
	Ends     []End    `json:"ends,omitempty"`
	// Refuses is the error with which the component under test refuses to start.
	Refuses string `json:"refuses,omitempty"`
	// Race is present if the incident is probabilistic.
	Race *Race `json:"race,omitempty"`
	// Running are the images that the pods ran while the variant was observed.
	Running     []RunningImage `json:"running,omitempty"`
	Packets     Packets        `json:"packets"`
	Probes      []Probe        `json:"probes,omitempty"`
	Findings    []Finding      `json:"findings"`
	Remedies    []Remedy       `json:"remedies"`
	Checks      []Check        `json:"checks,omitempty"`
	ElapsedMS   int64          `json:"elapsed_ms"`
	EvidenceDir string         `json:"evidence,omitempty"` // relative to the report
	// Repeats is present if the variant ran more than once. All other fields are then of
	// the first run without the expected verdict, or of the last one.
	Repeats *Repeats `json:"repeats,omitempty"`
}

// Repeats is the result of the same variant in several runs.
type Repeats struct {
	// Expected is how often all runs had the expected verdict, and OfJudged how often
	// the runs that could be judged had it; absent if no run could.
	Expected Rate  `json:"expected"`
	OfJudged *Rate `json:"expected_of_judged,omitempty"`
	// NotJudged are the numbers of the vacuous and unknown runs, from 1.
	NotJudged []int    `json:"not_judged,omitempty"`
	Runs      []Repeat `json:"runs"`
}

// Repeat is one of several runs of a variant.
type Repeat struct {
	// Scope is the scope of its steps.
	Scope   string   `json:"scope,omitempty"`
	Verdict string   `json:"verdict"`
	Reasons []string `json:"reasons,omitempty"`
	// OnsetMS is the time from the fault to the first lost packet; absent if none was
	// lost. ElapsedMS is the time of the whole run.
	OnsetMS   *int64 `json:"onset_ms,omitempty"`
	Race      *Race  `json:"race,omitempty"`
	ElapsedMS int64  `json:"elapsed_ms"`
}

// Baseline is what the probes measured before the fault.
type Baseline struct {
	Probes  int     `json:"probes"`
	Seconds float64 `json:"seconds"`
	Lost    int     `json:"lost"`
}

// Fault is when a fault's injection began, and when it ended.
type Fault struct {
	Began  time.Time `json:"began"`
	Struck time.Time `json:"struck,omitzero"`
}

// End is an endpoint of probes.
type End struct {
	Name string `json:"name"`
	// On is the member of the topology that it runs on; empty for an endpoint that only
	// answers, whose address is known when the lab is up.
	On string `json:"on,omitempty"`
}

// Packets counts the packets of all probes of a variant, from the beginning of the clean
// baseline to the end of the observation.
type Packets struct {
	Sent int `json:"sent"`
	Lost int `json:"lost"`
}

// Race is the result of a probabilistic incident, in trials.
type Race struct {
	Round string `json:"round"` // what one trial is
	// Rounds is how many trials there were. Struck is whether the incident took effect in
	// the last one.
	Rounds int  `json:"rounds"`
	Struck bool `json:"struck"`
	// Accelerator is the accelerator of the lab's guests; empty without guests.
	Accelerator string `json:"accelerator,omitempty"`
	// Luck is how often affected versions survived as many trials on the same
	// accelerator; absent if the incident took effect, or without recorded rates.
	Luck *Rate `json:"luck,omitempty"`
}

// Probe counts the packets of one probe, in the same time as Packets.
type Probe struct {
	Name string `json:"name"`
	// Due is how many packets its rate asks for. Sent is the sum of Answered, Lost and
	// NotJudged. NotJudged are those whose outcome is unknown, because an endpoint was
	// not scheduled or has not reported yet.
	Due       int `json:"due"`
	Sent      int `json:"sent"`
	Answered  int `json:"answered"`
	Lost      int `json:"lost"`
	NotJudged int `json:"not_judged,omitempty"`
}

// Finding is a detector's finding as it was first seen, and when that was.
type Finding struct {
	detect.Finding
	// During is when it came: "baseline", the name of a harmless precursor, or "fault". CameMS is
	// the time since the injection of that precursor or fault began; absent for the baseline.
	During string `json:"during"`
	CameMS *int64 `json:"came_ms,omitempty"`
	// At is the end of the poll that found it first; absent for the baseline.
	At *time.Time `json:"at,omitempty"`
	// TimeToDetectMS is the time from the first lost packet to an active finding that
	// came after it; absent for all others.
	TimeToDetectMS *int64 `json:"time_to_detect_ms,omitempty"`
}

// TimeToDetect is the time from the first lost packet to the first active finding: zero if the finding
// came first. found is false if there was no active finding.
func (v Variant) TimeToDetect() (took time.Duration, found bool) {
	for _, f := range v.Findings {
		if f.State == detect.Active && f.During == "fault" && f.At != nil && v.Onset != nil && !f.At.After(*v.Onset) {
			return 0, true
		}
		if f.TimeToDetectMS == nil {
			continue
		}
		if one := time.Duration(*f.TimeToDetectMS) * time.Millisecond; !found || one < took {
			took, found = one, true
		}
	}
	return took, found
}

// Remedy is the result of a documented remedy.
type Remedy struct {
	Name string `json:"name"`
	// ID identifies the remedy in its scenario.
	ID       string `json:"id,omitempty"`
	Expected string `json:"expected"` // recovers or does-not-help
	// Verdict is recovers, does-not-help, or unknown: it could not be judged.
	Verdict string `json:"verdict"`
	// Began is when it began, Applied when it was applied completely; absent if it was not.
	Began   *time.Time `json:"began,omitempty"`
	Applied *time.Time `json:"applied,omitempty"`
	// TimeToRecoverMS is the time from the start of the remedy to the first window without loss,
	// TimeToQuietMS to the first poll without active findings. Absent if it did not recover.
	TimeToRecoverMS *int64 `json:"time_to_recover_ms,omitempty"`
	TimeToQuietMS   *int64 `json:"time_to_quiet_ms,omitempty"`
	Reason          string `json:"reason,omitempty"`
}

// Check is a fact of the incident that was asserted beside probes and detectors.
type Check struct {
	Name string `json:"name"`
	// ID identifies the check in its scenario.
	ID     string `json:"id,omitempty"`
	Holds  bool   `json:"holds"`
	Reason string `json:"reason,omitempty"`
	// Unknown is set if the fact could not be determined. Reason says why.
	Unknown bool `json:"unknown,omitempty"`
}

// Timings are how long the parts of the run took, in milliseconds.
type Timings struct {
	Images int64 `json:"images"`
	Lab    int64 `json:"lab"`
	Total  int64 `json:"total"`
}

// CPU is the use of the machine while the lab was up, as shares of all of its CPUs.
type CPU struct {
	// Lab is the share of the lab's containers.
	Lab float64 `json:"lab"`
	// Others is the share of everything else: relapse, Docker, other programs, and CPU
	// time stolen by a hypervisor.
	Others float64 `json:"others"`
}

// slowing is the share of the CPUs from which others slow a run down. relapse and Docker
// use a tenth to a fifth themselves.
const slowing = 0.4

// Slowed reports whether others slowed the run down so much that its times are not valid.
// Its verdict is.
func (c *CPU) Slowed() bool { return c != nil && c.Others >= slowing }

// Write stores the report as dir/report.json.
func (r Report) Write(dir string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // people read it too, and probes' names have a ">"
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("encoding the report of %q: %w", r.Scenario, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("creating the report's folder: %w", err)
	}
	if err := rundir.Replace(filepath.Join(dir, "report.json"), text.Bytes()); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// Read loads a stored report. The error is a *rundir.UnsafeError where the file is not a
// regular one, or where a name in it cannot be part of a path.
func Read(path string) (Report, error) {
	text, err := rundir.ReadFile(path)
	if err != nil {
		return Report{}, fmt.Errorf("reading the report: %w", err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return Report{}, fmt.Errorf("reading the report %s: %w", path, err)
	}
	if r.Schema != Schema {
		return Report{}, fmt.Errorf("reading the report %s: its schema is %q, not %q", path, r.Schema, Schema)
	}
	if err := r.checkNames(path); err != nil {
		return Report{}, fmt.Errorf("reading the report: %w", err)
	}
	return r, nil
}

// checkNames returns an error for names in a report that could lead out of its folder.
func (r Report) checkNames(path string) error {
	for _, entry := range []struct{ field, name string }{{"scenario", r.Scenario}, {"run", r.Run}} {
		if entry.name != "" && !rundir.IsName(entry.name) {
			return &rundir.UnsafeError{Path: path, Why: fmt.Sprintf("%q cannot be the name of a %s", entry.name, entry.field)}
		}
	}
	for i, v := range r.Variants {
		if dir := v.EvidenceDir; dir != "" && dir != "evidence" && (!fs.ValidPath(dir) || !strings.HasPrefix(dir, "evidence/")) {
			why := fmt.Sprintf("the evidence of variant %d is in %q, and not below evidence", i+1, dir)
			return &rundir.UnsafeError{Path: path, Why: why}
		}
	}
	return nil
}

// Span says how long something took, as exactly as it is worth.
func Span(d time.Duration) string {
	if d < time.Second {
		return d.String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// SpanMS is Span of milliseconds.
func SpanMS(n int64) string { return Span(time.Duration(n) * time.Millisecond) }
