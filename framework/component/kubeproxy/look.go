package kubeproxy

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Look is what kube-proxy says of itself at one moment.
type Look struct {
	At   time.Time
	Mode Mode
	// Syncs is how many syncs it has finished since it was started.
	Syncs int
	// Waiting are the numbers of its goroutines that wait for the kernel's
	// answer about IPVS.
	Waiting []int
	// Walked is how many entries of the graceful-termination list its log tells
	// of, for the watched Service: each once when it is to go onto the list, and
	// once with each tick.
	Walked int
}

// String is one line of a log of looks.
func (l Look) String() string {
	return fmt.Sprintf("%s %3d syncs, %4d entries walked, waiting %v", l.At.Format("15:04:05.0"), l.Syncs, l.Walked, l.Waiting)
}

// SyncMetric counts finished syncs; it is 1.13's name.
const SyncMetric = "kubeproxy_sync_proxy_rules_latency_microseconds_count"

// lookScript prints what a look is made of, with lines of == in between. It is
// one command of few and small processes, for each takes some tens of
// milliseconds on a guest without hardware support, and takes them from
// kube-proxy. Of several logs the newest is that of the pod that runs.
const lookScript = `
ask() { exec 3<>/dev/tcp/127.0.0.1/10249 && printf 'GET %%s HTTP/1.0\r\n\r\n' "$1" >&3; }
ask /proxyMode && cat <&3 && printf '\n==\n' || exit
ask /metrics && grep -e ^HTTP/ -e "^%s " <&3; printf '\n==\n'
ask '/debug/pprof/goroutine?debug=2' && cat <&3; printf '\n==\n'
for f in /var/log/pods/kube-system_kube-proxy-*/kube-proxy/*.log; do [ "$f" -nt "$log" ] && log=$f; done
grep -c "Trying to delete rs: %s" "$log"
true`

// lookWithin bounds a look: on a busy machine one took 6 s.
const lookWithin = 30 * time.Second

func (p Proxy) lookScript() string { return fmt.Sprintf(lookScript, SyncMetric, p.Watched) }

// Look looks at kube-proxy. One that does not answer, or not to all of it, is
// an error.
func (p Proxy) Look(ctx context.Context, lab *kindlab.Lab) (Look, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	text, err := lab.Node(p.Node).Exec(ctx, "bash", "-c", p.lookScript())
	if err != nil {
		return Look{}, err
	}
	return parseLook(text, time.Now())
}

// parseLook reads what the script printed.
func parseLook(text string, at time.Time) (Look, error) {
	parts := strings.Split(text, "\n==\n")
	if len(parts) != 4 {
		return Look{}, fmt.Errorf("reading what kube-proxy says: %d parts, not 4", len(parts))
	}
	for _, answer := range parts[:3] {
		// Metrics that were not read must not count as no syncs, nor a dump that
		// was not read as no goroutines.
		if status, _, _ := strings.Cut(answer, "\n"); !strings.HasPrefix(status, "HTTP/1.0 200 ") {
			return Look{}, fmt.Errorf("asking kube-proxy: it answers %q", status)
		}
	}
	_, mode, _ := strings.Cut(parts[0], "\r\n\r\n") // after the header
	_, dump, _ := strings.Cut(parts[2], "\r\n\r\n")
	l := Look{At: at, Mode: Mode(mode), Waiting: WaitingForIPVS(dump)}
	var err error
	if l.Syncs, err = finishedSyncs(parts[1]); err != nil {
		return Look{}, fmt.Errorf("reading kube-proxy's metrics: %w", err)
	}
	if l.Walked, err = strconv.Atoi(strings.TrimSpace(parts[3])); err != nil {
		return Look{}, fmt.Errorf("counting in kube-proxy's log: %w", err)
	}
	return l, nil
}

// finishedSyncs is how many syncs kube-proxy has finished, by its metrics.
func finishedSyncs(metrics string) (int, error) {
	for line := range strings.Lines(metrics) {
		if count, ok := strings.CutPrefix(line, SyncMetric+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(count), 64)
			return int(n), err
		}
	}
	return 0, nil // it appears with the first sync
}

// WaitingForIPVS names the goroutines of a dump that wait for the kernel's
// answer about IPVS.
func WaitingForIPVS(dump string) []int {
	var waiting []int
	for _, g := range snapshot.ParseGoroutines(dump) {
		if g.WaitsForIPVS() {
			waiting = append(waiting, g.ID)
		}
	}
	return waiting
}

// Goroutines dumps kube-proxy's goroutines, as a crash would print them. That
// stops the program for a moment.
func (p Proxy) Goroutines(ctx context.Context, lab *kindlab.Lab) (string, error) {
	return p.ask(ctx, lab, "/debug/pprof/goroutine?debug=2")
}

// RunsIn asks kube-proxy for its mode, which is not the one that it was told
// where it could not have that one.
func (p Proxy) RunsIn(ctx context.Context, lab *kindlab.Lab) (Mode, error) {
	mode, err := p.ask(ctx, lab, "/proxyMode")
	return Mode(mode), err
}

// ask asks kube-proxy for a path of what it serves on its node's loopback.
func (p Proxy) ask(ctx context.Context, lab *kindlab.Lab, path string) (string, error) {
	return lab.Node(p.Node).Exec(ctx, "curl", "-sS", "-m", "5", "http://127.0.0.1:10249"+path)
}
