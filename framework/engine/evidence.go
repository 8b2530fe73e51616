package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
)

// Evidence is the folder where a run stores what it observed. Files are numbered in the
// order in which they were written.
type Evidence struct {
	// Dir is made with the first file; if it is empty nothing is stored.
	Dir    string
	number atomic.Int32
}

// Write stores v: a string or bytes unchanged (.txt), anything else as JSON.
func (e *Evidence) Write(name string, v any) error {
	if e.Dir == "" {
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
		_ = os.Remove(path) // leaves room on a full disk for the report
		return fmt.Errorf("writing evidence %q: %w", name, err)
	}
	return nil
}
