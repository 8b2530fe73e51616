// Package must ends a test at an unexpected error, and compares results with expectations.
package must

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// Get returns a function that returns the value, or ends the test if there is an error:
// must.Get(os.ReadFile(path))(t).
func Get[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}

// Err is the error of a call that also returns a value.
func Err[T any](_ T, err error) error { return err }

// Fail fails the test unless there is an error with all of these words.
func Fail(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	Contain(t, err.Error(), words...)
}

// Is fails the test unless an error is the one that is wanted, or wraps it.
func Is(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

// Equal fails the test unless the values are equal. The text says what they are; "" if the line of the
// test is clear enough.
func Equal[T any](t testing.TB, what any, want, got T, options ...cmp.Option) {
	t.Helper()
	private := cmp.Exporter(func(reflect.Type) bool { return true })
	if diff := cmp.Diff(want, got, append(options, private)...); diff != "" {
		t.Errorf("%v (-want +got):\n%s", what, diff)
	}
}

// Contain fails the test unless a text has all of these words.
func Contain(t testing.TB, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not contain %q", text, w)
		}
	}
}
