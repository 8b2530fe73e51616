package host

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/host/bounding"
	"github.com/relapse-dev/relapse/topology/host/subnet"
)

// host holds the paths of the files that this package reads and changes.
type host struct {
	daemonJSON string // Docker's configuration
	pidFile    string // of dockerd
	shim       string // the OCI runtime runc-caps
	record     string // what Setup changed
	lock       string // held by Setup and Undo
	sysctls    string // the kernel's settings, one file each
	pages      string // its setting for memory in pages of 64 KiB
}

// this is the machine that the program runs on.
var this = host{
	daemonJSON: "/etc/docker/daemon.json",
	pidFile:    "/run/docker.pid",
	shim:       "/usr/local/lib/relapse/runc-caps",
	record:     "/var/lib/relapse/setup.json",
	lock:       "/run/relapse/setup.lock",
	sysctls:    "/proc/sys",
	pages:      "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
}

// observed are the readings of a machine, before they are judged.
type observed struct {
	needs   Needs
	uid     int
	apt     bool
	systemd bool
	dpkg    string
	engine  engine
	trial   trial
	// missing are capabilities that dockerd lacks, if it runs, or else this process: containers inherit them.
	missing       []string
	missingErr    error
	mountinfo     string
	unified       string // cgroup.controllers
	kernel        string
	features      []feature // empty when not root
	inotify       map[string]string
	pages         string
	contained     bool
	memoryGiB     int
	cpus          int
	disks         []disk
	overlaps      []subnet.Overlap
	overlapsErr   error
	shimInstalled bool
}

func (h host) observe(ctx context.Context, needs Needs) observed {
	o := observed{
		needs:     needs,
		uid:       os.Geteuid(),
		apt:       find("apt-get") != "",
		systemd:   exists(systemd), // sd_booted(3)
		mountinfo: read("/proc/self/mountinfo"),
		unified:   read("/sys/fs/cgroup/cgroup.controllers"),
		kernel:    strings.TrimSpace(read("/proc/sys/kernel/osrelease")),
		inotify:   h.limits(),
		pages:     read(h.pages),
		contained: isContained(),
		memoryGiB: MemoryGiB(),
		cpus:      runtime.NumCPU(),
	}
	o.shimInstalled = exists(h.shim)
	from := 0
	if pid, ok := h.dockerd(); ok {
		from, _ = strconv.Atoi(pid)
	}
	o.missing, o.missingErr = bounding.Missing(from)
	if len(needs.Packages) > 0 {
		args := append([]string{"--show", "--showformat", "${Package} ${db:Status-Status}\n"}, needs.Packages...)
		// An exit status other than 0 means that some packages are unknown. Without dpkg all are.
		out, _ := exec.CommandContext(ctx, "dpkg-query", args...).Output()
		o.dpkg = string(out)
	}
	o.engine = observeEngine(ctx)
	if o.uid == 0 {
		o.features = kernelFeatures()
		if o.engine.err == nil {
			o.trial = trial{
				ran:     true,
				err:     tryPrivileged(ctx),
				shimmed: o.engine.runtime == runtimeName && o.shimInstalled,
				runtime: o.engine.runtime,
			}
		}
	}
	root := cmp.Or(o.engine.root, "/var/lib/docker")
	o.disks = []disk{freeDisk("Docker's data", root)}
	if needs.ImageCache != "" {
		o.disks = append(o.disks, freeDisk("the image cache", needs.ImageCache))
	}
	o.overlaps, o.overlapsErr = subnet.Overlaps(ctx, slices.Collect(maps.Keys(needs.Subnets)))
	return o
}

func (o observed) judge() Report {
	packages, _ := judgePackages(o.needs.Packages, o.dpkg, o.apt)
	inotify, _ := judgeInotify(o.inotify)
	pages, _ := judgePages(o.pages, o.contained)
	checks := []Check{
		judgeRoot(o.uid),
		judgeArchitecture(runtime.GOARCH),
		packages,
		judgeEngine(o.engine, o.apt, o.systemd),
		judgeDockerCommand(o.engine, o.apt),
		judgeCapabilities(o.missing, o.missingErr),
	}
	// The other checks need root, and the first check asks for it.
	if o.uid == 0 {
		checks = append(checks, judgePrivileged(o.trial, o.missing))
	}
	checks = append(checks, judgeCgroups(o.mountinfo, o.unified), passed("kernel", o.kernel))
	if o.uid == 0 {
		checks = append(checks, judgeFeatures(o.features))
	}
	checks = append(checks,
		inotify,
		judgeSubnets(o.needs.Subnets, o.overlaps, o.overlapsErr),
		judgeCPUs(o.cpus),
		judgeMemory(o.memoryGiB),
		pages,
	)
	for i, d := range o.disks {
		checks = append(checks, judgeDisk(d, diskCures[min(i, len(diskCures)-1)]))
	}
	return Report{
		Checks: checks,
		Facts:  Facts{Kernel: o.kernel, CPUs: o.cpus, MemoryGiB: o.memoryGiB, Docker: o.engine.version},
	}
}

// diskCures are the cures for full disks, in the order of observed.disks. They name no
// command that removes what is not relapse's, as docker system prune does.
var diskCures = []string{
	"free space on that file system, or move Docker's data (data-root in /etc/docker/daemon.json)",
	"relapse images prune, or put the image cache on another file system",
}

// dockerd returns the process ID of the Docker daemon, and whether it runs.
func (h host) dockerd() (pid string, ok bool) {
	pid = strings.TrimSpace(read(h.pidFile))
	// A killed daemon leaves the file. The process ID may belong to another program
	// by now, or to a zombie, which has no program.
	process := filepath.Join("/proc", pid)
	_, err := os.Readlink(filepath.Join(process, "exe"))
	return pid, pid != "" && err == nil && strings.TrimSpace(read(filepath.Join(process, "comm"))) == "dockerd"
}

// freeDisk measures the file system of path, which need not exist yet.
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

// read returns a file's text, or "" if it cannot be read: an unreadable file is
// judged as a missing one.
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
