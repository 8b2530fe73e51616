package launch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/lab/guest/boot"
)

// Files of User Mode Linux, which an image has if it was in the package archive.
const (
	umlDir       = "/opt/uml"
	umlKernel    = umlDir + "/linux"
	umlInitramfs = umlDir + "/initramfs"
)

// UMLMemory is the container's tmpfs for the memory of a guest under UML, which is a
// file, mapped by UML's kernel and processes, partly executable.
const UMLMemory = "/run/uml"

// umlEnvironment sets the folder of UML's memory.
var umlEnvironment = []string{"TMPDIR=" + UMLMemory}

// checkUML checks that the image has User Mode Linux in dir. Its error is no
// *ImageError if the image was built without it, because guests can run under QEMU.
func checkUML(dir string) error {
	why, err := os.ReadFile(filepath.Join(dir, "lacks"))
	if err == nil {
		return fmt.Errorf("the image has no User Mode Linux: %s", bytes.TrimSpace(why))
	}
	return lacking(filepath.Join(dir, filepath.Base(umlKernel)), filepath.Join(dir, filepath.Base(umlInitramfs)))
}

// umlCommand is User Mode Linux's command line. It runs on one CPU: its kernel and
// processes are processes of the machine that run in turn, and waking each other across
// CPUs makes them four times slower.
func umlCommand(c Config, cpu int, p boot.Parameters, taps []string) []string {
	args := append(umlMachine(c, cpu),
		// The channel is the first serial line.
		fmt.Sprintf("ssl0=fd:%d", channelFD),
		"ubd0="+disk,
	)
	for i, link := range p.Links {
		args = append(args, fmt.Sprintf("vec%d:transport=tap,ifname=%s,mac=%s", i, taps[i], link.MAC))
	}
	p.UML = true
	return append(args, strings.Fields(p.CommandLine())...)
}

// umlMachine is the part of the command line that a probe also uses: the kernel with its
// console on standard output. A reboot ends the guest.
func umlMachine(c Config, cpu int) []string {
	return []string{
		"taskset", "--cpu-list", strconv.Itoa(cpu),
		umlKernel, fmt.Sprintf("mem=%dM", c.Memory), "initrd=" + umlInitramfs,
		// The alternative, ptrace, is as slow as TCG.
		"seccomp=on",
		"uml_dir=" + UMLMemory, // for its control socket, which is not used
		"con=null", "con0=null,fd:1", "ssl=null", "console=tty0",
		"loglevel=4", "systemd.show_status=auto",
		"panic=-1", "noreboot",
		"systemd.unified_cgroup_hierarchy=1",
	}
}

// seatCPU is the CPU of a seat, one that this process may use.
func seatCPU(seat int) (int, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return 0, fmt.Errorf("reading the CPU affinity: %w", err)
	}
	return nthCPU(&allowed, seat%allowed.Count()), nil
}

// nthCPU is the CPU with index n in a set, which has more than n.
func nthCPU(set *unix.CPUSet, n int) int {
	for cpu := 0; ; cpu++ {
		switch {
		case !set.IsSet(cpu):
		case n == 0:
			return cpu
		default:
			n--
		}
	}
}
