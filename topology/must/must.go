// Package must ends a test at an error that the test does not expect.
package must

import (
	"os"
	"path/filepath"
	"testing"
)

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Read reads a file.
func Read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	NoError(t, err)
	return text
}

// Write writes a file in folders that it makes, and returns its path.
func Write(t testing.TB, path, text string) string {
	t.Helper()
	NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}
