// Runc-caps is a thin OCI runtime in front of runc for machines that do not
// grant root every capability (a virtual machine or a container with a
// narrowed bounding set).
//
// A privileged container asks for every capability that the kernel knows.
// runc then stops with "unable to apply caps: operation not permitted" as
// soon as a single one is missing from its bounding set, although what runs
// in the container may never need it. Runc-caps takes the missing ones out of
// the request and then becomes runc: on create and run in the bundle's
// config.json, on exec in the file behind --process. Every other command
// reaches runc untouched.
//
// It grants nothing and changes nothing else. In particular it leaves
// oomScoreAdj and rlimits alone: a container that asks for what needs
// CAP_SYS_RESOURCE there has to be told not to, by whoever asks.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/moby/sys/capability"

	"github.com/relapse-dev/relapse/topology/host/bounding"
)

func main() {
	if err := narrow(os.Args[1:]); err != nil {
		// runc goes on all the same: whatever is wrong with the request, it
		// reports where Docker looks for the reason, which is --log.
		fmt.Fprintln(os.Stderr, "runc-caps:", err)
	}
	// Docker finds its own runc through PATH too: the one that would have
	// run without the shim.
	runc, err := exec.LookPath("runc")
	if err != nil {
		fail(err)
	}
	// exec and not a child: containerd's shim watches this process, passes
	// it descriptors and reads its exit status.
	args := append([]string{runc}, os.Args[1:]...)
	fail(fmt.Errorf("executing %s: %w", runc, syscall.Exec(runc, args, os.Environ())))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "runc-caps:", err)
	os.Exit(1)
}

// narrow takes the capabilities that this machine does not grant out of the
// file, if any, that the runc command line args asks runc to read.
func narrow(args []string) error {
	path, kind := requestFile(args)
	if kind == noRequest {
		return nil
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	granted, err := bounding.Parse(string(status))
	if err != nil {
		return err
	}
	last, err := capability.LastCap()
	if err != nil {
		return fmt.Errorf("asking the kernel for its newest capability: %w", err)
	}
	missing := granted.Missing(last)
	if len(missing) == 0 {
		return nil
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	edited, changed, err := without(missing, old, kind)
	if err != nil {
		return fmt.Errorf("reading capabilities from %s: %w", path, err)
	}
	if !changed {
		return nil
	}
	// In place, so that owner, mode and link stay; nobody but the runc that
	// this process is about to become reads the file.
	if err := os.WriteFile(path, edited, 0o600); err != nil {
		return fmt.Errorf("writing narrowed capabilities: %w", err)
	}
	return nil
}
