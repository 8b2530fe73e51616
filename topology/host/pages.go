package host

import (
	"fmt"
	"os"
	"strings"
)

// judgePages is a check that a machine passes in any case: small pages cost only time. text is
// the kernel's setting for anonymous memory in pages of 64 KiB, empty before Linux 6.8
// (admin-guide/mm/transhuge in the kernel's documentation). Enlarge reports whether set-up
// switches them on, which it does only where nobody has chosen a setting.
//
// Compilers touch much memory once. On a virtual machine on which a page fault took 3 µs, compiling
// client-go's applyconfigurations/core/v1 with its imports took 65 s of CPU time in place of 80.
func judgePages(text string, contained bool) (c Check, enlarge bool) {
	setting := selected(text)
	if setting == "" {
		return passed("memory pages", "the kernel has no setting for pages of 64 KiB"), false
	}
	c = passed("memory pages", "pages of 64 KiB: "+setting)
	enlarge = setting == "never" && !contained
	if enlarge {
		c.Found += ", with which builds of images take longer; set-up changes it"
	}
	return c, enlarge
}

// selected is the selected word of a setting such as "always inherit madvise [never]".
func selected(text string) string {
	_, rest, _ := strings.Cut(text, "[")
	word, _, _ := strings.Cut(rest, "]")
	return word
}

// isContained reports whether this process runs in a container: it is not in the kernel's first PID
// namespace, whose inode is always 0xEFFFFFFC (PROC_PID_INIT_INO in the kernel's linux/proc_ns.h).
// Kernel settings for the machine's convenience are then not this set-up's to change. Files such as
// /.dockerenv tell nothing: a virtual machine made from a container's image has them.
func isContained() bool {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	return err != nil || namespace != fmt.Sprintf("pid:[%d]", uint32(0xEFFFFFFC))
}

// enlargePages switches pages of 64 KiB on until the next boot. If the kernel refuses, builds
// only take longer.
func (h host) enlargePages(announce func(string)) {
	if err := h.raiseLimits(map[string]string{h.pages: "always"}, announce); err != nil {
		announce(fmt.Sprintf("going on with smaller pages: %v", err))
	}
}
