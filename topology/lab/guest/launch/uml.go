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

// Files of User Mode Linux, which an image has if the package archive had it.
const (
	umlDir       = "/opt/uml"
	umlKernel    = umlDir + "/linux"
	umlInitramfs = umlDir + "/initramfs"
)

// UMLMemory is where the container has a tmpfs for the memory of a guest under
// UML: the kernel's memory is a file, mapped by it and by its processes, some
// of it executable.
const UMLMemory = "/run/uml"

// umlEnvironment tells UML where its memory is to be.
var umlEnvironment = []string{"TMPDIR=" + UMLMemory}

// checkUML finds out whether the image has User Mode Linux in dir, and if not,
// why. Without it guests run all the same, by QEMU: that is no *ImageError.
func checkUML(dir string) error {
	why, err := os.ReadFile(filepath.Join(dir, "lacks"))
	if err == nil {
		return fmt.Errorf("the image has no User Mode Linux: %s", bytes.TrimSpace(why))
	}
	return lacking(filepath.Join(dir, filepath.Base(umlKernel)), filepath.Join(dir, filepath.Base(umlInitramfs)))
}

// umlCommand is User Mode Linux's command line. It is kept on one CPU: kernel
// and processes are processes of the machine, which take turns, and where they
// wake each other across CPUs everything takes four times as long.
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

// umlMachine is the part of the command line that a probe has too: the kernel
// with its console on standard output. A guest that reboots ends.
func umlMachine(c Config, cpu int) []string {
	return []string{
		"taskset", "--cpu-list", strconv.Itoa(cpu),
		umlKernel, fmt.Sprintf("mem=%dM", c.Memory), "initrd=" + umlInitramfs,
		// Its other way to run processes, ptrace, is as slow as TCG.
		"seccomp=on",
		"uml_dir=" + UMLMemory, // of its control socket, which nobody uses
		"con=null", "con0=null,fd:1", "ssl=null", "console=tty0",
		"loglevel=4", "systemd.show_status=auto",
		"panic=-1", "noreboot",
		"systemd.unified_cgroup_hierarchy=1",
	}
}

// seatCPU is the CPU of a seat, among those that this process may use.
func seatCPU(seat int) (int, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return 0, fmt.Errorf("asking for the CPUs that may be used: %w", err)
	}
	return nthCPU(&allowed, seat%allowed.Count()), nil
}

// nthCPU is the CPU of a set before which there are n others in it. The set
// has more than n.
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
