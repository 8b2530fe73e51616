// Package report holds what a run found out, in the form in which it is
// stored (relapse.report/v2), and writes it. Package page makes of it what people
// look at.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
)

// Schema names the format of report.json.
const Schema = "relapse.report/v2"

// Report is one run of one scenario.
type Report struct {
	Schema   string `json:"schema"`
	Scenario string `json:"scenario"`
	Run      string `json:"run"`               // the name of its folder
	Verdict  string `json:"verdict"`           // pass, fail or inconclusive
	Ablated  string `json:"ablated,omitempty"` // the part that was switched off
	// Half says what the run does not prove because only one half of a pair ran;
	// empty where an affected and a fixed variant did.
	Half string `json:"half,omitempty"`
	// Unfinished is there while the run goes on, and stays where it is killed. The
	// verdict is inconclusive until then.
	Unfinished *Unfinished `json:"unfinished,omitempty"`
	Incident   *Incident   `json:"incident,omitempty"`
	// Owner is who is told when the verdict has changed: a GitHub user or team.
	Owner string `json:"owner,omitempty"`
	// Command runs the same again.
	Command  string    `json:"command,omitempty"`
	Started  time.Time `json:"started"`
	Topology *Topology `json:"topology,omitempty"`
	// Steps are those that have begun, in the order in which they did.
	Steps    []Step    `json:"steps,omitempty"`
	Variants []Variant `json:"variants"`
	// NotRun are variants that cannot run here. The verdict says nothing about
	// them.
	NotRun  []NotRun `json:"not_run,omitempty"`
	Timings Timings  `json:"timings_ms"`
	Machine any      `json:"machine"`
	// Relapse says which program ran it, and Images are the digests of the images
	// that were built for it, by their names.
	Relapse string            `json:"relapse,omitempty"`
	Images  map[string]string `json:"images,omitempty"`
	// Modules are the vendors' that programs of these images were built from.
	Modules []Module `json:"modules,omitempty"`
	// Merged is there where the report was made of several.
	Merged *Merged `json:"merged,omitempty"`
	// CPU is absent where it could not be measured.
	CPU *CPU `json:"cpu,omitempty"`
	// Guests are the lab's nodes with a kernel of their own.
	Guests []Guest `json:"guests,omitempty"`
}

// Module is a vendor's module, as an image was built from it.
type Module struct {
	Image   string `json:"image"`
	Path    string `json:"path"`
	Version string `json:"version"`
	// Sum is its checksum in go.sum: "h1:" and a SHA-256.
	Sum string `json:"sum"`
}

// Merged says which runs a report was made of.
type Merged struct {
	Runs []string `json:"runs"` // their folders
	// Conflicts are what these runs say differently: nobody knows which of them is
	// right for the whole.
	Conflicts []string `json:"conflicts,omitempty"`
}

// Unfinished says how far a run has come that has not ended.
type Unfinished struct {
	// At is when that was written, and Steps are those under way then, as
	// "scope: name".
	At    time.Time `json:"at"`
	Steps []string  `json:"steps"`
}

// Incident is the record of what the scenario reproduces, as far as somebody needs
// it who reads of one run.
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

// ScopeOf is the scope of a variant's steps. Where each part is switched off in turn, a
// variant has steps for each.
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

// LabScope is the scope of steps that are no variant's.
const LabScope = "lab"

// Accelerator is that of the lab's guests; empty where there are none.
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
	// ID identifies the step within its scope, and Kind is what it is there for. Reports
	// of older versions have neither.
	ID    string    `json:"id,omitempty"`
	Kind  string    `json:"kind,omitempty"`
	Began time.Time `json:"began"`
	// Ended is absent for a step under way.
	Ended *time.Time `json:"ended,omitempty"`
	// Failed says why the step was not as it must be; empty where it was.
	Failed string `json:"failed,omitempty"`
	// Broke is set where it could not be judged whether it was.
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
	// NotKVM and NotUML say why it was neither.
	NotKVM string `json:"not_kvm,omitempty"`
	NotUML string `json:"not_uml,omitempty"`
}

// Variant is what became of one variant.
type Variant struct {
	Name       string            `json:"name"`
	Role       string            `json:"role"`
	Components map[string]string `json:"components"`
	// Form tells how much of the vendor's program ran: whole, or a slice.
	Form string `json:"form"`
	// Labels are those that it is selected by.
	Labels []string `json:"labels,omitempty"`
	// Ablated is the part that was switched off; Expected is then what the
	// verdict must be without it, where the run was to show that.
	Ablated string `json:"ablated,omitempty"`
	// Expected is empty where nobody has said what a version must do.
	Expected string `json:"expected"`
	Verdict  string `json:"verdict"`
	// Reasons say why the verdict is not the expected one, or what else was
	// not as it must be. Empty when all is well.
	Reasons []string `json:"reasons,omitempty"`
	// Began is when its installation began; absent where it never did.
	Began    *time.Time `json:"began,omitempty"`
	Baseline Baseline   `json:"baseline"`
	// Fault is when the fault came; absent where it did not.
	Fault *Fault `json:"fault,omitempty"`
	// Onset is when the first probe was lost after the fault; for a variant
	// in which none was lost it is absent.
	Onset      *time.Time `json:"onset,omitempty"`
	ProbesHurt []string   `json:"probes_hurt"`
	// ToBeHurt are the probes that the incident hurts where it is reproduced, and
	// Ends what probes run between.
	ToBeHurt []string `json:"probes_to_be_hurt,omitempty"`
	Ends     []End    `json:"ends,omitempty"`
	// Refuses is what the component under test says when it does not start.
	Refuses string `json:"refuses,omitempty"`
	// Race is there where the incident strikes by chance.
	Race        *Race     `json:"race,omitempty"`
	Packets     Packets   `json:"packets"`
	Probes      []Probe   `json:"probes,omitempty"`
	Findings    []Finding `json:"findings"`
	Remedies    []Remedy  `json:"remedies"`
	Checks      []Check   `json:"checks,omitempty"`
	ElapsedMS   int64     `json:"elapsed_ms"`
	EvidenceDir string    `json:"evidence,omitempty"` // relative to the report
	// Repeats is there where the variant ran more than once. All else is then
	// of the first run that did not come to the expected verdict, or of the
	// last one.
	Repeats *Repeats `json:"repeats,omitempty"`
}

// Repeats is what became of the same variant in several runs.
type Repeats struct {
	// Expected is how often the expected verdict came among all runs, and
	// OfJudged among those that could be judged; absent where none could.
	Expected Rate  `json:"expected"`
	OfJudged *Rate `json:"expected_of_judged,omitempty"`
	// NotJudged are the numbers of the vacuous and unknown runs, from 1.
	NotJudged []int    `json:"not_judged,omitempty"`
	Runs      []Repeat `json:"runs"`
}

// Repeat is one of several runs of a variant.
type Repeat struct {
	// Scope is that of its steps.
	Scope   string   `json:"scope,omitempty"`
	Verdict string   `json:"verdict"`
	Reasons []string `json:"reasons,omitempty"`
	// OnsetMS runs from the fault to the first lost probe, and is absent where
	// none was lost. ElapsedMS is the time of the whole run.
	OnsetMS   *int64 `json:"onset_ms,omitempty"`
	Race      *Race  `json:"race,omitempty"`
	ElapsedMS int64  `json:"elapsed_ms"`
}

// Baseline is what the probes said before the fault.
type Baseline struct {
	Probes  int     `json:"probes"`
	Seconds float64 `json:"seconds"`
	Lost    int     `json:"lost"`
}

// Fault is when a fault's injection began, and when it was over.
type Fault struct {
	Began  time.Time `json:"began"`
	Struck time.Time `json:"struck,omitzero"`
}

// End is where probes come from or go to.
type End struct {
	Name string `json:"name"`
	// On is the member of the topology that it is on; empty for one that only
	// answers, and tells its address when the lab is up.
	On string `json:"on,omitempty"`
}

// Packets counts all probes of a variant, from when the baseline began to be
// clean to the end of the observation.
type Packets struct {
	Sent int `json:"sent"`
	Lost int `json:"lost"`
}

// Race is how an incident went that strikes by chance, in rounds.
type Race struct {
	Round string `json:"round"` // what a round is
	// Rounds is how many there were, and Struck whether the last one has struck.
	Rounds int  `json:"rounds"`
	Struck bool `json:"struck"`
	// Accelerator is that of the lab's guests; empty where there are none.
	Accelerator string `json:"accelerator,omitempty"`
	// Luck is how often affected components have stood as many rounds, on the
	// same accelerator; absent where it has struck, or none is on record.
	Luck *Rate `json:"luck,omitempty"`
}

// Probe counts the packets of one probe, in the same time as Packets.
type Probe struct {
	Name string `json:"name"`
	// Due is how many its rate asks for. Sent are Answered, Lost or NotJudged:
	// of the last it is not known whether they arrived, because an end did not
	// get to run or has not told yet.
	Due       int `json:"due"`
	Sent      int `json:"sent"`
	Answered  int `json:"answered"`
	Lost      int `json:"lost"`
	NotJudged int `json:"not_judged,omitempty"`
}

// Finding is a detector's finding as it was first seen, and when that was.
type Finding struct {
	detect.Finding
	// During is what it came with: "baseline", a lesser form's name, or "fault".
	// CameMS runs from the beginning of that form's or that fault's injection; it
	// is absent for the baseline.
	During string `json:"during"`
	CameMS *int64 `json:"came_ms,omitempty"`
	// At is when the look was over that showed it first; absent for the baseline.
	At *time.Time `json:"at,omitempty"`
	// TimeToDetectMS runs from the first lost probe to an active finding that
	// came after it. Absent for all others.
	TimeToDetectMS *int64 `json:"time_to_detect_ms,omitempty"`
}

// Remedy is what a documented way out did.
type Remedy struct {
	Name string `json:"name"`
	// ID identifies the remedy in its scenario; reports of older versions have none.
	ID       string `json:"id,omitempty"`
	Expected string `json:"expected"` // recovers or does-not-help
	// Verdict is recovers, does-not-help, or unknown: it could not be judged.
	Verdict string `json:"verdict"`
	// Began is when it began, and Applied when all that it does was done; absent
	// where it did not come to that.
	Began   *time.Time `json:"began,omitempty"`
	Applied *time.Time `json:"applied,omitempty"`
	// TimeToRecoverMS runs from the start of the remedy to the first clean
	// window, TimeToQuietMS to the first look of quiet detectors. Absent where
	// nothing recovered.
	TimeToRecoverMS *int64 `json:"time_to_recover_ms,omitempty"`
	TimeToQuietMS   *int64 `json:"time_to_quiet_ms,omitempty"`
	Reason          string `json:"reason,omitempty"`
}

// Check is a fact of the incident that was asserted beside probes and
// detectors.
type Check struct {
	Name string `json:"name"`
	// ID identifies the check in its scenario; reports of older versions have none.
	ID     string `json:"id,omitempty"`
	Holds  bool   `json:"holds"`
	Reason string `json:"reason,omitempty"`
	// Unknown is set where the fact could not be determined. Reason says why.
	Unknown bool `json:"unknown,omitempty"`
}

// Same tells whether the entries of two reports are of one remedy.
func (m Remedy) Same(o Remedy) bool { return same(m.ID, m.Name, o.ID, o.Name) }

// Same tells whether the entries of two reports are of one check.
func (c Check) Same(o Check) bool { return same(c.ID, c.Name, o.ID, o.Name) }

// same compares names where one of the reports is of an older version.
func same(id, name, otherID, otherName string) bool {
	if id != "" && otherID != "" {
		return id == otherID
	}
	return name == otherName
}

// Timings say how long the parts of the run took.
type Timings struct {
	Images int64 `json:"images"`
	Lab    int64 `json:"lab"`
	Total  int64 `json:"total"`
}

// CPU is who used the machine while the lab was up, as shares of all of its CPUs.
type CPU struct {
	// Lab is what the containers of the lab used.
	Lab float64 `json:"lab"`
	// Others is all else: relapse and Docker, other programs, and what a hypervisor
	// has taken away.
	Others float64 `json:"others"`
}

// slowing is the share of the CPUs from which on others slow a run down. relapse and
// Docker use a tenth to a fifth themselves.
const slowing = 0.4

// Slowed tells whether others have slowed the run down so much that its times say
// little about what was tested. Its verdict stands.
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
	if err := Replace(filepath.Join(dir, "report.json"), text.Bytes()); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// Replace writes a file, or replaces it. A reader never sees half of it.
func Replace(path string, text []byte) error {
	err := os.WriteFile(path+".tmp", text, 0o644)
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		_ = os.Remove(path + ".tmp") // half of it, on a full disk
	}
	return err
}

// Read loads a stored report.
func Read(path string) (Report, error) {
	return ReadThrough(path, func(text []byte) []byte { return text })
}

// ReadThrough loads a stored report whose text goes through a function first.
func ReadThrough(path string, through func([]byte) []byte) (Report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Report{}, fmt.Errorf("reading the report: %w", err)
	}
	text = through(text)
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return Report{}, fmt.Errorf("reading the report %s: %w", path, err)
	}
	if r.Schema != Schema {
		return Report{}, fmt.Errorf("reading the report %s: its schema is %q, not %q", path, r.Schema, Schema)
	}
	r.complete()
	return r, nil
}

// complete adds what reports of older versions say in other fields.
func (r *Report) complete() {
	for _, v := range r.Variants {
		for i, c := range v.Checks {
			if strings.HasPrefix(c.Reason, "not known: ") {
				v.Checks[i].Unknown = true
			}
		}
		if v.Repeats == nil {
			continue
		}
		for i := range v.Repeats.Runs {
			if run := &v.Repeats.Runs[i]; run.Scope == "" {
				run.Scope = fmt.Sprintf("%s %d/%d", v.Name, i+1, len(v.Repeats.Runs))
			}
		}
	}
}
