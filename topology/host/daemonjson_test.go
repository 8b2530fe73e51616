package host

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

const shimPath = "/usr/local/lib/relapse/runc-caps"

// Configurations as users have them, and what they become.
var daemonConfigs = map[string]struct{ before, want string }{
	"no file":    {"", `{"default-runtime":"runc-caps","runtimes":{"runc-caps":{"path":"/usr/local/lib/relapse/runc-caps"}}}`},
	"empty file": {" \n", `{"default-runtime":"runc-caps","runtimes":{"runc-caps":{"path":"/usr/local/lib/relapse/runc-caps"}}}`},
	"other settings": {
		`{"log-opts":{"max-size":"10m"},"default-ulimits":{"nofile":{"Hard":64000}},"x-new":1.50}`,
		`{"log-opts":{"max-size":"10m"},"default-ulimits":{"nofile":{"Hard":64000}},"x-new":1.50,"default-runtime":"runc-caps","runtimes":{"runc-caps":{"path":"/usr/local/lib/relapse/runc-caps"}}}`,
	},
	"another default runtime": {
		`{"default-runtime":"nvidia","runtimes":{"nvidia":{"path":"nvidia-container-runtime","runtimeArgs":["a<b"]}}}`,
		`{"default-runtime":"runc-caps","runtimes":{"nvidia":{"path":"nvidia-container-runtime","runtimeArgs":["a<b"]},"runc-caps":{"path":"/usr/local/lib/relapse/runc-caps"}}}`,
	},
	"no runtimes in runtimes": {
		`{"runtimes":{}}`,
		`{"default-runtime":"runc-caps","runtimes":{"runc-caps":{"path":"/usr/local/lib/relapse/runc-caps"}}}`,
	},
}

func TestRegisterAndWithdraw(t *testing.T) {
	for name, test := range daemonConfigs {
		t.Run(name, func(t *testing.T) {
			before, config := parsed(t, test.before), parsed(t, test.before)
			for _, what := range []string{"registered", "registered twice"} {
				must.NoError(t, config.register(shimPath))
				must.Equal(t, what, meaning(t, parsed(t, test.want)), meaning(t, config))
			}
			config.withdraw(before)
			must.Equal(t, "withdrawn", meaning(t, before), meaning(t, config))
		})
	}
}

func TestWithdrawKeepsLaterChanges(t *testing.T) {
	before := parsed(t, `{"debug":false}`)
	now := parsed(t, `{"debug":true,"default-runtime":"kata","runtimes":{"kata":{"path":"kata"},"runc-caps":{"path":"/usr/local/lib/relapse/runc-caps"}}}`)
	now.withdraw(before)
	want := parsed(t, `{"debug":true,"default-runtime":"kata","runtimes":{"kata":{"path":"kata"}}}`)
	must.Equal(t, "withdrawn", meaning(t, want), meaning(t, now))
}

func TestExplicitNamesTheDefault(t *testing.T) {
	explicit := parsed(t, `{"debug":true}`)
	explicit.explicit()
	want := parsed(t, `{"debug":true,"default-runtime":"runc","runtimes":{}}`)
	must.Equal(t, "explicit", meaning(t, want), meaning(t, explicit))
}

func TestParseDaemonConfigRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":            "debug: true",
		"a list":             "[]",
		"runtimes is a list": `{"runtimes":[]}`,
		"cut off":            `{"debug":`,
	} {
		t.Run(name, func(t *testing.T) { must.Fail(t, must.Err(parseDaemonConfig([]byte(text)))) })
	}
}

// TestUndoRestoresTheFile undoes on a machine whose Docker is stopped.
func TestUndoRestoresTheFile(t *testing.T) {
	ours := string(daemonText(t, parsed(t, daemonConfigs["no file"].want)))
	odd := "{ \"debug\":\n true }\n"
	for name, test := range map[string]struct {
		before *string
		now    string
		want   *string
	}{
		"there was none":       {before: nil, now: ours, want: nil},
		"as it was written":    {before: &odd, now: ours, want: &odd},
		"removed":              {before: &odd, now: "", want: &odd},
		"changed by the owner": {before: nil, now: `{"debug":true,"default-runtime":"runc-caps"}`, want: new("{\n  \"debug\": true\n}\n")},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostIn(t.TempDir())
			if test.now != "" {
				must.NoError(t, writeFile(h.daemonJSON, []byte(test.now), 0o600))
			}
			must.NoError(t, writeFile(h.shim, nil, 0o755))
			must.NoError(t, h.remember(func(r *record) {
				r.DaemonJSON = &change{Before: test.before, After: ours}
				r.Packages = []string{"debootstrap"}
			}))
			var steps []string
			for range 2 { // the second time there is nothing to do
				must.NoError(t, h.undo(t.Context(), func(step string) { steps = append(steps, step) }))
			}
			must.Equal(t, steps, 2, len(steps))
			now := must.Get(h.readDaemonJSON())(t)
			must.Equal(t, h.daemonJSON, test.want, now.content)
			if test.want != nil && test.now != "" && now.mode != 0o600 {
				t.Errorf("mode = %o, want 600", now.mode)
			}
			must.Equal(t, "the shim and the record exist", [2]bool{}, [2]bool{exists(h.shim), exists(h.record)})
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
	must.Equal(t, "the link", os.ModeSymlink, must.Get(os.Lstat(link))(t).Mode().Type())
}

func parsed(t *testing.T, text string) daemonConfig {
	t.Helper()
	return must.Get(parseDaemonConfig([]byte(text)))(t)
}

func daemonText(t *testing.T, config daemonConfig) []byte {
	t.Helper()
	return must.Get(config.text())(t)
}

func meaning(t *testing.T, config daemonConfig) map[string]any {
	t.Helper()
	values := map[string]any{}
	must.NoError(t, json.Unmarshal(daemonText(t, config), &values))
	return values
}
