// Package agent serves the machine's requests in a guest over the channel: it runs
// commands and connects to unix sockets.
package agent

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/relapse-dev/relapse/topology/lab/guest/boot"
	"github.com/relapse-dev/relapse/topology/lab/guest/channel"
	"github.com/relapse-dev/relapse/topology/process"
)

// Port is the name of the virtio serial port that is the channel.
const Port = "dev.relapse.agent"

// Run serves the machine until ctx ends. There is a session for each connection of the machine.
func Run(ctx context.Context) error {
	path, metered, err := findChannel()
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := session(ctx, path, metered); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			select { // without a connection of the machine, reads return EOF at once
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	return context.Cause(ctx)
}

func session(ctx context.Context, path string, metered bool) error {
	port, err := openPort(path)
	if err != nil {
		return fmt.Errorf("opening the channel: %w", err)
	}
	defer port.Close()
	session, err := channel.Accept(ctx, port, metered)
	if err != nil {
		return err
	}
	defer session.Close()
	return Serve(session)
}

// findChannel returns the channel's device in this guest, and whether the channel is metered.
func findChannel() (path string, metered bool, err error) {
	p, err := boot.Running()
	if err != nil {
		return "", false, err
	}
	if p.UML {
		return umlPort, true, nil
	}
	path, err = findPort("/sys/class/virtio-ports")
	return path, false, err
}

// umlPort is User Mode Linux's first serial line.
const umlPort = "/dev/ttyS0"

// openPort opens the channel's device. It sets a terminal to raw mode, so that no byte
// is echoed, translated or handled as a signal.
func openPort(path string) (*os.File, error) {
	port, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	connection, err := port.SyscallConn()
	if err == nil {
		var failed error
		err = connection.Control(func(fd uintptr) {
			if term.IsTerminal(int(fd)) {
				_, failed = term.MakeRaw(int(fd))
			}
		})
		err = errors.Join(err, failed)
	}
	if err != nil {
		port.Close()
		return nil, err
	}
	return port, nil
}

// findPort returns the device of the port named Port. It reads the names from sysfs:
// udev, which makes links by name in /dev, does not run in a guest.
func findPort(class string) (string, error) {
	names, err := filepath.Glob(filepath.Join(class, "*", "name"))
	if err != nil {
		return "", err
	}
	for _, file := range names {
		if name, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(name)) == Port {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(file))), nil
		}
	}
	return "", fmt.Errorf("no virtio serial port has the name %s", Port)
}

// Serve serves the streams that l accepts, concurrently, until l fails.
func Serve(l net.Listener) error {
	for {
		stream, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accepting a stream: %w", err)
		}
		go func() {
			defer stream.Close()
			r := bufio.NewReader(stream)
			var request channel.Request
			if err := channel.ReadLine(r, &request); err != nil {
				return // the machine has disconnected
			}
			if len(request.Exec) > 0 {
				run(stream, r, request.Exec)
			} else {
				dial(stream, r, request.Dial)
			}
		}()
	}
}

func run(stream io.Writer, r io.Reader, command []string) {
	frames := gob.NewEncoder(stream) // which writes one frame at a time
	// The command ends when the machine disconnects.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = "/"
	cmd.Stdout = channel.FrameWriter(func(p []byte) error { return frames.Encode(channel.Frame{Stdout: p}) })
	cmd.Stderr = channel.FrameWriter(func(p []byte) error { return frames.Encode(channel.Frame{Stderr: p}) })
	// Its children are killed with it, and do not keep its output open.
	process.EndWhole(cmd)
	cmd.WaitDelay = time.Second
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		go func() {
			defer cancel()
			for sent := gob.NewDecoder(r); ; {
				var frame channel.Frame
				switch err := sent.Decode(&frame); {
				case err != nil:
					return
				case len(frame.Input) == 0:
					input.Close()
				default:
					_, _ = input.Write(frame.Input) // a command need not read its input
				}
			}
		}()
		err = cmd.Wait()
	}
	status := exitStatus(err)
	_ = frames.Encode(channel.Frame{Exit: &status})
}

func exitStatus(err error) channel.ExitStatus {
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // a child keeps its output open
		return channel.ExitStatus{}
	case !errors.As(err, &exit):
		return channel.ExitStatus{Status: 127, Error: err.Error()} // as in a shell
	}
	if wait, ok := exit.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		return channel.ExitStatus{Status: 128 + int(wait.Signal())}
	}
	return channel.ExitStatus{Status: exit.ExitCode()}
}

func dial(stream io.ReadWriter, r io.Reader, path string) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		_ = channel.WriteLine(stream, channel.Reply{Error: err.Error()})
		return
	}
	defer conn.Close()
	if channel.WriteLine(stream, channel.Reply{}) != nil {
		return
	}
	channel.Join(stream, r, conn, conn)
}
