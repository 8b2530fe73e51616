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
	return Get(os.ReadFile(path))(t)
}

// Write writes a file in folders that it makes, and returns its path.
func Write(t testing.TB, path, text string) string {
	t.Helper()
	NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// Get returns what hands over the value, or ends the test if there is an error:
// must.Get(os.ReadFile(path))(t).
func Get[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}
