package bounding

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/sys/capability"

	"github.com/relapse-dev/relapse/topology/must"
)

// The kernel says of the same process which capabilities it has.
func TestMissing(t *testing.T) {
	missing := must.Get(Missing(0))(t)
	out := must.Get(exec.Command("sed", "-n", `s/^CapBnd:\t//p`, "/proc/self/status").Output())(t) // it inherits them
	bits := must.Get(strconv.ParseUint(strings.TrimSpace(string(out)), 16, 64))(t)
	granted := 0
	for ; bits > 0; bits &= bits - 1 {
		granted++
	}
	last := must.Get(capability.LastCap())(t)
	must.Equal(t, "capabilities", int(last)+1, len(missing)+granted)
	for _, name := range missing {
		must.Contain(t, name, "CAP_")
	}
}

func TestNoProcess(t *testing.T) {
	must.Fail(t, must.Err(Missing(1<<30))) // above the kernel's highest: it is not there
}
