package page

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
)

// FuzzWrite renders a folder of a run whose report and probes may be anything: the page
// is written or refused, and nothing outside of the folder is.
func FuzzWrite(f *testing.F) {
	for _, name := range []string{"../testdata/full.json", "../testdata/bare.json"} {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), `[{"probe":"a->b","started":"2026-01-02T03:04:05Z"}]`)
	}
	f.Add(`{"schema":"relapse.report/v2","scenario":"../x","variants":[{"evidence":"../.."}]}`, `[]`)
	f.Add(`{"schema":"relapse.report/v2","variants":[{"repeats":{"runs":[{"onset_ms":-9223372036854775808},{"onset_ms":9223372036854775807}]}}]}`, `null`)
	f.Fuzz(func(t *testing.T, text, probes string) {
		top := t.TempDir()
		dir := filepath.Join(top, "run")
		if err := os.MkdirAll(filepath.Join(dir, "evidence", "a"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"report.json": text, "evidence/a/01-probes.json": probes} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		err := Write(dir)
		if r, unread := report.Read(filepath.Join(dir, "report.json")); unread == nil && err == nil {
			Screen(dir, r, 20)
		}
		entries, err := os.ReadDir(top)
		if err != nil || len(entries) != 1 {
			t.Errorf("beside the folder are %v (%v)", entries, err)
		}
	})
}
