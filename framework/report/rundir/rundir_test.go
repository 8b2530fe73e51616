package rundir_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/relapse-dev/relapse/framework/report/rundir"
)

// A link of the file's name, or of a temporary file's, leads nowhere.
func TestReplaceDoesNotFollowLinks(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(outside, []byte("theirs"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"report.html", "report.html.tmp"} {
		if err := os.Symlink(outside, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := rundir.Replace(filepath.Join(dir, "report.html"), []byte("ours")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "theirs" {
		t.Errorf("the file outside holds %q (%v)", text, err)
	}
	if text, err := rundir.ReadFile(filepath.Join(dir, "report.html")); err != nil || string(text) != "ours" {
		t.Errorf("the file holds %q (%v)", text, err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(dir, "evidence")); err != nil {
		t.Fatal(err)
	}
	run, err := rundir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { run.Close() })
	if err := run.Replace("evidence/victim", []byte("ours")); err == nil {
		t.Error("a file outside of the folder is written")
	}
	if _, err := run.ReadFile("evidence/victim"); !errors.As(err, new(*rundir.UnsafeError)) {
		t.Errorf("%v; want it to refuse a file outside of the folder", err)
	}
}

func TestIsName(t *testing.T) {
	for text, want := range map[string]bool{
		"node-drain": true, "2026-01-02T03-04-05Z-2": true, "cilium-1.11.6+x": true,
		"": false, ".": false, "..": false, "../x": false, "a/b": false, `a\b`: false, "a b": false, "-flag": false, "a\x1b": false, strings.Repeat("a", 129): false,
	} {
		if rundir.IsName(text) != want {
			t.Errorf("%q is a name: %t", text, !want)
		}
	}
}

// What is in a folder of a run may be anything: reading it ends, and never yields a line
// that is not in the file.
func FuzzLines(f *testing.F) {
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	whole := encoder.EncodeAll([]byte("{\"at\":1}\n{}\nhalf"), nil)
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("no zstd"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "record.jsonl.zst"), text, 0o644); err != nil {
			t.Fatal(err)
		}
		run, err := rundir.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer run.Close()
		err = run.Lines("record.jsonl.zst", func(line []byte) (bool, error) {
			if strings.Contains(string(line), "\n") {
				t.Errorf("a line has an end in it: %q", line)
			}
			return true, nil
		})
		if err != nil && !errors.As(err, new(*rundir.UnsafeError)) {
			t.Errorf("%v is not said to be the file's", err)
		}
	})
}
