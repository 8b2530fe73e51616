package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// program is the name of the agent's process.
const program = "probe"

// RunFirst has the agent run before every process of the machine that has no real-time
// priority (SCHED_RR, sched(7)), so that it sends and answers in time however busy the
// machine is: what it measures is the network. It needs root, and an agent that was dialled and is a process of
// this machine. After an error the agent runs on as before, and reports the times in which it did not get to run.
func (a *Agent) RunFirst() error {
	pid, err := peer(a.conn)
	if err == nil {
		err = throttled(throttling)
	}
	if err == nil {
		if err = realTime(pid); errors.Is(err, unix.EPERM) {
			// A kernel with CONFIG_RT_GROUP_SCHED allows real time only in control groups that
			// have a budget for it, such as the root.
			if err = leaveGroup(pid); err == nil {
				err = realTime(pid)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("having the probe agent of %s run first: %w", a.name, err)
	}
	return nil
}

// throttling is the file with the microseconds of each period that processes with
// real-time priority may take, -1 for all of them (sched(7)).
const throttling = "/proc/sys/kernel/sched_rt_runtime_us"

// throttled returns an error where the kernel lets processes with real-time priority take
// all of the CPU: an agent that does not sleep would stop the machine.
func throttled(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(text)) == "-1" {
		return fmt.Errorf("real-time throttling is switched off (%s is -1), and an agent in real time could take the whole CPU", file)
	}
	return nil
}

// peer is the process at the other end of a unix socket. It must be an agent, and not a process
// that forwards the bytes to another machine.
func peer(conn any) (pid int, err error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return 0, errors.New("it is not at the end of a socket")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, os.NewSyscallError("getsockopt SO_PEERCRED", failed)); err != nil {
		return 0, err
	}
	pid = int(credentials.Pid)
	comm, err := os.ReadFile(processFile(pid, "comm"))
	if err != nil {
		return 0, err
	}
	if name := strings.TrimSpace(string(comm)); name != program {
		return 0, fmt.Errorf("process %d, at the other end of its socket, is %s", pid, name)
	}
	return pid, nil
}

// realTime gives a process real-time priority. A new thread inherits the priority of the thread
// that started it: once all threads have it, all keep it.
func realTime(pid int) error {
	for changed := true; changed; {
		changed = false
		threads, err := os.ReadDir(processFile(pid, "task"))
		if err != nil {
			return err
		}
		for _, thread := range threads {
			tid, err := strconv.Atoi(thread.Name())
			if err != nil {
				return err
			}
			now, err := unix.SchedGetAttr(tid, 0)
			if err == nil && now.Policy != unix.SCHED_RR {
				changed = true
				err = unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0)
			}
			if err != nil && !errors.Is(err, unix.ESRCH) { // a thread that has ended needs none
				return os.NewSyscallError("sched_setattr", err)
			}
		}
	}
	return nil
}

// leaveGroup puts a process into the root control group of the CPU controller, if that has a hierarchy of its own
// (version 1). The process stays in other groups: they count memory, or end a container's processes.
func leaveGroup(pid int) error {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" || !slices.Contains(strings.Split(m.VFSOptions, ","), "cpu"), false
	})
	if err != nil {
		return err
	}
	if len(mounts) == 0 {
		return unix.EPERM
	}
	return os.WriteFile(filepath.Join(mounts[0].Mountpoint, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

func processFile(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }
