package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/sys/atomicwriter"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
)

// bisectionSchema names the format of bisect.json.
const bisectionSchema = "relapse.bisect/v1"

// bisectionFile is the record's name in its folder.
const bisectionFile = "bisect.json"

// bisectionRecord is what a bisection goes on with.
type bisectionRecord struct {
	Schema    string            `json:"schema"`
	Scenario  string            `json:"scenario"`
	Component string            `json:"component"`
	With      map[string]string `json:"with,omitempty"`
	Versions  []string          `json:"versions"` // looked among, lowest first
	Steps     []bisectionStep   `json:"steps"`    // in the order in which they were taken
}

// bisectionStep is what became of one version.
type bisectionStep struct {
	Version string         `json:"version"`
	Outcome bisect.Outcome `json:"outcome"`
	// Verdict is empty where the version did not run, and Why says why, or why the
	// verdict is that one.
	Verdict string `json:"verdict,omitempty"`
	Why     string `json:"why,omitempty"`
	// Report is relative to the record's folder. Where there were several runs it is
	// the last one's.
	Report string `json:"report,omitempty"`
	// TookMS is the time of all runs of the version, BuiltMS that of its images.
	TookMS  int64 `json:"took_ms,omitempty"`
	BuiltMS int64 `json:"built_ms,omitempty"`
	// Rounds are those of a race that it stood in all, and Luck is the chance that an
	// affected version would have stood them.
	Rounds int     `json:"rounds,omitempty"`
	Luck   float64 `json:"luck,omitempty"`

	err error // why it did not run
}

// says tells what became of the version in a line.
func (s bisectionStep) says() string {
	switch {
	case s.Verdict == "":
		return fmt.Sprintf("%s: %s", s.Outcome, s.Why)
	case s.Outcome == bisect.Skipped:
		return fmt.Sprintf("%s: %s: %s", s.Outcome, s.Verdict, s.Why)
	case s.Verdict == string(framework.Refused):
		return fmt.Sprintf("%s, for it refuses to start: %s", s.Outcome, s.Why)
	}
	text := fmt.Sprintf("%s: %s, in %s", s.Outcome, s.Verdict, (time.Duration(s.TookMS) * time.Millisecond).Round(time.Second))
	if s.Rounds > 0 {
		text += fmt.Sprintf("; it stood %d rounds, which an affected one does in %.2g%% of all cases", s.Rounds, 100*s.Luck)
	}
	return text
}

// write stores the record in a folder. A reader never sees half of it.
func (r bisectionRecord) write(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicwriter.WriteFile(filepath.Join(dir, bisectionFile), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("keeping how far the bisection is: %w", err)
	}
	return nil
}

// readBisection reads the record in a folder. What is wrong with it is bad input.
func readBisection(dir string) (bisectionRecord, error) {
	path := filepath.Join(dir, bisectionFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return bisectionRecord{}, usagef("--resume: there is no %s in %s", bisectionFile, dir)
	}
	if err != nil {
		return bisectionRecord{}, usagef("--resume: %w", err)
	}
	var r bisectionRecord
	if err := json.Unmarshal(text, &r); err != nil {
		return bisectionRecord{}, usagef("--resume: %s: %w", path, err)
	}
	if r.Schema != bisectionSchema {
		return bisectionRecord{}, usagef("--resume: %s: its schema is %q, not %q", path, r.Schema, bisectionSchema)
	}
	return r, nil
}
