package host

import (
	"github.com/relapse-dev/relapse/topology/must"
	"testing"
	"time"
)

func TestParseCPUs(t *testing.T) {
	const stat = "cpu  100 10 50 1000 40 0 5 35 60 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
	must.Equal(t, "", (CPUTime{Busy: 2 * time.Second, All: 12400 * time.Millisecond}), must.Get(parseCPUs(stat))(t))
	for _, wrong := range []string{"", "cpu 1 2 3\n", "intr 1 2 3 4 5 6 7 8\n", "cpu 1 2 3 4 5 6 7 eight\n"} {
		must.Fail(t, must.Err(parseCPUs(wrong)), "/proc/stat begins with")
	}
	before, err := CPUs()
	if err != nil || before.Busy <= 0 || before.All < before.Busy {
		t.Errorf("%+v, %v", before, err)
	}
}
