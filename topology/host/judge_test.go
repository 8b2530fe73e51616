package host

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/relapse-dev/relapse/topology/host/subnet"
	"github.com/relapse-dev/relapse/topology/must"
)

// verdict is the part of a check that the tests compare.
type verdict struct {
	state       State
	found, cure string
}

func (v verdict) compare(t *testing.T, got Check) {
	t.Helper()
	must.Equal(t, "check", v, verdict{got.State, got.Found, got.Cure})
	if got.Name == "" || (got.State != OK && got.Want == "") {
		t.Errorf("check without a name or without what is wanted: %+v", got)
	}
}

func TestJudgePackages(t *testing.T) {
	const dpkg = "debootstrap installed\nqemu-system-x86 config-files\n"
	for name, test := range map[string]struct {
		wanted  []string
		dpkg    string
		apt     bool
		want    verdict
		missing []string
	}{
		"none wanted": {want: verdict{OK, "none needed", ""}},
		"installed":   {wanted: []string{"debootstrap"}, dpkg: dpkg, apt: true, want: verdict{OK, "all of: debootstrap", ""}},
		"removed, its configuration left": {wanted: []string{"debootstrap", "qemu-system-x86"}, dpkg: dpkg, apt: true,
			want:    verdict{Curable, "missing: qemu-system-x86", "apt-get install --yes --no-install-recommends --no-remove qemu-system-x86"},
			missing: []string{"qemu-system-x86"}},
		"another distribution": {wanted: []string{"debootstrap"},
			want:    verdict{Fatal, "no apt-get", "use Debian or Ubuntu, or install debootstrap there"},
			missing: []string{"debootstrap"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, missing := judgePackages(test.wanted, test.dpkg, test.apt)
			test.want.compare(t, got)
			must.Equal(t, "missing", test.missing, missing)
		})
	}
}

// dialError is the error of Docker's client that cannot connect.
func dialError(errno syscall.Errno) error {
	return errors.Join(errors.New("docker"), &net.OpError{Op: "dial", Net: "unix", Err: &os.SyscallError{Syscall: "connect", Err: errno}})
}

func TestJudgeEngine(t *testing.T) {
	const socket = "unix:///var/run/docker.sock"
	const noFile = "connect: no such file or directory"
	for name, test := range map[string]struct {
		engine  engine
		apt     bool
		systemd bool
		want    verdict
	}{
		"answers": {engine: engine{address: socket, version: "20.10.24+dfsg1"},
			want: verdict{OK, "20.10.24+dfsg1 at unix:///var/run/docker.sock", ""}},
		"a snap": {engine: engine{address: socket, version: "28.4.0", root: "/var/snap/docker/common/var-lib-docker"},
			want: verdict{Fatal, "snap's 28.4.0 at unix:///var/run/docker.sock", "install Debian's or Docker's own package in place of the snap"}},
		"rootless": {engine: engine{address: "unix:///run/user/1000/docker.sock", version: "28.5.2", rootless: true},
			want: verdict{Fatal, "rootless 28.5.2 at unix:///run/user/1000/docker.sock",
				"unset DOCKER_HOST, and start the engine of root (systemctl start docker)"}},
		"not started": {engine: engine{address: socket, err: dialError(syscall.ENOENT), installed: true}, apt: true,
			want: verdict{Curable, noFile, "dockerd"}},
		"not started under systemd": {engine: engine{address: socket, err: dialError(syscall.ENOENT), installed: true}, systemd: true,
			want: verdict{Curable, noFile, "systemctl start docker"}},
		"not installed": {engine: engine{address: socket, err: dialError(syscall.ENOENT)}, apt: true,
			want: verdict{Curable, "no Docker is installed", "apt-get install --yes --no-install-recommends --no-remove docker.io"}},
		"not installed, the command a package of its own": {engine: engine{address: socket, err: dialError(syscall.ENOENT), split: true}, apt: true,
			want: verdict{Curable, "no Docker is installed", "apt-get install --yes --no-install-recommends --no-remove docker.io docker-cli"}},
		"not installed, no apt": {engine: engine{address: socket, err: dialError(syscall.ENOENT)},
			want: verdict{Fatal, "no Docker is installed", "install Docker"}},
		"not allowed": {engine: engine{address: socket, err: dialError(syscall.EACCES), installed: true}, apt: true,
			want: verdict{Fatal, "connect: permission denied", "run it with sudo"}},
		"another socket": {apt: true, want: verdict{Fatal, noFile, "unset DOCKER_HOST, or start the engine at that address"},
			engine: engine{address: "unix:///home/u/.docker/run/docker.sock", err: dialError(syscall.ENOENT), installed: true}},
		"another machine": {engine: engine{address: "tcp://build.example.net:2376", version: "28.5.2"},
			want: verdict{Fatal, "DOCKER_HOST=tcp://build.example.net:2376", "unset DOCKER_HOST"}},
	} {
		t.Run(name, func(t *testing.T) { test.want.compare(t, judgeEngine(test.engine, test.apt, test.systemd)) })
	}
}

func TestJudgeDockerCommand(t *testing.T) {
	for name, test := range map[string]struct {
		engine engine
		apt    bool
		want   verdict
	}{
		"there":               {engine: engine{command: true}, want: verdict{OK, "found", ""}},
		"comes with Docker":   {engine: engine{err: fs.ErrNotExist}, apt: true, want: verdict{Curable, "none", aptInstall + " docker.io"}},
		"comes beside Docker": {engine: engine{err: fs.ErrNotExist, split: true}, apt: true, want: verdict{Curable, "none", aptInstall + " docker.io docker-cli"}},
		"split off":           {engine: engine{installed: true}, apt: true, want: verdict{Curable, "none", aptInstall + " docker-cli"}},
		"no apt to get it by": {engine: engine{installed: true}, want: verdict{Fatal, "none", "install Docker's command line client"}},
	} {
		t.Run(name, func(t *testing.T) { test.want.compare(t, judgeDockerCommand(test.engine, test.apt)) })
	}
}

func TestJudgeCapabilities(t *testing.T) {
	const leave = "run relapse outside this container, or in a privileged one"
	for name, test := range map[string]struct {
		missing []string
		err     error
		want    verdict
	}{
		"all":                          {want: verdict{OK, "all granted", ""}},
		"one that can be done without": {missing: []string{"CAP_SYS_RESOURCE"}, want: verdict{OK, "all granted but CAP_SYS_RESOURCE", ""}},
		"unprivileged container": {missing: []string{"CAP_DAC_READ_SEARCH", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN"},
			want: verdict{Fatal, "not granted: CAP_NET_ADMIN CAP_SYS_PTRACE CAP_SYS_ADMIN", leave}},
		"no /proc": {err: fs.ErrNotExist, want: verdict{Fatal, fs.ErrNotExist.Error(), "mount /proc"}},
	} {
		t.Run(name, func(t *testing.T) { test.want.compare(t, judgeCapabilities(test.missing, test.err)) })
	}
}

func TestJudgePrivileged(t *testing.T) {
	// Recorded: Docker 20.10.24 without the shim on such a machine.
	refused := errors.New("failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: unable to apply caps: operation not permitted: unknown")
	const log = "see Docker's log (journalctl -u docker, or /var/log/docker.log)"
	lacking := []string{"CAP_SYS_RESOURCE"}
	for name, test := range map[string]struct {
		trial   trial
		missing []string
		want    verdict
	}{
		"ran":                           {trial{ran: true}, nil, verdict{OK, "ran", ""}},
		"ran although something lacks":  {trial{ran: true}, lacking, verdict{OK, "ran", ""}},
		"ran by the shim":               {trial{ran: true, shimmed: true}, lacking, verdict{OK, "ran with the OCI runtime runc-caps", ""}},
		"no engine":                     {trial{}, lacking, verdict{Curable, "not tried: no Docker engine answers", "start Docker first"}},
		"failed with all capabilities":  {trial{ran: true, err: refused}, nil, verdict{Fatal, refused.Error(), log}},
		"failed with the shim in place": {trial{ran: true, err: refused, shimmed: true}, lacking, verdict{Fatal, refused.Error(), log}},
		"another default runtime": {trial{ran: true, err: refused, runtime: "nvidia"}, lacking,
			verdict{Fatal, refused.Error(), `set "default-runtime" to "runc" in /etc/docker/daemon.json, reload dockerd, and repeat; ` +
				`containers that need the other runtime can name it (docker run --runtime)`}},
		"failed without the shim": {trial{ran: true, err: refused}, lacking,
			verdict{Curable, refused.Error(), "relapse setup (registers the OCI runtime runc-caps, which does not ask for CAP_SYS_RESOURCE)"}},
	} {
		t.Run(name, func(t *testing.T) { test.want.compare(t, judgePrivileged(test.trial, test.missing)) })
	}
}

func TestJudgeCgroups(t *testing.T) {
	// Recorded on Debian 12 under systemd, and on a microVM without it.
	const v2 = `25 30 0:23 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
33 25 0:28 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`
	const v1 = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
`
	const unified = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	for name, test := range map[string]struct {
		mountinfo, controllers string
		want                   verdict
	}{
		"v2":     {v2, "cpuset cpu io memory hugetlb pids rdma misc\n", verdict{OK, "v2", ""}},
		"v1":     {v1, "", verdict{OK, "v1", ""}},
		"hybrid": {v1 + unified, "", verdict{OK, "hybrid: v1 controllers, v2 without controllers", ""}},
		"controllers mounted together": {want: verdict{OK, "v1", ""},
			mountinfo: "32 31 0:29 / /sys/fs/cgroup/all rw,relatime shared:3 - cgroup cgroup rw,cpu,cpuacct,cpuset,memory,devices,pids\n"},
		"memory switched off": {v2, "cpuset cpu io hugetlb pids rdma misc\n",
			verdict{Fatal, "v2, without memory", "boot the kernel with cgroup_enable=memory"}},
		"none": {"25 30 0:23 / /sys rw shared:7 - sysfs sysfs rw\n", "",
			verdict{Fatal, "none mounted", "apt-get install --yes --no-install-recommends --no-remove cgroupfs-mount"}},
	} {
		t.Run(name, func(t *testing.T) { test.want.compare(t, judgeCgroups(test.mountinfo, test.controllers)) })
	}
}

var (
	labSubnet  = netip.MustParsePrefix("10.4.94.0/24")
	labSubnets = map[netip.Prefix]string{labSubnet: "nodes of node-drain"}
)

func TestJudgeMachine(t *testing.T) {
	const larger = "use a larger machine"
	overlapped := func(route netip.Prefix, device string, table int) Check {
		return judgeSubnets(labSubnets, []subnet.Overlap{{Subnet: labSubnet, Route: route, Device: device, Table: table}}, nil)
	}
	for name, test := range map[string]struct {
		got  Check
		want verdict
	}{
		"root":                    {judgeRoot(0), verdict{OK, "uid 0", ""}},
		"not root":                {judgeRoot(1000), verdict{Fatal, "uid 1000", "run it with sudo"}},
		"amd64":                   {judgeArchitecture("amd64"), verdict{OK, "amd64", ""}},
		"arm64":                   {judgeArchitecture("arm64"), verdict{Fatal, "arm64", "use an amd64 machine"}},
		"two CPUs":                {judgeCPUs(2), verdict{OK, "2", ""}},
		"one CPU":                 {judgeCPUs(1), verdict{Fatal, "1", larger}},
		"24 GiB":                  {judgeMemory(24), verdict{OK, "24 GiB", ""}},
		"2 GiB":                   {judgeMemory(2), verdict{Fatal, "2 GiB", larger}},
		"memory unknown":          {judgeMemory(0), verdict{Fatal, "0 GiB", larger}},
		"subnets":                 {judgeSubnets(labSubnets, nil, nil), verdict{OK, "free", ""}},
		"subnet of a running lab": {overlapped(labSubnet, "rl-0a1b2c3d", 254), verdict{OK, "free", ""}},
		"subnet of a VPN": {overlapped(netip.MustParsePrefix("10.0.0.0/8"), "wg0", 51820),
			verdict{Fatal, "10.4.94.0/24 (nodes of node-drain): 10.0.0.0/8 is routed to wg0 (routing table 51820)",
				"disconnect the VPN or remove the network that the route belongs to, or move the labs' networks: --subnets PREFIX"}},
		"room": {judgeDisk(disk{what: "Docker's data", path: "/var/lib/docker", bytes: 70_310_000_000}, "free some"),
			verdict{OK, "70.3 GB free at /var/lib/docker", ""}},
		"just no room": {judgeDisk(disk{what: "Docker's data", path: "/var/lib/docker", bytes: 4_999_999_999}, "free some"),
			verdict{Fatal, "5.0 GB free at /var/lib/docker", "free some"}},
		"room unknown": {judgeDisk(disk{what: "Docker's data", path: "/x", err: syscall.EIO}, "free some"),
			verdict{Fatal, "input/output error", "free some"}},
		"features": {judgeFeatures([]feature{{name: "bridge"}, {name: "veth"}}), verdict{OK, "bridge, veth", ""}},
		"features missing": {judgeFeatures([]feature{{name: "bridge"}, {"veth", syscall.EOPNOTSUPP}, {"overlay", syscall.ENODEV}}),
			verdict{Fatal, "missing: veth (operation not supported), overlay (no such device)",
				"boot a distribution's standard kernel with its modules installed"}},
	} {
		t.Run(name, func(t *testing.T) { test.want.compare(t, test.got) })
	}
}
