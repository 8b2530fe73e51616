// Package history records what happened and what was observed in the run of a variant, as
// one append-only list of typed entries. The run writes it and its waits read it. Package
// verdict judges it, during the run and when a stored run is judged again.
package history

import (
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// FileName is the file of a history, and Schema its format: one Entry per line as JSON,
// compressed with zstd. Each entry is on disk before it is judged, so that the file of a
// killed run lacks only its end.
const (
	FileName = "record.jsonl.zst"
	Schema   = "relapse.record/v3"
)

// Entry is a line of the file. Besides At exactly one field is set.
type Entry struct {
	// At is when the entry was written, or when what it describes ended.
	At     time.Time      `json:"at"`
	Begin  *Begin         `json:"begin,omitempty"`
	Step   *Step          `json:"step,omitempty"`
	Act    *Act           `json:"act,omitempty"`
	Mark   *Mark          `json:"mark,omitempty"`
	Poll   *StoredPoll    `json:"poll,omitempty"`
	Probes []probe.Stored `json:"probes,omitempty"`

	poll *Poll // in memory in place of Poll, which has a whole snapshot
}

// Begin is the first entry. It identifies the run.
type Begin struct {
	Schema   string `json:"schema"`
	Scenario string `json:"scenario"`
	Variant  string `json:"variant"`
	Label    string `json:"label"`
	// Parameters, Versions and Wait are the options of the run.
	Parameters map[string]string `json:"parameters,omitempty"`
	Versions   map[string]string `json:"versions,omitempty"`
	Wait       time.Duration     `json:"wait_ns,omitempty"`
}

// Step is the beginning or the end of a step.
type Step struct {
	ID    framework.StepID `json:"id"`
	Ended bool             `json:"ended,omitempty"`
	// Error is why the step could not be carried out; empty if it was. Package verdict
	// decides whether its result is the expected one.
	Error string `json:"error,omitempty"`
	// Interrupted is set if the step's context had ended.
	Interrupted bool `json:"interrupted,omitempty"`
	// Panicked is set if Error is from a panic.
	Panicked bool `json:"panicked,omitempty"`
}

// Action is something that was done to the lab, or read from it.
type Action string

// Actions. Act.Part of a check is the check's identifier.
const (
	Install     Action = "install"      // the script's components are installed
	StartProbes Action = "start-probes" // probes are started
	OpenSources Action = "open-sources" // the sources of snapshots are opened
	Inject      Action = "inject"       // a fault is injected
	TookEffect  Action = "took-effect"  // whether the fault took effect: Holds and Saw
	Undo        Action = "undo"         // a fault or a remedy is undone
	Apply       Action = "apply"        // a remedy is applied
	Check       Action = "check"        // a check is made: Holds and Saw
	Refuses     Action = "refuses"      // whether the component refuses to start: Saw
	Images      Action = "images"       // which images the pods run: Images
	Trials      Action = "trials"       // how a probabilistic fault went: Rounds, Holds
	Release     Action = "release"      // what a version has for all nodes is brought to the cluster
	Roll        Action = "roll"         // the agent of a node is replaced; Part is the node
	Restart     Action = "restart"      // an agent crashes and starts again: Holds and Saw; Part is the node
	Works       Action = "works"        // whether an agent that took the place of another does new work: Holds and Saw; Part is the node
	StillWorks  Action = "still-works"  // whether an agent that started works some time later: Holds and Saw; Part is the node
	Failover    Action = "failover"     // the node that answers for an address changes: Holds, and the address in Saw; Part is the kind
	ReadKernel  Action = "read-kernel"  // a node's kernel is read: Saw; Part is the node
)

// Act is an action and its result.
type Act struct {
	What  Action    `json:"what"`
	Part  string    `json:"part,omitempty"`
	Began time.Time `json:"began"`
	Holds bool      `json:"holds,omitempty"`
	Saw   string    `json:"saw,omitempty"`
	// Rounds is the number of trials.
	Rounds int `json:"rounds,omitempty"`
	// Images are the images that the pods run.
	Images []snapshot.ImageInUse `json:"images,omitempty"`
	// Timeout is how long one snapshot may take.
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	Error   string        `json:"error,omitempty"`

	Err error `json:"-"`
}

// Moment identifies a moment of a step at which something is judged.
type Moment string

// Moments of steps.
const (
	ProbesClean   Moment = "probes-clean"   // the wait for clean probes is over
	NoFindings    Moment = "no-findings"    // the wait for a time without active findings is over
	ExpectedFound Moment = "expected-found" // the wait for the expected findings is over
	Watched       Moment = "watched"        // the outcome of all packets up to Mark.Until is known
	Injecting     Moment = "injecting"      // the injection is about to begin
	Broken        Moment = "broken"         // the wait for the symptom before a remedy is over
	Replaced      Moment = "replaced"       // the old endpoints of the probes are about to go
	Back          Moment = "back"           // the wait for traffic to come back is over
	StaysBack     Moment = "stays-back"     // the outcome of the packets since then is known
	StillFound    Moment = "still-found"    // the wait for findings that persist is over
	BrokenAgain   Moment = "broken-again"   // the wait for the symptom after an undo is over
	Checked       Moment = "checked"        // the checks of a precursor are over
	TakenBack     Moment = "taken-back"     // the wait for no active findings after a precursor's undo is over
	DetectorsSaid Moment = "detectors-said" // a check of the findings is over
)

// Mark is a moment of a step.
type Mark struct {
	Moment Moment `json:"moment"`
	Part   string `json:"part,omitempty"`
	// Began is when the wait began.
	Began time.Time `json:"began,omitzero"`
	// Until is the moment up to which traffic is judged; zero: the time of the entry.
	Until time.Time `json:"until,omitzero"`
	// Bound is the bound on the wait.
	Bound time.Duration `json:"bound_ns,omitempty"`
	// Polls is, for a wait for polls, the number of the first entry that it did not
	// consider: later polls do not count for it.
	Polls int `json:"polls,omitempty"`
}

// StoredPoll is a poll as it is stored: the input of the detectors and their findings.
type StoredPoll struct {
	Snapshot snapshot.Snapshot `json:"snapshot"`
	Findings []detect.Finding  `json:"findings"`
}

// Poll is the result of running the detectors once.
type Poll struct {
	Began, Ended time.Time
	// Unavailable are the sources that could not be read, with the reasons.
	Unavailable []snapshot.Missing
	Findings    []detect.Finding
	// Routers are what the routers said, where Detection.KeepRouters is set.
	Routers []snapshot.Router
}
