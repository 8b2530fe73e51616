//go:build unix

// Package process ends programs with all that they have started.
package process

import (
	"os/exec"
	"syscall"
)

// EndWhole has a program's children end with it when its context does, such as ssh's own proxy or what a shell runs.
func EndWhole(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
