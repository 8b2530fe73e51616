package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/relapse-dev/relapse/topology/host/subnet"
)

// Minimum resources of a machine.
const (
	// kubeadm refuses a control plane with less (NumCPU in its preflight).
	minCPUs = 2
	// For four nodes, and for the Go builds of their images; less was not tried.
	minMemoryGiB = 4
	// For one scenario's images in Docker and in the cache, with their builds.
	minFreeDisk = 5_000_000_000 // bytes
)

// essential are the capabilities that debootstrap, systemd in the nodes and the network tools need.
// Any other missing one can be left out of a container's request.
var essential = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETPCAP",
	"CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
}

func passed(name, found string) Check { return Check{Name: name, State: OK, Found: found} }

// demand is a check of a property that only the machine's owner can change.
func demand(met bool, name, found, want, cure string) Check {
	if met {
		return passed(name, found)
	}
	return Check{Name: name, State: Fatal, Found: found, Want: want, Cure: cure}
}

func judgeRoot(uid int) Check {
	return demand(uid == 0, "root", fmt.Sprintf("uid %d", uid), "relapse must run as root", "run it with sudo")
}

func judgeArchitecture(arch string) Check {
	return demand(arch == "amd64", "architecture", arch, "the images are built for amd64", "use an amd64 machine")
}

// judgePackages compares the wanted packages with the output of dpkg-query
// in the format "${Package} ${db:Status-Status}\n".
func judgePackages(wanted []string, dpkg string, apt bool) (c Check, missing []string) {
	var installed []string
	for line := range strings.Lines(dpkg) {
		if name, ok := strings.CutSuffix(strings.TrimSpace(line), " installed"); ok {
			installed = append(installed, name)
		}
	}
	for _, name := range wanted {
		if !slices.Contains(installed, name) {
			missing = append(missing, name)
		}
	}
	c = passed("Debian packages", "all of: "+strings.Join(wanted, " "))
	switch {
	case len(wanted) == 0:
		c.Found = "none needed"
	case len(missing) == 0:
	case apt:
		c.State, c.Found, c.Want = Curable, "missing: "+strings.Join(missing, " "), "packages must be installed"
		c.Cure = aptInstall + " " + strings.Join(missing, " ")
	default:
		c.State, c.Found, c.Want = Fatal, "no apt-get", "relapse builds its images from Debian packages"
		c.Cure = "use Debian or Ubuntu, or install " + strings.Join(missing, " ") + " there"
	}
	return c, missing
}

type engine struct {
	address   string // of its API
	err       error  // why it does not answer; nil if it does
	version   string
	root      string // where it keeps its data
	runtime   string // its default OCI runtime
	rootless  bool   // it runs without root
	installed bool   // there is a dockerd program
	command   bool   // there is a docker command, which kind runs
	split     bool   // apt offers the docker command as a package of its own
}

// packages are the Debian packages that bring Docker's missing programs.
func (e engine) packages() (names []string) {
	if !e.installed && (e.err != nil || !e.command && !e.split) {
		names = append(names, dockerPackage)
	}
	// If dockerd is installed without the docker command, another package has the command, even if apt's
	// lists do not say so.
	if !e.command && (e.split || e.installed) {
		names = append(names, dockerCommandPackage)
	}
	return names
}

func judgeEngine(e engine, apt, systemd bool) Check {
	const name = "Docker engine"
	address, err := url.Parse(e.address)
	at := e.version + " at " + e.address
	switch {
	case err != nil || address.Scheme != "unix":
		return demand(false, name, "DOCKER_HOST="+e.address,
			"Docker must run on this machine, where the network namespaces of its containers can be entered", "unset DOCKER_HOST")
	case e.err == nil && e.rootless:
		return demand(false, name, "rootless "+at, "Docker must run as root: labs need its containers' network namespaces",
			"unset DOCKER_HOST, and start the engine of root (systemctl start docker)")
	case e.err == nil && strings.HasPrefix(e.root, "/var/snap/"):
		return demand(false, name, "snap's "+at, "Docker must not be confined: labs mount the image cache and /run/relapse into containers",
			"install Debian's or Docker's own package in place of the snap")
	case e.err == nil:
		return passed(name, at)
	}
	c := Check{Name: name, State: Curable, Found: e.err.Error(), Want: "Docker must answer at " + e.address}
	// The error of Docker's client begins with the operation, which Want names.
	if dial, ok := errors.AsType[*net.OpError](e.err); ok {
		c.Found = dial.Err.Error()
	}
	switch {
	case errors.Is(e.err, fs.ErrPermission):
		c.State, c.Cure = Fatal, "run it with sudo"
	case address.Path != defaultSocket:
		c.State, c.Cure = Fatal, "unset DOCKER_HOST, or start the engine at that address"
	case e.installed && systemd:
		c.Cure = "systemctl start docker"
	case e.installed:
		c.Cure = "dockerd"
	case apt:
		c.Found = "no Docker is installed"
		c.Cure = aptInstall + " " + strings.Join(e.packages(), " ")
	default:
		c.State, c.Found, c.Cure = Fatal, "no Docker is installed", "install Docker"
	}
	return c
}

func judgeDockerCommand(e engine, apt bool) Check {
	const name = "docker command"
	switch {
	case e.command:
		return passed(name, "found")
	case apt:
		return Check{Name: name, State: Curable, Found: "none", Want: "kind needs it", Cure: aptInstall + " " + strings.Join(e.packages(), " ")}
	}
	return demand(false, name, "none", "kind needs the docker command", "install Docker's command line client")
}

// judgeCapabilities checks the bounding set of the process from which containers inherit it.
func judgeCapabilities(missing []string, err error) Check {
	if err != nil {
		return demand(false, "capabilities", err.Error(), "the capability bounding set must be readable", "mount /proc")
	}
	found := "all granted"
	if len(missing) > 0 {
		found = "all granted but " + strings.Join(missing, " ")
	}
	needed := slices.DeleteFunc(slices.Clone(missing), func(name string) bool { return !slices.Contains(essential, name) })
	if len(needed) > 0 {
		found = "not granted: " + strings.Join(needed, " ")
	}
	return demand(len(needed) == 0, "capabilities", found, "root must hold the capabilities that a lab needs",
		"run relapse outside this container, or in a privileged one")
}

type trial struct {
	ran     bool   // there was an engine to try
	err     error  // nil on success
	shimmed bool   // the shim was installed and Docker's default runtime
	runtime string // Docker's default OCI runtime
}

// foreignRuntime reports whether a default OCI runtime was chosen by the machine's owner.
func foreignRuntime(name string) bool {
	return !slices.Contains([]string{"", "runc", "io.containerd.runc.v2", runtimeName}, name)
}

// runtimeCure is the cure for a default OCI runtime that relapse does not replace.
const runtimeCure = `set "default-runtime" to "runc" in %s, reload dockerd, and repeat; ` +
	`containers that need the other runtime can name it (docker run --runtime)`

func judgePrivileged(t trial, missing []string) Check {
	const want = "Docker must be able to run a privileged container"
	switch {
	case !t.ran:
		return Check{
			Name: "privileged container", State: Curable, Found: "not tried: no Docker engine answers",
			Want: want, Cure: "start Docker first",
		}
	case t.err == nil && t.shimmed:
		return passed("privileged container", "ran with the OCI runtime "+runtimeName)
	case t.err == nil:
		return passed("privileged container", "ran")
	}
	c := Check{Name: "privileged container", State: Fatal, Found: t.err.Error(), Want: want}
	if len(missing) > 0 && foreignRuntime(t.runtime) {
		c.Want = fmt.Sprintf("Docker's default OCI runtime must be runc, because this machine does not grant %s; relapse does not replace %q",
			strings.Join(missing, " "), t.runtime)
		c.Cure = fmt.Sprintf(runtimeCure, this.daemonJSON)
	} else if len(missing) > 0 && !t.shimmed {
		c.State = Curable
		c.Cure = fmt.Sprintf("relapse setup (registers the OCI runtime %s, which does not ask for %s)",
			runtimeName, strings.Join(missing, " "))
	} else {
		c.Cure = "see Docker's log (journalctl -u docker, or " + dockerLog + ")"
	}
	return c
}

// Controllers that kubelet (pkg/kubelet/cm, validateSystemRequirements) and runc require.
var (
	controllersV1 = []string{"cpu", "cpuacct", "cpuset", "devices", "memory", "pids"}
	controllersV2 = []string{"cpu", "cpuset", "memory", "pids"}
)

// judgeCgroups reads the cgroup version from the text of /proc/self/mountinfo.
// unified is the text of cgroup.controllers in the root of the v2 hierarchy.
func judgeCgroups(mountinfo, unified string) Check {
	var v1, v2 bool
	var controllers []string
	for line := range strings.Lines(mountinfo) {
		// proc_pid_mountinfo(5): after " - " come type, source and options.
		_, tail, _ := strings.Cut(line, " - ")
		fields := strings.Fields(tail)
		if len(fields) < 3 {
			continue
		}
		switch fields[0] {
		case "cgroup":
			v1 = true
			controllers = append(controllers, strings.Split(fields[2], ",")...)
		case "cgroup2":
			v2 = true
		}
	}
	wanted := controllersV1
	c := passed("cgroups", "v1")
	switch {
	case v1 && v2:
		c.Found = "hybrid: v1 controllers, v2 without controllers"
	case v2:
		c.Found = "v2"
		wanted, controllers = controllersV2, strings.Fields(unified)
	case !v1:
		return demand(false, "cgroups", "none mounted", "cgroups must be mounted", aptInstall+" cgroupfs-mount")
	}
	missing := slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return slices.Contains(controllers, name) })
	if len(missing) == 0 {
		return c
	}
	return demand(false, "cgroups", c.Found+", without "+strings.Join(missing, " "),
		"Kubernetes needs the cgroup controllers "+strings.Join(wanted, " "),
		"boot the kernel with cgroup_enable="+strings.Join(missing, " cgroup_enable="))
}

type feature struct {
	name string
	err  error // why it is missing; nil if it is there
}

func judgeFeatures(features []feature) Check {
	var have, lack []string
	for _, f := range features {
		if f.err == nil {
			have = append(have, f.name)
		} else {
			lack = append(lack, fmt.Sprintf("%s (%v)", f.name, f.err))
		}
	}
	if len(lack) == 0 {
		return passed("kernel features", strings.Join(have, ", "))
	}
	return demand(false, "kernel features", "missing: "+strings.Join(lack, ", "),
		"the kernel must have the features that a lab's networks use", "boot a distribution's standard kernel with its modules installed")
}

func sysctl(value string) string {
	if value = strings.TrimSpace(value); value == "" {
		return "not readable"
	}
	return value
}

// judgeSubnets checks that no route overlaps the subnets. Routes of labs do not count:
// a lab that must end before another one begins is no fault of the machine.
func judgeSubnets(subnets map[netip.Prefix]string, overlaps []subnet.Overlap, err error) Check {
	const name, want = "lab subnets", "no route of this machine may overlap a lab's networks"
	var conflicts []string
	for _, o := range overlaps {
		if !o.Lab() {
			conflicts = append(conflicts, fmt.Sprintf("%s (%s): %s is routed to %s", o.Subnet, subnets[o.Subnet], o.Route, o.By()))
		}
	}
	slices.Sort(conflicts)
	switch {
	case err != nil:
		return demand(false, name, err.Error(), want, "run it with sudo")
	case len(conflicts) > 0:
		return demand(false, name, strings.Join(conflicts, "; "), want,
			"disconnect the VPN or remove the network that the route belongs to, or move the labs' networks: --subnets PREFIX")
	}
	return passed(name, "free")
}

func judgeCPUs(n int) Check {
	return demand(n >= minCPUs, "CPUs", strconv.Itoa(n), fmt.Sprintf("a lab needs %d CPUs", minCPUs), "use a larger machine")
}

func judgeMemory(gib int) Check {
	return demand(gib >= minMemoryGiB, "memory", fmt.Sprintf("%d GiB", gib), fmt.Sprintf("a lab needs %d GiB of memory", minMemoryGiB),
		"use a larger machine")
}

type disk struct {
	what  string // what the directory holds
	path  string
	bytes uint64 // free for root
	err   error
}

func judgeDisk(d disk, cure string) Check {
	found := fmt.Sprintf("%.1f GB free at %s", float64(d.bytes)/1e9, d.path)
	if d.err != nil {
		found = d.err.Error()
	}
	return demand(d.err == nil && d.bytes >= minFreeDisk, "disk for "+d.what, found,
		fmt.Sprintf("%s needs %d GB of free disk", d.what, minFreeDisk/1_000_000_000), cure)
}
