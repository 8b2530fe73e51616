package source

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNotes(t *testing.T) {
	notes, err := Notes("../../../qualify/testdata/charts/1.19.0/Documentation/operations")
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"mesh-auth":               "The mesh auth flag `mesh-auth` (Helm `authentication.enabled`) is now disabled by default. Ensure that the flag is configured, with `--mesh-auth=true`.",
		"enable-recorder":         "The previously deprecated recorder and its flags (`--enable-recorder`, `--hubble-recorder-*`) have been removed.",
		"enable-recorder-old":     "", // an example
		"mesh":                    "",
		"bgpControlPlane.enabled": "The Helm option `bgpControlPlane.enabled` makes CRDs of `cilium.io/v2`.",
	} {
		if got := Quote(notes, key); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", key, got, want)
		}
	}
	folder := t.TempDir()
	if _, err := Notes(folder); err == nil {
		t.Error("notes were found where there are none")
	}
	for name, text := range map[string]string{
		"upgrade.rst":         ".. include:: upgrade-current.inc\n",
		"upgrade-current.inc": "|CURRENT_RELEASE| Upgrade Notes\n-----\n\n* The flag ``--old`` is gone.\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if notes, err = Notes(folder); err != nil || Quote(notes, "old") == "" {
		t.Errorf("included notes: %q, %v", notes, err)
	}
}
