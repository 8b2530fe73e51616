package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
)

// Evidence is the folder where a run keeps what it saw. Files are
// numbered in the order in which they were written.
type Evidence struct {
	// Dir is made with the first file; where it is empty nothing is kept.
	Dir    string
	number atomic.Int32
}

// Write stores v: a string or bytes as they are (.txt), anything else as
// JSON.
func (e *Evidence) Write(name string, v any) error {
	if e.Dir == "" { // a stored run is judged, and keeps what it has
		return nil
	}
	var text []byte
	switch v := v.(type) {
	case string:
		name, text = name+".txt", []byte(v)
	case []byte:
		name, text = name+".txt", v
	default:
		encoded, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			return fmt.Errorf("encoding evidence %q: %w", name, err)
		}
		name, text = name+".json", encoded
	}
	if err := os.MkdirAll(e.Dir, 0o755); err != nil {
		return fmt.Errorf("creating the folder of the evidence: %w", err)
	}
	path := filepath.Join(e.Dir, fmt.Sprintf("%02d-%s", e.number.Add(1), name))
	if err := os.WriteFile(path, text, 0o644); err != nil {
		_ = os.Remove(path) // a full disk has room for the report then
		return fmt.Errorf("writing evidence %q: %w", name, err)
	}
	return nil
}
