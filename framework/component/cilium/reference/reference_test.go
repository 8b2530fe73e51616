package reference

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestHelp(t *testing.T) {
	got := parseHelp(`
Some text --not-a-flag in a line.
      --a-port int          TCP port (default 9879)
      --a-switch            Enable it
      --a-switch-on         Enable it (default true)
  -D, --debug               Enable debugging mode
      --empty string        Nothing by default
      --words strings       With (parentheses) within (default [a,b])
      --quoted string       A key (default "node.cilium.io/x")
      --computed string     Mode (default "vxlan" for the "veth" mode)
      --config string       Where the configuration is
`)
	want := map[string]configdrift.Option{
		"a-port": {Type: "int", Default: "9879"}, "a-switch": {Type: "bool", Default: "false"}, "a-switch-on": {Type: "bool", Default: "true"},
		"debug": {Type: "bool", Default: "false"}, "empty": {Type: "string"}, "words": {Type: "stringSlice", Default: "[a,b]"},
		"quoted": {Type: "string", Default: "node.cilium.io/x"}, "computed": {Type: "string"},
	}
	must.Equal(t, "", want, got)
}

func TestNotes(t *testing.T) {
	notes, err := Notes("../../../qualify/testdata/charts/1.19.0/Documentation/operations")
	must.NoError(t, err)
	for key, want := range map[string]string{
		"mesh-auth":               "The mesh auth flag `mesh-auth` (Helm `authentication.enabled`) is now disabled by default. Ensure that the flag is configured, with `--mesh-auth=true`.",
		"enable-recorder":         "The previously deprecated recorder and its flags (`--enable-recorder`, `--hubble-recorder-*`) have been removed.",
		"enable-recorder-old":     "", // an example
		"mesh":                    "",
		"bgpControlPlane.enabled": "The Helm option `bgpControlPlane.enabled` makes CRDs of `cilium.io/v2`.",
	} {
		must.Equal(t, key, want, Quote(notes, key))
	}
	folder := t.TempDir()
	must.Fail(t, must.Err(Notes(folder)))
	for name, text := range map[string]string{
		"upgrade.rst":         ".. include:: upgrade-current.inc\n",
		"upgrade-current.inc": "|CURRENT_RELEASE| Upgrade Notes\n-----\n\n* The flag ``--old`` is gone.\n",
	} {
		must.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	if notes, err = Notes(folder); err != nil || Quote(notes, "old") == "" {
		t.Errorf("included notes: %q, %v", notes, err)
	}
}

// A note is about the keys with which a sentence begins, and about no key that it only names.
func TestAboutKeys(t *testing.T) {
	got := aboutKeys(parseNotes(`
* The default value of ` + "``--ttl``" + ` has changed, i.e. it is zero. To keep it,
  set ` + "``--ttl``" + `. To have more, set ` + "``--other``" + `.
* Nobody knows in which of the many other places of this world ` + "``--far``" + ` is used.

Removed Options
~~~~~~~~~~~~~~~
* The flags ` + "``--a``" + ` (` + "``a.enabled``" + ` in Helm), ` + "``--b``" + ` and ` + "``--c``" + ` of ` + "``--d``" + ` are gone.

New Options
~~~~~~~~~~~
* ` + "``new``" + `: it is new.
`))
	want := []configdrift.Note{
		{Keys: []string{"ttl"}, Says: "The default value of `--ttl` has changed, i.e. it is zero. To keep it, set `--ttl`."},
		{Keys: []string{"a", "b", "c"}, Says: "Removed Options: The flags `--a` (`a.enabled` in Helm), `--b` and `--c` of `--d` are gone."},
	}
	must.Equal(t, "", want, got)
}
