// Package stored stores results as JSON files. A reader never sees half of a file.
package stored

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/relapse-dev/relapse/framework/report/rundir"
)

// Write writes a value as JSON into a file of a folder, and texts into others, by name.
func Write(dir, name string, value any, texts map[string]string) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	write := func(name string, text []byte) error { return rundir.Replace(filepath.Join(dir, name), text) }
	errs := []error{write(name, append(text, '\n'))}
	for name, text := range texts {
		errs = append(errs, write(name, []byte(text)))
	}
	return errors.Join(errs...)
}

// Read reads a value from a JSON file of a folder, whose field schema must have this value.
func Read(dir, name, schema string, value any) error {
	path := filepath.Join(dir, name)
	text, err := rundir.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no %s in %s", name, dir)
	}
	if err != nil {
		return err
	}
	var found struct{ Schema string }
	if err := json.Unmarshal(text, &found); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if found.Schema != schema {
		return fmt.Errorf("%s: its schema is %q, not %q", path, found.Schema, schema)
	}
	if err := json.Unmarshal(text, value); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
