package engine

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestEvidence(t *testing.T) {
	e := Evidence{Dir: filepath.Join(t.TempDir(), "evidence", "variant")}
	for _, piece := range []struct {
		name string
		data any
	}{
		{"log", "a line\n"},
		{"raw", []byte{1, 2}},
		{"log", "of the same name"},
		{"counts", map[string]int{"sent": 3}},
		{"bad", func() {}}, // JSON cannot hold it
		{"last", []string{}},
	} {
		if err := e.Write(piece.name, piece.data); piece.name == "bad" {
			must.Fail(t, err, `evidence "bad"`)
		} else {
			must.NoError(t, err)
		}
	}
	got := map[string]string{}
	for _, f := range must.Get(os.ReadDir(e.Dir))(t) {
		got[f.Name()] = string(must.Read(t, filepath.Join(e.Dir, f.Name())))
	}
	want := map[string]string{
		"01-log.txt":     "a line\n",
		"02-raw.txt":     "\x01\x02",
		"03-log.txt":     "of the same name",
		"04-counts.json": "{\n \"sent\": 3\n}",
		"05-last.json":   "[]",
	}
	must.Equal(t, "files", want, got)
}

func TestSlug(t *testing.T) {
	for name, want := range map[string]string{
		"restart every agent":                  "restart-every-agent",
		"Cilium 1.12.0":                        "Cilium-1-12-0",
		"ipam mode kubernetes, pods made anew": "ipam-mode-kubernetes-pods-made-anew",
		"../../etc/passwd":                     "etc-passwd",
		"  ":                                   "",
	} {
		must.Equal(t, name, want, slug(name))
	}
}

// logging is a lab whose only member logs its settings.
type logging struct{ fakeLab }

func (logging) Logs(context.Context, time.Time, []string) (map[string]string, error) {
	return map[string]string{"cilium-agent": "level=info --token='correct-horse'"}, nil
}

// Programs log their settings, and no secret of a user's values is kept.
func TestLogsWithoutSecrets(t *testing.T) {
	s := Session{lab: &logging{}, secrets: []string{"correct-horse", "info"}, evidence: Evidence{Dir: t.TempDir()}, unstored: func(err error) { t.Error(err) }}
	must.NoError(t, s.keepLogs(t.Context(), time.Time{}, nil))
	files := must.Get(filepath.Glob(filepath.Join(s.evidence.Dir, "*-log-cilium-agent*")))(t)
	must.Equal(t, files, 1, len(files))
	must.Equal(t, "", "level=info --token='***'", string(must.Read(t, files[0])))
}
