package host

import (
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

const (
	instances = "fs.inotify.max_user_instances"
	watches   = "fs.inotify.max_user_watches"
)

func TestJudgeInotify(t *testing.T) {
	for name, test := range map[string]struct {
		instances, watches string
		want               verdict
		raise              map[string]string
	}{
		"enough": {instances: "512\n", watches: "1048576\n",
			want:  verdict{OK, instances + " is 512, " + watches + " is 1048576", ""},
			raise: map[string]string{}},
		"a kernel's default": {instances: "128\n", watches: "192536\n", want: verdict{
			Curable, instances + " is 128, " + watches + " is 192536",
			"sysctl -w " + instances + "=512 " + watches + "=524288",
		}, raise: map[string]string{instances: "512", watches: "524288"}},
		"one too low": {instances: "511\n", watches: "524288\n",
			want:  verdict{Curable, instances + " is 511, " + watches + " is 524288", "sysctl -w " + instances + "=512"},
			raise: map[string]string{instances: "512"}},
		"unknown": {instances: "", watches: "524288\n",
			want:  verdict{Curable, instances + " is not readable, " + watches + " is 524288", "sysctl -w " + instances + "=512"},
			raise: map[string]string{instances: "512"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, raise := judgeInotify(map[string]string{instances: test.instances, watches: test.watches})
			test.want.compare(t, got)
			must.Equal(t, "to raise", test.raise, raise)
		})
	}
}

func kernel(t *testing.T, values map[string]string) host {
	t.Helper()
	h := hostIn(t.TempDir())
	for name, value := range values {
		must.NoError(t, writeFile(h.sysctl(name), []byte(value+"\n"), 0o644))
	}
	return h
}

func TestRaiseAndLowerLimits(t *testing.T) {
	for name, test := range map[string]struct {
		since string // the first limit at the time of the undo; "": as it was raised
		want  string // the first limit after the undo
		steps []string
	}{
		"unchanged": {want: "128",
			steps: []string{"setting " + instances + " back from 512 to 128", "setting " + watches + " back from 524288 to 192536"}},
		"rebooted": {since: "128", want: "128",
			steps: []string{"setting " + watches + " back from 524288 to 192536"}},
		"set by the owner": {since: "8192", want: "8192", steps: []string{
			"leaving " + instances + " at 8192: it was changed after it was set to 512",
			"setting " + watches + " back from 524288 to 192536",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := kernel(t, map[string]string{instances: "128", watches: "192536"})
			var steps []string
			announce := func(step string) { steps = append(steps, step) }
			_, raise := judgeInotify(h.limits())
			must.NoError(t, h.raiseLimits(raise, announce))
			raised := []string{
				"raising " + instances + " from 128 to 512 until the next boot",
				"raising " + watches + " from 192536 to 524288 until the next boot",
			}
			must.Equal(t, "steps", raised, steps)
			if c, _ := judgeInotify(h.limits()); c.State != OK {
				t.Errorf("after raising: %s", c)
			}
			if test.since != "" {
				must.NoError(t, set(instances, h.sysctl(instances), test.since))
			}
			steps = nil
			for range 2 { // the second time there is nothing to do
				must.NoError(t, h.undo(t.Context(), announce))
			}
			must.Equal(t, "steps of the undo", test.steps, steps)
			must.Equal(t, instances, test.want, strings.TrimSpace(h.limits()[instances]))
			must.Equal(t, "the record exists", false, exists(h.record))
		})
	}
}
