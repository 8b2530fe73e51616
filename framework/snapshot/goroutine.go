package snapshot

import (
	"regexp"
	"strconv"
	"strings"
)

// Goroutine is one goroutine of a Go program.
type Goroutine struct {
	ID int `json:"id"`
	// State is the runtime's word, with how long it has been so: "syscall, 2
	// minutes".
	State string `json:"state"`
	// Functions are on its stack, the innermost first.
	Functions []string `json:"functions"`
}

// WaitsForIPVS tells whether it waits for the kernel's answer to a question
// about IPVS, as kube-proxy asks it through libnetwork.
func (g Goroutine) WaitsForIPVS() bool {
	receiving := false
	for _, f := range g.Functions {
		receiving = receiving || strings.HasSuffix(f, "/nl.(*NetlinkSocket).Receive")
		if receiving && strings.HasSuffix(f, "/ipvs.execute") {
			return true
		}
	}
	return false
}

var goroutineHeader = regexp.MustCompile(`^goroutine (\d+) (?:gp=\S+ m=\S+ (?:mp=\S+ )?)?\[(.*)\]:$`)

// ParseGoroutines reads a dump of goroutines, as /debug/pprof/goroutine?debug=2
// and a crash print it.
func ParseGoroutines(dump string) []Goroutine {
	var all []Goroutine
	for block := range strings.SplitSeq(dump, "\n\n") {
		lines := strings.Split(strings.TrimSpace(block), "\n")
		header := goroutineHeader.FindStringSubmatch(lines[0])
		if header == nil {
			continue
		}
		g := Goroutine{State: header[2]}
		g.ID, _ = strconv.Atoi(header[1]) // digits only
		for _, line := range lines[1:] {
			if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "created by ") {
				continue
			}
			if i := strings.LastIndexByte(line, '('); i > 0 {
				line = line[:i]
			}
			g.Functions = append(g.Functions, line)
		}
		all = append(all, g)
	}
	return all
}
