package images

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "derive the go.mod and go.sum of the catalogue's versions anew")

// builds returns how the catalogue's versions of this tree's components are
// built, by component and version.
func builds(t *testing.T) map[string]*versionBuild {
	t.Helper()
	all := map[string]*versionBuild{}
	folders, err := filepath.Glob("*/" + componentFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range folders {
		folder, err := filepath.Abs(filepath.Dir(file))
		if err != nil {
			t.Fatal(err)
		}
		c, err := readComponent(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, version := range c.catalogued() {
			if all[filepath.Base(folder)+"/"+version], err = c.build(version); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

// TestDerivation compares each go.mod of the catalogue's versions with what is
// derived from the vendor's, which comes from Go's module cache or its proxy.
// That Go adds nothing else to it is tested where images are built.
func TestDerivation(t *testing.T) {
	for name, b := range builds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vendor, err := b.vendorGoMod(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			derived, err := b.derive(vendor)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := b.settle(t.Context(), filepath.Dir(b.file), derived); err != nil {
					t.Fatal(err)
				}
			}
			committed, err := os.ReadFile(b.file)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.compare(derived, committed); err != nil {
				t.Error(err)
			}
		})
	}
}
