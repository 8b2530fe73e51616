package snapshot

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Proxy is the kube-proxy of one node: what it says of itself, and the IPVS
// table of its node's kernel.
type Proxy struct {
	Node string `json:"node"`
	// Read, Error and Took are as in List. A node on which no kube-proxy
	// answers is read.
	Read  bool          `json:"read"`
	Error string        `json:"error,omitempty"`
	Took  time.Duration `json:"took_ns"`
	// Mode is the one that it runs in, such as ipvs or iptables, in its own
	// words; empty if it does not answer.
	Mode   string      `json:"mode,omitempty"`
	Health ProxyHealth `json:"health"`
	// Table is the IPVS table. A kernel without IPVS has none.
	Table []VirtualServer `json:"table,omitempty"`
	// Goroutines are those that wait for the kernel's answer about IPVS. They
	// are asked for only while kube-proxy is not well.
	Goroutines []Goroutine `json:"goroutines,omitempty"`
}

// ProxyHealth is what kube-proxy's /healthz says.
type ProxyHealth struct {
	// Status is the HTTP status, 0 if kube-proxy does not answer: 503 says
	// that the last sync is longer ago than twice the sync period.
	Status int `json:"status"`
	// LastUpdated is when it last finished a sync, CurrentTime when it said
	// so, both by its node's clock. Before the first sync LastUpdated is zero.
	LastUpdated time.Time `json:"last_updated,omitzero"`
	CurrentTime time.Time `json:"current_time,omitzero"`
}

// Late tells whether kube-proxy says that its last sync is too long ago.
func (h ProxyHealth) Late() bool { return h.Status == http.StatusServiceUnavailable }

// Age is how long ago the last sync was finished, zero if that is not known.
func (h ProxyHealth) Age() time.Duration {
	if h.LastUpdated.IsZero() || h.CurrentTime.IsZero() {
		return 0
	}
	return h.CurrentTime.Sub(h.LastUpdated)
}

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

// ProxyReader reads the kube-proxy of one node. NodeProxy makes one.
type ProxyReader func(context.Context) (Proxy, error)

// proxyScript prints all that is read of a node's kube-proxy. It is one
// command of few processes, because on a guest without hardware support each of
// them costs some tens of milliseconds. The table comes last: so it is never
// older than the last sync that healthz tells of. The dump of the goroutines
// stops the program for a moment, and so is taken of one that is not well only.
const proxyScript = `
ask() { exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3 && cat <&3; }
exec 2>/dev/null
echo "== mode"; ask 10249 /proxyMode
health=$(ask 10256 /healthz); echo; echo "== healthz"; echo "$health"
case $health in *" 503 "*) echo "== goroutines"; ask 10249 '/debug/pprof/goroutine?debug=2';; esac
echo; echo "== table"; cat /proc/net/ip_vs
true`

// NodeProxy makes a ProxyReader of a function that runs a command on a node,
// as root, and returns its output. Only what listens on the node's loopback
// is asked, so it works for every kube-proxy with the default ports. The dump
// of the goroutines takes one that runs with --profiling.
func NodeProxy(exec func(ctx context.Context, command ...string) (string, error)) ProxyReader {
	return func(ctx context.Context) (Proxy, error) {
		output, err := exec(ctx, "bash", "-c", proxyScript)
		if err != nil {
			return Proxy{}, fmt.Errorf("asking kube-proxy: %w", err)
		}
		return parseProxy(output)
	}
}

func parseProxy(output string) (Proxy, error) {
	var p Proxy
	for section := range strings.SplitSeq("\n"+output, "\n== ") {
		name, text, _ := strings.Cut(section, "\n")
		var err error
		switch name {
		case "table":
			p.Table, err = ParseIPVS(text)
		case "mode":
			if status, body := readResponse(text); status == http.StatusOK {
				p.Mode = strings.TrimSpace(body)
			}
		case "healthz":
			p.Health, err = parseHealth(readResponse(text))
		case "goroutines":
			_, body := readResponse(text)
			for _, g := range ParseGoroutines(body) {
				if g.WaitsForIPVS() {
					p.Goroutines = append(p.Goroutines, g)
				}
			}
		}
		if err != nil {
			return Proxy{}, err
		}
	}
	return p, nil
}

// readResponse takes an HTTP response apart; 0 is the status of a server that
// did not answer.
func readResponse(text string) (status int, body string) {
	response, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	// What there is of a body that was cut short is worth having.
	all, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(all)
}

func parseHealth(status int, body string) (ProxyHealth, error) {
	h := ProxyHealth{Status: status}
	if status == 0 {
		return h, nil
	}
	var says struct{ LastUpdated, CurrentTime string }
	if err := json.Unmarshal([]byte(body), &says); err != nil {
		return h, fmt.Errorf("reading kube-proxy's healthz: %w", err)
	}
	var err error
	if h.LastUpdated, err = parseGoTime(says.LastUpdated); err != nil {
		return h, fmt.Errorf("reading kube-proxy's healthz: lastUpdated: %w", err)
	}
	if h.CurrentTime, err = parseGoTime(says.CurrentTime); err != nil {
		return h, fmt.Errorf("reading kube-proxy's healthz: currentTime: %w", err)
	}
	return h, nil
}

// parseGoTime reads what time.Time.String prints: kube-proxy puts that into
// its JSON.
func parseGoTime(text string) (time.Time, error) {
	text, _, _ = strings.Cut(text, " m=")
	return time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", text)
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
