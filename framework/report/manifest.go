package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/relapse-dev/relapse/framework/report/rundir"
)

// ManifestSchema names the format of manifest.json, and ManifestName is its file.
const (
	ManifestSchema = "relapse.archive/v1"
	ManifestName   = "manifest.json"
)

// Manifest lists what an archive of a run holds, and what was left out.
type Manifest struct {
	Schema   string   `json:"schema"`
	Scenario string   `json:"scenario"`
	Run      string   `json:"run"`
	Verdict  string   `json:"verdict"`
	Files    []Packed `json:"files"`
	// LeftOut are files that would make the archive too large, and those in which names
	// could not be replaced.
	LeftOut []LeftOut `json:"left_out,omitempty"`
	// Redaction is present if addresses and names were replaced.
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

// Redaction says how many addresses and names were replaced, by the same replacement in all files. None
// can be restored.
type Redaction struct {
	Addresses int `json:"addresses"`
	Names     int `json:"names"`
}

// ReadManifest reads the manifest of a run that was unpacked from an archive. It is nil for
// any other run.
func ReadManifest(dir string) (*Manifest, error) {
	text, err := rundir.ReadFile(filepath.Join(dir, ManifestName))
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
