package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/relapse-dev/relapse/topology/await"
)

// process is a program that runs beside the router and ends with it. A router that is
// killed takes its programs with it as the first process of its PID namespace; a signal at
// the parent's death would not reach FRR's, which change their user.
type process struct {
	cmd  *exec.Cmd
	stop chan struct{} // closed when it is asked to end
	done chan struct{} // closed when it has ended
	err  error         // why it ended, once done is closed
}

// startProcess starts a program in the foreground. Its output goes to the router's log.
// When it ends without being asked to, fail gets an error with its name.
func startProcess(l *log.Logger, fail func(error), name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), stop: make(chan struct{}), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = l.Writer(), l.Writer()
	p.cmd.Env = append(os.Environ(), "TZ=UTC") // the times in its answers have no zone
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		p.err = fmt.Errorf("%s ended: %w", name, cmp.Or(p.cmd.Wait(), errors.New("exit status 0")))
		select {
		case <-p.stop:
		default:
			fail(p.err)
		}
	}()
	return p, nil
}

// answers waits until the program answers a command, and returns an error if it ends before.
func (p *process) answers(ctx context.Context, name string, run func(context.Context) error) error {
	err := await.Until(ctx, name+" to answer", 5*time.Millisecond, startWithin, func(ctx context.Context) (bool, string, error) {
		err := run(ctx)
		return err == nil || p.ended() != nil, fmt.Sprint(err), nil
	})
	return cmp.Or(p.ended(), err)
}

func (p *process) ended() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

func (p *process) end(l *log.Logger) {
	close(p.stop)
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		l.Printf("%s not ended after %s: killed", p.cmd.Path, stopTimeout)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}
