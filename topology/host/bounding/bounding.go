// Package bounding reads a capability bounding set: what no process below
// can ever hold, whatever it asks for.
package bounding

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/moby/sys/capability"
)

// Set is a capability bounding set, one bit a capability, as the kernel
// prints it.
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

// Missing returns the names (CAP_...) of the capabilities up to last, the
// newest that the kernel knows, that s lacks; in the kernel's order.
func (s Set) Missing(last capability.Cap) []string {
	var names []string
	for _, c := range capability.ListKnown() {
		if c <= last && s&(1<<c) == 0 {
			names = append(names, "CAP_"+strings.ToUpper(c.String()))
		}
	}
	return names
}
