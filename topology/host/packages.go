package host

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
)

const (
	// With --no-remove apt-get fails instead of removing a package of the machine's owner.
	aptInstall = "apt-get install --yes --no-install-recommends --no-remove"
	// dockerPackage is Debian's own Docker. It depends on runc, containerd
	// and iptables, and up to Debian 12 holds the docker command too.
	dockerPackage = "docker.io"
	// dockerCommandPackage holds the docker command from Debian 13 on, where dockerPackage
	// only recommends it. Debian 12 has no such package.
	dockerCommandPackage = "docker-cli"
)

// offered is whether apt's lists have a package. A new machine has no lists, and then it is not.
func offered(ctx context.Context, name string) bool {
	// A package that others only provide is not there to be shown.
	out, err := exec.CommandContext(ctx, "apt-cache", "show", "--no-all-versions", name).Output()
	return err == nil && strings.HasPrefix(string(out), "Package: "+name+"\n")
}

// installPackages installs Debian packages. It updates the package lists only if the installation
// fails: a new machine has no lists, or they name versions that are no longer published.
func installPackages(ctx context.Context, names []string, announce func(string)) error {
	// unattended-upgrades holds the lock for minutes on a machine that just booted.
	apt := []string{find("apt-get"), "-o", "DPkg::Lock::Timeout=180"}
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	install := slices.Concat(apt, strings.Fields(aptInstall)[1:], names)

	first := run(ctx, "", env, install...)
	if first == nil || ctx.Err() != nil {
		return first
	}
	announce("updating apt's package lists, because they are missing or outdated: apt-get update")
	if err := run(ctx, "", env, append(apt, "update")...); err != nil {
		return errors.Join(first, err)
	}
	return run(ctx, "", env, install...)
}
