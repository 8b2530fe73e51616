// Command probe is the prober in pods and host containers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/relapse-dev/relapse/framework/probe/agent"
	"github.com/relapse-dev/relapse/framework/probe/wire"
)

const usage = `usage: probe agent --socket PATH [--listen ADDRESS:PORT] [--ipv6]

Answers probes at the address, UDP echo and TCP connect, and sends those that
are asked for on the unix socket. With --ipv6 it speaks that as well.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, os.Args[1:]); {
	case err == nil:
	case errors.Is(err, errUsage):
		fmt.Fprintf(os.Stderr, "probe: %v\n%s", err, usage)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "probe: %v\n", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("bad usage")

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] != "agent" {
		return fmt.Errorf("%w: the one command is agent", errUsage)
	}
	flags := flag.NewFlagSet("probe agent", flag.ContinueOnError)
	flags.SetOutput(os.Stderr)
	socket := flags.String("socket", "", "path of the unix socket that the harness talks to")
	listen := flags.String("listen", fmt.Sprintf("0.0.0.0:%d", wire.DefaultPort), "IPv4 address and port to answer at, UDP and TCP")
	v6 := flags.Bool("ipv6", false, "also speak IPv6, at all addresses and the same port")
	switch err := flags.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", errUsage, err)
	case *socket == "":
		return fmt.Errorf("%w: --socket is missing", errUsage)
	case flags.NArg() > 0:
		return fmt.Errorf("%w: unexpected argument %q", errUsage, flags.Arg(0))
	}
	address, err := netip.ParseAddrPort(*listen)
	if err != nil {
		return fmt.Errorf("%w: --listen %q: want ADDRESS:PORT, such as 0.0.0.0:%d", errUsage, *listen, wire.DefaultPort)
	}
	// The agent is two loops that run for some microseconds each. A second
	// processor would not make it faster, and would wake idle threads.
	runtime.GOMAXPROCS(1)
	a, err := agent.Open(address, *v6)
	if err != nil {
		return err
	}
	defer a.Close()
	l, err := control(*socket)
	if err != nil {
		return err
	}
	return a.Serve(ctx, l)
}

// control listens on the unix socket. A socket that answers is an error; a socket that nobody serves is replaced.
func control(path string) (net.Listener, error) {
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("listening on %s: another agent answers there", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("removing the old socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening for the harness: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("closing the socket to others: %w", err)
	}
	return l, nil
}
