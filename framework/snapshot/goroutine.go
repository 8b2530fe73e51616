package snapshot

import (
	"hash/fnv"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// Goroutine is one goroutine of a Go program.
type Goroutine struct {
	ID int `json:"id"`
	// Functions are on its stack, the innermost first.
	Functions []string `json:"functions"`
	// Call is a hash of the question about IPVS whose answer it waits for: ipvs.execute and the
	// functions that led there, with their arguments, such as the Service that it asks about. A
	// goroutine that has the same in two snapshots has been waiting from the first to the second.
	// It is empty where it does not wait for IPVS, and in older records.
	Call string `json:"call,omitempty"`
}

// ipvsExecute is libnetwork's function that asks the kernel about IPVS.
const ipvsExecute = "/ipvs.execute"

// WaitsForIPVS reports whether it waits for the kernel's answer to a question about IPVS, which kube-proxy asks
// through libnetwork.
func (g Goroutine) WaitsForIPVS() bool {
	receiving := false
	for _, f := range g.Functions {
		receiving = receiving || strings.HasSuffix(f, "/nl.(*NetlinkSocket).Receive")
		if receiving && strings.HasSuffix(f, ipvsExecute) {
			return true
		}
	}
	return false
}

var goroutineHeader = regexp.MustCompile(`^goroutine (\d+) (?:gp=\S+ m=\S+ (?:mp=\S+ )?)?\[.*\]:$`)

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
		var g Goroutine
		g.ID, _ = strconv.Atoi(header[1]) // digits only
		var question []string
		for _, line := range lines[1:] {
			if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "created by ") {
				continue
			}
			function := line
			if i := strings.LastIndexByte(line, '('); i > 0 {
				function = line[:i]
			}
			g.Functions = append(g.Functions, function)
			// What execute calls it calls again every 3 s, as long as no answer comes.
			if len(question) > 0 || strings.HasSuffix(function, ipvsExecute) {
				question = append(question, line)
			}
		}
		if g.WaitsForIPVS() {
			call := fnv.New64a()
			io.WriteString(call, strings.Join(question, "\n"))
			g.Call = strconv.FormatUint(call.Sum64(), 16)
		}
		all = append(all, g)
	}
	return all
}
