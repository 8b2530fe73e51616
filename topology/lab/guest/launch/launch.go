package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/topology/lab/guest/boot"
)

// Run runs the guest and serves its channel in the folder dir until the guest ends. The
// end of ctx cuts its power. The guest's console is on standard output.
func Run(ctx context.Context, c Config, dir string) error {
	if err := checkImage(c.Accelerator); err != nil {
		return err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	links, taps, err := takeOver()
	if err != nil {
		return err
	}
	args, env, err := command(c, boot.Parameters{Hostname: hostname, Links: links}, taps)
	if err != nil {
		return err
	}
	if err := makeDisk(ctx); err != nil {
		return err
	}
	pipe, guest, err := socketPair()
	if err != nil {
		return err
	}
	defer pipe.Close()
	defer guest.Close()
	server, err := listen(dir)
	if err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return server.run(ctx, pipe, c.Accelerator == UML) })
	all.Go(func() error {
		fmt.Println("relapse:", args)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), env...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.ExtraFiles = []*os.File{guest} // descriptor channelFD
		err := cmd.Run()
		return ended(c.Accelerator, err, outOfMemory())
	})
	return all.Wait()
}

func ended(a Accelerator, err error, outOfMemory bool) error {
	switch {
	case err == nil: // also after a restart or a kernel panic
		return errors.New("the guest has switched itself off, or its kernel has panicked")
	case outOfMemory:
		return errors.New("the guest was killed: it exceeded the container's memory limit")
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && a == UML {
		if wait, ok := exit.Sys().(syscall.WaitStatus); ok && wait.Signal() == syscall.SIGABRT {
			return errors.New("the guest's kernel has panicked")
		}
	}
	return fmt.Errorf("running the guest: %w", err)
}

// outOfMemory reports whether the kernel has killed a process of the container for its memory use.
func outOfMemory() bool {
	for _, file := range []string{
		"/sys/fs/cgroup/memory/memory.oom_control", // version 1
		"/sys/fs/cgroup/memory.events",
	} {
		if text, err := os.ReadFile(file); err == nil {
			return oomKills(string(text)) > 0
		}
	}
	return false
}

// oomKills reads the kernel's count, which both versions of cgroups have in a separate line.
func oomKills(text string) int {
	for line := range strings.Lines(text) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(count)) // written by the kernel
			return n
		}
	}
	return 0
}

// diskSize is the size of the guest's disk in bytes. The file is sparse.
const diskSize = 16 << 30

// makeDisk makes the guest's disk unless it exists: it survives a power cut.
func makeDisk(ctx context.Context) error {
	if _, err := os.Stat(disk); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(disk), 0o700); err != nil {
		return err
	}
	fresh := disk + ".new" // renamed when complete
	f, err := os.OpenFile(fresh, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(diskSize), f.Close()); err != nil {
		return fmt.Errorf("making the guest's disk: %w", err)
	}
	mkfs := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=16", "-E",
		"lazy_itable_init=1,lazy_journal_init=1,nodiscard", fresh)
	if out, err := mkfs.CombinedOutput(); err != nil {
		return fmt.Errorf("making the guest's disk: %w: %s", err, out)
	}
	return os.Rename(fresh, disk)
}

// socketPair is the channel's pipe: the machine's side and the guest's.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making the channel: %w", err)
	}
	file := os.NewFile(uintptr(fds[0]), "channel")
	defer file.Close() // FileConn duplicates the descriptor
	theirs = os.NewFile(uintptr(fds[1]), "channel")
	if ours, err = net.FileConn(file); err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("making the channel: %w", err)
	}
	return ours, theirs, nil
}
