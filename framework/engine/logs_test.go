package engine

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

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
