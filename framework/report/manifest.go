package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ManifestSchema names the format of manifest.json, and ManifestName is its file.
const (
	ManifestSchema = "relapse.archive/v1"
	ManifestName   = "manifest.json"
)

// Manifest says what an archive of a run holds, and what of the run it does not.
type Manifest struct {
	Schema   string   `json:"schema"`
	Scenario string   `json:"scenario"`
	Run      string   `json:"run"`
	Verdict  string   `json:"verdict"`
	Files    []Packed `json:"files"`
	// LeftOut are those that would have made the archive too large, and those in which
	// names could not be replaced.
	LeftOut []LeftOut `json:"left_out,omitempty"`
	// Redaction is there where addresses and names were replaced.
	Redaction *Redaction `json:"redaction,omitempty"`
}

// Packed is a file of an archive.
type Packed struct {
	Path   string `json:"path"` // relative to the manifest, with slashes
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// LeftOut is a file of the run that is not in the archive.
type LeftOut struct {
	Packed
	Why string `json:"why"`
}

// Redaction says how addresses and names were replaced, the same by the same in all
// files. Whoever has the scenario can undo as much of it as the scenario itself
// declares, which is what judging the run again takes: the replaced names go by their
// places in its topology, and the addresses in its ranges by a key that follows from it.
// All other addresses, and the names of pods, are replaced by what nobody keeps.
type Redaction struct {
	// Salt makes the key another one in each archive, and Check tells whether a scenario
	// is the one that the key was made of.
	Salt  string `json:"salt"`
	Check string `json:"check"`
	// Mark is the letter that the names in place of others have before their number.
	Mark string `json:"mark"`
	// Addresses and Names are how many of them were replaced.
	Addresses int `json:"addresses"`
	Names     int `json:"names"`
}

// ReadManifest reads the manifest beside a run that was unpacked. It is nil for a run that is
// not of an archive.
func ReadManifest(dir string) (*Manifest, error) {
	text, err := os.ReadFile(filepath.Join(dir, ManifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the manifest: %w", err)
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("reading the manifest in %s: %w", dir, err)
	}
	if m.Schema != ManifestSchema {
		return nil, fmt.Errorf("reading the manifest in %s: its schema is %q, not %q", dir, m.Schema, ManifestSchema)
	}
	return &m, nil
}
