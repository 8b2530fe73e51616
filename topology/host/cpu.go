package host

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPUTime is what this machine's CPUs have done since it was started, summed over
// all of them.
type CPUTime struct {
	// Busy is the time in which they worked, or the hypervisor below had taken them
	// away.
	Busy time.Duration
	// All is Busy and the time in which they had nothing to do.
	All time.Duration
}

// CPUs reads /proc/stat.
func CPUs() (CPUTime, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return CPUTime{}, err
	}
	return parseCPUs(string(text))
}

// parseCPUs takes the sum over all CPUs from the first line of /proc/stat: user,
// nice, system, idle, iowait, irq, softirq and steal, in hundredths of a second
// (proc_stat(5)). The guests' time after them is in user and nice as well.
func parseCPUs(stat string) (CPUTime, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return CPUTime{}, fmt.Errorf("/proc/stat begins with %q", line)
	}
	const idle, iowait = 3, 4
	var t CPUTime
	for i, field := range fields[1:9] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return CPUTime{}, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		took := time.Duration(n) * time.Second / 100
		t.All += took
		if i != idle && i != iowait {
			t.Busy += took
		}
	}
	return t, nil
}
