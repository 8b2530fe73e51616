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
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/relapse-dev/relapse/topology/each"
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
		fmt.Fprintf(&b, "case $mode in *%s) echo; echo '== syncs'; %s -e '^%s{' -e '^%s' -e '^%s' -e '^%s' <&3;; esac\n",
			NFTables, metrics, buildInfo, lastSync, lastQueued, failedSyncs)
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
	var p Proxy
	for section := range strings.SplitSeq("\n"+output, "\n== ") {
		name, text, _ := strings.Cut(section, "\n")
		if err := p.take(name, text); err != nil {
			return Proxy{}, err
		}
	}
	return p, nil
}

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
		p.Counters, _, err = p.metrics(text)
	case "syncs":
		if p.Health.Status == http.StatusOK {
			p.Health.LastUpdated = time.Time{} // it is the time of the answer
		}
		_, p.Syncs, err = p.metrics(text)
	case "goroutines":
		status, body := readResponse(text)
		p.Dumped = status == http.StatusOK
		p.Goroutines = each.Where(ParseGoroutines(body), Goroutine.WaitsForIPVS)
	case "log":
		if p.LogLines, err = strconv.Atoi(strings.TrimSpace(text)); err != nil {
			return fmt.Errorf("counting lines in kube-proxy's log: %w", err)
		}
	case "table":
		p.Table, err = ParseIPVS(text)
	}
	return err
}

// Metrics of kube-proxy. From 1.33 on the metrics of syncs have a label for the family.
const (
	buildInfo   = "kubernetes_build_info"
	lastSync    = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
	lastQueued  = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
	failedSyncs = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
)

// metrics reads the metrics of an answer by name, and the syncs by family; nil of an answer without metrics.
func (p *Proxy) metrics(answer string) (values map[string]float64, syncs map[string]ProxySync, err error) {
	status, body := readResponse(answer)
	if status != http.StatusOK {
		return nil, nil, nil
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body + "\n"))
	if err != nil {
		return nil, nil, fmt.Errorf("reading kube-proxy's metrics: %w", err)
	}
	values, syncs = map[string]float64{}, map[string]ProxySync{}
	for name, f := range families {
		for _, m := range f.Metric {
			label, value := map[string]string{}, m.GetUntyped().GetValue()
			for _, l := range m.Label {
				label[l.GetName()] = l.GetValue()
			}
			values[name] = value
			sync := syncs[label["ip_family"]]
			switch at := time.UnixMicro(int64(value * 1e6)).UTC(); {
			case name == buildInfo:
				p.Version = strings.TrimPrefix(label["git_version"], "v")
				continue
			case name == failedSyncs:
				sync.Failed = int(value)
			case name == lastSync && value > 0:
				sync.Last = at
			case name == lastQueued && value > 0:
				sync.Queued = at
			}
			syncs[label["ip_family"]] = sync
		}
	}
	return values, syncs, nil
}

// readResponse takes an HTTP response apart. A server that did not answer has status 0.
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
	var says struct {
		LastUpdated, CurrentTime string
		NodeEligible, Healthy    *bool // from 1.28 and 1.34 on
		Status                   map[string]struct {
			LastUpdated string
			Healthy     bool
		}
	}
	if err := json.Unmarshal([]byte(body), &says); err != nil {
		return h, fmt.Errorf("reading kube-proxy's healthz: %w", err)
	}
	h.Leaving = says.NodeEligible != nil && !*says.NodeEligible && (says.Healthy == nil || *says.Healthy)
	for _, family := range says.Status {
		if !family.Healthy {
			says.LastUpdated = family.LastUpdated // else it is of the family that is well
		}
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
