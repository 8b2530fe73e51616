package source

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// module is a vendor's module with flags of both ways to register them.
const module = "testdata/module"

func TestFlags(t *testing.T) {
	got, err := Flags(module, Agent)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Flag{
		"debug":  {Type: "bool", Default: "false"},
		"tunnel": {Type: "string"}, // the description ends as if there were a default
		"ports":  {Type: "string", Default: "0-0"},
		"lists":  {Type: "stringSlice", Default: "[]"},
		"rate":   {Type: "float64", Default: "0.5"},
		"wait":   {Type: "duration", Default: "1m0s"},

		"old-key":     {Type: "bool", Default: "true", Deprecated: "use --tunnel", Hidden: true},
		"a-map":       {Type: "map", Hidden: true, Computed: true},
		"hidden-wait": {Type: "duration", Default: "2s", Hidden: true},
		"hidden-most": {Type: "uint32", Default: "4294967295", Deprecated: "use --wait", Hidden: true},
		"hidden-from": {Type: "string", Hidden: true, Computed: true},
		"no-flag":     {Type: "bool", Unregistered: true, Computed: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := Flags(t.TempDir(), Agent); err == nil || !strings.Contains(err.Error(), "reference of commands") {
		t.Errorf("of nothing: %v", err)
	}
	if _, err := Flags(module, Operator); err == nil {
		t.Error("the operator has no code, and there is no error")
	}
}

func TestKeysWithoutFlags(t *testing.T) {
	replaced, err := Replaced(module)
	if err != nil || !cmp.Equal(replaced, map[string]string{"older-key": "tunnel"}) {
		t.Errorf("replaced: %v, %v", replaced, err)
	}
	pods, err := PodKeys(module)
	if err != nil || !cmp.Equal(pods, []string{"of-pods"}) {
		t.Errorf("pods: %v, %v", pods, err)
	}
	// An int is parsed by another function than the one that is known.
	validated, err := Validated(module)
	if err != nil || !cmp.Equal(validated, map[string]bool{"bool": true}) {
		t.Errorf("validated: %v, %v", validated, err)
	}
}

// FuzzHelp: whatever a help says, flags have names that ConfigMaps allow.
func FuzzHelp(f *testing.F) {
	f.Add("      --a-port int   TCP port (default 9879)\n")
	f.Add("  -D, --debug        \xff (default (default \"\"))")
	f.Fuzz(func(t *testing.T, help string) {
		for name := range parseHelp(help) {
			if name == "" || strings.ContainsAny(name, " =\n") {
				t.Errorf("%q", name)
			}
		}
	})
}
