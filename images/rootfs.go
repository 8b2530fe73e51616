package images

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// rootfs is a file system tree in the making: folders stacked by overlayfs. Every mount is made in a mount namespace
// of the command that needs it, so that none can be left behind, however the build ends.
type rootfs struct {
	dir    string   // workspace
	lowers []string // lowest first
	made   int      // folders so far
}

func (r *rootfs) newFolder(name string) (string, error) {
	dir := filepath.Join(r.dir, fmt.Sprintf("%s-%d", name, r.made))
	r.made++
	return dir, os.MkdirAll(dir, 0o755)
}

func (r *rootfs) unpack(ctx context.Context, log *buildLog, image imageLayout, layers []v1.Descriptor) error {
	dir, err := r.newFolder("layers")
	if err != nil {
		return err
	}
	for _, layer := range layers {
		blob := image.blob(layer.Digest)
		if err := applyWhiteouts(blob, dir); err != nil {
			return fmt.Errorf("unpacking %s: %w", blob, err)
		}
		cmd := exec.Command("tar", "--extract", "--file="+blob, "--directory="+dir,
			"--numeric-owner", "--preserve-permissions", "--xattrs", "--xattrs-include=security.capability",
			"--exclude="+whiteout+"*")
		if err := log.run(ctx, cmd); err != nil {
			return fmt.Errorf("unpacking %s: %w", blob, err)
		}
	}
	r.lowers = append(r.lowers, dir)
	return nil
}

// applyWhiteouts removes from dir what the layer in blob says is removed, and the
// folders in whose place it has something else: tar does not replace a folder.
func applyWhiteouts(blob, dir string) error {
	f, err := os.Open(blob)
	if err != nil {
		return err
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for layer := tar.NewReader(f); ; {
		header, err := layer.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		folder, base := path.Split(header.Name)
		removed, isWhiteout := strings.CutPrefix(base, whiteout)
		switch {
		case base == opaque:
			err = root.RemoveAll(path.Clean(folder))
		case isWhiteout:
			err = root.RemoveAll(path.Join(folder, removed))
		case header.Typeflag != tar.TypeDir:
			if there, lstatErr := root.Lstat(path.Clean(header.Name)); lstatErr == nil && there.IsDir() {
				err = root.RemoveAll(path.Clean(header.Name))
			}
		}
		if err != nil {
			return err
		}
	}
}

func (r *rootfs) debootstrap(ctx context.Context, log *buildLog, d *Debian) (string, error) {
	dir, err := r.newFolder("debian")
	if err != nil {
		return "", err
	}
	if err := log.run(ctx, inNamespaces(debootstrapCommand(d, dir, aptMirror(ctx, d.Suite))...)); err != nil {
		// When a package's script fails, debootstrap only names its own log, which goes with the tree.
		const own = "debootstrap/debootstrap.log"
		if tail, readErr := log.tail(); readErr == nil && strings.Contains(tail[len(tail)-1], own) {
			cause, _ := os.ReadFile(filepath.Join(dir, own))
			_, _ = log.file.Write(cause)
		}
		return "", err
	}
	// Lists, caches and logs would differ from build to build; documentation
	// is a third of such a tree and not read in a container. Copyright files stay.
	if err := log.run(ctx, inNamespaces("chroot", dir, "sh", "-ec", cleanDebian)); err != nil {
		return "", err
	}
	r.lowers = append(r.lowers, dir)
	return dir, nil
}

// debootstrapCommand fills a folder. Without --force-check-gpg it checks no signature where Debian's keys are lacking.
func debootstrapCommand(d *Debian, dir, mirror string) []string {
	args := []string{"debootstrap", "--force-check-gpg", "--variant=minbase"}
	if len(d.Packages) > 0 {
		args = append(args, "--include="+strings.Join(d.Packages, ","))
	}
	args = append(args, d.Suite, dir)
	if mirror != "" {
		args = append(args, mirror)
	}
	return args
}

// aptMirror returns the archive that this machine's apt takes the suite from, or another suite of Debian's, so that a
// mirror set for the machine serves images too. Without one debootstrap uses its own default.
func aptMirror(ctx context.Context, suite string) string {
	for _, filter := range []string{"Codename: " + suite, "Label: Debian"} {
		out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)",
			"Created-By: Packages", "Component: main", filter).Output()
		if first, _, _ := strings.Cut(string(out), "\n"); err == nil && first != "" {
			return first
		}
	}
	return "" // not a Debian machine
}

// trimDocumentation removes a Debian tree's documentation, but for the copyright files and
// the links that stand for a package's folder: licenses ask that they go with the programs.
const trimDocumentation = `
if [ -d usr/share/doc ]; then
	find usr/share/doc -mindepth 1 -maxdepth 1 -type f -delete
	find usr/share/doc -mindepth 2 ! -type d ! -name copyright -delete
	find usr/share/doc -mindepth 1 -type d -empty -delete
fi
`

// cleanDebian is carried out in the root of the tree.
const cleanDebian = `
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/log/*
rm -rf /var/cache/debconf/*-old /var/lib/dpkg/*-old
rm -rf /usr/share/man/* /usr/share/locale/* /usr/share/info/*
rm -f /etc/resolv.conf /etc/hostname /usr/sbin/policy-rc.d
if [ -e /etc/machine-id ]; then : >/etc/machine-id; fi
cd /
` + trimDocumentation

// installPackages is the script that adds packages to a Debian tree. No service is started: policy-rc.d forbids it.
func installPackages(d *Debian) string {
	updates := ""
	if d.Updates {
		updates = securityUpdates
	}
	return `
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
` + updates + `apt-get -q -y --no-install-recommends install ` + strings.Join(d.Packages, " ") + "\n" + cleanDebian
}

// securityUpdates is the part of such a script that takes them, from beside the suite's own archive.
const securityUpdates = `
sed -n 's,^deb \(.*\)/debian/\? \([a-z]*\) main.*,deb \1/debian-security \2-security main,p' /etc/apt/sources.list >/etc/apt/sources.list.d/security.list
grep . /etc/apt/sources.list.d/security.list
apt-get -q update
apt-get -q -y upgrade
`

const selected = "selected"

// selectPackages is the script that copies packages and what they depend on into a folder of their
// own: their files, users, and the links of Debian's alternatives that lead to them. libc's 258
// converters of character sets are left out: nothing in a lab reads them.
func selectPackages(packages []string) string {
	return `
packages=$(apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
	` + strings.Join(packages, " ") + ` | sed -n 's/^\([a-z0-9][^:]*\).*$/\1/p' | sort -u)
cd /
# Before Debian merged /usr, packages had files in /bin and /lib.
dpkg-query --listfiles base-files base-passwd $packages | sed -n 's,^/\(bin\|sbin\|lib[^/]*\)/,/usr/\1/,; \,/gconv/,!s,^/,,p' >selected.list
find usr/bin usr/sbin -type l -lname '/etc/alternatives/*' | while read -r link; do
	if grep -qx "$(readlink -f "$link" | cut -c 2-)" selected.list; then
		printf '%s\n' "$link" "$(readlink "$link" | cut -c 2-)" >>selected.list
	fi
done
ls -d etc/passwd etc/group etc/ld.so.cache bin sbin lib* usr/local usr/local/* var/run >>selected.list
mkdir ` + selected + `
# Documentation is listed and no longer there.
sort -u selected.list | while read -r file; do
	if [ -e "$file" ] || [ -L "$file" ]; then printf '%s\n' "$file"; fi
done | tar --create --no-recursion --files-from=- | tar --extract --directory=` + selected + `
`
}

func (r *rootfs) script(ctx context.Context, log *buildLog, script string) (string, error) {
	upper, err := r.newFolder("changes")
	work, workErr := r.newFolder("work")
	root, rootErr := r.newFolder("root")
	if err := errors.Join(err, workErr, rootErr); err != nil {
		return "", err
	}
	lowers := slices.Clone(r.lowers)
	slices.Reverse(lowers) // overlayfs wants the highest first
	// index, metacopy and redirect_dir are off so that the upper folder holds plain files and whiteouts only.
	const mount = `
mount -t overlay -o "index=off,metacopy=off,redirect_dir=off,lowerdir=$1,upperdir=$2,workdir=$3" overlay "$4"
mount -t proc proc "$4/proc"
mount -t sysfs -o ro sysfs "$4/sys"
mount --rbind /dev "$4/dev"
if [ -e /etc/resolv.conf ] && [ -d "$4/etc" ]; then
	mount -t tmpfs tmpfs "$4/run"
	cat /etc/resolv.conf >"$4/run/resolv.conf"
	ln -sf /run/resolv.conf "$4/etc/resolv.conf"
fi
# A folder of the machine, which is not in there.
unset TMPDIR
status=0
chroot "$4" sh -ec "$5" || status=$?
rm -f "$4/etc/resolv.conf"
exit $status
`
	cmd := inNamespaces("sh", "-ec", mount, "sh", strings.Join(lowers, ":"), upper, work, root, script)
	if err := log.run(ctx, cmd); err != nil {
		return "", err
	}
	r.lowers = append(r.lowers, upper)
	return upper, nil
}

// inNamespaces is a command in mount and PID namespaces of its own: its mounts and its children end with it.
func inNamespaces(args ...string) *exec.Cmd {
	cmd := exec.Command("unshare", append([]string{"--mount", "--pid", "--fork", "--kill-child", "--"}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	return cmd
}
