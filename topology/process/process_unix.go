//go:build unix

// Package process ends programs with all that they have started.
package process

import (
	"os/exec"
	"syscall"
)

// EndWhole kills a program's children with it when its context ends, such as ssh's proxy or a shell's commands.
func EndWhole(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
