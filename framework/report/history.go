package report

import (
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// History is what the detectors found at a variant over time, as evidence beside the
// report: HistoryName in the name of its file.
type History struct {
	// Looks is the number of polls.
	Looks int `json:"looks"`
	// Seen are the findings, each with the times at which it existed.
	Seen []Seen `json:"seen"`
	// Changes are the changes of sessions, routes and addresses from poll to poll, oldest
	// first. More is how many were left out because there were too many.
	Changes []snapshot.Change `json:"changes"`
	More    int               `json:"more,omitempty"`
}

// HistoryName is what evidence that holds a History is called.
const HistoryName = "history"

// Seen is a finding and when it existed.
type Seen struct {
	detect.Finding
	// Times are in order. A finding of two polls in a row also existed between them.
	Times []Span `json:"times"`
}

// Span is a time.
type Span struct {
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
}
