package page

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// FuzzWrite renders a folder of a run whose report and record may be anything: the page
// is written or refused, and nothing outside of the folder is.
func FuzzWrite(f *testing.F) {
	for _, name := range []string{"../testdata/full.json", "../testdata/bare.json"} {
		text := must.Read(f, name)
		f.Add(string(text), `{"at":"2026-01-02T03:04:05Z","probes":[{"probe":{"Name":"a->b","Interval":10000000},"started":"2026-01-02T03:04:05Z","sent":[[0,9]]}]}`)
	}
	f.Add(`{"schema":"relapse.report/v2","scenario":"../x","variants":[{"evidence":"../.."}]}`, ``)
	f.Add(`{"schema":"relapse.report/v2","variants":[{"repeats":{"runs":[{"onset_ms":-9223372036854775808},{"onset_ms":9223372036854775807}]}}]}`, `{"poll":null}`)
	f.Fuzz(func(t *testing.T, text, record string) {
		top := t.TempDir()
		dir := filepath.Join(top, "run")
		for name, text := range map[string]string{"report.json": text, "evidence/a/" + history.FileName: compressed(t, record)} {
			must.Write(t, filepath.Join(dir, name), text)
		}
		err := Write(dir, nil)
		if r, unread := report.Read(filepath.Join(dir, "report.json")); unread == nil && err == nil {
			Screen(dir, r)
		}
		must.Equal(t, "the folder, and nothing beside it", 1, len(must.Get(os.ReadDir(top))(t)))
	})
}

func compressed(t *testing.T, lines string) string {
	encoder := must.Get(zstd.NewWriter(nil))(t)
	return string(encoder.EncodeAll([]byte(`{"begin":{"schema":"`+history.Schema+"\"}}\n"+lines+"\n"), nil))
}
