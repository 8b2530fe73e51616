package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"
)

// host says where a machine keeps what this package reads and changes.
type host struct {
	daemonJSON string // Docker's configuration
	pidFile    string // of dockerd
	shim       string // the OCI runtime runc-caps
	record     string // what Setup changed
	sysctls    string // the kernel's settings, a file each
}

// this is the machine that the program runs on.
var this = host{
	daemonJSON: "/etc/docker/daemon.json",
	pidFile:    "/run/docker.pid",
	shim:       "/usr/local/lib/relapse/runc-caps",
	record:     "/var/lib/relapse/setup.json",
	sysctls:    "/proc/sys",
}

// observed is what was read from a machine, not yet judged.
type observed struct {
	needs   Needs
	uid     int
	apt     bool
	systemd bool
	dpkg    string
	engine  engine
	trial   trial
	// status is that of dockerd where it runs: containers descend from it.
	status        string
	lastCap       capability.Cap
	mountinfo     string
	unified       string // cgroup.controllers
	kernel        string
	features      []feature // empty when not root
	forwarding    string
	bridgeFilter  string
	inotify       map[string]string
	meminfo       string
	cpus          int
	disks         []disk
	shimInstalled bool
}

func (h host) observe(ctx context.Context, needs Needs) observed {
	o := observed{
		needs:        needs,
		uid:          os.Geteuid(),
		apt:          find("apt-get") != "",
		systemd:      exists("/run/systemd/system"), // sd_booted(3)
		status:       read("/proc/self/status"),
		mountinfo:    read("/proc/self/mountinfo"),
		unified:      read("/sys/fs/cgroup/cgroup.controllers"),
		kernel:       strings.TrimSpace(read("/proc/sys/kernel/osrelease")),
		forwarding:   read("/proc/sys/net/ipv4/ip_forward"),
		bridgeFilter: read("/proc/sys/net/bridge/bridge-nf-call-iptables"),
		inotify:      h.limits(),
		meminfo:      read("/proc/meminfo"),
		cpus:         runtime.NumCPU(),
	}
	o.shimInstalled = exists(h.shim)
	if pid, ok := h.dockerd(); ok {
		o.status = read(filepath.Join("/proc", pid, "status"))
	}
	// Without the file the kernel is older than every one that Docker
	// supports; its capabilities are those that the library knows.
	o.lastCap, _ = capability.LastCap()
	if len(needs.Packages) > 0 {
		o.dpkg = installedPackages(ctx, needs.Packages)
	}
	o.engine = h.lookAtEngine(ctx)
	if o.uid == 0 {
		o.features = kernelFeatures()
		if o.engine.err == nil {
			o.trial = trial{
				ran:     true,
				err:     h.tryPrivileged(ctx),
				shimmed: o.engine.runtime == runtimeName && o.shimInstalled,
			}
		}
	}
	root := o.engine.root
	if root == "" {
		root = "/var/lib/docker"
	}
	o.disks = []disk{freeDisk("Docker's data", root)}
	if needs.ImageCache != "" {
		o.disks = append(o.disks, freeDisk("the image cache", needs.ImageCache))
	}
	return o
}

func (o observed) judge() Report {
	packages, _ := judgePackages(o.needs.Packages, o.dpkg, o.apt)
	capabilities, missing := judgeCapabilities(o.status, o.lastCap)
	memory, gib := judgeMemory(o.meminfo)
	inotify, _ := judgeInotify(o.inotify)
	checks := []Check{
		judgeRoot(o.uid),
		judgeArchitecture(runtime.GOARCH),
		packages,
		judgeEngine(o.engine, o.apt, o.systemd),
		judgeDockerCommand(o.engine, o.apt),
		capabilities,
	}
	// The rest can be found out by root only. Other users are told to become
	// root first, so it is left out for them.
	if o.uid == 0 {
		checks = append(checks, judgePrivileged(o.trial, missing))
	}
	checks = append(checks, judgeCgroups(o.mountinfo, o.unified), passed("kernel", o.kernel))
	if o.uid == 0 {
		checks = append(checks, judgeFeatures(o.features))
	}
	checks = append(checks,
		judgeForwarding(o.forwarding),
		judgeBridgeFilter(o.bridgeFilter),
		inotify,
		judgeCPUs(o.cpus),
		memory,
	)
	for i, d := range o.disks {
		cure := "docker system prune"
		if i > 0 {
			cure = "free some, or put the image cache elsewhere"
		}
		checks = append(checks, judgeDisk(d, cure))
	}
	return Report{
		Checks: checks,
		Facts:  Facts{Kernel: o.kernel, CPUs: o.cpus, MemoryGiB: gib, Docker: o.engine.version},
	}
}

// dockerd returns the process ID of the Docker daemon, where one runs.
func (h host) dockerd() (pid string, ok bool) {
	pid = strings.TrimSpace(read(h.pidFile))
	// The file stays behind when the daemon is killed. By now the process ID
	// may belong to another program, or to a zombie, which has none.
	process := filepath.Join("/proc", pid)
	_, err := os.Readlink(filepath.Join(process, "exe"))
	return pid, pid != "" && err == nil && strings.TrimSpace(read(filepath.Join(process, "comm"))) == "dockerd"
}

// freeDisk measures the file system that would hold path.
func freeDisk(what, path string) disk {
	d := disk{what: what, path: path}
	for dir := path; ; dir = filepath.Dir(dir) {
		var stat unix.Statfs_t
		err := unix.Statfs(dir, &stat)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			continue
		}
		if err != nil {
			d.err = &fs.PathError{Op: "statfs", Path: dir, Err: err}
		}
		d.bytes = stat.Bavail * uint64(stat.Bsize)
		return d
	}
}

// find returns the path of a program, or "". Some shells leave the sbin
// directories out of PATH.
func find(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path
		}
	}
	return ""
}

// read returns a file's text, or "" where it cannot be read: what cannot be
// read is judged as what is not there.
func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
