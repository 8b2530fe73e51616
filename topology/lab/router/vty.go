package router

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// vtyWithin bounds a command of FRR's daemons.
const vtyWithin = 10 * time.Second

// vty is a terminal of one of FRR's daemons, on the socket that vtysh uses. vtysh itself
// takes 30 ms of CPU time to start, and would be started for each reading of a router.
//
// A command ends with a zero byte. The answer is the command's output, three zero bytes
// and its status (vtysh/vtysh.c, vtysh_client_run).
type vty struct {
	path string

	mu   sync.Mutex
	conn net.Conn
}

// run runs commands in order, and returns the output of the last. The error has the output
// of the first that fails. The connection stays open, and is closed after an error.
func (v *vty) run(ctx context.Context, commands ...string) (output string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	defer func() {
		if err != nil && v.conn != nil {
			v.conn.Close()
			v.conn = nil
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, vtyWithin)
	defer cancel()
	if v.conn == nil {
		var d net.Dialer
		if v.conn, err = d.DialContext(ctx, "unix", v.path); err != nil {
			return "", err
		}
		commands = append([]string{"enable"}, commands...)
	}
	conn := v.conn
	_ = conn.SetDeadline(time.Time{}) // only fails on a closed connection, as reads do then
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	for _, command := range commands {
		if output, err = v.command(command); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return "", fmt.Errorf("%s: %s: %w", v.path, command, err)
		}
	}
	return output, nil
}

// vtySuccess is the status of a command that succeeded (lib/command.h, CMD_SUCCESS).
const vtySuccess = 0

func (v *vty) command(command string) (string, error) {
	if _, err := v.conn.Write(append([]byte(command), 0)); err != nil {
		return "", err
	}
	var answer []byte
	for buffer := make([]byte, 64<<10); ; {
		n, err := v.conn.Read(buffer)
		answer = append(answer, buffer[:n]...)
		if end := len(answer) - 4; end >= 0 && bytes.Equal(answer[end:end+3], []byte{0, 0, 0}) {
			output := string(answer[:end])
			if status := answer[end+3]; status != vtySuccess {
				return "", fmt.Errorf("status %d: %s", status, strings.TrimSpace(output))
			}
			return output, nil
		}
		if err != nil {
			return "", err
		}
	}
}

func (v *vty) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.conn != nil {
		v.conn.Close()
		v.conn = nil
	}
}
