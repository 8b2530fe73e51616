package probe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without throttling an agent in real time could stop the machine.
func TestThrottled(t *testing.T) {
	for text, want := range map[string]string{"950000\n": "", "0\n": "", "-1\n": "real-time throttling is switched off"} {
		file := filepath.Join(t.TempDir(), "sched_rt_runtime_us")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := throttled(file); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
