//go:build lab

package images

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// TestScriptLayer runs a script over the real Debian base, needs root, and checks that its changes,
// removals included, come out as a layer that has the same effect when it is unpacked.
func TestScriptLayer(t *testing.T) {
	c := must.Get(Open(".."))(t)
	base := builtEntry(t, c, "relapse.dev/debian:bookworm")
	workspace, remove, err := c.cache.workspace(t.Context())
	must.NoError(t, err)
	defer remove()
	log := must.Get(c.cache.newLog("test"))(t)
	root := rootfs{dir: workspace}
	must.NoError(t, root.unpack(t.Context(), log, base.imageLayout, base.manifest.Layers))
	t.Setenv("TMPDIR", t.TempDir()) // of whoever builds
	changes, err := root.script(t.Context(), log, `
test -d "${TMPDIR:-/tmp}"
rm /etc/debian_version
rm -r /etc/skel && mkdir /etc/skel
rm -r /etc/default && ln -s skel /etc/default
echo new >/etc/new && ln /etc/new /etc/new2
test "$(id -u)" = 0 && test -r /proc/self/status
`)
	if err != nil {
		t.Fatal(log.close(t.Context(), "test", err))
	}
	image := must.Get(newLayout(filepath.Join(workspace, "layout")))(t)
	must.NoError(t, image.link(base.imageLayout, base.manifest.Layers))
	layer := must.Get(image.layer(func(w *layerWriter) error { return w.writeTree(changes) }))(t)
	f := must.Get(os.Open(image.blob(layer.Digest)))(t)
	want := []string{
		"etc/ drwxr-xr-x", "etc/.wh.debian_version ----------", "etc/default -> skel", "etc/new -rw-r--r--", "etc/new2 -rw-r--r--",
		"etc/skel/ drwxr-xr-x", "etc/skel/.wh..wh..opq ----------",
	}
	must.Equal(t, "the layer holds", want, listing(t, f))
	again := rootfs{dir: t.TempDir()}
	must.NoError(t, again.unpack(t.Context(), log, image, append(base.manifest.Layers, layer)))
	must.Equal(t, "the link in place of a folder leads to", "skel", must.Get(os.Readlink(again.lowers[0]+"/etc/default"))(t))
	for path, there := range map[string]bool{"/etc/debian_version": false, "/etc/skel/.bashrc": false, "/etc/new2": true, "/etc/passwd": true} {
		must.Equal(t, path, there, must.Err(os.Lstat(again.lowers[0]+path)) == nil)
	}
}

// TestSlim starts the programs of a slim image in its tree: all that they need is
// there, their libraries and Debian's links to them too, and no shell is.
func TestSlim(t *testing.T) {
	c := must.Get(Open(".."))(t)
	const ref = "relapse.dev/iptables:bookworm"
	slim := builtEntry(t, c, ref)
	log := must.Get(c.cache.newLog("test"))(t)
	root := rootfs{dir: t.TempDir()}
	if err := root.unpack(t.Context(), log, slim.imageLayout, slim.manifest.Layers); err != nil {
		t.Fatal(log.close(t.Context(), "test", err))
	}
	tree := root.lowers[0]
	for _, command := range []string{
		"conntrack --version", "cut --version", "ipset --version", "iptables --version", "iptables-restore --version",
		"ip6tables-save --version", "iptables -m comment --help", "modprobe --version", "nft --version", "uname -r",
	} {
		if out, err := inNamespaces(append([]string{"chroot", tree}, strings.Fields(command)...)...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", command, err, out)
		}
	}
	for _, left := range []string{"bin/sh", "usr/bin/perl", "usr/bin/dpkg", "var/lib/dpkg/status"} {
		must.Fail(t, must.Err(os.Lstat(filepath.Join(tree, left)))) // the packages and what they depend on alone
	}
}

// TestDerivationIsSettled derives each go.mod and go.sum of the catalogue's versions from the vendor's once more,
// with all that Go adds. It needs what the packages import, which the builds of images have downloaded.
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
