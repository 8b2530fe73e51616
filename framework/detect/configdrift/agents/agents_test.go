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
	for _, test := range []struct {
		name, script string
		want         Answer
		fails        string // a part of the error
	}{
		{
			"it refuses", `echo 'level=fatal msg="Failed to populate masquerading settings" error="--enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive" subsys=config' >&2; exit 1`,
			Answer{Fatal: "Failed to populate masquerading settings: --enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive"}, "",
		},
		{"it refuses on standard output", `echo level=info msg=Cilium; echo 'level=fatal msg="no such option" subsys=config'; exit 1`, Answer{Fatal: "no such option"}, ""},
		{"it panics", `echo 'panic: strconv.ParseBool: parsing "x": invalid syntax' >&2; exit 2`, Answer{Fatal: `panic: strconv.ParseBool: parsing "x": invalid syntax`}, ""},
		{
			"the machine lacks memory", `echo 'level=fatal msg="Failed to get system memory" error="cannot allocate memory" subsys=config' >&2; exit 1`,
			Answer{Fatal: "Failed to get system memory: cannot allocate memory", Elsewhere: true}, "",
		},
		{"the slice fails", `echo 'level=fatal msg="Unable to print" error="write /dev/stdout: broken pipe" relapse.dev/end=slice subsys=slice' >&2; exit 1`, Answer{}, "Unable to print"},
		{"it is killed", `kill -9 $$`, Answer{}, "signal: killed"},
		{"it is killed after it said why", `echo 'level=fatal msg="no such key"' >&2; kill -9 $$`, Answer{}, "signal: killed"},
		{"it runs out of memory", `echo 'fatal error: runtime: out of memory' >&2; exit 2`, Answer{}, "exit status 2"},
		{"it ends without a reason", `exit 3`, Answer{}, "exit status 3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "cilium-agent")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			got, err := Agent{Version: "1.11.1", Program: program}.Effective(t.Context(), map[string]string{"masquerade": "false"})
			if got.Fatal != test.want.Fatal || got.Elsewhere != test.want.Elsewhere {
				t.Errorf("%+v, want %+v", got, test.want)
			}
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("error %v, want %q", err, test.fails)
			}
		})
	}
}
