// Package launch runs a guest inside its container: it puts the guest's
// interfaces in the place of the container's own, starts QEMU or User Mode
// Linux, and serves the channel to the guest's agent on a unix socket.
package launch

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/relapse-dev/relapse/topology/lab/guest/boot"
)

// Accelerator is what executes the guest's code.
type Accelerator string

// Accelerators, the fastest first.
const (
	KVM Accelerator = "kvm" // the CPU itself
	// UML is User Mode Linux: the kernel is a program, and the guest's programs
	// run on the CPU itself. It has one CPU, and a kernel of its own.
	UML Accelerator = "uml"
	TCG Accelerator = "tcg" // QEMU's translator: needs nothing, and is 15 to 20 times slower
)

// Config says what machine the guest gets.
type Config struct {
	Accelerator Accelerator
	// CPUs is how many the guest has. Under UML it has one.
	CPUs int
	// Seat tells guests of one machine apart: under UML each is kept on one of
	// the machine's CPUs, the next one for the next seat.
	Seat int
	// Memory is the guest's, in MiB.
	Memory int
}

// Files of the container.
const (
	disk = "/var/lib/relapse/disk.img"
	// channelFD is the guest's end of the channel.
	channelFD = 3
)

// command is the program that runs the guest, with its arguments and what it
// has in its environment beside ours.
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

func (e *ImageError) Error() string {
	return fmt.Sprintf("the image has no %s: build it anew", e.Lacks)
}

// ImageStatus is the exit status of a program that ended with an ImageError.
const ImageStatus = 2

// checkImage finds out whether all that a guest needs is in the image.
func checkImage(a Accelerator) error {
	if a == UML {
		return checkUML(umlDir)
	}
	if _, err := exec.LookPath(qemu); err != nil {
		return &ImageError{Lacks: qemu}
	}
	return lacking(kernel, initramfs)
}

// lacking is an *ImageError that names the first of these files that is not
// there.
func lacking(files ...string) error {
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			return &ImageError{Lacks: file}
		}
	}
	return nil
}
