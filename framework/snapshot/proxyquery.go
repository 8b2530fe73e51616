package snapshot

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"
)

// ProxyQuery says what is asked of a node's kube-proxy beside its mode. Only what listens on the
// node's loopback is asked, so it works for every kube-proxy with the default ports. The dump of
// the goroutines takes one that runs with --profiling.
type ProxyQuery struct {
	// Health asks for /healthz, and of a kube-proxy that is not well, or that finished its last
	// sync at Synced, for a dump of its goroutines. Zero is no such time.
	Health bool
	Synced time.Time
	// Counters are names of metrics without labels.
	Counters []string
	// Goroutines asks for the dump in any case. It stops the program for a moment.
	Goroutines bool
	// LogLines is a text: the lines that have it are counted in the log of the
	// newest kube-proxy pod. Empty: none are.
	LogLines string
	// Table asks for the IPVS table. It is read last, so that it is never older
	// than the last sync that Health reports.
	Table bool
}

// script prints all answers, each under its name. It is one command of few and
// small processes: on a guest without hardware support each of them costs some
// tens of milliseconds, and takes them from kube-proxy.
func (q ProxyQuery) script() string {
	var b strings.Builder
	section := func(name, commands string) { fmt.Fprintf(&b, "echo; echo '== %s'; %s\n", name, commands) }
	b.WriteString(`get() { exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3; }` + "\nexec 2>/dev/null\n")
	const goroutines = "get 10249 '/debug/pprof/goroutine?debug=2' && cat <&3"
	b.WriteString("mode=$(get 10249 /proxyMode && cat <&3)\n")
	section("mode", `echo "$mode"`)
	if q.Health {
		b.WriteString("health=$(get 10256 /healthz && cat <&3)\n")
		section("healthz", `echo "$health"`)
		if !q.Goroutines {
			unwell := "*' 503 '*"
			if !q.Synced.IsZero() {
				unwell += "|*" + shellescape.Quote(`"`+q.Synced.Format(goTime)) + "*"
			}
			fmt.Fprintf(&b, "case $health in %s) echo; echo '== goroutines'; %s;; esac\n", unwell, goroutines)
		}
	}
	// The empty line ends the header, which has to be there.
	const metrics = "get 10249 /metrics && grep -e ^HTTP/ -e $'^\\r$'"
	if len(q.Counters) > 0 {
		patterns := ""
		for _, name := range q.Counters {
			patterns += " -e " + shellescape.Quote("^"+name+" ")
		}
		section("counters", metrics+patterns+" <&3")
	}
	if q.Health {
		fmt.Fprintf(&b, "case $mode in *%s) echo; echo '== syncs'; %s -e '^%s{' -e '^%s' -e '^%s' <&3;; esac\n", NFTables, metrics, buildInfo, lastSync, failedSyncs)
	}
	if q.Goroutines {
		section("goroutines", goroutines)
	}
	if q.LogLines != "" {
		section("log", `for f in /var/log/pods/kube-system_kube-proxy-*/kube-proxy/*.log; do [ "$f" -nt "$log" ] && log=$f; done
grep -cF -e `+shellescape.Quote(q.LogLines)+` "$log"`)
	}
	if q.Table {
		section("table", "cat /proc/net/ip_vs")
	}
	b.WriteString("true")
	return b.String()
}

// Ask asks a node's kube-proxy. One that does not answer is no error: its Mode is empty then.
func (q ProxyQuery) Ask(ctx context.Context, node interface {
	Exec(ctx context.Context, command ...string) (string, error)
}) (Proxy, error) {
	output, err := node.Exec(ctx, "bash", "-c", q.script())
	if err != nil {
		return Proxy{}, fmt.Errorf("asking kube-proxy: %w", err)
	}
	return parseProxy(output)
}

func parseProxy(output string) (Proxy, error) {
	var p Proxy
	for section := range strings.SplitSeq("\n"+output, "\n== ") {
		name, text, _ := strings.Cut(section, "\n")
		if err := p.take(name, text); err != nil {
			return Proxy{}, err
		}
	}
	return p, nil
}

// take reads what one section of the script's output says.
func (p *Proxy) take(section, text string) error {
	var err error
	switch section {
	case "mode":
		if status, body := readResponse(text); status == http.StatusOK {
			p.Mode = strings.TrimSpace(body)
		}
	case "healthz":
		p.Health, err = parseHealth(readResponse(text))
	case "counters":
		if status, body := readResponse(text); status == http.StatusOK {
			p.Counters, err = parseCounters(body)
		}
	case "syncs":
		if status, body := readResponse(text); status == http.StatusOK {
			err = p.takeSyncs(body)
		}
	case "goroutines":
		status, body := readResponse(text)
		p.Dumped = status == http.StatusOK
		for _, g := range ParseGoroutines(body) {
			if g.WaitsForIPVS() {
				p.Goroutines = append(p.Goroutines, g)
			}
		}
	case "log":
		if p.LogLines, err = strconv.Atoi(strings.TrimSpace(text)); err != nil {
			return fmt.Errorf("counting lines in kube-proxy's log: %w", err)
		}
	case "table":
		p.Table, err = ParseIPVS(text)
	}
	return err
}

// Metrics of kube-proxy. From 1.33 on those of syncs have a label for the family.
const (
	buildInfo   = "kubernetes_build_info"
	lastSync    = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
	failedSyncs = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
)

// takeSyncs reads what the metrics of a kube-proxy in mode nftables say. Its /healthz names no time of a sync while it is well.
func (p *Proxy) takeSyncs(metrics string) error {
	var last float64
	for line := range strings.Lines(metrics) {
		name, labels, _ := strings.Cut(strings.TrimSpace(line), "{")
		text := line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:]
		name, _, _ = strings.Cut(name, " ")
		value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			return fmt.Errorf("reading kube-proxy's metrics: %s: %w", name, err)
		}
		switch name {
		case buildInfo:
			_, version, _ := strings.Cut(labels, `git_version="v`)
			p.Version, _, _ = strings.Cut(version, `"`)
		case lastSync:
			last = max(last, value)
		case failedSyncs:
			p.FailedSyncs += int(value)
		}
	}
	p.Health.LastUpdated = time.Time{}
	if last > 0 {
		p.Health.LastUpdated = time.UnixMicro(int64(last * 1e6)).UTC()
	}
	return nil
}

func parseCounters(metrics string) (map[string]float64, error) {
	counters := map[string]float64{}
	for line := range strings.Lines(metrics) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" {
			continue
		}
		var err error
		if counters[name], err = strconv.ParseFloat(value, 64); err != nil {
			return nil, fmt.Errorf("reading kube-proxy's metrics: %s: %w", name, err)
		}
	}
	return counters, nil
}

// readResponse takes an HTTP response apart; 0 is the status of a server that did not answer.
func readResponse(text string) (status int, body string) {
	response, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	// A body that was cut short is used as far as it goes.
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

// goTime is what time.Time.String prints, but for the monotonic reading: kube-proxies before
// 1.34 put that into their JSON, and later ones RFC 3339.
const goTime = "2006-01-02 15:04:05.999999999 -0700 MST"

func parseGoTime(text string) (time.Time, error) {
	text, _, _ = strings.Cut(text, " m=")
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	return time.Parse(goTime, text)
}
