package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// A run folder may be an unpacked archive of another person. Each command that reads run folders refuses a folder with
// paths that lead out of it, or that takes all memory, and writes nothing.
func TestHostileRuns(t *testing.T) {
	const evidence = "evidence/cilium-1.11.6"
	link := func(name, to string) func(*testing.T, string, string) {
		return func(t *testing.T, run, outside string) {
			_ = os.Remove(filepath.Join(run, name))
			must.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(run, name)), 0o755))
			must.NoError(t, os.Symlink(filepath.Join(outside, to), filepath.Join(run, name)))
		}
	}
	fifo := func(name string) func(*testing.T, string, string) {
		return func(t *testing.T, run, _ string) {
			_ = os.Remove(filepath.Join(run, name))
			must.NoError(t, syscall.Mkfifo(filepath.Join(run, name), 0o644))
		}
	}
	record := func(text []byte) func(*testing.T, string, string) {
		return func(t *testing.T, run, _ string) {
			must.Write(t, filepath.Join(run, evidence, "record.jsonl.zst"), string(text))
		}
	}
	reported := func(change func(*report.Report)) func(*testing.T, string, string) {
		return func(t *testing.T, run, _ string) {
			r := must.Get(report.Read(filepath.Join(run, "report.json")))(t)
			change(&r)
			must.NoError(t, r.Write(run))
		}
	}
	all := []string{"page", "judge", "merge", "diff", "archive", "archive --redact"}
	unpack := []string{"judge", "archive --redact"} // the commands that read the record
	for _, test := range []struct {
		name     string
		plant    func(t *testing.T, run, outside string)
		commands []string
		status   int // 0: expected is 2
	}{
		{"the page is a link", link("report.html", "victim"), all, 0},
		{"the page's former temporary file is a link", link("report.html.tmp", "victim"), all, 0},
		{"the report is a link", link("report.json", "report.json"), all, 0},
		{"the report is a FIFO", fifo("report.json"), all, 0},
		{"the report has 1 GiB", func(t *testing.T, run, _ string) {
			must.NoError(t, os.Truncate(filepath.Join(run, "report.json"), 1<<30))
		}, all, 0},
		{"evidence is a link to a folder", link(evidence+"/x", ""), all, 0},
		{"evidence is a link to a file", link(evidence+"/01-log.txt", "victim"), all, 0},
		{"evidence is a FIFO", fifo(evidence + "/01-probes.json"), all, 0},
		{"the lab's evidence is a link", link("evidence/lab", ""), all, 0},
		{"a name has an escape sequence", func(t *testing.T, run, _ string) {
			must.Write(t, filepath.Join(run, evidence, "\x1b]0;title\a.txt"), "")
		}, all, 0},
		{"the scenario is a path", reported(func(r *report.Report) { r.Scenario = "../../outside" }), all, 0},
		{"the run is a path", reported(func(r *report.Report) { r.Run = "../../outside/victim" }), all, 0},
		{"the evidence is in another folder", reported(func(r *report.Report) { r.Variants[0].EvidenceDir = "../../outside" }), all, 0},
		{"the evidence is the run", reported(func(r *report.Report) { r.Variants[0].EvidenceDir = "." }), all, 0},
		{"a record of one endless line", record(compressed(t, bytes.Repeat([]byte(" "), 129<<20), 4<<20)), unpack, 0},
		{"a record with a window of 512 MiB", record(withWindow(512 << 20)), unpack, 0},
		{"a record that begins with nothing", record(compressed(t, []byte(`{"begin":{"schema":"relapse.record/v3"},"begin":null}`+"\n"), 1<<20)), []string{"judge"}, exitInconclusive},
	} {
		for _, name := range test.commands {
			t.Run(test.name+"/"+name, func(t *testing.T) {
				top := t.TempDir()
				outside, reports, work := filepath.Join(top, "outside"), filepath.Join(top, "reports"), filepath.Join(top, "work")
				must.NoError(t, os.MkdirAll(work, 0o755))
				must.Write(t, filepath.Join(outside, "victim"), "secret")
				run := storeRun(t, reports, func(r *report.Report) { r.Variants[0].EvidenceDir = evidence })
				good := storeRun(t, filepath.Join(top, "good"), nil)
				must.NoError(t, os.MkdirAll(filepath.Join(run, evidence), 0o755))
				must.Write(t, filepath.Join(outside, "report.json"), read(t, filepath.Join(run, "report.json")))
				test.plant(t, run, outside)
				before := tree(t, top)
				t.Chdir(work)
				args := append(strings.Fields(name), run)
				if name == "diff" {
					args = append(args, good)
				}
				status, out, complained := output(t, args...)
				must.Equal(t, out+complained, cmp.Or(test.status, exitUsage), status)
				must.Equal(t, "control characters in "+complained, false, strings.ContainsAny(complained, "\x1b\a"))
				must.Equal(t, "files", before, tree(t, top))
			})
		}
	}
}

// Texts in another person's run are printed without control characters.
func TestHostileText(t *testing.T) {
	const hostile = "x\x1b]0;owned\a\r\u202e\n```\n@octocat"
	says := func(r *report.Report) {
		r.Verdict, r.Owner, r.Relapse, r.Command = "fail", hostile, hostile, hostile
		r.Variants[0].Name, r.Variants[0].Verdict, r.Variants[0].Reasons = hostile, "missed", []string{hostile}
		r.CPU, r.Guests = &report.CPU{}, []report.Guest{{Node: hostile, Kernel: hostile, Accelerator: hostile}}
	}
	top := t.TempDir()
	run, good := storeRun(t, filepath.Join(top, "theirs"), says), storeRun(t, filepath.Join(top, "ours"), nil)
	merged := filepath.Join(top, "merged")
	for _, args := range [][]string{{"diff", run, good}, {"merge", "--output", merged, run, good}, {"judge", run}} {
		_, out, _ := output(t, args...)
		must.Equal(t, "control characters in "+out, false, strings.ContainsAny(out, "\x1b\a\r\u202e"))
	}
	text := read(t, filepath.Join(merged, "summary.md"))
	for _, part := range []string{"```", " @octocat", "\n@octocat", "\x1b", "\u202e"} {
		must.Equal(t, part+" in "+text, 0, strings.Count(text, part))
	}
	must.Contain(t, text, "octocat")
}

func compressed(t *testing.T, text []byte, window int) []byte {
	t.Helper()
	var to bytes.Buffer
	out := must.Get(zstd.NewWriter(&to, zstd.WithWindowSize(window)))(t)
	must.Get(out.Write(text))(t)
	must.NoError(t, out.Close())
	return to.Bytes()
}

// withWindow is a zstd frame of one empty line with this window size, a power of two (RFC 8878, 3.1.1.1.2).
func withWindow(bytes int) []byte {
	exponent := 0
	for 1<<(10+exponent) < bytes {
		exponent++
	}
	return []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, byte(exponent << 3), 0x09, 0x00, 0x00, '\n'}
}

// tree lists the files of a folder, each with its type and the digest of its content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		all[path] = e.Type().String()
		if err == nil && e.Type().IsRegular() && info.Size() < 1<<20 {
			var text []byte
			text, err = os.ReadFile(path)
			all[path] += fmt.Sprintf(" %x", sha256.Sum256(text))
		}
		return err
	}))
	return all
}
