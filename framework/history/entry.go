// Package history is what happened in the run of a variant, and what was seen: one
// append-only list of typed entries. The run writes it, and its waits ask it; package
// verdict judges it, while the run goes on and when a stored run is judged again.
package history

import (
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// FileName is the file that holds a history, and Schema its form: one JSON object a
// line, each an Entry, compressed with zstd. Each entry is on disk before anything is
// judged by it, so that the file of a run that is killed lacks only its end.
const (
	FileName = "record.jsonl.zst"
	Schema   = "relapse.record/v2"
)

// Entry is a line of the file. Besides the time exactly one of its parts is set.
type Entry struct {
	// At is when the entry was written, or when what it describes was over.
	At     time.Time      `json:"at"`
	Begin  *Begin         `json:"begin,omitempty"`
	Step   *Step          `json:"step,omitempty"`
	Act    *Act           `json:"act,omitempty"`
	Mark   *Mark          `json:"mark,omitempty"`
	Poll   *StoredPoll    `json:"poll,omitempty"`
	Probes []probe.Stored `json:"probes,omitempty"`
}

// Begin is the first entry: which run it is.
type Begin struct {
	Schema   string `json:"schema"`
	Scenario string `json:"scenario"`
	Variant  string `json:"variant"`
	Label    string `json:"label"`
	// Parameters, Versions, Wait and Brief are the options of the run.
	Parameters map[string]string `json:"parameters,omitempty"`
	Versions   map[string]string `json:"versions,omitempty"`
	Wait       time.Duration     `json:"wait_ns,omitempty"`
	Brief      bool              `json:"brief,omitempty"`
}

// Step is the beginning or the end of a step.
type Step struct {
	ID    framework.StepID `json:"id"`
	Ended bool             `json:"ended,omitempty"`
	// Error says why the step could not be carried out; empty where it was. What
	// came of it is for package verdict to tell.
	Error string `json:"error,omitempty"`
	// Interrupted is set where the run's time was over when the step ended.
	Interrupted bool `json:"interrupted,omitempty"`
	// Panicked is set where Error is what a panic said.
	Panicked bool `json:"panicked,omitempty"`
}

// Action is what was done to a lab, or asked of it.
type Action string

// Actions. Those of a check bear the check's identifier in Act.Part.
const (
	Install     Action = "install"      // the script's components are installed
	StartProbes Action = "start-probes" // probes are started
	OpenSources Action = "open-sources" // the sources of snapshots are opened
	Inject      Action = "inject"       // a fault is injected
	TookEffect  Action = "held"         // whether the fault took effect: Holds and Saw
	Undo        Action = "undo"         // a fault or a remedy is undone
	Apply       Action = "apply"        // a remedy is applied
	Ask         Action = "check"        // a check is asked: Holds and Saw
	Refuses     Action = "refuses"      // whether the component refuses to start: Saw
	Trials      Action = "trials"       // how a probabilistic fault went: Rounds, Holds
)

// Act is an action, and what came of it.
type Act struct {
	What  Action    `json:"what"`
	Part  string    `json:"part,omitempty"`
	Began time.Time `json:"began"`
	Holds bool      `json:"holds,omitempty"`
	Saw   string    `json:"saw,omitempty"`
	// Rounds is how many trials there were.
	Rounds int `json:"rounds,omitempty"`
	// Timeout is how long one snapshot may take.
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	Error   string        `json:"error,omitempty"`

	Err error `json:"-"`
}

// Moment names a moment of a step at which something is judged.
type Moment string

// Moments of steps.
const (
	ProbesClean   Moment = "probes-clean"   // the wait for clean probes is over
	NoFindings    Moment = "no-findings"    // the wait for a time without active findings is over
	ExpectedFound Moment = "named"          // the wait for the expected findings is over
	Watched       Moment = "watched"        // the outcome of all packets up to Mark.Until is known
	Injecting     Moment = "injecting"      // the injection is about to begin
	Broken        Moment = "broken"         // the wait for the symptom before a remedy is over
	Replaced      Moment = "replaced"       // the old endpoints of the probes are about to go
	Back          Moment = "back"           // the wait for traffic to come back is over
	StaysBack     Moment = "stays-back"     // the outcome of the packets since then is known
	StillFound    Moment = "still-found"    // the wait for findings that go on is over
	BrokenAgain   Moment = "broken-again"   // the wait for the symptom after an undo is over
	TakenBack     Moment = "taken-back"     // the wait for silence after a precursor's undo is over
	DetectorsSaid Moment = "detectors-said" // a check that asks the detectors is over
)

// Mark is a moment of a step.
type Mark struct {
	Moment Moment `json:"moment"`
	Part   string `json:"part,omitempty"`
	// Began is when the wait began that ended here.
	Began time.Time `json:"began,omitzero"`
	// Until is the moment up to which things are to be judged, where it is not the
	// time of the entry.
	Until time.Time `json:"until,omitzero"`
	// Bound is how long the wait might have taken.
	Bound time.Duration `json:"bound_ns,omitempty"`
	// Polls is the number of the first entry that the wait has not seen, where it waited
	// for polls: a later poll does not count for it.
	Polls int `json:"polls,omitempty"`
}

// StoredPoll is a poll as it is stored: what the detectors were given, and what they
// found then.
type StoredPoll struct {
	Snapshot snapshot.Snapshot `json:"snapshot"`
	Findings []detect.Finding  `json:"findings"`
}

// Poll is what came of asking the detectors once.
type Poll struct {
	Began, Ended time.Time
	// Unread are the sources that were to be read and were not, with the reasons.
	Unavailable []string
	Findings    []detect.Finding
}
