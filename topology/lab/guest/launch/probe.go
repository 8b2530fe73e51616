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

// probeLimit bounds a probe. KVM that works takes about a second from QEMU's
// start to the guest's user space.
const probeLimit = 10 * time.Second

// ProbeKVM boots our kernel under KVM and returns nil if its user space
// reports. Whether /dev/kvm is there and opens says little: inside a virtual
// machine KVM may refuse to run a guest, or never come back from one.
func ProbeKVM(ctx context.Context) error {
	if err := checkImage(); err != nil {
		return err
	}
	const device = "/dev/kvm"
	if _, err := os.Stat(device); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no %s", device)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, probeLimit, fmt.Errorf("no guest ran under KVM within %s", probeLimit))
	defer cancel()
	c := Config{Accelerator: KVM, CPUs: 1, Memory: 256}
	args := append(machine(c), "-append", kernelCommandLine(c, boot.Parameters{Probe: true}))
	var console, complaints bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &console, &complaints
	err := cmd.Run()
	switch {
	case strings.Contains(console.String(), boot.ProbeMarker):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil:
		err = errors.New("the guest ended without a word")
	}
	// The first line says what was wrong, the others what QEMU made of it.
	first, _, _ := strings.Cut(strings.TrimSpace(complaints.String()), "\n")
	return fmt.Errorf("no guest runs under KVM: %w: %s", err, first)
}
