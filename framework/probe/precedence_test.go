package probe

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// Without throttling an agent in real time could stop the machine.
func TestThrottled(t *testing.T) {
	for text, want := range map[string]string{"950000\n": "", "0\n": "", "-1\n": "real-time throttling is switched off"} {
		file := must.Write(t, filepath.Join(t.TempDir(), "sched_rt_runtime_us"), text)
		if err := throttled(file); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
