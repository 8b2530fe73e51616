package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/relapse-dev/relapse/topology/must"
)

// A link of the file's name, or of a temporary file's, leads nowhere.
func TestReplaceDoesNotFollowLinks(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	must.Write(t, outside, "theirs")
	for _, name := range []string{"report.html", "report.html.tmp"} {
		must.NoError(t, os.Symlink(outside, filepath.Join(dir, name)))
	}
	must.NoError(t, Replace(filepath.Join(dir, "report.html"), []byte("ours")))
	must.Equal(t, "the file outside", "theirs", string(must.Read(t, outside)))
	must.Equal(t, "the file", "ours", string(must.Get(ReadFile(filepath.Join(dir, "report.html")))(t)))
	must.NoError(t, os.Symlink(filepath.Dir(outside), filepath.Join(dir, "evidence")))
	run := must.Get(Open(dir))(t)
	t.Cleanup(func() { run.Close() })
	must.Fail(t, run.Replace("evidence/victim", []byte("ours"))) // outside of the folder
	if _, err := run.ReadFile("evidence/victim"); !errors.As(err, new(*UnsafeError)) {
		t.Errorf("%v; want it to refuse a file outside of the folder", err)
	}
}

// A run with --repeat 200 holds some 40 files for each repeat of each of its variants.
func TestFilesOfLongRun(t *testing.T) {
	const repeats, files = 200, 60
	dir := t.TempDir()
	for repeat := range repeats {
		folder := filepath.Join(dir, fmt.Sprintf("evidence/affected/run-%02d", repeat+1))
		must.NoError(t, os.MkdirAll(folder, 0o755))
		for file := range files {
			must.NoError(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("%02d-log.txt", file+1)), nil, 0o644))
		}
	}
	run := must.Get(Open(dir))(t)
	t.Cleanup(func() { run.Close() })
	must.Equal(t, "files", repeats*files, len(must.Get(run.Files("."))(t)))
}

func TestFilesAreBounded(t *testing.T) {
	for name, want := range map[string]string{
		"many files":   "evidence is not read: it has more than 10 files and folders; if relapse wrote them, run the scenario with fewer variants (--variant) or a smaller --repeat",
		"many folders": "evidence is not read: it has more than 10 files and folders; if relapse wrote them, run the scenario with fewer variants (--variant) or a smaller --repeat",
		"deep folders": "evidence/1/1/1/1/1/1/1/1/1 is not read: it is in more than 8 folders",
		"few files":    "",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			top := filepath.Join(dir, "evidence")
			var err error
			switch name {
			case "many files", "few files":
				err = os.Mkdir(top, 0o755)
				for i := range map[string]int{"many files": 10, "few files": 9}[name] { // and the folder
					err = errors.Join(err, os.WriteFile(filepath.Join(top, fmt.Sprint(i)), nil, 0o644))
				}
			case "many folders":
				for i := range 10 {
					err = errors.Join(err, os.MkdirAll(filepath.Join(top, fmt.Sprint(i)), 0o755))
				}
			case "deep folders":
				err = os.MkdirAll(filepath.Join(top, strings.Repeat("1/", 9)), 0o755)
			}
			must.NoError(t, err)
			run := must.Get(Open(dir))(t)
			t.Cleanup(func() { run.Close() })
			_, err = run.files("evidence", 10)
			if want == "" {
				must.NoError(t, err)
				return
			}
			if !errors.As(err, new(*UnsafeError)) || err.Error() != filepath.Join(dir, want) {
				t.Errorf("%v; want %s/%s", err, dir, want)
			}
		})
	}
}

func TestIsName(t *testing.T) {
	for text, want := range map[string]bool{
		"node-drain": true, "2026-01-02T03-04-05Z-2": true, "cilium-1.11.6+x": true,
		"": false, ".": false, "..": false, "../x": false, "a/b": false, `a\b`: false, "a b": false, "-flag": false, "a\x1b": false, strings.Repeat("a", 129): false,
	} {
		must.Equal(t, text, want, IsName(text))
	}
}

// A line of "{}" takes a hundred times its size in memory.
func TestLinesBoundObjects(t *testing.T) {
	encoder := must.Get(zstd.NewWriter(nil))(t)
	dir := t.TempDir()
	text := "[" + strings.Repeat("{},", 5_000_000) + "{}]\n"
	must.NoError(t, os.WriteFile(filepath.Join(dir, "record.jsonl.zst"), encoder.EncodeAll([]byte("{}\n"+text), nil), 0o644))
	run := must.Get(Open(dir))(t)
	defer run.Close()
	lines := 0
	err := run.Lines("record.jsonl.zst", func([]byte) (bool, error) { lines++; return true, nil })
	if lines != 1 || !errors.As(err, new(*UnsafeError)) || !strings.HasSuffix(err.Error(), "line 2 has more than 5000000 objects") {
		t.Errorf("%d lines, %v", lines, err)
	}
}

// What is in a folder of a run may be anything: reading it ends, and never yields a line
// that is not in the file.
func FuzzLines(f *testing.F) {
	whole := must.Get(zstd.NewWriter(nil))(f).EncodeAll([]byte("{\"at\":1}\n{}\nhalf"), nil)
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("no zstd"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		must.NoError(t, os.WriteFile(filepath.Join(dir, "record.jsonl.zst"), text, 0o644))
		run := must.Get(Open(dir))(t)
		defer run.Close()
		err := run.Lines("record.jsonl.zst", func(line []byte) (bool, error) {
			if strings.Contains(string(line), "\n") {
				t.Errorf("a line has an end in it: %q", line)
			}
			return true, nil
		})
		if err != nil && !errors.As(err, new(*UnsafeError)) {
			t.Errorf("%v is not said to be the file's", err)
		}
	})
}
