package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/topology/lab/guest/boot"
)

// probeLimit bounds a probe. A successful one takes about a second.
const probeLimit = 10 * time.Second

// Probe boots a guest under KVM or UML, and returns nil if its user space runs. An
// existing /dev/kvm is not enough: in a virtual machine KVM may refuse to run a guest,
// or never return. UML needs system calls that a container may not have.
func Probe(ctx context.Context, a Accelerator) error {
	if err := checkImage(a); err != nil {
		return err
	}
	args, env, err := probeCommand(a)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, probeLimit, fmt.Errorf("no guest ran under %s within %s", a, probeLimit))
	defer cancel()
	var console, complaints bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &console, &complaints
	cmd.WaitDelay = time.Second // processes of UML may survive it and keep its output open
	err = cmd.Run()
	switch {
	case strings.Contains(console.String(), boot.ProbeMarker):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil:
		err = errors.New("the guest ended without output")
	}
	return fmt.Errorf("no guest runs under %s: %w: %s", a, err, complaint(a, complaints.String(), console.String()))
}

// complaint is the line with the reason: QEMU's first one, which later ones follow
// from, or UML's last one, which follows a log of attempts.
func complaint(a Accelerator, stderr, console string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if a == UML {
		lines = strings.Split(strings.TrimSpace(stderr+console), "\n")
		return lines[len(lines)-1]
	}
	return lines[0]
}

// ProbeMemory is the memory of a probed guest, in MiB.
const ProbeMemory = 256

func probeCommand(a Accelerator) (args, env []string, err error) {
	c := Config{Accelerator: a, CPUs: 1, Memory: ProbeMemory}
	p := boot.Parameters{Probe: true}
	if a == UML {
		cpu, err := seatCPU(c.Seat)
		return append(umlMachine(c, cpu), p.CommandLine()), umlEnvironment, err
	}
	const device = "/dev/kvm"
	if _, err := os.Stat(device); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("there is no %s", device)
	}
	return append(machine(c), "-append", kernelCommandLine(c, p)), nil, nil
}
