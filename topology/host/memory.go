package host

import "syscall"

// MemoryGiB is the machine's memory in GiB, rounded to the nearest: a machine of
// 16 GiB says that it has a little less. It is 0 where the kernel does not tell.
func MemoryGiB() int {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	const gib = 1 << 30
	return int((info.Totalram*uint64(info.Unit) + gib/2) / gib)
}
