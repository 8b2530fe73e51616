package host

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

const shimPath = "/usr/local/lib/relapse/runc-caps"

// registered is what an empty configuration becomes.
const registered = `{
  "default-runtime": "runc-caps",
  "runtimes": {
    "runc-caps": {
      "path": "/usr/local/lib/relapse/runc-caps"
    }
  }
}
`

// Configurations as users have them, and what they become.
func TestWithRuntime(t *testing.T) {
	for before, want := range map[string]string{
		"": registered, " \n": registered, "null": registered, `{"runtimes":{}}`: registered, registered: registered,
		`{"x-new":1.5,"runtimes":{"nvidia":{"path":"nvidia-container-runtime"}},"default-ulimits":{"nofile":{"Hard":64000}}}`: `{
  "default-runtime": "runc-caps",
  "default-ulimits": {
    "nofile": {
      "Hard": 64000
    }
  },
  "runtimes": {
    "nvidia": {
      "path": "nvidia-container-runtime"
    },
    "runc-caps": {
      "path": "/usr/local/lib/relapse/runc-caps"
    }
  },
  "x-new": 1.5
}
`,
	} {
		config := must.Get(daemonFile{content: &before}.parse())(t)
		must.Equal(t, before, want, must.Get(withRuntime(config, runtimeName, shimPath))(t))
	}
	for _, text := range []string{"debug: true", "[]", `{"debug":`} {
		must.Fail(t, must.Err(daemonFile{path: "/d", content: &text}.parse()), "reading Docker's configuration /d")
	}
}

// TestUndoRestoresTheFile undoes on a machine whose Docker is stopped.
func TestUndoRestoresTheFile(t *testing.T) {
	odd, changed := "{ \"debug\":\n true }\n", `{"debug":true,"default-runtime":"runc-caps"}`
	for name, test := range map[string]struct {
		before *string
		now    string
		want   *string
	}{
		"there was none":       {before: nil, now: registered, want: nil},
		"as it was written":    {before: &odd, now: registered, want: &odd},
		"removed":              {before: nil, now: "", want: nil},
		"changed by the owner": {before: &odd, now: changed, want: &changed},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostIn(t.TempDir())
			if test.now != "" {
				must.NoError(t, writeFile(h.daemonJSON, []byte(test.now), 0o600))
			}
			must.NoError(t, writeFile(h.shim, nil, 0o755))
			must.NoError(t, h.remember(func(r *record) {
				r.DaemonJSON = &change{Before: test.before, After: registered}
				r.Packages = []string{"debootstrap"}
			}))
			var steps []string
			for range 2 { // the second time there is nothing to do
				must.NoError(t, h.undo(t.Context(), func(step string) { steps = append(steps, step) }))
			}
			if len(steps) != 2 {
				t.Errorf("steps = %q, want the configuration and the packages", steps)
			}
			now := must.Get(h.readDaemonJSON())(t)
			must.Equal(t, h.daemonJSON, test.want, now.content)
			if test.want != nil && now.mode != 0o600 {
				t.Errorf("mode = %o, want 600", now.mode)
			}
			if exists(h.shim) != (test.now == changed) || exists(h.record) {
				t.Error("the shim or the record is still there, or the shim is not, which the file names")
			}
		})
	}
}

func TestWriteFileFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	must.Write(t, target, "old")
	must.NoError(t, os.Symlink(target, link))
	must.NoError(t, writeFile(link, []byte("new"), 0o644))
	must.Equal(t, "behind the link", "new", read(target))
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link was replaced: %v, %v", info, err)
	}
}
