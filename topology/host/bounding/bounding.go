// Package bounding reads a capability bounding set: the limit of the capabilities
// that a process and its children can have.
package bounding

import (
	"fmt"
	"strings"

	"github.com/moby/sys/capability"
)

// Missing returns the names (CAP_...) of the capabilities that the kernel has and the bounding
// set of a process lacks, in the kernel's order. Process 0 is this one.
func Missing(pid int) ([]string, error) {
	set, err := capability.NewPid2(pid)
	if err == nil {
		err = set.Load()
	}
	if err != nil {
		return nil, fmt.Errorf("reading the capability bounding set: %w", err)
	}
	all, err := capability.ListSupported()
	if err != nil {
		return nil, fmt.Errorf("reading the kernel's newest capability: %w", err)
	}
	var names []string
	for _, c := range all {
		if !set.Get(capability.BOUNDING, c) {
			names = append(names, "CAP_"+strings.ToUpper(c.String()))
		}
	}
	return names, nil
}
