// Package bounding reads a capability bounding set: the limit of the capabilities
// that a process and its children can have.
package bounding

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/moby/sys/capability"
)

// Set is a capability bounding set, one bit for each capability.
type Set uint64

// Parse reads the set from the text of /proc/<pid>/status.
func Parse(status string) (Set, error) {
	for line := range strings.Lines(status) {
		if hex, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("reading CapBnd: %w", err)
			}
			return Set(bits), nil
		}
	}
	return 0, fmt.Errorf("no CapBnd line in the process's status")
}

// Missing returns the names (CAP_...) of the capabilities that s lacks, up to
// last, the kernel's newest, in the kernel's order.
func (s Set) Missing(last capability.Cap) []string {
	var names []string
	for _, c := range capability.ListKnown() {
		if c <= last && s&(1<<c) == 0 {
			names = append(names, "CAP_"+strings.ToUpper(c.String()))
		}
	}
	return names
}
