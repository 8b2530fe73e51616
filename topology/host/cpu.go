package host

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPUTime is the time of all CPUs of this machine since boot.
type CPUTime struct {
	Busy time.Duration // with work, or stolen by the hypervisor
	All  time.Duration // Busy and idle time
}

// CPUs reads /proc/stat.
func CPUs() (CPUTime, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return CPUTime{}, err
	}
	return parseCPUs(string(text))
}

// parseCPUs reads the first line of /proc/stat, the sum over all CPUs: user,
// nice, system, idle, iowait, irq, softirq and steal, in hundredths of a second
// (proc_stat(5)). The guests' time that follows is part of user and nice.
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
