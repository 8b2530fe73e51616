package host

import "syscall"

// MemoryGiB is the machine's memory in GiB, rounded to the nearest, because the
// kernel keeps a part for itself. It is 0 if it cannot be read.
func MemoryGiB() int {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	const gib = 1 << 30
	return int((info.Totalram*uint64(info.Unit) + gib/2) / gib)
}
