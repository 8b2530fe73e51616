//go:build lab

package images

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestDerivationIsSettled derives each go.mod and go.sum of the catalogue's
// versions from the vendor's once more, with all that Go adds. It needs what
// the packages import, which the builds of images have downloaded.
func TestDerivationIsSettled(t *testing.T) {
	for name, b := range builds(t) {
		t.Run(name, func(t *testing.T) {
			vendor, err := b.vendorGoMod(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			derived, err := b.derive(vendor)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			read := func(file string) []byte {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				return text
			}
			// A checksum that changes is an error of go's.
			committed := goModule{file: b.file}
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(committed.sum())), read(committed.sum()), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := b.settle(t.Context(), dir, derived); err != nil {
				t.Fatal(err)
			}
			for _, file := range []string{committed.file, committed.sum()} {
				if !bytes.Equal(read(filepath.Join(dir, filepath.Base(file))), read(file)) {
					t.Errorf("%s is not what is derived: go test ./images -run Derivation -update writes it anew", file)
				}
			}
		})
	}
}
