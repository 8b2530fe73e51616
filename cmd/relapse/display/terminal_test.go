package display

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/must"
)

// onTerminalOfItsOwn is set for the process that TestControlsAreNotPrinted starts.
const onTerminalOfItsOwn = "RELAPSE_TEST_TERMINAL"

// While something is drawn a typed Ctrl-C is not printed, and afterwards it is again.
func TestControlsAreNotPrinted(t *testing.T) {
	if os.Getenv(onTerminalOfItsOwn) != "" {
		prints := func() bool {
			modes, err := unix.IoctlGetTermios(0, unix.TCGETS)
			return err == nil && modes.Lflag&unix.ECHOCTL != 0
		}
		before := prints()
		restore := hideControls(0)
		meanwhile := prints()
		restore()
		fmt.Print(before, meanwhile, prints())
		os.Exit(0)
	}
	terminal := must.Get(os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	defer terminal.Close()
	fd := int(terminal.Fd())
	must.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number := must.Get(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	end := must.Get(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	defer end.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestControlsAreNotPrinted$")
	cmd.Env = append(os.Environ(), onTerminalOfItsOwn+"=1")
	cmd.Stdin = end
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	out, err := cmd.Output()
	if err != nil || string(out) != "true false true" {
		t.Errorf("before, meanwhile and afterwards it is printed: %s (%v); want true false true", out, err)
	}
	// One that is no terminal of this process is left alone.
	hideControls(int(end.Fd()))()
}
