package agents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An agent that does not start says why in the vendor's words. One that was killed, or
// whose slice has failed, has not answered.
func TestEffectiveOfAnAgentThatEnds(t *testing.T) {
	for _, test := range []struct{ name, script, refuses, err string }{
		{"it says why", `echo 'level=fatal msg="Invalid daemon configuration" error="no such key" subsys=daemon' >&2; exit 1`, "Invalid daemon configuration: no such key", ""},
		{"it panics", `echo 'panic: no such key' >&2; exit 2`, "panic: no such key", ""},
		{"it is killed, as for memory", `kill -KILL $$`, "", "signal: killed"},
		{"it runs out of memory", `echo 'fatal error: runtime: out of memory' >&2; exit 2`, "", "exit status 2"},
		{"it is killed after it said why", `echo 'level=fatal msg="no such key"' >&2; kill -KILL $$`, "", "signal: killed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "cilium-agent")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			answer, err := Agent{"1.0.0", program}.Effective(t.Context(), map[string]string{"key": "value"})
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) || answer.Refuses() != test.refuses {
				t.Errorf("refuses %q, %v", answer.Refuses(), err)
			}
		})
	}
}
