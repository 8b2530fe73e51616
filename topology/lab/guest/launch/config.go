// Package launch runs a guest in its container. It replaces the container's interfaces
// by the guest's, starts QEMU or User Mode Linux, and serves the channel to the guest's
// agent on a unix socket.
package launch

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/relapse-dev/relapse/topology/lab/guest/boot"
)

// Accelerator executes the guest's code.
type Accelerator string

// Accelerators, the fastest first.
const (
	KVM Accelerator = "kvm" // the CPU itself
	// UML is User Mode Linux: the kernel is a program, and the guest's programs run
	// directly on the CPU. It has one CPU, and always its own kernel.
	UML Accelerator = "uml"
	TCG Accelerator = "tcg" // QEMU's translator: no requirements, 15 to 20 times slower
)

// Config is the configuration of the guest's machine.
type Config struct {
	Accelerator Accelerator
	// CPUs is the number of the guest's CPUs. UML ignores it and has one.
	CPUs int
	// Seat is a different number for each guest of the machine. Under UML it selects the
	// CPU on which the guest runs.
	Seat int
	// Memory is the guest's, in MiB.
	Memory int
}

// Files of the container.
const (
	disk = "/var/lib/relapse/disk.img"
	// channelFD is the guest's side of the channel.
	channelFD = 3
)

// command is the command line of the guest's program, and its additional environment.
func command(c Config, p boot.Parameters, taps []string) (args, env []string, err error) {
	if c.Accelerator != UML {
		return qemuCommand(c, p, taps), nil, nil
	}
	cpu, err := seatCPU(c.Seat)
	if err != nil {
		return nil, nil, err
	}
	return umlCommand(c, cpu, p, taps), umlEnvironment, nil
}

// ImageError says that the image cannot run guests.
type ImageError struct{ Lacks string }

func (e *ImageError) Error() string { return fmt.Sprintf("the image has no %s: rebuild it", e.Lacks) }

// ImageStatus is the exit status of a program that ended with an ImageError.
const ImageStatus = 2

func checkImage(a Accelerator) error {
	if a == UML {
		return checkUML(umlDir)
	}
	if _, err := exec.LookPath(qemu); err != nil {
		return &ImageError{Lacks: qemu}
	}
	return lacking(kernel, initramfs)
}

// lacking is an *ImageError that names the first missing file, or nil.
func lacking(files ...string) error {
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			return &ImageError{Lacks: file}
		}
	}
	return nil
}
