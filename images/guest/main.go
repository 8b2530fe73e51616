// Guest is all that a node with a kernel of its own needs beside QEMU and User
// Mode Linux: it launches the guest in its container, is the init of the guest's initramfs,
// and answers the launcher from inside the guest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/relapse-dev/relapse/topology/lab/guest/agent"
	"github.com/relapse-dev/relapse/topology/lab/guest/boot"
	"github.com/relapse-dev/relapse/topology/lab/guest/launch"
)

func main() {
	if os.Args[0] == "/init" { // the kernel's name for the initramfs's init
		boot.Run()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		if broken := new(launch.ImageError); errors.As(err, &broken) {
			os.Exit(launch.ImageStatus)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("expected launch, probe or agent")
	}
	switch command, rest := args[0], args[1:]; command {
	case "agent":
		return agent.Run(ctx)
	case "probe":
		if len(rest) != 1 {
			return fmt.Errorf("expected one accelerator to probe: %s or %s", launch.KVM, launch.UML)
		}
		return launch.Probe(ctx, launch.Accelerator(rest[0]))
	case "launch":
		var c launch.Config
		flags := flag.NewFlagSet("guest launch", flag.ContinueOnError)
		flags.StringVar((*string)(&c.Accelerator), "accelerator", string(launch.TCG), "what executes the guest's code: kvm, uml or tcg")
		flags.IntVar(&c.CPUs, "cpus", 2, "the guest's CPUs; one under uml")
		flags.IntVar(&c.Seat, "seat", 0, "under uml: which of the machine's CPUs, counted round")
		flags.IntVar(&c.Memory, "memory", 1536, "the guest's memory, in MiB")
		dir := flags.String("dir", "/run/relapse", "folder of the channel's socket")
		if err := flags.Parse(rest); err != nil {
			return err
		}
		return launch.Run(ctx, c, *dir)
	default:
		return fmt.Errorf("unknown command %q: expected launch, probe or agent", command)
	}
}
