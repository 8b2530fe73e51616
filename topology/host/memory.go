package host

import "syscall"

// MemoryGiB is the machine's memory in GiB, rounded to the nearest, because the
// kernel keeps a part for itself. It is 0 if it cannot be read.
func MemoryGiB() int {
	const gib = 1 << 30
	return int((Memory() + gib/2) / gib)
}

// Memory is the machine's memory in bytes, without the part that the kernel keeps. It is 0 if it cannot be read.
func Memory() uint64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return info.Totalram * uint64(info.Unit)
}
