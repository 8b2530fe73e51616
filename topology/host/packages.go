package host

import (
	"context"
	"errors"
	"os/exec"
)

const (
	aptInstall = "apt-get install --yes --no-install-recommends"
	// dockerPackage is Debian's own Docker. It depends on runc, containerd
	// and iptables, and up to Debian 12 holds the docker command too.
	dockerPackage        = "docker.io"
	dockerCommandPackage = "docker-cli" // from Debian 13 on
)

// installedPackages asks dpkg for the state of packages, in the form that
// judgePackages reads.
func installedPackages(ctx context.Context, names []string) string {
	args := append([]string{"--show", "--showformat", "${Package} ${db:Status-Status}\n"}, names...)
	// A status other than 0 only says that some are unknown; without dpkg
	// none is known.
	out, _ := exec.CommandContext(ctx, "dpkg-query", args...).Output()
	return string(out)
}

// installPackages installs Debian packages. It fetches the package lists
// only where apt cannot do without: on a fresh machine there are none, or
// they name versions that are gone.
func installPackages(ctx context.Context, names []string, announce func(string)) error {
	// Other installations (unattended-upgrades on a machine just booted)
	// hold the lock for a minute or two.
	apt := []string{find("apt-get"), "-o", "DPkg::Lock::Timeout=180"}
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	install := append(apt, "install", "--yes", "--no-install-recommends")
	install = append(install, names...)

	first := run(ctx, "", env, install...)
	if first == nil || ctx.Err() != nil {
		return first
	}
	announce("refreshing apt's package lists, because they do not serve: apt-get update")
	if err := run(ctx, "", env, append(apt, "update")...); err != nil {
		return errors.Join(first, err)
	}
	return run(ctx, "", env, install...)
}
