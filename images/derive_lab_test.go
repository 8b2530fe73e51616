//go:build lab

package images

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// TestDerivationIsSettled derives each go.mod and go.sum of the catalogue's
// versions from the vendor's once more, with all that Go adds. It needs what
// the packages import, which the builds of images have downloaded.
func TestDerivationIsSettled(t *testing.T) {
	for name, b := range builds(t) {
		t.Run(name, func(t *testing.T) {
			derived := must.Get(b.derive(must.Get(b.vendorGoMod(t.Context()))(t)))(t)
			dir := t.TempDir()
			read := func(file string) []byte { return must.Read(t, file) }
			// A checksum that changes is an error of go's.
			committed := goModule{file: b.file}
			must.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(committed.sum())), read(committed.sum()), 0o644))
			must.NoError(t, b.settle(t.Context(), dir, derived))
			for _, file := range []string{committed.file, committed.sum()} {
				if !bytes.Equal(read(filepath.Join(dir, filepath.Base(file))), read(file)) {
					t.Errorf("%s is not what is derived: go test ./images -run Derivation -update writes it anew", file)
				}
			}
		})
	}
}
