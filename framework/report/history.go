package report

import (
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// History is what the looks of the detectors at a variant have shown, as evidence
// beside the report: HistoryName in the name of its file.
type History struct {
	// Looks is how many there were.
	Looks int `json:"looks"`
	// Seen are the findings, each with the times in which it was there.
	Seen []Seen `json:"seen"`
	// Changes are what changed of sessions, routes and addresses from one look to
	// the next, oldest first. More is how many were left out because there were too
	// many.
	Changes []snapshot.Change `json:"changes"`
	More    int               `json:"more,omitempty"`
}

// HistoryName is what evidence that holds a History is called.
const HistoryName = "history"

// Seen is a finding and when it was there.
type Seen struct {
	detect.Finding
	// Times are in order. A finding that is there in two looks is there in between.
	Times []Span `json:"times"`
}

// Span is a time.
type Span struct {
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
}
